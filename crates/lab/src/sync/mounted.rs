//! The published experiment on a mount, with real cgroups and fio's writers: how long a caller in
//! another cgroup waits.

use anyhow::Context as _;

use super::client::Call;
use super::rig::{MountDir, ROOM_MIB, Rig, WRITER_MIB, WRITERS};
use super::{FSYNC, SYNC, SYNCFS, VERB};
use crate::report::{Metric, Recorder};

/// The limit of the throttled cgroup.
pub(super) const LIMIT_MIB: u64 = 16;
/// How often each call is made beside one fill, if it waits for nothing.
const CALLS: usize = 20;
/// The calls by the verb, which is a program with its start.
const VERBS: usize = 10;

pub(super) fn notes() -> Vec<String> {
    vec![
        format!(
            "`mounted`: {WRITERS} fio writers of {WRITER_MIB} MiB each in a cgroup limited to {LIMIT_MIB} MiB/s, all of it dirty when somebody in another \
             cgroup calls sync(2) (`sync`), syncfs(2) as `sync -f` does (`syncfs`), the verb `watertight sync` (`sync_verb`, its start included) or fsync(2) \
             of one of the files; vanilla should take {:.1} s for the first three. `unloaded`: the same without a limit. sync(2) is of all file systems of the host, of which what other programs have dirty is written before each fill. \
             `mounted-own`: the same calls by the limited cgroup itself, under boost.",
            (WRITERS * WRITER_MIB) as f64 / LIMIT_MIB as f64
        ),
        "`mounted`/`isolated`: the caller's cgroup is isolated, and nothing of its own is dirty; between them, in turn, `idle`: nothing at all is dirty, called \
         by an isolated cgroup and (`boost`) by one that is not, whose call asks the store."
            .to_owned(),
    ]
}

fn metric(call: Call) -> Metric {
    match call {
        Call::Sync => SYNC,
        Call::Syncfs => SYNCFS,
        Call::Verb => VERB,
        Call::Fsync | Call::WriteSync | Call::WriteFdatasync => FSYNC,
    }
}

/// Syncs beside a fill, each of which finds all of it dirty.
pub(super) fn run(
    dir: &MountDir,
    variant: &str,
    is_quick: bool,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    if variant == "isolated" {
        return isolated(dir, is_quick, recorder);
    }
    let (policy, limit) = match variant {
        "unloaded" => ("boost", "max".to_owned()),
        _ => (variant, format!("{LIMIT_MIB}M")),
    };
    let rig = Rig::new(dir, policy, &limit, ROOM_MIB)?;
    // Once before: the files exist, and the cost of the first use is over.
    rig.fill()?;
    rig.rest()?;
    let times = if is_quick || variant == "vanilla" { 1 } else { 3 };
    for _ in 0..times {
        for call in [Call::Syncfs, Call::Sync, Call::Verb, Call::Fsync] {
            rig.fill()?;
            let name = if call == Call::Fsync { "writer.0.0" } else { "" };
            let took = rig.once(call, name).with_context(|| format!("{variant}: {call:?}"))?;
            recorder.value("mounted", variant, metric(call), took.ms());
            rig.rest()?;
        }
    }
    if variant == "boost" {
        rig.fill()?;
        let took = dir.time(&rig.slow, Call::Syncfs, &dir.mountpoint(), 1)?;
        took.iter().for_each(|took| recorder.value("mounted-own", variant, SYNCFS, took.ms()));
    }
    rig.end()
}

/// Calls of an isolated cgroup, in turn beside nothing and beside the limited cgroup's data.
fn isolated(dir: &MountDir, is_quick: bool, recorder: &mut Recorder) -> anyhow::Result<()> {
    let rig = Rig::new(dir, "boost", &format!("{LIMIT_MIB}M"), ROOM_MIB)?;
    rig.fill()?;
    let calls = [(Call::Syncfs, CALLS), (Call::Sync, CALLS), (Call::Verb, VERBS)];
    for _ in 0..if is_quick { 1 } else { 3 } {
        for (is_isolated, variant) in [("0", "boost"), ("1", "isolated")] {
            rig.rest()?;
            rig.set(&rig.other, &format!("sync_isolation={is_isolated}"))?;
            for (call, count) in calls {
                for took in dir.time(&rig.other, call, &dir.mountpoint(), count)? {
                    recorder.value("idle", variant, metric(call), took.ms());
                }
            }
        }
        rig.fill()?;
        for (call, count) in calls {
            for took in dir.time(&rig.other, call, &dir.mountpoint(), count)? {
                recorder.value("mounted", "isolated", metric(call), took.ms());
            }
        }
    }
    rig.end()
}
