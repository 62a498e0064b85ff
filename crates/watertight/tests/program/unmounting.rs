//! `umount`: plain, held, lazy, forced; over stores that are slow, fail or hang.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount};

use crate::rig::{LONG, Rig, eventually, is_mounted, no_copies, run, umount2, wait};
use crate::syncing::Syncing;

/// A process that holds the mount by its working directory.
fn holder(rig: &Rig) -> Child {
    let child = Command::new("sleep").arg("1000").current_dir(&rig.mnt).stdin(Stdio::null()).spawn().unwrap();
    let cwd = format!("/proc/{}/cwd", child.id());
    eventually("the holder is in the mount", || fs::read_link(&cwd).is_ok_and(|dir| dir == rig.mnt));
    child
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_return_means_the_data_is_there() {
    for kind in ["auto", "fuse"] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount_faulty("write:delay=100ms", &format!("type={kind},dirty_after=1h"));
        for n in 0..20 {
            fs::write(rig.mnt.join(format!("f{n}")), vec![n; 10_000]).unwrap();
        }
        assert_eq!(rig.stored("f0").unwrap().len(), 0, "there must be something to wait for");
        let out = rig.verb("umount", &[]).ok();
        for n in 0..20 {
            assert_eq!(rig.stored(&format!("f{n}")).unwrap(), vec![n; 10_000], "{kind}: f{n}");
        }
        assert!(out.took >= Duration::from_millis(100), "{kind}: {:?}", out.took);
        assert!(!rig.is_mounted());
        // The process is gone when the verb returns, not some time later.
        assert!(!Path::new(&format!("/proc/{}/fd", daemon.pid)).exists() || daemon.end() == Some(0));
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn held_means_busy_by_name_and_nothing_changed() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    fs::write(rig.mnt.join("a"), "a").unwrap();
    let child = holder(&rig);
    let out = rig.verb("umount", &[]).ends(1, "is busy (EBUSY)");
    let who = format!("sleep (pid {}), working directory: {}", child.id(), rig.mnt.display());
    assert!(out.stderr.contains(&who), "no {who:?} in {}", out.stderr);
    assert!(out.stderr.contains("--lazy"), "{}", out.stderr);
    assert!(rig.is_mounted());
    assert_eq!(rig.volume()["state"], "active");
    assert_eq!(fs::read(rig.mnt.join("a")).unwrap(), b"a");
    end(child);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn who_unmounts_from_inside_is_named_and_the_verb_is_not() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    fs::create_dir(rig.mnt.join("dir")).unwrap();
    // Another command behind it: the shell stays.
    let shell = |script: &str| {
        let command = rig.command(&["umount"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(command.get_program()).current_dir(rig.mnt.join("dir"));
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run(shell)
    };
    let out = shell("\"$1\" umount ..; exit $?").ends(1, "is busy (EBUSY)");
    assert!(out.stderr.contains("sh (pid "), "{}", out.stderr);
    assert!(!out.stderr.contains("watertight (pid "), "{}", out.stderr);
    assert!(rig.is_mounted());
    // No other process: the verb is in place of the shell. It leaves the directory that its runtime
    // directory is relative to.
    shell("WATERTIGHT_RUNTIME_DIR=../../$(basename \"$WATERTIGHT_RUNTIME_DIR\") exec \"$1\" umount ..")
        .ok()
        .says("unmounted; everything is on");
    assert!(!rig.is_mounted());
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn lazy_and_not_held_is_complete() {
    for kind in ["auto", "fuse"] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount_faulty("write:delay=50ms", &format!("type={kind},dirty_after=1h"));
        fs::write(rig.mnt.join("a"), "a").unwrap();
        rig.verb("umount", &["--lazy"]).ok().says("everything is on");
        assert_eq!(rig.stored("a").unwrap(), b"a");
        assert!(!rig.is_mounted());
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn lazy_and_held_says_by_whom_and_the_data_follows() {
    for kind in ["auto", "fuse"] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount(&format!("type={kind},dirty_after=1h"));
        let mut open = File::create(rig.mnt.join("open")).unwrap();
        let out = rig.verb("umount", &["--lazy"]).ok().says("its data is being written");
        assert!(out.stdout.contains(&format!("(pid {}), open: ", std::process::id())), "{}", out.stdout);
        assert!(!rig.is_mounted(), "the path is gone");
        assert_eq!(rig.volume()["state"], "detached");
        let status = rig.run(&["status"]).ok();
        assert!(
            status.stdout.contains(&format!("(pid {}), open: ", std::process::id())),
            "{}",
            status.stdout
        );
        // It stays usable for a process that has it open.
        open.write_all(b"after the unmount").unwrap();
        rig.verb("wait", &["--timeout", "100ms"]).ends(1, "not yet: detached, 17 B of 1 file");
        rig.verb("umount", &[]).ends(1, "already detached");
        let id = rig.volume()["id"].as_str().unwrap().to_owned();
        let command = rig.command(&["wait", &id]);
        let waiting = thread::spawn(move || run(command));
        drop(open);
        waiting.join().unwrap().ok().says("free");
        assert_eq!(rig.stored("open").unwrap(), b"after the unmount");
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn a_store_that_fails_keeps_its_volume_mounted() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:fail=EIO", "dirty_after=1h");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    let out = rig.verb("umount", &[]).ends(1, "stays mounted");
    assert!(out.stderr.contains("--force"), "{}", out.stderr);
    assert!(rig.is_mounted());
    assert_eq!(fs::read(rig.mnt.join("a")).unwrap(), b"12345", "nothing is lost");
    let out = rig.verb("umount", &["--force"]).ends(1, "not written: 5 bytes of 1 file");
    assert!(out.stderr.contains("  a: 5 bytes: input/output error"), "{}", out.stderr);
    assert!(!rig.is_mounted());
    assert_eq!(daemon.end(), Some(1));
    // The truth stays, until the store is mounted again.
    rig.verb("wait", &[]).ends(1, "5 bytes");
    rig.run(&["status"]).ok().says("failed");
    let again = rig.mount("");
    rig.verb("umount", &[]).ok();
    assert_eq!(again.end(), Some(0));
    rig.is_quiet();
}

#[test]
fn force_over_a_store_that_hangs() {
    for kind in ["auto", "fuse"] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount_faulty("write:hang", &format!("type={kind},dirty_after=1h"));
        fs::write(rig.mnt.join("a"), vec![1; 3 << 20]).unwrap();
        fs::write(rig.mnt.join("b"), "b").unwrap();
        // A thread waits for the store.
        let waiter = Syncing::prepare(&rig.mnt.join("a"), "").begin();
        eventually("the store hangs", || rig.volume()["writeback_bytes"].as_u64() > Some(0));
        // The other verbs say so in time.
        rig.verb("wait", &["--timeout", "100ms"]).ends(1, "not yet");
        let out = rig.verb("umount", &["--force"]).ends(1, "of 2 files");
        assert!(out.stderr.contains("not written: 3.0 MiB (3145729 bytes) of 2 files"), "{}", out.stderr);
        assert!(out.stderr.contains("  a: 3145728 bytes"), "{}", out.stderr);
        assert!(out.stderr.contains("  b: 1 byte"), "{}", out.stderr);
        assert!(!rig.is_mounted());
        assert!(matches!(waiter.error(), Some(5 | 103)), "EIO or ECONNABORTED");
        assert_eq!(daemon.end(), Some(1));
        rig.run(&["status"]).ok().says("given up by force");
    }
}

#[test]
fn force_with_nothing_to_lose_is_no_failure() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    let child = holder(&rig);
    rig.verb("umount", &["--force"]).ok().says("everything is on");
    assert!(!rig.is_mounted());
    assert_eq!(daemon.end(), Some(0));
    end(child);
}

#[test]
fn force_ends_a_process_that_does_not_answer() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    fs::write(rig.mnt.join("a"), "a").unwrap();
    daemon.signal(rustix::process::Signal::STOP);
    rig.verb("wait", &["--timeout=100ms"]).ends(1, "did not answer");
    rig.verb("umount", &["--force"]).ends(1, "how much was not written is unknown");
    assert!(!rig.is_mounted());
    assert_eq!(daemon.end(), None, "ended by a signal");
}

#[test]
fn a_volume_that_hangs_holds_up_nobody_else() {
    let Some(mut rig) = Rig::mounting() else { return };
    let hanging = rig.mount_faulty("lookup:hang;write:hang", "dirty_after=1h");
    let (hung_mnt, store) = (rig.mnt.clone(), rig.store.clone());
    let walker = thread::spawn(move || fs::read_dir(hung_mnt.join("x")).map(drop));
    (rig.store, rig.mnt) = (rig.root.join("store2"), rig.root.join("mnt2"));
    fs::create_dir(&rig.store).unwrap();
    fs::create_dir(&rig.mnt).unwrap();
    let daemon = rig.mount("dirty_after=1h");
    fs::write(rig.mnt.join("a"), "a").unwrap();
    rig.verb("sync", &[]).ok();
    rig.run(&["status"]).ok().says(store.to_str().unwrap());
    rig.verb("umount", &[]).ok();
    assert_eq!(rig.stored("a").unwrap(), b"a");
    assert_eq!(daemon.end(), Some(0));
    rig.run(&["umount", "--force", store.to_str().unwrap()]);
    assert!(walker.join().unwrap().is_err());
    assert!(hanging.end().is_some());
}

#[test]
fn a_mount_on_top_is_not_taken_for_ours() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    mount("none", &rig.mnt, "tmpfs", MountFlags::empty(), None).unwrap();
    let id = rig.volume()["id"].as_str().unwrap().to_owned();
    for name in [rig.mnt.to_str().unwrap(), &id] {
        rig.run(&["umount", name]).ends(1, &format!("mounted inside {} (tmpfs)", rig.mnt.display()));
    }
    rig.verb("umount", &["--lazy"]).ends(1, "tmpfs is mounted on top of it");
    assert_eq!(rig.volume()["state"], "active");
    umount2(&rig.mnt, UnmountFlags::empty());
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn mounts_inside_the_volume_hold_it() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let inside = rig.mnt.join("inside");
    fs::create_dir(&inside).unwrap();
    mount("none", &inside, "tmpfs", MountFlags::empty(), None).unwrap();
    rig.verb("umount", &[]).ends(1, &format!("mounted inside {} (tmpfs)", inside.display()));
    umount2(&inside, UnmountFlags::empty());
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn other_peoples_verbs_do_the_same() {
    let Some(mut rig) = Rig::mounting() else { return };
    for verb in ["raw", "umount", "raw-lazy"] {
        let daemon = rig.mount_faulty("write:delay=50ms", "dirty_after=1h");
        if rig.volume()["mount_type"] != "fuseblk" {
            crate::rig::skipped("the mount is plain fuse: the kernel does not wait");
            return;
        }
        fs::write(rig.mnt.join(verb), verb).unwrap();
        match verb {
            "raw" => umount2(&rig.mnt, UnmountFlags::empty()),
            "raw-lazy" => umount2(&rig.mnt, UnmountFlags::DETACH),
            _ => {
                let _no_copies = no_copies();
                eventually("umount(8) does not say EBUSY", || {
                    let mut command = Command::new("umount");
                    // By umount2(2), also on a host where helpers are installed; this test is not
                    // about these.
                    command.arg("--internal-only").arg(&rig.mnt);
                    let said = run(command);
                    assert!(said.code == Some(0) || said.stderr.contains("busy"), "{}", said.stderr);
                    said.code == Some(0)
                });
            }
        }
        assert_eq!(rig.stored(verb).unwrap(), verb.as_bytes());
        rig.verb("wait", &[]).ok().says("free");
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn a_raw_unmount_of_plain_fuse_loses_nothing_and_wait_tells() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:delay=300ms", "type=fuse,dirty_after=1h");
    fs::write(rig.mnt.join("a"), "a").unwrap();
    umount2(&rig.mnt, UnmountFlags::empty());
    rig.verb("wait", &[]).ok().says("free");
    assert_eq!(rig.stored("a").unwrap(), b"a");
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn an_aborted_connection_loses_nothing_that_was_accepted() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    fs::write(rig.mnt.join("a"), "a").unwrap();
    umount2(&rig.mnt, UnmountFlags::FORCE);
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(rig.stored("a").unwrap(), b"a");
    eventually("the path is gone", || !is_mounted(&rig.mnt));
}

#[test]
fn a_hundred_mounts_come_and_go_at_one_place() {
    let Some(mut rig) = Rig::mounting() else { return };
    let begun = Instant::now();
    for round in 0..100 {
        let daemon = rig.mount("dirty_after=1h");
        let name = format!("f{round}");
        fs::write(rig.mnt.join(&name), &name).unwrap();
        umount2(&rig.mnt, UnmountFlags::empty());
        if round % 10 == 9 {
            // The others are left to leave on their own, beside the next mount.
            let mut child = Command::new("true").spawn().unwrap();
            assert!(wait(&mut child, LONG).is_some());
            assert_eq!(daemon.end(), Some(0));
        }
        rig.verb("wait", &[]).ok();
        assert_eq!(rig.stored(&name).unwrap(), name.as_bytes());
    }
    eprintln!("100 mounts in {:?}", begun.elapsed());
}
