//! FUSE over io_uring: the service of the other transport, and its own properties.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "test code")]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use common::hook::{Gate, OpenAtEnd};
use common::{Mounted, Setup, eventually, skipped};
use rustix::fs::{FlockOperation, XattrFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use watertight_fuse::abi::Opcode;
use watertight_fuse::{EndReason, Transport, Uring};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// A mount over io_uring; `None` (with a line on stderr) where it cannot be had.
fn over_uring(setup: Setup) -> Option<Mounted> {
    if common::uring() == Uring::Off {
        skipped("io_uring is switched off for tests");
        return None;
    }
    let mounted = setup.mount()?;
    // Which of the two it is, is known after the first request was served.
    fs::metadata(mounted.path()).unwrap();
    match mounted.view.transport() {
        Transport::Uring => Some(mounted),
        Transport::Readers { reason } => {
            skipped(&format!("no FUSE over io_uring here: {reason}"));
            mounted.unmount();
            None
        }
    }
}

/// The CPUs of this process.
fn cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Runs on one CPU, in a thread of its own.
fn on_cpu<T: Send + 'static>(cpu: usize, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).unwrap();
        body()
    })
}

/// A mount whose store hangs in one operation while the gate is shut.
fn hanging_in(hanging: &'static str) -> Option<(Mounted, Arc<Gate>)> {
    let (setup, gate) = Setup::hanging_in(hanging);
    Some((over_uring(setup)?, gate))
}

/// Bytes that differ from file to file and from page to page.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n / 3 + n / 4096 * 7 + seed * 31) % 251) as u8).collect()
}

fn direct(path: &Path) -> fs::File {
    let flags = libc::O_DIRECT;
    fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .unwrap()
}

