//! `recover=on` of volumes on object storage: what was accepted is in a journal of the host.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};

use super::kills::{KILLS, check_kills, check_load};
use super::{Kept, can_resend, check_accepted, check_nothing_is_left, check_upgrades};
use crate::rig::{LONG, Rig, eventually, run, skipped};

impl Kept {
    /// A mount of a new volume, with a journal.
    fn mount_bucket(options: &str) -> Option<Self> {
        if !can_resend() {
            return None;
        }
        let mut rig = Rig::mounting()?;
        let url = match std::env::var("WATERTIGHT_TEST_URL") {
            Ok(bucket) => {
                let unique = rig.root.file_name().and_then(|name| name.to_str()).unwrap();
                format!("{bucket}/{}-{unique}", std::process::id())
            }
            Err(_) => format!("file://{}/bucket", rig.root.display()),
        };
        rig.run(&["format", &url]).ok();
        let journal = rig.root.join("journal");
        fs::create_dir(&journal).unwrap();
        let keeper = rig.mount_source(&url, &format!("recover=on,journal={}{options}", journal.display()));
        Some(Self { rig, keeper, url: Some(url) })
    }
}

#[test]
fn no_accepted_byte_is_lost_and_no_file_is_closed() {
    for mode in ["write-through", "kernel-writeback"] {
        let Some(it) = Kept::mount_bucket(&format!(",mode={mode},dirty_after=1h")) else { return };
        check_accepted(it, mode);
    }
}

#[test]
fn programs_notice_a_pause_when_the_server_is_killed() {
    let Some(it) = Kept::mount_bucket("") else { return };
    check_load(it, "programs of all kinds, in a bucket");
}

#[test]
fn each_change_is_made_once() {
    let Some(mut it) = Kept::mount_bucket("") else { return };
    check_kills(&mut it, KILLS, "changes of names, large writes and reads, in a bucket");
}

/// As often as `WATERTIGHT_KILLS` says.
#[test]
#[ignore = "a campaign: docs/TESTING.md"]
fn campaign() {
    let kills = std::env::var("WATERTIGHT_KILLS").ok().and_then(|n| n.parse().ok());
    let Some(mut it) = Kept::mount_bucket("") else { return };
    check_kills(&mut it, kills.unwrap_or(1000), "campaign, in a bucket");
}

#[test]
fn an_upgrade_is_a_pause_and_no_death() {
    let Some(it) = Kept::mount_bucket("") else { return };
    check_upgrades(it, 3);
}

/// One that has written its number into the lease and then cannot go on has told it nobody.
#[test]
fn a_server_that_ends_before_it_serves_is_followed_by_another() {
    let Some(mut it) = Kept::mount_bucket(",dirty_after=1h") else { return };
    let bucket = it.url.as_deref().and_then(|url| url.strip_prefix("file://")).map(PathBuf::from);
    let Some(bucket) = bucket else { return skipped("the bucket is not a directory") };
    fs::write(it.at("file"), "file").unwrap();
    let (log, aside) = (bucket.join("log"), bucket.join("aside"));
    fs::rename(&log, &aside).unwrap();
    fs::write(&log, "in its place").unwrap();
    let server = it.server();
    it.kill(Signal::KILL);
    let holder = || {
        let info = it.rig.run(&["info", "--json", it.url.as_deref().unwrap()]).ok();
        let info: serde_json::Value = serde_json::from_str(&info.stdout).unwrap();
        info["holder"]["pid"].as_u64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw)
    };
    eventually("the next one has the lease", || holder() != Some(server));
    kill_process(holder().unwrap(), Signal::KILL).unwrap();
    fs::remove_file(&log).unwrap();
    fs::rename(&aside, &log).unwrap();
    assert_eq!(fs::read(it.at("file")).unwrap(), b"file");
    assert_eq!(it.recovery(), ("on".to_owned(), 2));
    it.kill_and_wait(Signal::KILL);
    assert_eq!(fs::read(it.end().join("file")).unwrap(), b"file");
}

#[test]
fn nothing_is_left_behind() {
    let Some(it) = Kept::mount_bucket("") else { return };
    check_nothing_is_left(&it);
}

/// `rm -r` removes what it has listed, and goes on where it was.
#[test]
fn a_directory_that_is_read_goes_on_where_it_was() {
    const NAMES: usize = 3000;
    let Some(it) = Kept::mount_bucket("") else { return };
    fs::create_dir(it.at("dir")).unwrap();
    for n in 0..NAMES {
        File::create(it.at(&format!("dir/a-name-that-is-long-enough-for-several-readings-{n}"))).unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(it.at("dir")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
        if seen % 700 == 1 {
            kill_process(it.server(), Signal::KILL).unwrap();
        }
    }
    assert_eq!(seen, NAMES);
    fs::remove_dir(it.at("dir")).unwrap();
    it.unmount();
}

/// So does a program that reads into a buffer of 2 KiB, as musl's do: it takes all of an answer.
#[test]
fn a_directory_that_is_read_in_small_parts_goes_on_where_it_was() {
    const NAMES: usize = 400;
    let Some(it) = Kept::mount_bucket("") else { return };
    fs::create_dir(it.at("dir")).unwrap();
    for n in 0..NAMES {
        File::create(it.at(&format!("dir/name-{n}"))).unwrap();
    }
    let dir = File::open(it.at("dir")).unwrap();
    let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 2048];
    let (mut seen, mut rounds) = (0, 0);
    loop {
        let mut names = Vec::new();
        // As much as one call returns.
        let mut entries = rustix::fs::RawDir::new(&dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.unwrap();
            if entry.file_name().to_bytes().starts_with(b"name-") {
                names.push(entry.file_name().to_owned());
            }
            if entries.is_buffer_empty() {
                break;
            }
        }
        if names.is_empty() && rounds > 0 {
            break;
        }
        for name in &names {
            rustix::fs::unlinkat(&dir, name.as_c_str(), AtFlags::empty()).unwrap();
        }
        seen += names.len();
        rounds += 1;
        if rounds % 3 == 0 {
            kill_process(it.server(), Signal::KILL).unwrap();
        }
    }
    assert_eq!(seen, NAMES, "in {rounds} parts");
    drop(dir);
    fs::remove_dir(it.at("dir")).unwrap();
    it.unmount();
}

