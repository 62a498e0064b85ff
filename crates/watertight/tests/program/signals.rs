//! Ctrl-C and SIGTERM: everything is written, then the process leaves; the third gives up.

use std::fs::{self, File};
use std::io::Write as _;

use rustix::process::Signal;

use crate::rig::{Rig, eventually};

#[test]
fn a_signal_unmounts_with_all_data_written() {
    for kind in ["auto", "fuse"] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let Some(mut rig) = Rig::mounting() else { return };
            let daemon = rig.mount_faulty("write:delay=100ms", &format!("type={kind},dirty_after=1h"));
            for n in 0..20 {
                fs::write(rig.mnt.join(format!("f{n}")), vec![n; 5000]).unwrap();
            }
            daemon.signal(signal);
            assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
            for n in 0..20 {
                assert_eq!(rig.stored(&format!("f{n}")).unwrap(), vec![n; 5000], "{kind} {signal:?}");
            }
            assert!(!rig.is_mounted());
            assert!(daemon.stderr().contains("97.7 KiB of 20 files to be written"), "{}", daemon.stderr());
            assert!(daemon.stderr().contains("everything is on"), "{}", daemon.stderr());
            rig.verb("wait", &[]).ok();
        }
    }
}

#[test]
fn held_open_it_says_by_whom_detaches_and_writes_everything() {
    // Not kernel write-back on plain `fuse`: there syncfs(2) does not wait for the pages that it
    // hands over.
    for kind in ["auto", "fuse", "auto,mode=kernel-writeback"] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount_faulty("write:delay=50ms", &format!("type={kind},dirty_after=1h"));
        if kind.contains("kernel-writeback") && rig.volume()["mount_type"] != "fuseblk" {
            crate::rig::skipped("kernel write-back on plain fuse: syncfs does not wait");
            return;
        }
        let mut open = File::create(rig.mnt.join("open")).unwrap();
        open.write_all(b"written").unwrap();
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
        let said = daemon.stderr();
        assert!(said.contains("is held by"), "{said}");
        let who = format!("(pid {}), open: {}", std::process::id(), rig.mnt.join("open").display());
        assert!(said.contains(&who), "no {who:?} in {said}");
        assert!(!rig.is_mounted());
        assert_eq!(rig.stored("open").unwrap(), b"written");
        // The kernel itself may take the write; it is never made durable.
        let more = open.write_all(b"more").and_then(|()| open.sync_all());
        assert!(more.is_err(), "it is gone for them, too");
    }
}

#[test]
fn the_second_signal_says_how_much_is_left_and_the_third_gives_up() {
    for kind in ["auto", "fuse"] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount_faulty("write:hang", &format!("type={kind},dirty_after=1h"));
        fs::write(rig.mnt.join("a"), vec![1; 100_000]).unwrap();
        daemon.signal(Signal::INT);
        daemon.says("SIGINT: unmounting");
        daemon.signal(Signal::INT);
        daemon.says("SIGINT: still writing, 97.7 KiB of 1 file left; send it once more to give that data up");
        daemon.signal(Signal::INT);
        assert_eq!(daemon.end(), Some(1), "{}", daemon.stderr());
        let said = daemon.stderr();
        assert!(said.contains("not written: 97.7 KiB (100000 bytes) of 1 file"), "{said}");
        assert!(said.contains("  a: 100000 bytes"), "{said}");
        eventually("the mount is gone", || !rig.is_mounted());
        rig.verb("wait", &[]).ends(1, "given up after 3 signals");
    }
}

#[test]
fn killed_while_it_unmounts_it_is_gone() {
    for kind in ["auto", "fuse"] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount_faulty("write:hang", &format!("type={kind},dirty_after=1h"));
        fs::write(rig.mnt.join("a"), "12345").unwrap();
        daemon.signal(Signal::TERM);
        eventually("it drains", || rig.volume()["state"] == "draining");
        // Nothing of it may wait for itself: then it could not be killed.
        daemon.kill();
        eventually("the mount is gone", || !rig.is_mounted());
        rig.verb("wait", &[]).ends(1, "died");
        let again = rig.mount("");
        rig.verb("umount", &[]).ok();
        assert_eq!(again.end(), Some(0));
    }
}

#[test]
fn a_store_that_fails_has_until_the_deadline() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:fail=ENOSPC", "dirty_after=1h,drain_timeout=1s");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(1), "{}", daemon.stderr());
    let said = daemon.stderr();
    assert!(said.contains("not written: 5 bytes of 1 file"), "{said}");
    assert!(said.contains("  a: 5 bytes: no space left on the store"), "{said}");
    assert!(!rig.is_mounted());
    let ended = rig.status()["ended"][0].clone();
    assert_eq!(ended["ended"]["state"], "failed");
    assert_eq!(ended["ended"]["unwritten"]["bytes"], 5);
}

#[test]
fn a_store_that_fails_for_a_while_only_is_waited_for() {
    let Some(mut rig) = Rig::mounting() else { return };
    // The first five writes fail; then there is room again.
    let rules: Vec<String> = (1..=5).map(|n| format!("write:nth={n}:fail=ENOSPC")).collect();
    let daemon = rig.mount_faulty(&rules.join(";"), "dirty_after=1h");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(rig.stored("a").unwrap(), b"12345");
}

#[test]
fn a_store_that_hangs_has_until_the_deadline() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:hang", "dirty_after=1h,drain_timeout=500ms");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(1), "{}", daemon.stderr());
    let said = daemon.stderr();
    assert!(said.contains("in which nothing could be written"), "{said}");
    assert!(said.contains("  a: 5 bytes"), "{said}");
    assert!(!rig.is_mounted());
}
