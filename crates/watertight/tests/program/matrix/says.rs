//! The text of a cell of the table, and its meaning.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use super::cell::{Setting, State};
use super::way::{Way, is_busy};
use crate::rig::run;

/// Unmounts a volume in a state, and checks whether it is so. Nothing is done where this machine
/// cannot.
type Check = fn(&Way, Setting);

/// The text of a cell that refers to the row of umount2(2) for the mount's type, same column.
pub(super) const AS_UMOUNT2: &str = "as umount2(2)";

/// The words of all cells.
pub(super) const CELLS: &[(&str, Check)] = &[
    ("complete", complete),
    ("at once; `wait`: complete", complete_later),
    ("exit 1 with who holds it; stays mounted", |way, setting| stays_with_who_holds_it(way, setting, 1)),
    ("exit 32 with who holds it; stays mounted", |way, setting| stays_with_who_holds_it(way, setting, 32)),
    ("EBUSY; stays mounted", stays_busy),
    ("EBUSY; who uses it gets errors, and the path goes away; `wait`: complete", is_cut),
    ("the path is gone; complete when it is let go", complete_when_let_go),
    ("waits for the store; `--force` elsewhere ends it: exit 1", |way, setting| waits(way, setting, 1)),
    ("waits for the store; `--force` elsewhere ends it: exit 32", |way, setting| waits(way, setting, 32)),
    ("exit 1: what is lost", |way, setting| says_what_is_lost(way, setting, 1)),
    ("exit 32: what is lost", |way, setting| says_what_is_lost(way, setting, 32)),
    ("at `drain_timeout`; `wait` says what is lost", lost_at_the_deadline),
    ("at once; at `drain_timeout` `wait` says what is lost", lost_later),
    ("`wait`: it died", died),
    ("`wait`: it died; what was not fsynced may be lost", died),
];

/// How often a way of the kernel's is tried. It waits for the volume only where no other process
/// has the mount: no other mount namespace that was begun meanwhile, and no process that looks
/// through /proc at that moment.
const TRIES: usize = 20;

fn complete(way: &Way, setting: Setting) {
    for _ in 0..TRIES {
        let Some(mut cell) = setting.cell() else { return };
        way.go(&cell).ok();
        if way.is_of_the_kernel() && cell.is_used_still() {
            cell.has_ended_well();
            continue;
        }
        // The moment it has returned.
        cell.is_on_the_store();
        assert!(!cell.is_mounted());
        cell.store_is_free();
        cell.has_ended_well();
        return;
    }
    panic!("the volume goes on each time");
}

fn complete_later(way: &Way, setting: Setting) {
    let Some(mut cell) = setting.cell() else { return };
    way.go(&cell).ok();
    assert!(!cell.is_mounted());
    cell.has_ended_well();
}

fn stays_with_who_holds_it(way: &Way, setting: Setting, code: i32) {
    let Some(mut cell) = setting.cell() else { return };
    let out = way.go(&cell).ends(code, "is busy (EBUSY); it is held by");
    assert!(out.stderr.contains(&std::process::id().to_string()), "{out:?}");
    assert!(cell.is_mounted());
    cell.write_more();
    cell.let_go();
    way.go(&cell).ok();
    cell.has_ended_well();
}

fn stays_busy(way: &Way, setting: Setting) {
    let Some(mut cell) = setting.cell() else { return };
    let out = way.go(&cell);
    assert!(is_busy(&out), "{out:?}");
    assert!(cell.is_mounted());
    assert_eq!(cell.rig.volume()["state"], "active");
    cell.write_more();
    cell.let_go();
    way.go(&cell).ok();
    cell.has_ended_well();
}

/// The kernel cuts the connection before it checks whether the mount is held.
fn is_cut(way: &Way, setting: Setting) {
    let Some(mut cell) = setting.cell() else { return };
    let out = way.go(&cell);
    assert!(is_busy(&out), "{out:?}");
    cell.verb("wait", &[]).ok();
    cell.is_on_the_store();
    assert!(!cell.is_mounted(), "what is dead stays in the way");
    cell.let_go();
    assert_eq!(cell.daemon.end(), Some(0), "{}", cell.daemon.stderr());
}