/// Uses a file in every way that has its own kind of message.
fn use_files(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/file"), "hello").unwrap();
    fs::hard_link(root.join("a/file"), root.join("a/hard")).unwrap();
    let target = "x".repeat(4000);
    symlink(&target, root.join("a/soft")).unwrap();
    assert_eq!(fs::read_link(root.join("a/soft")).unwrap().to_str().unwrap(), target);
    fs::rename(root.join("a/file"), root.join("a/b/moved")).unwrap();
    assert_eq!(fs::metadata(root.join("a/file")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    let file = direct(&root.join("a/b/moved"));
    let value = pattern(1, 3000);
    rustix::fs::fsetxattr(&file, "user.long", &value, XattrFlags::CREATE).unwrap();
    let mut got = vec![0; 4000];
    let len = rustix::fs::fgetxattr(&file, "user.long", &mut got[..]).unwrap();
    assert_eq!(got[..len], value);
    let mut names = [0; 100];
    let len = rustix::fs::flistxattr(&file, &mut names[..]).unwrap();
    assert_eq!(&names[..len], b"user.long\0");
    rustix::fs::fremovexattr(&file, "user.long").unwrap();
    for len in [1, 4096, 16 << 10, (16 << 10) + 1, 128 << 10, 1 << 20, 3 << 20] {
        let data = pattern(len, len);
        file.write_all_at(&data, 4096).unwrap();
        let mut back = vec![0; len];
        file.read_exact_at(&mut back, 4096).unwrap();
        assert!(back == data, "{len} bytes");
    }
    file.set_len(10).unwrap();
    file.sync_all().unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let other = fs::File::open(root.join("a/b/moved")).unwrap();
    let refused = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(Errno::WOULDBLOCK));
    let waiter = std::thread::spawn(move || rustix::fs::flock(&other, FlockOperation::LockExclusive));
    drop(file);
    waiter.join().unwrap().unwrap();
    assert!(rustix::fs::statvfs(root).unwrap().f_blocks > 0);
    let names = (0..300).map(|n| format!("a name that makes the listing longer {n:04}")).collect::<Vec<_>>();
    for name in &names {
        fs::write(root.join("a/b").join(name), name).unwrap();
    }
    let mut listed: Vec<_> =
        fs::read_dir(root.join("a/b")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    let expected: Vec<_> = names.iter().map(String::as_str).chain(["moved"]).collect();
    assert_eq!(listed, expected);
    fs::remove_dir_all(root.join("a/b")).unwrap();
    assert_eq!(fs::read_dir(root.join("a")).unwrap().count(), 2);
}

#[test]
fn both_transports_serve_the_same() {
    for uring in [common::uring(), Uring::Auto, Uring::Off] {
        let Some(mut mounted) = (Setup { uring, ..Setup::default() }).mount() else { return };
        use_files(&mounted.path());
        let readers = matches!(mounted.view.transport(), Transport::Readers { .. });
        assert!(readers || uring != Uring::Off, "{:?}", mounted.view.transport());
        common::umount(&mounted.path());
        assert_eq!(mounted.ended().stuck, 0);
        assert_eq!(mounted.view.threads(), 0);
    }
}

#[test]
fn the_kernels_switch_is_put_back() {
    // Another test's mount that holds this lock has switched it for a moment.
    let locked = || {
        let lock = fs::File::options().read(true).write(true).open("/run/watertight-uring.lock").ok()?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).ok()?;
        Some((fs::read_to_string(SWITCH).ok()?, lock))
    };
    let Some(mounted) = over_uring(Setup::default()) else { return };
    let Some((before, lock)) = locked() else { return skipped("only root changes the switch") };
    drop(lock);
    mounted.unmount();
    let mounted = over_uring(Setup { uring: Uring::On, ..Setup::default() }).unwrap();
    assert_eq!(locked().unwrap().0, before);
    // The connection does not need it any more.
    use_files(&mounted.path());
    mounted.unmount();
}

/// Another mount that needed the switch for a moment, or an administrator, turns it off again
/// between the kernel's offer and the answer.
#[test]
fn entries_that_the_kernel_refuses_leave_no_thread() {
    if common::uring() == Uring::Off {
        return skipped("io_uring is switched off for tests");
    }
    let mut options = fs::File::options();
    options.read(true).write(true).create(true).truncate(false);
    let Ok(lock) = options.open("/run/watertight-uring.lock") else {
        return skipped("only root changes the switch");
    };
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    let Ok(before) = fs::read_to_string(SWITCH) else {
        return skipped("this kernel has no FUSE over io_uring");
    };
    fs::write(SWITCH, "Y").unwrap();
    let off = Box::new(|| fs::write(SWITCH, "N").unwrap());
    let mounted = (Setup { uring: Uring::Auto, before_init: off, ..Setup::default() }).mount();
    let used = mounted.as_ref().map(|mounted| use_files(&mounted.path()));
    fs::write(SWITCH, before).unwrap();
    drop(lock);
    let (Some(mut mounted), Some(())) = (mounted, used) else { return };
    assert!(matches!(mounted.view.transport(), Transport::Readers { .. }));
    common::umount(&mounted.path());
    assert_eq!(mounted.ended().stuck, 0);
    assert_eq!(mounted.view.threads(), 0);
}

#[test]
fn hung_requests_do_not_hold_up_others_from_the_same_cpu() {
    let Some((mounted, gate)) = hanging_in("read_at") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    let cpu = cpus()[0];
    fs::write(mounted.store_path().join("warm"), "up").unwrap();
    assert_eq!(common::text(&mounted.path().join("warm")), "up");
    for n in 0..12 {
        fs::write(mounted.store_path().join(format!("slow{n}")), "content").unwrap();
    }
    gate.shut();
    let mut clients = Vec::new();
    for n in 0..12 {
        let path = mounted.path().join(format!("slow{n}"));
        clients.push(on_cpu(cpu, move || fs::read_to_string(path).unwrap()));
        eventually("one more hangs", || gate.waiting() == n + 1);
        // Each time: the entry that the hung one's thread had waited with must not be the next
        // one's.
        let path = mounted.path().join(format!("other{n}"));
        let other = on_cpu(cpu, move || {
            for _ in 0..20 {
                fs::write(&path, "x").unwrap();
                assert_eq!(common::text(&path), "x");
                fs::remove_file(&path).unwrap();
            }
        });
        other.join().unwrap();
        assert_eq!(gate.waiting(), n + 1);
    }
    gate.open();
    for client in clients {
        assert_eq!(client.join().unwrap(), "content");
    }
    mounted.unmount();
}

#[test]
fn two_hundred_blocked_requests_leave_room_for_others_and_no_threads() {
    const REQUESTS: usize = 200;
    let Some((mounted, gate)) = hanging_in("statfs") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    let cpus = cpus();
    // A queue has room for 16 at least.
    let requests = REQUESTS.min(cpus.len() * (256 / cpus.len()).max(16) * 3 / 4);
    gate.shut();
    let clients: Vec<_> = (0..requests)
        .map(|n| {
            let path = mounted.path();
            on_cpu(cpus[n % cpus.len()], move || rustix::fs::statvfs(path).map(drop))
        })
        .collect();
    eventually("all hang", || gate.waiting() == requests);
    assert!(mounted.view.threads() > requests);
    for &cpu in &cpus {
        let path = mounted.path().join(format!("other{cpu}"));
        on_cpu(cpu, move || {
            fs::write(&path, "x").unwrap();
            assert_eq!(common::text(&path), "x");
        })
        .join()
        .unwrap();
    }
    assert_eq!(gate.waiting(), requests);
    // Only threads of requests that took long go.
    std::thread::sleep(Duration::from_millis(100));
    gate.open();
    for client in clients {
        client.join().unwrap().unwrap();
    }
    let few = 12 + 5 * cpus.len();
    eventually("threads that are not needed end", || mounted.view.threads() < few);
    use_files(&mounted.path());
    mounted.unmount();
}

#[test]
fn a_cpu_has_further_entries_made_before_its_own_run_out() {
    const PLACES: usize = 256;
    let (mut setup, gate) = Setup::hanging_in("statfs");
    setup.session.threads_max = PLACES;
    let Some(mounted) = over_uring(setup) else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    let cpu = cpus()[0];
    // No queue begins with more than all have together: one CPU can have that many.
    gate.shut();
    let clients: Vec<_> = (0..PLACES + 30)
        .map(|n| {
            let path = mounted.path();
            let client = on_cpu(cpu, move || rustix::fs::statvfs(path).map(drop));
            eventually("one more hangs", || gate.waiting() > n);
            client
        })
        .collect();
    let path = mounted.path().join("other");
    let other = on_cpu(cpu, move || {
        fs::write(&path, "x").unwrap();
        assert_eq!(common::text(&path), "x");
    });
    eventually("the other is served", || other.is_finished());
    other.join().unwrap();
    gate.open();
    for client in clients {
        client.join().unwrap().unwrap();
    }
    mounted.unmount();
}

#[test]
fn a_burst_of_large_requests_keeps_its_data() {
    const CLIENTS: usize = 48;
    const LEN: usize = 1 << 20;
    let Some((mounted, gate)) = hanging_in("statfs") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    let cpu = cpus()[0];
    let files: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let path = mounted.path().join(format!("file{n}"));
            on_cpu(cpu, move || {
                for round in 0..6 {
                    let file = direct(&path);
                    let data = pattern(n + round, LEN);
                    file.write_all_at(&data, 0).unwrap();
                    let mut back = vec![0; LEN];
                    file.read_exact_at(&mut back, 0).unwrap();
                    assert!(back == data, "file {n}, round {round}");
                }
            })
        })
        .collect();
    // Requests that hang the while make the queue crowded, so that memory is given back; a queue
    // has room for 16 at least.
    gate.shut();
    let hung: Vec<_> = (0..if cpus().len() <= 4 { 20 } else { 12 })
        .map(|_| {
            let path = mounted.path();
            on_cpu(cpu, move || rustix::fs::statvfs(path).map(drop))
        })
        .collect();
    for file in files {
        file.join().unwrap();
    }
    gate.open();
    for client in hung {
        client.join().unwrap().unwrap();
    }
    for n in 0..CLIENTS {
        assert!(
            fs::read(mounted.path().join(format!("file{n}"))).unwrap() == pattern(n + 5, LEN),
            "file {n}"
        );
    }
    mounted.unmount();
}

