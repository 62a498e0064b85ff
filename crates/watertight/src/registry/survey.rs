//! All volumes of the host, asked at the same time.
//!
//! Each process is asked once for all that it serves, on a thread of its own: a process that does
//! not answer delays no other answer, and the whole only by as long as an answer may take.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sync::Mutex;

use crate::control::api::Status;
use crate::control::client::{Allowance, CallError, Client};
use crate::control::volume_id::VolumeId;
use crate::host::process;
use crate::registry::{Record, RuntimeDir};

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Processes that are asked at a time.
const AT_ONCE: usize = 512;
/// The most that all processes of another user together may answer, in bytes.
const FOREIGN_BYTES_MAX: usize = 32 << 20;
/// The stack of a thread that asks.
const STACK: usize = 512 << 10;

/// The result of a survey.
#[derive(Debug, Default)]
pub struct Survey {
    /// The volumes of processes that answer, the newest first.
    pub volumes: Vec<Status>,
    /// Volumes that ended, or whose process is gone.
    pub ended: Vec<Record>,
    /// Volumes whose process does not answer, and why.
    pub silent: Vec<(Record, String)>,
}

impl Survey {
    /// Asks all processes.
    #[must_use]
    pub fn now() -> Self {
        Self::within(PATIENCE)
    }

    /// A survey in which a process may take only so long to answer.
    #[must_use]
    pub fn within(patience: Duration) -> Self {
        process::raise_descriptors();
        let mut all = Self::default();
        for dir in RuntimeDir::readable() {
            // All of another user's processes together have the time of one.
            let allowance = dir.is_foreign().then(|| Allowance::new(patience, FOREIGN_BYTES_MAX));
            let mut asking =
                Asking { dir: &dir, patience, allowance, known: BTreeSet::new(), silent: BTreeSet::new() };
            all.ask(&mut asking, dir.mounts());
            // Volumes that are attached to a process that answered are known by now. The rest are
            // volumes that ended, and those of processes that do not answer.
            let others = dir.others(&asking.known);
            all.ask(&mut asking, others);
        }
        all.volumes
            .sort_by(|a, b| b.started_ms.cmp(&a.started_ms).then_with(|| a.mountpoint.cmp(&b.mountpoint)));
        all
    }

    fn ask(&mut self, asking: &mut Asking<'_>, found: Vec<crate::registry::Found>) {
        let mut asked = Vec::new();
        for found in found {
            asking.known.insert(found.record.id.clone());
            match (found.client, found.silent) {
                // It was asked already.
                (Some(client), _) if asking.silent.contains(&client.pid()) => {
                    self.silent.push((found.record, "its mount process does not answer".to_owned()));
                }
                (Some(client), _) => {
                    asked.push((
                        found.record,
                        client.within(asking.patience).allowed(asking.allowance.clone()),
                    ));
                }
                (None, Some(why)) => self.silent.push((found.record, why)),
                (None, None) => self.ended.push(found.record),
            }
        }
        for ((record, client), answer) in asked.iter().zip(answers(&asked)) {
            match answer.map(|answer| answer.and_then(|told| asking.believed(record, client, told))) {
                Some(Ok(statuses)) => {
                    asking.known.extend(statuses.iter().map(|status| status.id.clone()));
                    self.volumes.extend(statuses);
                }
                // Its process may have ended between: read again how.
                Some(Err(CallError::Gone)) => {
                    self.ended.push(asking.dir.read_record(&record.id).unwrap_or_else(|| record.clone()));
                }
                Some(Err(error)) => {
                    asking.silent.insert(client.pid());
                    self.silent.push((record.clone(), error.to_string()));
                }
                None => self.silent.push((record.clone(), "cannot start a thread that asks it".to_owned())),
            }
        }
    }
}

/// The processes of one runtime directory are being asked.
struct Asking<'a> {
    dir: &'a RuntimeDir,
    patience: Duration,
    allowance: Option<Arc<Allowance>>,
    /// The volumes that were found.
    known: BTreeSet<VolumeId>,
    /// Processes that do not answer.
    silent: BTreeSet<u32>,
}

impl Asking<'_> {
    /// The answer of a process; of another user's process only the volume that was asked for. Its
    /// owner and its process are known without the answer.
    fn believed(&self, record: &Record, client: &Client, mut told: Vec<Status>) -> Answer {
        if !self.dir.is_foreign() {
            return Ok(told);
        }
        if told.first().is_none_or(|first| first.id != record.id) {
            return Err(CallError::Io("it answers for another volume".to_owned()));
        }
        for status in &mut told {
            (status.uid, status.pid) = (self.dir.uid(), client.pid());
        }
        Ok(told)
    }
}

type Answer = Result<Vec<Status>, CallError>;

fn answers(asked: &[(Record, Client)]) -> Vec<Option<Answer>> {
    let next = AtomicUsize::new(0);
    let answers: Mutex<Vec<Option<Answer>>> = Mutex::new(asked.iter().map(|_| None).collect());
    let work = || {
        loop {
            // ORDERING: Relaxed, each number is taken once.
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((record, client)) = asked.get(at) else { return };
            let answer = of_process(record, client);
            answers.lock()[at] = Some(answer);
        }
    };
    thread::scope(|scope| {
        for _ in 1..asked.len().min(AT_ONCE) {
            if thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    answers.into_inner()
}

/// A volume, and the volumes attached to its mountpoint.
fn of_process(record: &Record, client: &Client) -> Answer {
    let mut statuses = vec![client.status()?];
    if record.attached_to.is_none() {
        statuses.extend(client.attached()?);
    }
    Ok(statuses)
}
