//! What a campaign shows: its rows, and the rules that these may break.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::faults::KINDS;
use super::figures::{self, Sample, trend};
use super::proxy::Proxy;
use super::rig::{Data, Rest, Rig, Sampled};
use crate::report::{Metric, Recorder};

/// The scenario.
pub(super) const STRESS: &str = "stress";

/// Bytes in the bucket by those that are needed: of a volume that has rested, and after `gc`.
const RATIO_MAX: f64 = 1.3;
/// Under load, what was written so long ago at most may be there twice: five passes of the holder's
/// collector, of which an object is found dead by three before it goes, and one moves what is alive
/// in the emptiest.
const GRACE: Duration = Duration::from_secs(5 * 300);
/// A volume that has rested for as long has no garbage that waits.
pub(super) const RESTED: Duration = GRACE;
/// A load that is shorter has no trend that counts.
const TREND_AFTER: Duration = Duration::from_secs(30 * 60);
/// The log's open end and the tables, however small a volume is.
const ALWAYS: f64 = 64.0 * MIB;
const MIB: f64 = (1 << 20) as f64;
/// What a volume that rests may have more than before the load: connections that are kept.
const TASKS_MORE: f64 = 2.0;
const OTHERS_MORE: f64 = 4.0;

type Quantity = (Metric, &'static str, &'static str, fn(&Sample) -> f64);

/// What is sampled of a process: over time, its growth, and its growth's uncertainty.
const QUANTITIES: [Quantity; 4] = [
    (Metric::new("memory", "MiB"), "growth_memory", "growth_memory_error", |s| s.memory_mib),
    (Metric::new("descriptors", ""), "growth_descriptors", "growth_descriptors_error", |s| s.descriptors),
    (Metric::new("threads", ""), "growth_threads", "growth_threads_error", |s| s.threads),
    (Metric::new("tasks", ""), "growth_tasks", "growth_tasks_error", |s| s.tasks),
];

/// Records what was sampled of a volume, and what that breaks.
pub(super) fn record(rig: &Rig, rest: &Rest, sampled: &Sampled, recorder: &mut Recorder) {
    let name = rig.volume.name;
    over_time(name, rig.whole, sampled, recorder);
    let mut value = |metric: &'static str, unit, value| {
        recorder.value(STRESS, name, Metric::new(metric, unit), value);
    };
    let mut broken = Vec::new();
    if rig.load < rig.whole {
        broken.extend(trends(rig, sampled, &mut value));
        broken.extend(rested(rig, rest, &mut value));
    }
    let filled = sampled.data.iter().filter(|data| data.needed as f64 > ALWAYS);
    let most = filled.map(|data| ratio(data.stored, data.needed)).fold(0.0, f64::max);
    value("stored_per_needed_max", "", most);
    broken.extend(beyond_bound(&sampled.data));
    if let Some(end) = &rest.end {
        value("umount", "ms", end.took.as_secs_f64() * 1000.0);
        value("stored_per_needed_unmounted", "", ratio(end.unmounted, end.needed));
        let collected = ratio(end.collected, end.needed);
        value("stored_per_needed_collected", "", collected);
        if collected > RATIO_MAX {
            broken.push(format!("after gc the bucket has {collected:.2} times what is needed"));
        }
    }
    counts(rig, recorder);
    broken.into_iter().for_each(|what| recorder.breaks(format!("seed {}: {name}: {what}", rig.seed)));
}

/// What grows.
fn trends(
    rig: &Rig,
    sampled: &Sampled,
    value: &mut impl FnMut(&'static str, &'static str, f64),
) -> Vec<String> {
    let mut broken = Vec::new();
    for (quantity, growth, error, of) in QUANTITIES {
        let series: Vec<_> = sampled.process.iter().map(|sample| (sample.at, of(sample))).collect();
        let Some(trend) = trend(&series, (rig.load / 2, rig.load)) else { continue };
        value(growth, "%", 100.0 * trend.growth / trend.mean);
        value(error, "%", 100.0 * trend.error / trend.mean);
        // Before, its caches fill.
        if rig.load >= TREND_AFTER {
            broken.extend(trend.is_flat().err().map(|why| format!("{}: {why}", quantity.name)));
        }
    }
    broken
}

fn over_time(name: &str, whole: Duration, sampled: &Sampled, recorder: &mut Recorder) {
    // A dozen points, whatever it takes; of whole minutes.
    let step = whole.as_secs().div_ceil(12 * 60).max(1);
    let minute = |at: Duration| format!("minute-{}", (at.as_secs() / (60 * step) + 1) * step);
    for (metric, _, _, of) in QUANTITIES {
        for sample in sampled.process.iter().filter(|sample| sample.at < whole) {
            recorder.value(&minute(sample.at), name, metric, of(sample));
        }
    }
    for data in sampled.data.iter().filter(|data| data.at < whole) {
        let mut value = |metric, value| recorder.value(&minute(data.at), name, metric, value);
        value(figures::STORED, data.stored as f64 / MIB);
        value(figures::NEEDED, data.needed as f64 / MIB);
        value(figures::RATIO, ratio(data.stored, data.needed));
    }
}

