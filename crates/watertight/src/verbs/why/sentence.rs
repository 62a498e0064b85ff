//! What `why` says of a request.

use std::time::Duration;

use volume::events::Limit;

use crate::control::api::{CgroupLimits, LimitAhead, RequestPart, RequestUnderWay, State, Stats, Status};
use crate::term::shown::in_one_line;
use crate::term::units;

/// A request, and what is known of its volume.
pub(super) struct Case<'a> {
    pub(super) request: &'a RequestUnderWay,
    /// The caller's name.
    pub(super) caller: &'a str,
    /// Whether the limit that it waits for is its own cgroup's.
    pub(super) is_own: bool,
    pub(super) limits: &'a [CgroupLimits],
    pub(super) status: &'a Status,
}

/// A limit by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rate {
    Bytes(u64),
    Operations(u64),
}

impl Case<'_> {
    /// What it waits for, in one sentence.
    pub(super) fn sentence(&self) -> String {
        let Self { request, caller, status, .. } = self;
        let waited = format!("{caller} has waited {}", time(request.part_us));
        match (request.part, &request.limit) {
            (RequestPart::Limit, Some(limit)) if limit.limit == Limit::IoMax => {
                format!("{waited} for {}", self.rate_limit(limit))
            }
            (RequestPart::Limit, Some(limit)) => format!("{waited} for {}", self.dirty_limit(limit)),
            (RequestPart::Limit, None) => format!("{waited} for a limit of a cgroup"),
            (RequestPart::Queue, _) => {
                format!("{waited} for a thread: requests of its volume hold as many as it may have")
            }
            (RequestPart::Cache, _) => {
                let (dirty, most) = (units::bytes(status.dirty_bytes), units::bytes(status.cache_bytes_max));
                format!("{waited} for room in the cache: {dirty} of {most} are not on the store")
            }
            (RequestPart::Store, _) => match &status.stalled {
                Some(stalled) => format!("{waited} for the store: {stalled}"),
                None => format!("{waited} for the store, in one call"),
            },
            (RequestPart::Rest, _) => {
                let behind = match (&status.stalled, status.state) {
                    (Some(stalled), _) => format!(": {stalled}"),
                    (None, State::Draining) => {
                        format!(": it is being unmounted, with {}", status.unwritten())
                    }
                    _ => String::new(),
                };
                format!("{waited} for work of the volume itself, or behind others at the same file{behind}")
            }
        }
    }

    fn whose(&self, limit: &LimitAhead) -> String {
        if self.is_own { "its own limit".to_owned() } else { format!("the limit of {}", limit.cgroup) }
    }

    /// A limit of bytes or operations a second.
    fn rate_limit(&self, limit: &LimitAhead) -> String {
        // Which of several is the one in the way is not known.
        let (whose, rates) = (self.whose(limit), self.rates(&limit.cgroup.to_string()));
        let [(of, rate)] = rates.as_slice() else {
            return format!("{whose}{}", left(limit));
        };
        let whose = if *of == limit.cgroup.as_str() { whose } else { format!("the limit of {of}") };
        match rate {
            Rate::Operations(rate) => format!("{whose} of {rate} operations/s{}", left(limit)),
            Rate::Bytes(rate) => {
                let before = limit.bytes.or_else(|| Some(bytes_in(limit.left_us?, *rate)));
                let at_rate = |bytes: u64| {
                    let needs = bytes.saturating_mul(1000).checked_div(*rate).unwrap_or(u64::MAX);
                    let needs = units::duration(Duration::from_millis(needs));
                    format!(": {} are before it, {needs} at that rate", units::bytes(bytes))
                };
                format!("{whose} of {}/s{}", units::bytes(*rate), before.map_or_else(String::new, at_rate))
            }
        }
    }

    /// The limits of a cgroup and those above it that apply to the request.
    fn rates(&self, cgroup: &str) -> Vec<(&str, Rate)> {
        let is_read = matches!(self.request.op.as_str(), "read");
        let applies = |row: &&CgroupLimits| {
            let above = row.cgroup.as_str().trim_end_matches('/');
            cgroup.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let of_row = |row: &'_ CgroupLimits| {
            let (bytes, operations) = if is_read { (row.rbps, row.riops) } else { (row.wbps, row.wiops) };
            [bytes.map(Rate::Bytes), operations.map(Rate::Operations)]
        };
        let rows = self.limits.iter().filter(applies);
        rows.flat_map(|row| of_row(row).into_iter().flatten().map(|rate| (row.cgroup.as_str(), rate)))
            .collect()
    }

    /// A limit of dirty bytes.
    fn dirty_limit(&self, limit: &LimitAhead) -> String {
        let cgroup = self.status.cgroups.iter().find(|cgroup| cgroup.path == limit.cgroup && !cgroup.removed);
        let dirty = cgroup.map(|cgroup| cgroup.to_write_bytes.saturating_add(cgroup.writeback_bytes));
        let most =
            self.limits.iter().find(|row| row.cgroup == limit.cgroup).and_then(|row| row.dirty_bytes_max);
        let most = most.map_or_else(String::new, |most| format!(" of {}", units::bytes(most)));
        let dirty = dirty.map_or_else(String::new, |dirty| {
            format!(": {} of the cgroup are not on the store", units::bytes(dirty))
        });
        let whose = self.whose(limit);
        format!("{whose} of dirty bytes{most}{dirty}{}", left(limit))
    }
}

