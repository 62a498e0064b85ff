//! Notes for a reader of the figures.

use std::path::Path;

use super::rig::{HEALTHY, SEEN_OF_A_CROWD, STALL_AFTER};
use super::tenant::{CROWD_PAGES, NEW_FILE_EACH, TURN};
use super::tenants::{CHURNED, LIMIT_KIB, ROOM_KIB};
use super::{QUICK, TURNS};

pub(super) fn notes(place: &Path) -> Vec<String> {
    vec![
        format!(
            "{HEALTHY} healthy volumes on directory stores below {}. `stalled-N`, `idle-N`: beside N neighbours, whose directory stores lie on a FUSE server, with \
             4 KiB to be written each. `stalled-N`: the server was stopped by SIGSTOP, and each neighbour has a caller in fsync(2) and is stalled by what `status` says, before and after \
             what is measured. `idle-N`: the server answers, and nobody asks.",
            place.display()
        ),
        format!(
            "`resting-N`, `throttled-N`, `churning-N`: beside N neighbours on directory stores beside those of the healthy; each has a cgroup with two below it and a process in each of \
             these. `resting-N`: they do nothing. `throttled-N`: the neighbour's cgroup may write an Nth of {LIMIT_KIB} KiB/s and have {ROOM_KIB} KiB to be written; one process writes new data as \
             fast as it is let, the other writes 4 KiB and calls fsync(2), again and again; before and after what is measured each neighbour has at least three quarters of that to be written, and both \
             callers wait, by what `status` says. `churning-N`: 4 KiB are overwritten with O_DSYNC, {TURN} times by one process, {TURN} times by the other, so that the file changes \
             its owner with each turn; every {NEW_FILE_EACH}th time a file is made, written and removed as well. Before and after what is measured `status` has to say of each neighbour \
             that an owner has changed anew. All N together overwrite {CHURNED} times a second, and write {LIMIT_KIB} KiB/s, whatever N is: what is asked about is waiting, and not the lack of processors."
        ),
        format!(
            "`crowd-N`: beside one neighbour, of whose cgroup, with the limits of `throttled-1`, N threads write page after page, each to a file of its own; before and after what is measured it has \
             three quarters of what it may have to be written, and {SEEN_OF_A_CROWD} requests at least wait. `mapping-N`: the same through mapped memory, with an fsync(2) after each {CROWD_PAGES} pages. Beside those \
             no mapped memory of the healthy is written: the kernel counts dirty mapped pages, and sends them, for the mountpoint as a whole (balance_dirty_pages, `max_background`), whatever the volume, and a \
             store to such a page waits for the neighbour's limit (SEMANTICS)."
        ),
        "`neighbours_cpu`: percent of one processor that all processes of volumes and neighbours use while nobody uses the healthy volumes. `neighbour_of_limit`: what came to the \
         stores of the throttled while the healthy were used, of what their limits allow. `switches_per_s`: files that changed their owners meanwhile, of all neighbours."
            .to_owned(),
        format!(
            "With `--quick` only {} are run, unless others are named. No peer is beside churning or throttled neighbours: none \
             has owners of data or limits, nor an unmount that returns when the data is on the store. What they take alone is in `volumes`.",
            QUICK.join(", ")
        ),
        "`default`: each volume has a mount process of its own, with default options. `attached`: all are attached inside one mountpoint of one process."
            .to_owned(),
        "Load goes to the healthy volumes in turn. `write-1m`: 16 writes of 1 MiB, the fsync after them left out. `write-4k`: one write. `fsync`: a write of \
         4 KiB and its fsync(2). `sync`: of a volume with 4 KiB to be written, by syncfs(2); of an attached one, by its control socket. `stat`: statx(2) that \
         asks the volume. `create`: a file is made, and removed. `mapped-4k`: a store to a page of a mapped file, which was clean. `umount`: the verb, its start included, of a volume with 256 KiB to be written, which are on the store when it returns. \
         `umount-lazy`: the same for `umount --lazy` while a file is open. `status`: the verb, of all volumes."
            .to_owned(),
        format!(
            "`umount` and `umount-lazy` are measured last, in turn, {} times each in a round ({TURNS} times over the ten volumes). Once a volume's mount, process and record are gone it is mounted again, which is \
             not measured; its load is not repeated.",
            TURNS * HEALTHY / 2
        ),
        format!(
            "`force`: `umount --force` of a stalled volume, its start included, until it has told what is lost. `stall-noticed`: from the fsync(2) until \
             `status` calls the volume stalled, less its `stall_after` of {} s. `threads`, `memory` (resident): of all processes that serve volumes together.",
            STALL_AFTER.as_secs()
        ),
    ]
}
