//! A volume's status in which every key is there and every number is another one.

use watertight::control::api::{Cgroup, FileError, Process, Requests, Stalled, State, Status};
use watertight::mountinfo::Device;

/// The status. Its numbers are between 101 and 199, but for the time, which is 1 700 000 000 s and 123 ms.
pub(crate) fn status() -> Status {
    Status {
        id: "fa4e".to_owned(),
        pid: 101,
        uid: 102,
        source: "mem:".to_owned(),
        mountpoint: "/x".to_owned(),
        attached_to: Some("f00d".to_owned()),
        device: Device { major: 103, minor: 104 },
        state: State::Active,
        mount_type: "fuse".to_owned(),
        mount_type_reason: Some("not root".to_owned()),
        transport: "dev-fuse".to_owned(),
        transport_reason: Some("switched off".to_owned()),
        mode: "write-through".to_owned(),
        read_only: false,
        started_ms: 1_700_000_000_123,
        dirty_bytes: 105,
        writeback_bytes: 106,
        dirty_files: 107,
        cached_bytes: 108,
        cache_bytes_max: 109,
        written_bytes: 110,
        nodes: 111,
        open_files: 112,
        writeback_errors: 113,
        writer_waits: 114,
        failing_files: 115,
        failing_bytes: 116,
        errors: vec![FileError { file: "/f".to_owned(), bytes: 117, error: "full".to_owned() }],
        cgroup_tree: "v2".to_owned(),
        switches_in_flight: 130,
        switched_inodes: 131,
        drains: 132,
        drain_us: 133,
        cgroups: vec![Cgroup {
            path: "/a b".to_owned(),
            removed: true,
            owned_inodes: 134,
            dirty_bytes: 135,
            writeback_bytes: 136,
            switches_in_flight: 137,
            switched_inodes: 138,
        }],
        stalled: Some(Stalled { call: "write".to_owned(), for_ms: 141 }),
        stalls: 142,
        requests: Requests {
            by_kind: [("lookup".to_owned(), 118), ("write".to_owned(), 119)].into(),
            errors: 120,
            panics: 121,
            unknown: 122,
            under_way: 123,
            waiting_for_locks: 124,
        },
        process: Process {
            threads: 125,
            serving_threads: 126,
            open_fds: 127,
            max_fds: 128,
            resident_bytes: 129,
        },
    }
}