/// How many bytes a rate lets pass in a time.
fn bytes_in(us: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(us) * u128::from(rate) / 1_000_000).unwrap_or(u64::MAX)
}

fn left(limit: &LimitAhead) -> String {
    limit.left_us.map_or_else(String::new, |us| format!(", and has {} to wait", time(us)))
}

fn time(us: u64) -> String {
    units::latency(Duration::from_micros(us))
}

/// A request in one line.
pub(super) fn line(request: &RequestUnderWay, caller: &str) -> String {
    let at = match request.part {
        RequestPart::Queue => "waiting for a thread",
        RequestPart::Limit => "at a limit",
        RequestPart::Cache => "waiting for room in the cache",
        RequestPart::Store => "in the store",
        RequestPart::Rest => "in the volume",
    };
    let (op, all, part) = (in_one_line(&request.op), time(request.for_us), time(request.part_us));
    format!("{op} of {caller} at {}: for {all}, {part} of it {at}", request.mountpoint)
}

/// The sentence where no request has waited for long, of what was answered meanwhile.
pub(super) fn idle(status: &Status, stats: &Stats) -> String {
    let at = &status.mountpoint;
    let state = match (&status.stalled, status.state) {
        (Some(stalled), _) => format!(", though {stalled}"),
        (None, State::Draining) => format!("; it is being unmounted, with {}", status.unwritten()),
        _ => String::new(),
    };
    let mut times = sync::Durations::default();
    let mut store_us = 0_u64;
    for operation in stats.operations.values() {
        times.add(&operation.durations());
        store_us = store_us.saturating_add(operation.store_us);
    }
    let counted = units::duration(Duration::from_millis(stats.counted_ms));
    if times.count() == 0 {
        return format!("nothing waits at {at}{state}: no operation was answered in the last {counted}");
    }
    let [median, most] = [0.5, 0.99].map(|part| units::latency(times.quantile(part)));
    let (count, longest) =
        (units::count(times.count(), "operation", "operations"), units::latency(times.max));
    let in_store = units::latency(Duration::from_micros(store_us));
    format!(
        "nothing waits at {at}{state}: {count} in the last {counted}, half of them within {median}, 99% within {most}, the longest \
         {longest}; {in_store} of that time in the store"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::{Cgroup, Operation, OperationLatency, Stalled};

    fn request(part: RequestPart, limit: Option<LimitAhead>) -> RequestUnderWay {
        let (op, mountpoint) = ("fsync".to_owned(), "/mnt".into());
        RequestUnderWay { caller: 7, op, mountpoint, for_us: 3_000_000, part, part_us: 2_100_000, limit }
    }

    fn row(cgroup: &str, wbps: Option<u64>) -> CgroupLimits {
        CgroupLimits {
            cgroup: cgroup.into(),
            rbps: Some(1),
            wbps,
            riops: None,
            wiops: None,
            dirty_bytes_max: Some(1 << 20),
            sync_isolation: false,
            owed_bytes: 0,
        }
    }

    fn says(request: &RequestUnderWay, limits: &[CgroupLimits], is_own: bool, status: &Status) -> String {
        Case { request, caller: "dd (7)", is_own, limits, status }.sentence()
    }

    fn ahead(limit: Limit, left_us: Option<u64>, bytes: Option<u64>) -> Option<LimitAhead> {
        Some(LimitAhead { cgroup: "/a/b".into(), limit, left_us, bytes })
    }

    #[test]
    fn a_limit_is_named_with_what_is_before_it() {
        let none = Status::default();
        let one = [row("/a/b", Some(1 << 20)), row("/a/bc", Some(5)), row("/x", Some(5))];
        let bytes = request(RequestPart::Limit, ahead(Limit::IoMax, None, Some(4 << 20)));
        let own = "dd (7) has waited 2.1 s for its own limit of 1.0 MiB/s: 4.0 MiB are before it, 4.0 s at that rate";
        assert_eq!(says(&bytes, &one, true, &none), own);
        let time = request(RequestPart::Limit, ahead(Limit::IoMax, Some(4_000_000), None));
        assert_eq!(says(&time, &one, true, &none), own);
        let parent = says(&time, &[row("/a", Some(1 << 20))], true, &none);
        assert!(parent.contains("for the limit of /a of 1.0 MiB/s: 4.0 MiB"), "{parent}");
        // Which of them is in the way is not known.
        let several = says(&time, &[row("/", Some(9)), row("/a/b", Some(5))], false, &none);
        assert_eq!(several, "dd (7) has waited 2.1 s for the limit of /a/b, and has 4.0 s to wait");
    }

    #[test]
    fn dirty_bytes_are_those_of_the_cgroup() {
        let cgroup = Cgroup {
            path: "/a/b".into(),
            removed: false,
            owned_inodes: 1,
            dirty_bytes: 0,
            to_write_bytes: 1 << 19,
            writeback_bytes: 1 << 19,
            switches_in_flight: 0,
            switched_inodes: 0,
        };
        let status = Status { cgroups: vec![cgroup], ..Status::default() };
        let dirty = request(RequestPart::Limit, ahead(Limit::DirtyMax, None, None));
        let sentence = says(&dirty, &[row("/a/b", None)], true, &status);
        assert!(sentence.ends_with(
            "its own limit of dirty bytes of 1.0 MiB: 1.0 MiB of the cgroup are not on the store"
        ));
    }

    #[test]
    fn a_store_that_does_not_answer_is_named() {
        let stalled = Some(Stalled { call: "write".into(), for_ms: 7200 });
        let status = Status { stalled, ..Status::default() };
        let store = says(&request(RequestPart::Store, None), &[], false, &status);
        assert_eq!(
            store,
            "dd (7) has waited 2.1 s for the store: the store has not answered `write` for 7.2 s"
        );
        let behind = says(&request(RequestPart::Rest, None), &[], false, &status);
        assert!(behind.ends_with(": the store has not answered `write` for 7.2 s"), "{behind}");
    }

    #[test]
    fn where_nothing_waits_it_says_what_was_answered() {
        let status = Status { mountpoint: "/mnt".into(), ..Status::default() };
        let mut stats = Stats { counted_ms: 1000, ..Stats::default() };
        assert_eq!(
            idle(&status, &stats),
            "nothing waits at /mnt: no operation was answered in the last 1.0 s"
        );
        let latency = vec![OperationLatency { within_us: Some(8), count: 2 }];
        let read =
            Operation { count: 2, total_us: 16, max_us: 8, store_us: 5, latency, ..Operation::default() };
        stats.operations.insert("read".to_owned(), read);
        let sentence = idle(&status, &stats);
        assert!(sentence.contains("2 operations in the last 1.0 s, half of them within 7 us"), "{sentence}");
        assert!(sentence.ends_with("the longest 8 us; 5 us of that time in the store"), "{sentence}");
    }
}
