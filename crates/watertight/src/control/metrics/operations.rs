//! How long the operations of volumes take.

use super::{MetricKind, Micros, Page};
use crate::control::api::{Operation, Status};

/// The bounds of the buckets: 16 us, and four times as long each, as powers of two.
const POWERS: [u32; 12] = [4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26];

/// A part of the operations' time.
type Part = (&'static str, fn(&Operation) -> u64);

const PARTS: [Part; 5] = [
    ("queue", |of| of.queue_us),
    ("limit", |of| of.limit_us),
    ("cache", |of| of.cache_us),
    ("store", |of| of.store_us),
    ("rest", Operation::rest_us),
];

impl Page {
    /// The families of the operations.
    pub(super) fn operations(&mut self, volumes: &[&Status]) {
        let all =
            || volumes.iter().flat_map(|v| v.operations.iter().map(move |(op, of)| (*v, op.as_str(), of)));
        self.family(
            "request_duration_seconds",
            MetricKind::Histogram,
            "How long requests of the kernel took, from when they were read to their answers, by class.",
        );
        for (volume, op, of) in all() {
            let times = of.durations();
            for power in POWERS {
                let bound = Micros(1 << power).to_string();
                self.part("_bucket", volume, &[("op", op), ("le", &bound)], times.within_power(power));
            }
            self.part("_bucket", volume, &[("op", op), ("le", "+Inf")], times.count());
            self.part("_sum", volume, &[("op", op)], Micros(of.total_us));
            self.part("_count", volume, &[("op", op)], times.count());
        }
        self.family(
            "request_part_seconds_total",
            MetricKind::Counter,
            "Of request_duration_seconds, the time spent on each part: queue, limit, cache, store, rest.",
        );
        for (volume, op, of) in all() {
            for (part, time) in PARTS {
                self.sample(volume, &[("op", op), ("part", part)], Micros(time(of)));
            }
        }
    }
}