/// A file without a name gets its first one, also if two servers have died since.
#[test]
fn a_file_without_a_name_can_be_linked_by_the_next_server() {
    let Some(mut it) = Kept::mount_bucket("") else { return };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut made = File::from(rustix::fs::open(&it.rig.mnt, flags, Mode::RUSR | Mode::WUSR).unwrap());
    made.write_all(b"made").unwrap();
    it.kill_and_wait(Signal::KILL);
    it.kill_and_wait(Signal::KILL);
    let path = format!("/proc/self/fd/{}", made.as_raw_fd());
    rustix::fs::linkat(CWD, path, CWD, it.at("made"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(made);
    assert_eq!(fs::read(it.end().join("made")).unwrap(), b"made");
}

/// Nobody else gets the volume between two servers, and nobody the journal.
#[test]
fn a_volume_is_nobody_elses_while_no_server_is_there() {
    let Some(it) = Kept::mount_bucket("") else { return };
    fs::write(it.at("file"), "file").unwrap();
    let (other, url) = (it.rig.root.join("other"), it.url.clone().unwrap());
    fs::create_dir(&other).unwrap();
    let mount = |options: &str| {
        let mut command = it.rig.command(&["mount", "-o", options, &url]);
        command.arg(&other).env("WATERTIGHT_RUNTIME_DIR", it.rig.root.join("run-elsewhere"));
        command
    };
    let journal = format!("uring=off,journal={}", it.rig.root.join("journal").display());
    let (without, with, file) = (mount("uring=off"), mount(&journal), it.at("file"));
    let read = it.while_none_serves(move || {
        // As its last process has ended, or is about to.
        let out = run(without).ends(1, "");
        assert!(["has a journal", "held by"].iter().any(|why| out.stderr.contains(why)), "{out:?}");
        run(with).ends(1, "uses the journal");
        fs::read(file).unwrap()
    });
    assert_eq!(read, b"file");
    eventually("it says that one has died", || it.recovery().1 == 1);
    it.unmount();
}

/// Its callers wait, and a forced unmount does not.
#[test]
fn a_bucket_that_does_not_answer_is_waited_for() {
    if !can_resend() {
        return;
    }
    let (Some(mut server_rig), Some(mut rig)) = (Rig::mounting(), Rig::mounting()) else { return };
    let server = server_rig.mount("type=fuse,uring=off");
    let (bucket, journal) = (server_rig.mnt.join("bucket"), rig.root.join("journal"));
    [&bucket, &journal].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let url = format!("file://{}", bucket.display());
    rig.run(&["format", &url]).ok();
    let keeper = rig.mount_source(&url, &format!("recover=on,journal={}", journal.display()));
    let it = Kept { rig, keeper, url: Some(url) };
    for is_forced in [false, true] {
        server.stop();
        fs::write(it.at("file"), "file").unwrap();
        it.kill(Signal::KILL);
        let (file, (done, read)) = (it.at("file"), channel());
        thread::spawn(move || done.send(fs::read(file)));
        let early = read.recv_timeout(Duration::from_millis(500));
        assert!(early.is_err(), "nothing can be known yet: {early:?}");
        if is_forced {
            it.rig.run(&["umount", "--force", it.rig.mnt.to_str().unwrap()]).ends(1, "");
            let ended = read.recv_timeout(LONG).expect("it has ended");
            assert!(ended.is_err(), "{ended:?}");
            assert!(!it.rig.is_mounted());
        }
        server.signal(Signal::CONT);
        if !is_forced {
            assert_eq!(read.recv_timeout(LONG).expect("it has an answer").unwrap(), b"file");
        }
    }
    let _its_code = it.keeper.end();
    server_rig.verb("umount", &[]).ok();
}

#[test]
fn what_cannot_be_recovered_is_refused_in_words() {
    let Some(it) = Kept::mount_bucket("") else { return };
    let (other, url) = (it.rig.root.join("other"), it.url.clone().unwrap());
    fs::create_dir(&other).unwrap();
    let other = other.to_str().unwrap();
    let refused = |options: &str, url: &str, why: &str| {
        it.rig.run(&["mount", "-o", options, url, other]).ends(2, why);
    };
    refused("recover=on", &url, "give journal=DIR");
    refused("recover=on,ro", &url, "only read");
    refused("recover=on", "memory://name", "memory");
    it.unmount();
}
