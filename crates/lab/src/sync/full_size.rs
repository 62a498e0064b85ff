//! The published experiment with its own sizes, on a mount; and callers that sync beside writers
//! that go on, beside data of their own, and after others' syncs.

use anyhow::{Context as _, ensure};

use super::client::Call;
use super::mounted::LIMIT_MIB;
use super::rig::{MountDir, ROOM_MIB, Rig, WRITERS};
use super::{FSYNC, SYNC, SYNCFS};
use crate::report::Recorder;

/// The data that each writer of the published experiment writes, and its limit.
const WRITER_MIB: u64 = 32;
const LIMIT: &str = "1M";
/// More than the writers write.
const CACHE_MIB: u64 = 1024;
/// The dirty data of an isolated caller itself.
const OWN_MIB: u64 = 4;
/// The dirty data of the limited cgroup before a neighbour's sync, its limit, and its own fsyncs
/// before and after that.
const OWED_MIB: u64 = 12;
const FSYNCS: usize = 20;
/// Room for a quarter of the dirty data that a cgroup at its limit may have: it is used up within a
/// second.
const GOING_ON_MIB: u64 = 32;

pub(super) fn notes() -> Vec<String> {
    vec![
        format!(
            "`full-size`: as `mounted`, with the published sizes: {WRITERS} fio writers of {WRITER_MIB} MiB in a cgroup limited to {LIMIT} a second, all of it dirty when somebody \
             in another cgroup calls sync(2). Vanilla takes its {} s once in a run, and not with `--quick`.",
            WRITERS * WRITER_MIB
        ),
        format!(
            "`writers-go-on`: syncfs(2) by another cgroup while the {WRITERS} writers of the cgroup limited to {LIMIT_MIB} MiB/s write new data without end, with room for {GOING_ON_MIB} MiB. \
             `isolated`: the caller's cgroup is isolated, and has nothing of its own."
        ),
        format!(
            "`isolated-own`: syncfs(2) by an isolated cgroup that has {OWN_MIB} MiB dirty itself, beside the {} MiB of `mounted`; `isolated-own-alone`: without these. In turn.",
            WRITERS * super::rig::WRITER_MIB
        ),
        format!(
            "`own-before-sync`: {FSYNCS} times a write of 4 KiB and fdatasync(2) by a cgroup limited to {LIMIT} a second; `own-after-sync`: the same once {OWED_MIB} MiB of its data were written for another \
             cgroup's syncfs(2), and are owed."
        ),
    ]
}

/// How the mount and the caller stand to each other: policy, limit, and whether the caller is
/// isolated.
fn setting<'a>(variant: &'a str, limit: &'a str) -> (&'a str, &'a str, bool) {
    match variant {
        "unloaded" => ("boost", "max", false),
        "isolated" => ("boost", limit, true),
        policy => (policy, limit, false),
    }
}

/// The published experiment.
pub(super) fn published(dir: &MountDir, variant: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
    let (policy, limit, is_isolated) = setting(variant, LIMIT);
    let rig = Rig::with_cache(dir, policy, limit, (CACHE_MIB * 3 / 4, CACHE_MIB))?;
    rig.set(&rig.other, &format!("sync_isolation={}", u8::from(is_isolated)))?;
    rig.fill_with(WRITER_MIB)?;
    recorder.value("full-size", variant, SYNC, rig.once(Call::Sync, "")?.ms());
    rig.rest()?;
    rig.end()
}

/// A sync beside writers that do not stop for it.
pub(super) fn writers_go_on(dir: &MountDir, variant: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
    let limit = format!("{LIMIT_MIB}M");
    let (policy, limit, is_isolated) = setting(variant, &limit);
    let rig = Rig::new(dir, policy, limit, GOING_ON_MIB)?;
    rig.set(&rig.other, &format!("sync_isolation={}", u8::from(is_isolated)))?;
    let writers = match variant {
        // Without a limit they never wait for room.
        "unloaded" => rig.write_unlimited("going-on.")?,
        _ => rig.write_without_end("going-on.")?,
    };
    for _ in 0..3 {
        let took = rig.once(Call::Syncfs, "")?;
        recorder.value("writers-go-on", variant, SYNCFS, took.ms());
    }
    drop(writers);
    rig.rest()?;
    rig.remove("going-on.")?;
    rig.end()
}

/// An isolated caller with data of its own, beside nothing and beside the limited cgroup's, in
/// turn.
pub(super) fn isolated_own(dir: &MountDir, rounds: usize, recorder: &mut Recorder) -> anyhow::Result<()> {
    let rig = Rig::new(dir, "boost", &format!("{LIMIT_MIB}M"), ROOM_MIB)?;
    rig.set(&rig.other, "sync_isolation=1")?;
    for round in 0..=rounds {
        for scenario in ["isolated-own-alone", "isolated-own"] {
            if scenario == "isolated-own" {
                rig.fill()?;
            }
            rig.dirty_by_other("own", OWN_MIB)?;
            let took = rig.once(Call::Syncfs, "")?;
            let left = rig.figure("dirty_bytes")?;
            ensure!(left > 0.0 || scenario == "isolated-own-alone", "it has written its neighbour's data");
            // The first is on new files.
            if round > 0 {
                recorder.value(scenario, "isolated", SYNCFS, took.ms());
            }
            rig.rest()?;
        }
    }
    rig.end()
}

/// The limited cgroup's own fsyncs before and after another cgroup's sync of its dirty data.
pub(super) fn own_fsync(dir: &MountDir, recorder: &mut Recorder) -> anyhow::Result<()> {
    let rig = Rig::new(dir, "boost", LIMIT, ROOM_MIB)?;
    let own = |scenario, recorder: &mut Recorder| -> anyhow::Result<()> {
        let file = dir.mountpoint().join("own");
        let took = dir.time(&rig.slow, Call::WriteFdatasync, &file, FSYNCS).context(scenario)?;
        took.iter().for_each(|took| recorder.value(scenario, "boost", FSYNC, took.ms()));
        Ok(())
    };
    own("own-before-sync", recorder)?;
    rig.dirty_by_slow("owed", OWED_MIB)?;
    let _boosted = rig.once(Call::Syncfs, "")?;
    own("own-after-sync", recorder)?;
    rig.rest()?;
    rig.end()
}