fn complete_when_let_go(way: &Way, setting: Setting) {
    let Some(mut cell) = setting.cell() else { return };
    let out = way.go(&cell).ok();
    // A helper prints nothing where umount(8) would print nothing.
    if matches!(way, Way::Verb(_)) {
        out.says(&std::process::id().to_string()).says("its data is being written");
    }
    assert!(!cell.is_mounted());
    assert_eq!(cell.rig.volume()["state"], "detached");
    cell.write_more();
    cell.let_go();
    cell.has_ended_well();
}

/// It must not claim an unfinished end, however long that takes.
fn waits(way: &Way, setting: Setting, code: i32) {
    let Some(mut cell) = setting.cell_that_nobody_syncs() else { return };
    let command = way.command(&cell).expect("a program");
    let waiting = thread::spawn(move || run(command));
    // No other client has asked the store for anything.
    cell.rig.is_stalled_in("write");
    assert!(!waiting.is_finished() && cell.is_mounted());
    let forced = cell.verb("umount", &["--force"]).ends(1, "not written");
    assert_eq!(waiting.join().unwrap().code, Some(code));
    cell.has_lost(Some(&forced));
}

fn says_what_is_lost(way: &Way, setting: Setting, code: i32) {
    for _ in 0..TRIES {
        let Some(mut cell) = setting.cell() else { return };
        let out = way.go(&cell);
        assert!(!cell.is_mounted());
        if out.code != Some(0) {
            cell.has_lost(Some(&out.ends(code, "not written")));
            return;
        }
        // Another program's sync(2) has come in between, for which a slow host leaves time: then all is
        // there, as it says.
        cell.is_on_the_store();
        assert_eq!(cell.daemon.end(), Some(0), "{}", cell.daemon.stderr());
    }
    panic!("other programs' syncs have it written each time");
}

fn lost_at_the_deadline(way: &Way, setting: Setting) {
    let deadline = Duration::from_millis(300);
    for _ in 0..TRIES {
        let Some(mut cell) = setting.cell_with(&format!("drain_timeout={}ms", deadline.as_millis())) else {
            return;
        };
        let begun = Instant::now();
        let out = way.go(&cell).ok();
        let has_waited = out.took >= deadline;
        // Where the answer comes after the deadline it prints nothing.
        assert!(has_waited || cell.is_used_still() || begun.elapsed() >= deadline, "{out:?}");
        assert!(!cell.is_mounted());
        cell.has_lost(None);
        if has_waited {
            return;
        }
    }
    panic!("it never waits");
}

fn lost_later(way: &Way, setting: Setting) {
    // With no deadline to speak of it has returned all the same.
    let Some(mut cell) = setting.cell() else { return };
    way.go(&cell).ok();
    assert!(!cell.is_mounted() && cell.is_waited_for());
    let id = cell.rig.volume()["id"].as_str().unwrap().to_owned();
    cell.rig.run(&["umount", "--force", &id]).ends(1, "not written");
    cell.has_lost(None);

    let Some(mut cell) = setting.cell_with("drain_timeout=300ms") else { return };
    way.go(&cell).ok();
    assert!(!cell.is_mounted());
    cell.has_lost(None);
}

fn died(way: &Way, setting: Setting) {
    let Some(mut cell) = setting.cell() else { return };
    // Of a store that stalls nothing was ever fsynced; nor is anything before a limit within a
    // test.
    let is_synced = matches!(setting.state, State::Dirty | State::Held);
    if is_synced {
        File::open(cell.path("f")).unwrap().sync_all().unwrap();
    }
    way.go(&cell).ok();
    cell.has_died();
    cell.verb("wait", &[]).ends(1, "died before everything was written; what was fsynced is on");
    if is_synced {
        cell.is_on_the_store();
    }
    if cell.is_held() {
        cell.let_go();
    }
    cell.verb("umount", &[]).ends(1, "died");
    assert!(!cell.is_mounted());
    // The store is free: it can be mounted again.
    let again = cell.rig.mount("");
    cell.verb("umount", &[]).ok();
    assert_eq!(again.end(), Some(0));
}
