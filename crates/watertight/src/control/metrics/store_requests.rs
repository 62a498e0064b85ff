//! The figures of volumes on object storage: requests to the service.

use super::{MetricKind, Micros, Page, Seconds};
use crate::control::api::{DiskCache, Following, Journal, Status, StoreRequestKind, StoreRequests};

/// One figure of all requests of a volume.
type Figure = (&'static str, MetricKind, &'static str, fn(&StoreRequests) -> u64);

const FIGURES: [Figure; 4] = {
    use MetricKind::{Counter, Gauge};
    [
        ("store_sent_bytes_total", Counter, "Bytes of data sent to object storage.", |of| of.sent_bytes),
        ("store_received_bytes_total", Counter, "Bytes of data received from object storage.", |of| {
            of.received_bytes
        }),
        (
            "store_throttled_total",
            Counter,
            "Answers of object storage that asked for fewer requests (429, 503).",
            |of| of.throttled,
        ),
        ("store_requests_under_way", Gauge, "Requests to object storage that have not ended.", |of| {
            of.under_way
        }),
    ]
};

/// One figure of the requests of a kind.
type KindFigure = (&'static str, &'static str, fn(&StoreRequestKind) -> u64);

const KIND_FIGURES: [KindFigure; 3] = [
    ("store_requests_total", "Requests sent to object storage, by kind; each attempt counts.", |of| of.sent),
    (
        "store_request_failures_total",
        "Of these, those without an answer, or with one that is none to the request (500, 403).",
        |of| of.failures,
    ),
    ("store_request_retries_total", "Of these, those that were retries.", |of| of.retries),
];

/// A time of a volume that follows its holder, in milliseconds.
type FollowTime = (&'static str, &'static str, fn(&Following) -> u64);

const FOLLOW_TIMES: [FollowTime; 2] = [
    ("store_following_age_seconds", "How old what a volume mounted with follow shows may be.", |of| {
        of.age_ms
    }),
    ("store_following_seconds", "How often a volume mounted with follow looks for changes.", |of| {
        of.every_ms
    }),
];

/// One figure of a disk cache.
type CacheFigure = (&'static str, MetricKind, &'static str, fn(&DiskCache) -> u64);

const CACHE_FIGURES: [CacheFigure; 8] = {
    use MetricKind::{Counter, Gauge};
    [
        ("disk_cache_on", Gauge, "1 while the disk cache is used, 0 after an error of the disk.", |of| {
            u64::from(of.on)
        }),
        ("disk_cache_bytes", Gauge, "What the disk cache takes on disk.", |of| of.bytes),
        ("disk_cache_max_bytes", Gauge, "What the disk cache may take on disk.", |of| of.bytes_max),
        ("disk_cache_blocks", Gauge, "Blocks of objects in the disk cache.", |of| of.blocks),
        ("disk_cache_hits_total", Counter, "Blocks of objects read from the disk cache.", |of| of.hits),
        ("disk_cache_misses_total", Counter, "Blocks of objects that the disk cache did not have.", |of| {
            of.misses
        }),
        ("disk_cache_damaged_total", Counter, "Blocks in the disk cache that were not as written.", |of| {
            of.damaged
        }),
        ("disk_cache_skipped_total", Counter, "Blocks that the disk cache was too slow to take.", |of| {
            of.skipped
        }),
    ]
};

/// One figure of a volume's journal.
type JournalFigure = (&'static str, MetricKind, &'static str, fn(&Journal) -> u64);

const JOURNAL_FIGURES: [JournalFigure; 4] = {
    use MetricKind::{Counter, Gauge};
    [
        ("store_journal_bytes", Gauge, "Bytes that are in the journal of this host only.", |of| of.bytes),
        ("store_journal_disk_bytes", Gauge, "Bytes that the journal takes on this host's disk.", |of| {
            of.disk_bytes
        }),
        ("store_journal_disk_bytes_max", Gauge, "The most bytes that the journal may take.", |of| {
            of.disk_bytes_max
        }),
        (
            "store_journal_passed_by_total",
            Counter,
            "Waits of an fsync for object storage, because the journal was full or broken.",
            |of| of.passed_by,
        ),
    ]
};

impl Page {
    /// The families of the requests, of the volumes that send any.
    pub(super) fn store_requests(&mut self, volumes: &[&Status]) {
        let of: Vec<_> =
            volumes.iter().filter_map(|volume| Some((*volume, volume.store_requests.as_ref()?))).collect();
        for (name, help, figure) in KIND_FIGURES {
            self.family(name, MetricKind::Counter, help);
            for (volume, requests) in &of {
                for (kind, stats) in &requests.by_kind {
                    self.sample(volume, &[("kind", kind)], figure(stats));
                }
            }
        }
        self.latencies(&of);
        for (name, kind, help, figure) in FIGURES {
            self.family(name, kind, help);
            of.iter().for_each(|(volume, requests)| self.sample(volume, &[], figure(requests)));
        }
        self.family(
            "store_request_oldest_seconds",
            MetricKind::Gauge,
            "The age of the oldest request to object storage that has not ended; 0 where there is none.",
        );
        of.iter().for_each(|(volume, requests)| self.sample(volume, &[], Seconds(requests.oldest_ms)));
        self.family(
            "store_unanswered_seconds",
            MetricKind::Gauge,
            "For how long object storage has answered no request; 0 while it answers.",
        );
        for (volume, requests) in &of {
            let unanswered = requests.unanswered.as_ref().map_or(0, |of| of.for_ms);
            self.sample(volume, &[], Seconds(unanswered));
        }
        for (name, help, figure) in FOLLOW_TIMES {
            self.family(name, MetricKind::Gauge, help);
            for (volume, requests) in &of {
                if let Some(following) = &requests.following {
                    self.sample(volume, &[], Seconds(figure(following)));
                }
            }
        }
        for (name, kind, help, figure) in CACHE_FIGURES {
            self.family(name, kind, help);
            for (volume, requests) in &of {
                if let Some(cache) = &requests.disk_cache {
                    self.sample(volume, &[], figure(cache));
                }
            }
        }
        for (name, kind, help, figure) in JOURNAL_FIGURES {
            self.family(name, kind, help);
            for (volume, requests) in &of {
                if let Some(journal) = &requests.journal {
                    self.sample(volume, &[], figure(journal));
                }
            }
        }
    }

    fn latencies(&mut self, of: &[(&Status, &StoreRequests)]) {
        self.family(
            "store_request_duration_seconds",
            MetricKind::Histogram,
            "How long answered requests to object storage took, by kind.",
        );
        for (volume, requests) in of {
            for (kind, stats) in &requests.by_kind {
                for latency in &stats.latency {
                    let within = Seconds(latency.within_ms).to_string();
                    self.part("_bucket", volume, &[("kind", kind), ("le", &within)], latency.requests);
                }
                self.part("_bucket", volume, &[("kind", kind), ("le", "+Inf")], stats.answered);
                self.part("_sum", volume, &[("kind", kind)], Micros(stats.latency_us));
                self.part("_count", volume, &[("kind", kind)], stats.answered);
            }
        }
    }
}
