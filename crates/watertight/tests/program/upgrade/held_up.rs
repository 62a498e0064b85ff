//! An upgrade beside what could hold it up: a tenant at its limit, calls of the control socket,
//! very many open files, a watchdog.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testing::cgroup::Cgroup;

use super::{counts, mounted, next_program, pause_us, upgrade};
use crate::rig::{LONG, PROGRAM, eventually, wait};
use crate::service::Manager;
use crate::stalled::Stalling;

fn write_in(cgroup: &Cgroup, file: &Path, more: &str) -> Child {
    let mut command = cgroup.command("dd");
    let of = format!("of={}", file.display());
    command.args(["if=/dev/zero", &of, "bs=256K", "count=40", "status=none"]);
    command.args(more.split_whitespace()).stdin(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn a_tenant_at_its_limit_holds_up_no_upgrade_and_no_neighbour() {
    let (Some(slow), Some((rig, daemon))) = (Cgroup::make(), mounted("dirty_after=1h,")) else { return };
    let cgroup = slow.path().display().to_string();
    // What the writers write takes it many minutes.
    rig.run(&["limit", &cgroup, rig.mnt.to_str().unwrap(), "wbps=16K", "dirty_max=1M"]).ok();
    // Writers that wait at their limit, and one that waits for its fsync.
    let mut writers: Vec<Child> = (0..4)
        .map(|n| write_in(&slow, &rig.mnt.join(format!("slow{n}")), if n == 0 { "conv=fsync" } else { "" }))
        .collect();
    eventually("they wait", || rig.volume()["requests"]["under_way"].as_u64().unwrap() >= 3);
    let before = rig.run(&["limit", "--show", "--json", rig.mnt.to_str().unwrap()]).ok().stdout;
    assert!(before.contains(&cgroup), "{before}");
    for n in 1..=3 {
        upgrade(&rig, &["--max-pause", "20s"]).ok();
        assert_eq!(counts(&rig), (n, 0), "{}", daemon.stderr());
        assert!(pause_us(&rig) < 5_000_000, "{} us", pause_us(&rig));
        let limits = rig.run(&["limit", "--show", "--json", rig.mnt.to_str().unwrap()]).ok().stdout;
        assert!(limits.contains(&cgroup) && limits.contains("16384"), "{limits}");
        eventually("they wait again, or have written all", || {
            writers.iter_mut().all(|writer| writer.try_wait().unwrap().is_some())
                || rig.volume()["requests"]["under_way"].as_u64().unwrap() >= 1
        });
    }
    rig.run(&["limit", &cgroup, rig.mnt.to_str().unwrap(), "wbps=max", "dirty_max=max"]).ok();
    for writer in &mut writers {
        assert!(wait(writer, LONG).unwrap().success(), "no writer got an error");
    }
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    for n in 0..4 {
        assert_eq!(rig.stored(&format!("slow{n}")).unwrap().len(), 40 * (256 << 10));
    }
}

#[test]
fn limits_hold_again_after_an_upgrade_was_refused() {
    let (Some(slow), Some(mut it)) = (Cgroup::make(), Stalling::new()) else { return };
    let daemon = it.rig.mount("uring=off");
    let cgroup = slow.path().display().to_string();
    it.rig.run(&["limit", &cgroup, it.rig.mnt.to_str().unwrap(), "wbps=4M"]).ok();
    it.server.stop();
    let unknown = it.rig.mnt.join("unknown");
    let looking = thread::spawn(move || fs::metadata(unknown).map_err(|error| error.kind()));
    eventually("the request is under way", || {
        it.rig.volume()["requests"]["by_kind"]["lookup"].as_u64().is_some_and(|n| n > 0)
    });
    upgrade(&it.rig, &["--timeout", "1s", "--max-pause", "300ms"]).ends(1, "did not come to an end");
    daemon.says("requests wait for another program");
    it.server.signal(Signal::CONT);
    assert_eq!(looking.join().unwrap().unwrap_err(), std::io::ErrorKind::NotFound);
    let begun = Instant::now();
    let mut writer = write_in(&slow, &it.rig.mnt.join("file"), "conv=fsync");
    assert!(wait(&mut writer, LONG).unwrap().success());
    // 10 MiB, of which a part may be free.
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
    it.rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
}

#[test]
fn limits_that_are_set_meanwhile_are_set() {
    let Some((rig, daemon)) = mounted("") else { return };
    let is_over = AtomicBool::new(false);
    let mnt = rig.mnt.to_str().unwrap();
    thread::scope(|scope| {
        for cgroup in ["/first", "/second"] {
            let (rig, is_over) = (&rig, &is_over);
            scope.spawn(move || {
                let mut n = 1_u64;
                while !is_over.load(Ordering::SeqCst) {
                    rig.run(&["limit", cgroup, mnt, &format!("riops={n}")]).ok();
                    let limits = rig.run(&["limit", "--show", "--json", mnt]).ok().stdout;
                    let limits: serde_json::Value = serde_json::from_str(&limits).unwrap();
                    let rows = limits["limits"].as_array().unwrap();
                    let row = rows.iter().find(|row| row["cgroup"] == cgroup).unwrap();
                    assert_eq!(row["riops"], n, "{row}");
                    n += 1;
                }
            });
        }
        for _ in 0..6 {
            upgrade(&rig, &[]).ok();
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(counts(&rig), (6, 0));
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
}

/// What was answered "attached" is attached, whether the volume came before the other program or
/// after it.
#[test]
fn a_volume_that_is_attached_meanwhile_is_attached() {
    for delay in [0, 15, 30, 45, 60] {
        let Some((rig, daemon)) = mounted("") else { return };
        let (inside, other) = (rig.mnt.join("inside"), rig.root.join("other"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "other").unwrap();
        next_program(&rig);
        thread::scope(|scope| {
            let upgrading = scope.spawn(|| upgrade(&rig, &[]));
            thread::sleep(Duration::from_millis(delay));
            rig.run(&["attach", other.to_str().unwrap(), inside.to_str().unwrap()]).ok();
            upgrading.join().unwrap().ok();
        });
        assert_eq!(fs::read(inside.join("file")).unwrap(), b"other", "after {delay} ms");
        rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    }
}

#[test]
fn ten_thousand_open_files_are_open_still() {
    const FILES: usize = 10_000;
    let Some((rig, daemon)) = mounted("") else { return };
    let path = |n: usize| rig.mnt.join(n.to_string());
    for n in 0..FILES {
        fs::write(rig.store.join(n.to_string()), n.to_string()).unwrap();
    }
    let open: Vec<File> =
        (0..FILES).map(|n| File::options().read(true).write(true).open(path(n)).unwrap()).collect();
    for round in 1..=2 {
        upgrade(&rig, &["--max-pause", "60s"]).ok();
        assert_eq!(counts(&rig), (round, 0), "{}", daemon.stderr());
        for (n, file) in open.iter().enumerate() {
            let mut text = [0; 8];
            let len = file.read_at(&mut text, 0).unwrap();
            assert_eq!(&text[..len], n.to_string().as_bytes());
        }
    }
    open.iter().for_each(|file| file.write_all_at(b"!", 0).unwrap());
    drop(open);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(rig.stored("9999").unwrap(), b"!999");
}

/// Their descriptors are more than half of what a process may have: the next program could not have
/// a copy of each.
#[test]
fn files_that_were_only_looked_at_are_handed_over_by_their_handles() {
    const FILES: usize = 70_000;
    let Some((rig, daemon)) = mounted("") else { return };
    for dir in 0..7 {
        fs::create_dir(rig.store.join(dir.to_string())).unwrap();
    }
    let name = |n: usize| format!("{}/{n}", n % 7);
    for n in 0..FILES {
        File::create(rig.store.join(name(n))).unwrap();
    }
    for n in 0..FILES {
        fs::symlink_metadata(rig.mnt.join(name(n))).unwrap();
    }
    let volume = rig.volume();
    let figure = |name: &str| volume["process"][name].as_u64().unwrap();
    assert!(figure("open_fds") * 2 > figure("max_fds"), "{}", volume["process"]);
    upgrade(&rig, &["--max-pause", "60s"]).ok();
    assert_eq!(counts(&rig), (1, 0), "{}", daemon.stderr());
    fs::write(rig.mnt.join(name(1)), "1").unwrap();
    fs::rename(rig.mnt.join(name(2)), rig.mnt.join("moved")).unwrap();
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(rig.stored(&name(1)).unwrap(), b"1");
}

/// With a low limit each open file goes over with one descriptor, and with a lower one by its handle;
/// one without a name has its descriptor in any case.
#[test]
fn open_files_beyond_the_limit_of_descriptors_are_open_still() {
    const FILES: usize = 1000;
    let Some((rig, daemon)) = mounted("") else { return };
    let name = |n: usize| n.to_string();
    for n in 0..FILES {
        fs::write(rig.store.join(name(n)), name(n)).unwrap();
        fs::set_permissions(rig.store.join(name(n)), fs::Permissions::from_mode(0o400)).unwrap();
    }
    fs::write(rig.store.join("looked-at"), "looked at").unwrap();
    let open = |n| File::options().read(true).write(true).open(rig.mnt.join(name(n))).unwrap();
    let open: Vec<File> = (0..FILES).map(open).collect();
    fs::remove_file(rig.mnt.join(name(0))).unwrap();
    let by_handle = |log: &str| {
        let (_, figure) = log.rsplit_once("\"by_handle\":").expect(log);
        figure.split(',').next().unwrap().parse::<usize>().unwrap()
    };
    for (round, limit, range) in [(1, 2900, 1..10), (2, 2200, FILES - 1..FILES + 10)] {
        fs::metadata(rig.mnt.join("looked-at")).unwrap();
        let pid = rustix::process::Pid::from_raw(daemon.pid.cast_signed()).unwrap();
        let limit = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
        upgrade(&rig, &["--max-pause", "60s"]).ok();
        assert_eq!(counts(&rig), (round, 0), "{}", daemon.stderr());
        let figures = || daemon.stderr().matches("\"by_handle\":").count() as u64;
        eventually("it has said so", || figures() == round);
        let log = daemon.stderr();
        assert!(range.contains(&by_handle(&log)), "{log}");
        for (n, file) in open.iter().enumerate() {
            let mut text = [0; 8];
            let len = file.read_at(&mut text, 0).unwrap();
            assert_eq!(&text[..len], name(n).as_bytes(), "round {round}");
            file.write_all_at(name(n).as_bytes(), 0).unwrap();
        }
    }
    for file in &open {
        file.write_all_at(b"!", 0).unwrap();
        file.sync_all().unwrap();
    }
    assert_eq!(open[0].metadata().unwrap().nlink(), 0);
    drop(open);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert!(rig.stored("0").is_none());
    assert_eq!(rig.stored("999").unwrap(), b"!99");
}

/// The pause may be longer than the service manager's patience.
#[test]
fn the_watchdog_is_answered_while_requests_wait() {
    let Some(mut it) = Stalling::new() else { return };
    let path = it.rig.root.join("notify");
    let manager = Manager::new(&path);
    let (store, mnt) = (it.rig.store.display(), it.rig.mnt.display());
    let line = format!("export WATCHDOG_PID=$$; exec {PROGRAM} mount -o uring=off dir:{store} {mnt}");
    let mut command = Command::new("sh");
    command.args(["-c", &line]).env("WATERTIGHT_RUNTIME_DIR", &it.rig.runtime);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "2000000");
    let daemon = it.rig.start(command);
    assert!(manager.hears().starts_with("READY=1\n"));
    it.server.stop();
    let unknown = it.rig.mnt.join("unknown");
    let looking = thread::spawn(move || fs::metadata(unknown).map_err(|error| error.kind()));
    eventually("the request is under way", || {
        it.rig.volume()["requests"]["by_kind"]["lookup"].as_u64().is_some_and(|n| n > 0)
    });
    manager.hears_nothing_old();
    thread::scope(|scope| {
        let refused = scope.spawn(|| upgrade(&it.rig, &["--timeout", "1s", "--max-pause", "6s"]));
        for _ in 0..5 {
            assert_eq!(manager.hears_within(Duration::from_millis(1900)).as_deref(), Some("WATCHDOG=1"));
        }
        refused.join().unwrap().ends(1, "did not come to an end");
    });
    it.server.signal(Signal::CONT);
    assert_eq!(looking.join().unwrap().unwrap_err(), std::io::ErrorKind::NotFound);
    it.rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
}

/// What a sync wrote ahead of a limit is owed to the next program too.
#[test]
fn what_was_written_ahead_of_a_limit_is_owed_still() {
    let (Some(slow), Some((rig, daemon))) = (Cgroup::make(), mounted("dirty_after=1h,")) else { return };
    let cgroup = slow.path().display().to_string();
    rig.run(&["limit", &cgroup, rig.mnt.to_str().unwrap(), "wbps=64K"]).ok();
    let owed = || {
        let shown = rig.run(&["limit", "--show", "--json", rig.mnt.to_str().unwrap()]).ok().stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let rows = shown["limits"].as_array().unwrap();
        rows.iter().find(|row| row["cgroup"] == cgroup).unwrap()["owed_bytes"].as_u64().unwrap()
    };
    let mut writer = write_in(&slow, &rig.mnt.join("file"), "");
    assert!(wait(&mut writer, LONG).unwrap().success());
    rig.verb("sync", &[]).ok();
    // 10 MiB are owed for 160 s.
    let (before, begun) = (owed(), Instant::now());
    assert!(before > 8 << 20, "{before}");
    upgrade(&rig, &[]).ok();
    let after = owed();
    let paid = (begun.elapsed().as_secs() + 2) << 16;
    assert!(after <= before && after + paid >= before, "{before}, then {after}, at most {paid} paid");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
}