/// What a volume that rests has too much.
fn rested(rig: &Rig, rest: &Rest, value: &mut impl FnMut(&'static str, &'static str, f64)) -> Vec<String> {
    let (Some(before), Some((after, stored, needed))) = (&rest.before, &rest.after) else {
        return Vec::new();
    };
    let mut broken = Vec::new();
    for (name, shown, of, more) in [
        ("descriptors", "left_descriptors", (|s| s.descriptors) as fn(&Sample) -> f64, OTHERS_MORE),
        ("threads", "left_threads", |s| s.threads, OTHERS_MORE),
        ("tasks", "left_tasks", |s| s.tasks, TASKS_MORE),
    ] {
        let left = of(after) - of(before);
        value(shown, "", left);
        if left > more {
            broken.push(format!("it rests with {left} {name} more than before the load"));
        }
    }
    value("memory_before", "MiB", before.memory_mib);
    value("memory_rested", "MiB", after.memory_mib);
    let ratio = ratio(*stored, *needed);
    value("stored_per_needed_rested", "", ratio);
    if rig.whole - rig.load >= RESTED && ratio > RATIO_MAX {
        broken.push(format!("it rests, and the bucket has {ratio:.2} times what is needed"));
    }
    broken
}

/// Under load, the first moment at which there is more than there may be.
fn beyond_bound(data: &[Data]) -> Option<String> {
    data.iter().find_map(|now| {
        let earlier = data.iter().rev().find(|earlier| earlier.at + GRACE <= now.at);
        let recent = now.written - earlier.map_or(0, |earlier| earlier.written);
        let most = RATIO_MAX * now.needed as f64 + 2.0 * recent as f64 + ALWAYS;
        (now.stored as f64 > most).then(|| {
            format!(
                "after {} s the bucket has {:.0} MiB, where {:.0} are needed and {:.0} were written lately",
                now.at.as_secs(),
                now.stored as f64 / MIB,
                now.needed as f64 / MIB,
                recent as f64 / MIB
            )
        })
    })
}

/// What was done, and what was met.
fn counts(rig: &Rig, recorder: &mut Recorder) {
    // ORDERING: Relaxed; all threads have ended.
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let (name, counts) = (rig.volume.name, &rig.counts);
    let mut done = |metric, unit, value| recorder.value(STRESS, name, Metric::rate(metric, unit), value);
    if let Some((written, operations, syncs)) = rig.volume.work(Duration::ZERO) {
        done("written", "MiB", written as f64 / MIB);
        done("operations", "", operations as f64);
        done("syncs", "", syncs as f64);
    }
    for (metric, counter) in [
        ("compared", &counts.compared),
        ("kills", &counts.kills),
        ("remounts", &counts.remounts),
        ("upgrades", &counts.upgrades),
        ("snapshots", &counts.snapshots),
        ("clones", &counts.clones),
        ("quotas", &counts.quotas),
        ("fscks", &counts.checks),
        ("gcs", &counts.collections),
    ] {
        done(metric, "", of(counter));
    }
    for (metric, counter) in [
        ("torn_files", &counts.torn),
        ("upgrades_refused", &counts.upgrades_refused),
        ("repeated", &rig.volume.repeated),
    ] {
        recorder.value(STRESS, name, Metric::new(metric, ""), of(counter));
    }
}

/// Records what the proxy has done.
pub(super) fn record_faults(proxy: &Proxy, recorder: &mut Recorder) {
    let (counts, in_outages) = proxy.counts();
    let mut value = |metric, count: u64| {
        recorder.value(STRESS, "proxy", Metric::new(metric, ""), count as f64);
    };
    KINDS.into_iter().zip(counts).for_each(|(kind, count)| value(kind, count));
    value("in_outages", in_outages);
}

fn ratio(stored: u64, needed: u64) -> f64 {
    stored as f64 / needed.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_bounded_by_what_was_written_lately() {
        let data = |minute: u64, stored: u64, written: u64| Data {
            at: Duration::from_secs(60 * minute),
            stored: stored << 20,
            needed: 100 << 20,
            written: written << 20,
        };
        let fine = [data(0, 100, 100), data(10, 450, 260), data(40, 270, 300)];
        assert_eq!(beyond_bound(&fine), None);
        let late = [fine[0], fine[1], data(40, 280, 300)];
        assert!(beyond_bound(&late).unwrap().contains("after 2400 s the bucket has 280 MiB"));
    }
}
