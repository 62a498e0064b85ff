//! The figures of mounted volumes in Prometheus' text format (version 0.0.4): `GET /metrics` of a
//! mount process, `watertight status --metrics` for all of them.
//!
//! ```text
//!  metrics            the page: families, samples, escapes
//!   operations        how long operations take
//!   store_requests    requests of volumes on object storage
//! ```
//!
//! Units are bytes and seconds. Each sample has the labels `volume` (an id that is never used
//! again) and `mountpoint`; of the others, `state` has six values and `kind` one for each kind of
//! request, so that a volume has at most about a hundred series, one on object storage as many
//! again; twenty for each class of operations that it was asked for (at most 21); and six more for
//! each cgroup that has anything there (at most a thousand), and up to six
//! for one with limits; one more where it is a pod's. Files are counted and never named.

mod operations;
mod store_requests;

use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

use crate::control::api::{Cgroup, CgroupLimits, Missing, State, Status};
use crate::control::volume_id::VolumeId;
use crate::host::pods::Pods;
use crate::term::shown::Name;

/// The media type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It goes up and down.
    Gauge,
    /// It only grows while its process lives.
    Counter,
    /// Counts by class, and a sum.
    Histogram,
}

/// One figure that each volume has: name, kind, meaning, how to get it.
type Figure = (&'static str, MetricKind, &'static str, fn(&Status) -> u64);

/// The figures without labels of their own.
const FIGURES: [Figure; 34] = {
    use MetricKind::{Counter, Gauge};
    [
        ("read_only", Gauge, "1 where the volume is read-only.", |v| v.read_only.into()),
        ("dirty_bytes", Gauge, "Bytes that programs have written and that are not on the store.", |v| {
            v.dirty_bytes
        }),
        ("to_write_bytes", Gauge, "Of the dirty bytes, those that wait to be written.", |v| v.to_write_bytes),
        ("writeback_bytes", Gauge, "Of the dirty bytes, those on their way to the store.", |v| {
            v.writeback_bytes
        }),
        ("lost_if_killed_bytes", Gauge, "Bytes that would be lost if the process died now.", |v| {
            v.lost_if_killed_bytes
        }),
        ("dirty_files", Gauge, "Files with data that is not on the store.", |v| v.dirty_files),
        ("cached_bytes", Gauge, "Bytes in the cache, clean or dirty.", |v| v.cached_bytes),
        ("cache_limit_bytes", Gauge, "The most bytes that the cache may hold.", |v| v.cache_bytes_max),
        ("written_bytes_total", Counter, "Bytes written to the store.", |v| v.written_bytes),
        ("writeback_errors_total", Counter, "Attempts to write a file to the store that failed.", |v| {
            v.writeback_errors
        }),
        ("read_errors_total", Counter, "Reads that the store has failed.", |v| v.read_errors),
        ("failing_files", Gauge, "Files that could not be written; their data waits in the cache.", |v| {
            v.failing_files
        }),
        ("failing_bytes", Gauge, "Bytes of the files that could not be written.", |v| v.failing_bytes),
        ("writer_waits_total", Counter, "Writes that had to wait for room in the cache.", |v| v.writer_waits),
        ("switches_in_flight", Gauge, "Inodes that are changing their cgroup.", |v| v.switches_in_flight),
        ("switched_inodes_total", Counter, "Inodes that have changed their cgroup.", |v| v.switched_inodes),
        (
            "switch_drains_total",
            Counter,
            "Waits of an unmount for inodes that were changing their cgroup.",
            |v| v.drains,
        ),
        ("stalls_total", Counter, "How often the store did not answer a call in time.", |v| v.stalls),
        ("inodes", Gauge, "Known files and directories.", |v| v.nodes),
        ("open_files", Gauge, "Open files.", |v| v.open_files),
        (
            "request_errors_total",
            Counter,
            "Requests answered with an error, look-ups of missing names left out.",
            |v| v.requests.errors,
        ),
        ("request_panics_total", Counter, "Requests ended by a defect of the program.", |v| {
            v.requests.panics
        }),
        ("unknown_requests_total", Counter, "Messages of the kernel that are not a known request.", |v| {
            v.requests.unknown
        }),
        ("requests_under_way", Gauge, "Requests being handled.", |v| v.requests.under_way),
        ("threads", Gauge, "Threads of the mount process.", |v| v.process.threads),
        ("serving_threads", Gauge, "Threads that serve requests or wait for them.", |v| {
            v.process.serving_threads
        }),
        ("upgrades_total", Counter, "How often another program took the mount over.", |v| v.upgrades.count),
        (
            "upgrades_failed_total",
            Counter,
            "How often one could not, and the one before took it back.",
            |v| v.upgrades.failed,
        ),
        ("recovery_deaths_total", Counter, "Servers of the mount that have died.", |v| v.recovery.deaths),
        (
            "recovery_not_held_files",
            Gauge,
            "Files without a name that the next server would not have.",
            |v| v.recovery.not_held,
        ),
        ("open_fds", Gauge, "Open descriptors of the mount process.", |v| v.process.open_fds),
        ("max_fds", Gauge, "Descriptors that the mount process may have open.", |v| v.process.max_fds),
        ("resident_memory_bytes", Gauge, "Memory that the mount process uses.", |v| v.process.resident_bytes),
        ("tasks", Gauge, "Tasks of volumes on object storage that have not ended.", |v| v.process.tasks),
    ]
};

