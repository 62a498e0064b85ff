//! The published experiment in the engine alone, with its own sizes, by a clock that is set.

use writeback::{Owner, Policy};

use super::model::Model;
use super::{MIB, SYNC};
use crate::report::Recorder;

/// What the published device took in a second, as its boosted syncs show.
const STORE: u64 = 256 * MIB;
const WRITERS: u64 = 16;
const WRITER: u64 = 32 * MIB;

pub(super) fn note() -> String {
    format!(
        "`simulated`: {WRITERS} files of {} MiB, 1 MiB/s, a store of {} MiB/s, by a clock that is set; `own-cgroup`: the sync is the \
         limited cgroup's own.",
        WRITER / MIB,
        STORE / MIB
    )
}

/// One variant; `unloaded` is what the store needs for that data by itself.
pub(super) fn run(variant: &str, scenario: &str, recorder: &mut Recorder) {
    let policy = match variant {
        "vanilla" => Policy::Vanilla,
        "isolated" => Policy::Isolated,
        _ => Policy::Boost,
    };
    let caller = if scenario == "own-cgroup" { "/slow" } else { "/other" };
    let model = Model::new(STORE);
    let slow = model.cgroup(1, Owner::ROOT, "slow");
    model.cgroup(2, Owner::ROOT, "other");
    if variant != "unloaded" {
        model.limit("/slow", "wbps=1M");
    }
    let files: Vec<_> = (0..WRITERS).map(|_| model.file(slow, WRITER)).collect();
    let took = model.sync(caller, policy);
    recorder.value(scenario, variant, SYNC, took.as_secs_f64() * 1e3);
    drop(files);
}