#[test]
fn a_killed_writer_of_little_data_ends_at_once_and_of_much_with_the_store_s_answer() {
    for (size, at_once) in [(10_000, true), (1_000_000, false)] {
        let Some((mounted, gate)) = hanging_in("read_at") else { return };
        let _open = OpenAtEnd(Arc::clone(&gate));
        let old = pattern(1, 2 << 20);
        fs::write(mounted.store_path().join("file"), &old).unwrap();
        gate.shut();
        let mut dd = Command::new("dd");
        // Ends within a page, whose rest has to be read from the store.
        let size_arg = format!("bs={size}");
        dd.args(["if=/dev/zero", "of=file", &size_arg, "count=1"]);
        dd.args(["conv=notrunc"]).current_dir(mounted.path()).stderr(Stdio::null());
        let mut child = dd.spawn().unwrap();
        eventually("the hung request", || gate.waiting() == 1);
        child.kill().unwrap();
        eventually("INTERRUPT", || mounted.view.stats().of(Opcode::Interrupt) == 1);
        let mut status = None;
        if at_once {
            status = Some(child.wait().unwrap());
            assert_eq!(gate.waiting(), 1, "the store answered");
        }
        // Others use the entries meanwhile.
        for n in 0..50 {
            let path = mounted.path().join(format!("other{n}"));
            fs::write(&path, pattern(n, 50_000)).unwrap();
        }
        assert_eq!(child.try_wait().unwrap().is_some(), at_once, "{size} bytes");
        gate.open();
        let status = status.unwrap_or_else(|| child.wait().unwrap());
        assert_eq!(status.signal(), Some(9));
        eventually("the late return", || gate.waiting() == 0);
        for n in 0..50 {
            let path = mounted.path().join(format!("other{n}"));
            assert!(fs::read(&path).unwrap() == pattern(n, 50_000), "file {n}");
        }
        // Written up to the point where it was ended, and nothing but that.
        let new = fs::read(mounted.path().join("file")).unwrap();
        let written = new[..size].iter().take_while(|&&byte| byte == 0).count();
        assert!(new[written..] == old[written..], "{size} bytes, {written} written");
        mounted.unmount();
    }
}