/// One figure that each cgroup has of each volume.
type CgroupFigure = (&'static str, MetricKind, &'static str, fn(&Cgroup) -> u64);

const CGROUP_FIGURES: [CgroupFigure; 6] = {
    use MetricKind::{Counter, Gauge};
    [
        ("cgroup_inodes", Gauge, "Inodes that the cgroup owns.", |c| c.owned_inodes),
        ("cgroup_dirty_bytes", Gauge, "The same as cgroup_to_write_bytes.", |c| c.dirty_bytes),
        ("cgroup_to_write_bytes", Gauge, "The cgroup's bytes that wait to be written.", |c| c.to_write_bytes),
        ("cgroup_writeback_bytes", Gauge, "The cgroup's bytes on their way to the store.", |c| {
            c.writeback_bytes
        }),
        ("cgroup_switches_in_flight", Gauge, "Inodes that are becoming the cgroup's.", |c| {
            c.switches_in_flight
        }),
        ("cgroup_switched_inodes_total", Counter, "Inodes that have become the cgroup's.", |c| {
            c.switched_inodes
        }),
    ]
};

/// Which volume a sample is of.
#[derive(Debug, Clone, Copy)]
pub struct VolumeLabels<'a> {
    /// The id.
    pub id: &'a VolumeId,
    /// Where it is or was mounted.
    pub mountpoint: &'a str,
}

impl<'a> From<&'a Status> for VolumeLabels<'a> {
    fn from(volume: &'a Status) -> Self {
        Self { id: &volume.id, mountpoint: volume.mountpoint.as_str() }
    }
}

/// A volume that no process serves, or whose process does not answer.
#[derive(Debug, Clone, Copy)]
pub struct Down<'a> {
    /// The volume.
    pub of: VolumeLabels<'a>,
    /// How it ended; none where that is not known: it does not answer, or was killed.
    pub state: Option<State>,
}

