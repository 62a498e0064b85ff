//! The steps of the controller, each in a process of its own that has the call's credentials.

use std::time::Duration;

use csi_proto::tonic::Code;

use super::deadline::Deadline;
use super::failure::{Failure, Result};
use super::ids::{SnapshotId, of_clone};
use super::locks::Locks;
use super::step::{Answer, Kind, Snapshot, Step};
use crate::containers::credentials::Credentials;
use crate::containers::program::{self, Launch};

/// How long a step may take; then its process is ended. A deletion goes on where it was ended.
const STEP_MAX: Duration = Duration::from_secs(1800);

/// A call's way to the bucket.
#[derive(Debug)]
pub(super) struct Bucket<'l> {
    pub(super) locks: &'l Locks,
    /// Whose turn it is.
    pub(super) key: String,
    pub(super) deadline: Deadline,
    pub(super) credentials: Credentials,
}

/// A volume to be made.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) url: String,
    /// URLs above it, none of which may be a volume.
    pub(super) above: Vec<String>,
    pub(super) compress: Option<String>,
    pub(super) size: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) source: Option<(String, Option<String>)>,
}

impl Bucket<'_> {
    async fn work<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Launch) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let launch = Launch { credentials: self.credentials.clone(), ..Launch::default() };
        self.locks.call(&self.key, what, self.deadline.left(), move || work(&launch)).await
    }

    /// Has a step done.
    pub(super) async fn ask(&self, what: &'static str, step: Step) -> Result<Answer> {
        self.work(what, move |launch| ask(launch, &step)).await
    }

    /// Makes a volume, unless it is there; returns its quota.
    pub(super) async fn create(&self, made: Made) -> Result<Option<u64>> {
        self.work("creating it", move |launch| create(launch, made)).await
    }

    /// Makes a snapshot, unless it is there.
    pub(super) async fn create_snapshot(&self, url: String, name: String) -> Result<Snapshot> {
        let work = move |launch: &Launch| {
            if let Some(there) = find(launch, &url, &name)? {
                return Ok(there);
            }
            snapshot(launch, "create", &url, &name)?;
            find(launch, &url, &name)?
                .ok_or_else(|| Failure::internal(format!("{url}: the snapshot {name} is gone again")))
        };
        self.work("making a snapshot of it", work).await
    }

    /// Deletes a snapshot, if it is there.
    pub(super) async fn delete_snapshot(&self, id: SnapshotId) -> Result<()> {
        let work = move |launch: &Launch| match find(launch, &id.volume, &id.name) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => snapshot(launch, "delete", &id.volume, &id.name),
            Err(failure) if failure.code == Code::NotFound => Ok(()),
            Err(failure) => Err(failure),
        };
        self.work("deleting a snapshot of it", work).await
    }
}

fn ask(launch: &Launch, step: &Step) -> Result<Answer> {
    let question = serde_json::to_vec(step).map_err(|error| Failure::internal(error.to_string()))?;
    let answer = program::ask(launch, &["csi-step"], &question, Some(STEP_MAX));
    let answer = answer.map_err(|why| Failure::new(Code::Unavailable, why))?;
    match serde_json::from_slice(&answer).map_err(|error| Failure::internal(error.to_string()))? {
        Answer::Failed { kind, words } => {
            let code = match kind {
                Kind::NotFound => Code::NotFound,
                Kind::Other => Code::AlreadyExists,
                Kind::Busy | Kind::Nested => Code::FailedPrecondition,
                Kind::Invalid => Code::InvalidArgument,
                Kind::TooBig => Code::ResourceExhausted,
                Kind::Unavailable => Code::Unavailable,
            };
            Err(Failure::new(code, words))
        }
        answer => Ok(answer),
    }
}

fn create(launch: &Launch, made: Made) -> Result<Option<u64>> {
    let Made { url, above, compress, size, limit, source } = made;
    let source = match source {
        Some((from, None)) => {
            let name = of_clone(&url);
            if !is_there(launch, Step::Look { url: url.clone() })? {
                // What it has now: where a process of this host holds it, that one makes the snapshot.
                ask(launch, &Step::Look { url: from.clone() })?;
                let look = Step::LookForSnapshot { url: from.clone(), name: name.clone() };
                // An earlier call may have made it.
                if !is_there(launch, look)? {
                    snapshot(launch, "create", &from, &name)?;
                }
            }
            Some((from, name))
        }
        Some((from, Some(name))) => Some((from, name)),
        None => None,
    };
    match ask(launch, &Step::Create { url, above, compress, size, limit, source })? {
        Answer::Volume { bytes } => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}

/// Whether what a step looks for is there.
fn is_there(launch: &Launch, look: Step) -> Result<bool> {
    match ask(launch, &look) {
        Ok(_) => Ok(true),
        Err(failure) if failure.code == Code::NotFound => Ok(false),
        Err(failure) => Err(failure),
    }
}

fn find(launch: &Launch, url: &str, name: &str) -> Result<Option<Snapshot>> {
    match ask(launch, &Step::Snapshots { url: url.to_owned() })? {
        Answer::Snapshots { all, .. } => Ok(all.into_iter().find(|one| one.name == name)),
        other => Err(unexpected(&other)),
    }
}

/// Makes or deletes a snapshot by the verb, which asks the process of this host that holds the
/// volume, if there is one.
fn snapshot(launch: &Launch, action: &str, url: &str, name: &str) -> Result<()> {
    let done = program::run_as(launch, &["snapshot", action, "--", url, name], Some(STEP_MAX));
    done.map_err(Failure::not_ready)
}

/// A step's answer that is none to what was asked.
pub(super) fn unexpected(answer: &Answer) -> Failure {
    Failure::internal(format!("a step answered what was not asked for: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::turns::tests::run;

    #[test]
    fn the_steps_of_a_call_end_by_one_deadline() {
        run(async {
            let locks = Locks::default();
            let deadline = Deadline::within(Duration::from_millis(400));
            let bucket =
                Bucket { locks: &locks, key: "a".to_owned(), deadline, credentials: Credentials::default() };
            let step = || {
                bucket.work("waiting", |_| {
                    std::thread::sleep(Duration::from_millis(250));
                    Ok(())
                })
            };
            assert_eq!(step().await, Ok(()));
            assert_eq!(step().await.unwrap_err().code, Code::Aborted);
        });
    }
}