#[test]
fn a_forced_end_with_many_requests_under_way_leaves_no_thread() {
    let Some((mut mounted, gate)) = hanging_in("statfs") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    gate.shut();
    let clients: Vec<_> = (0..30)
        .map(|_| {
            let path = mounted.path();
            std::thread::spawn(move || rustix::fs::statvfs(path).map(drop))
        })
        .collect();
    eventually("all hang", || gate.waiting() == 30);
    rustix::mount::unmount(mounted.path(), UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    for client in clients {
        assert_eq!(client.join().unwrap(), Err(Errno::CONNABORTED));
    }
    gate.open();
    let ended = mounted.ended();
    assert_eq!((ended.reason, ended.stuck), (EndReason::Unmounted, 0));
    assert_eq!(mounted.view.threads(), 0);
}

#[test]
fn what_is_not_wanted_is_said() {
    let Some(mounted) = (Setup { uring: Uring::Off, ..Setup::default() }).mount() else { return };
    let Transport::Readers { reason } = mounted.view.transport() else { panic!("over io_uring") };
    assert_eq!(reason, "not wanted");
    mounted.unmount();
}

/// Threads of this process with their scheduling classes.
fn classes() -> Vec<(String, i32)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let tids = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
    let class = |tid: String| {
        let name = fs::read_to_string(format!("/proc/self/task/{tid}/comm")).ok()?;
        // SAFETY: only asks.
        let class = unsafe { libc::sched_getscheduler(tid.parse().ok()?) };
        Some((name.trim().to_owned(), class))
    };
    tids.filter_map(class).collect()
}

#[test]
fn a_lone_client_is_served_in_the_idle_class_and_nobody_else_is_in_it() {
    let Some(mounted) = over_uring(Setup::default()) else { return };
    let may_be_real_time = std::thread::spawn(|| {
        let param = libc::sched_param { sched_priority: 1 };
        // SAFETY: the structure is there for the call, and not kept.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) == 0 }
    });
    if !may_be_real_time.join().unwrap() {
        return skipped("threads may not be of real time here");
    }
    let root = mounted.path();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let client = std::thread::spawn(move || {
        let mut served = 0_u64;
        while ended.try_recv().is_err() {
            rustix::fs::statvfs(&root).unwrap();
            served += 1;
        }
        served
    });
    eventually("a serving thread in the idle class", || {
        let idle: Vec<_> = classes().into_iter().filter(|(_, class)| *class == libc::SCHED_IDLE).collect();
        assert!(idle.iter().all(|(name, _)| name.starts_with("wt-ring-")), "{idle:?}");
        !idle.is_empty()
    });
    end.send(()).unwrap();
    assert!(client.join().unwrap() > 0);
    mounted.unmount();
}