/// The page that shows `volumes`, and that the volumes in `down` do not answer or ended badly.
#[must_use]
pub fn page(volumes: &[&Status], down: &[Down<'_>]) -> String {
    use MetricKind::{Counter, Gauge};
    let mut page = Page::default();
    page.family(
        "up",
        Gauge,
        "0 where the mount process does not answer, was killed, or ended with data that was not written.",
    );
    page.samples(volumes, |_| 1);
    for v in down {
        page.sample_of(v.of, &[], 0);
    }
    page.family("info", Gauge, "The volume's source, mount type, transport and mode, as labels; always 1.");
    for v in volumes {
        let labels = [
            ("source", v.source.as_str()),
            ("mount_type", v.mount_type.as_str()),
            ("transport", v.transport.as_str()),
            ("mode", v.mode.as_str()),
        ];
        page.sample(v, &labels, 1);
    }
    page.family("state", Gauge, "1 for the state that the volume is in, 0 for the others.");
    for v in volumes {
        page.states(VolumeLabels::from(*v), v.state);
    }
    for v in down {
        if let Some(state) = v.state {
            page.states(v.of, state);
        }
    }
    page.family("start_time_seconds", Gauge, "When the volume was mounted, in seconds since the epoch.");
    page.samples(volumes, |v| Seconds(v.started_ms));
    page.family(
        "stalled_seconds",
        Gauge,
        "For how long the store has not answered a call; 0 while it answers.",
    );
    page.samples(volumes, |v| Seconds(v.stalled.as_ref().map_or(0, |stalled| stalled.for_ms)));
    page.family("requests_total", Counter, "Requests of the kernel, by kind.");
    for v in volumes {
        for (kind, n) in &v.requests.by_kind {
            page.sample(v, &[("kind", kind)], n);
        }
    }
    page.operations(volumes);
    page.store_requests(volumes);
    page.family(
        "switch_drain_seconds_total",
        Counter,
        "Time that unmounts waited for inodes that were changing their cgroup.",
    );
    page.samples(volumes, |v| Micros(v.drain_us));
    page.family("upgrade_pause_seconds", Gauge, "How long requests waited for the last upgrade.");
    page.samples(volumes, |v| Micros(v.upgrades.pause_us));
    for (name, kind, help, figure) in CGROUP_FIGURES {
        page.family(name, kind, help);
        for v in volumes {
            for cgroup in &v.cgroups {
                let removed = if cgroup.removed { "1" } else { "0" };
                page.sample(v, &[("cgroup", cgroup.path.as_str()), ("removed", removed)], figure(cgroup));
            }
        }
    }
    page.pods(volumes, &Pods::of_cgroups(volumes.iter().flat_map(|v| cgroups(v))));
    page.family("cgroup_limit", Gauge, "The cgroup's limit: bytes or operations a second; dirty_max: bytes.");
    for v in volumes {
        for own in &v.limits {
            for (name, limit) in limits_of(own) {
                page.sample(v, &[("cgroup", own.cgroup.as_str()), ("limit", name)], limit);
            }
        }
    }
    page.family(
        "cgroup_owed_bytes",
        Gauge,
        "Bytes written ahead of the cgroup's limits, because another cgroup waited for them.",
    );
    for v in volumes {
        for own in &v.limits {
            page.sample(v, &[("cgroup", own.cgroup.as_str())], own.owed_bytes);
        }
    }
    for (name, kind, help, figure) in FIGURES {
        page.family(name, kind, help);
        page.samples(volumes, figure);
    }
    page.text
}

/// The part of a page that lists volumes of `serve`'s files that are not mounted.
#[must_use]
pub fn page_of_missing(missing: &[Missing]) -> String {
    let mut page = Page::default();
    page.family(
        "missing_volumes",
        MetricKind::Gauge,
        "Volumes of the files of `watertight serve` that are not mounted.",
    );
    page.line(format_args!("watertight_missing_volumes {}", missing.len()));
    page.family(
        "missing",
        MetricKind::Gauge,
        "1 for a volume that `watertight serve` is to mount and that is not mounted.",
    );
    for Missing { mountpoint, source, .. } in missing {
        let (mountpoint, source) = (escape(mountpoint.as_str()), escape(source.as_str()));
        page.line(format_args!("watertight_missing{{mountpoint=\"{mountpoint}\",source=\"{source}\"}} 1"));
    }
    page.text
}

/// The paths of the cgroups that have something there, or limits.
fn cgroups(volume: &Status) -> BTreeSet<&str> {
    let with_limits = volume.limits.iter().map(|own| own.cgroup.as_str());
    volume.cgroups.iter().map(|cgroup| cgroup.path.as_str()).chain(with_limits).collect()
}

/// Those that are set, by the names that `watertight limit` takes.
fn limits_of(own: &CgroupLimits) -> impl Iterator<Item = (&'static str, u64)> {
    let all = [
        ("rbps", own.rbps),
        ("wbps", own.wbps),
        ("riops", own.riops),
        ("wiops", own.wiops),
        ("dirty_max", own.dirty_bytes_max),
    ];
    all.into_iter().filter_map(|(name, limit)| Some((name, limit?)))
}

/// Milliseconds, shown as seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Microseconds, shown as seconds.
struct Micros(u64);

impl Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A page that is being written: families one after the other, each with its samples.
#[derive(Debug, Default)]
struct Page {
    text: String,
    family: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: MetricKind, help: &str) {
        let kind = match kind {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
            MetricKind::Histogram => "histogram",
        };
        self.family = name;
        self.line(format_args!("# HELP watertight_{name} {help}"));
        self.line(format_args!("# TYPE watertight_{name} {kind}"));
    }

    fn sample(&mut self, volume: &Status, labels: &[(&str, &str)], value: impl Display) {
        self.sample_of(volume.into(), labels, value);
    }

    /// A sample of each volume, without labels of its own.
    fn samples<T: Display>(&mut self, volumes: &[&Status], figure: impl Fn(&Status) -> T) {
        volumes.iter().for_each(|v| self.sample(v, &[], figure(v)));
    }

    /// Whose the cgroups are that are pods'.
    fn pods(&mut self, volumes: &[&Status], known: &Pods) {
        let help = "The Kubernetes pod whose cgroup it is, as labels; always 1.";
        self.family("cgroup_pod", MetricKind::Gauge, help);
        for v in volumes {
            for path in cgroups(v) {
                let Some(pod) = known.at(path) else { continue };
                let text = |name: &Option<Name>| name.as_ref().map_or("", Name::as_str).to_owned();
                let [namespace, name, container] = [&pod.namespace, &pod.name, &pod.container].map(text);
                let labels = [
                    ("cgroup", path),
                    ("namespace", &namespace),
                    ("pod", &name),
                    ("container", &container),
                    ("pod_uid", &pod.uid),
                ];
                self.sample(v, &labels, 1);
            }
        }
    }

    fn states(&mut self, volume: VolumeLabels<'_>, this: State) {
        for state in State::ALL {
            self.sample_of(volume, &[("state", &state.to_string())], u8::from(state == this));
        }
    }

    /// A sample of a histogram.
    fn part(&mut self, suffix: &str, volume: &Status, labels: &[(&str, &str)], value: impl Display) {
        self.sample_named(suffix, volume.into(), labels, value);
    }

    fn sample_of(&mut self, volume: VolumeLabels<'_>, labels: &[(&str, &str)], value: impl Display) {
        self.sample_named("", volume, labels, value);
    }

    fn sample_named(
        &mut self,
        suffix: &str,
        volume: VolumeLabels<'_>,
        labels: &[(&str, &str)],
        value: impl Display,
    ) {
        let own = [("volume", volume.id.as_str()), ("mountpoint", volume.mountpoint)];
        let labels: Vec<String> =
            own.iter().chain(labels).map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        let name = self.family;
        self.line(format_args!("watertight_{name}{suffix}{{{}}} {value}", labels.join(",")));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// A label's value as the format has it.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_written_as_the_format_has_it() {
        let mut page = Page::default();
        page.family("x_seconds", MetricKind::Gauge, "What it is.");
        let of = VolumeLabels { id: &"1f".parse().unwrap(), mountpoint: "/a\"b\\c\nd" };
        page.sample_of(of, &[("kind", "é")], Seconds(1_700_000_000_045));
        assert_eq!(
            page.text,
            "# HELP watertight_x_seconds What it is.\n\
             # TYPE watertight_x_seconds gauge\n\
             watertight_x_seconds{volume=\"1f\",mountpoint=\"/a\\\"b\\\\c\\nd\",kind=\"é\"} 1700000000.045\n"
        );
    }

    #[test]
    fn counters_and_only_they_end_in_total() {
        for (name, kind, ..) in FIGURES {
            assert_eq!(name.ends_with("_total"), kind == MetricKind::Counter, "{name}");
        }
    }

    #[test]
    fn a_volume_that_is_down_is_told_of() {
        let down = |state| {
            page(&[], &[Down { of: VolumeLabels { id: &"1f".parse().unwrap(), mountpoint: "/m" }, state }])
        };
        // It does not answer, or was killed: its state is not known.
        let unknown = down(None);
        assert!(unknown.contains("\nwatertight_up{volume=\"1f\",mountpoint=\"/m\"} 0\n"), "{unknown}");
        assert_eq!(unknown.lines().filter(|line| !line.starts_with('#')).count(), 1, "{unknown}");
        let failed = down(Some(State::Failed));
        assert!(failed.contains("\nwatertight_up{volume=\"1f\",mountpoint=\"/m\"} 0\n"), "{failed}");
        let state = |name, value| {
            format!("\nwatertight_state{{volume=\"1f\",mountpoint=\"/m\",state=\"{name}\"}} {value}\n")
        };
        assert!(failed.contains(&state("failed", 1)) && failed.contains(&state("active", 0)), "{failed}");
    }
}
