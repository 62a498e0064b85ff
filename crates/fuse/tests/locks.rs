//! flock(2) and fcntl(2) locks through a real mount, between processes. They are the kernel's own:
//! no request is for them.
//!
//! The other processes are this program itself, started again with the test `child` and a task in
//! its environment.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{Mounted, Setup, eventually};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::Pid;
use watertight_fuse::abi::Opcode;

const TASK: &str = "WATERTIGHT_LOCK_TEST";

const WRITE: libc::c_int = libc::F_WRLCK;
const READ: libc::c_int = libc::F_RDLCK;
const NONE: libc::c_int = libc::F_UNLCK;

/// The task of waiting until signals come.
const ALARMS: &str = "alarms";

fn range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock { l_type: i16::try_from(kind).unwrap(), l_whence: 0, l_start: start, l_len: len, l_pid: 0 }
}

/// fcntl(2) with a lock.
fn fcntl(file: &File, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the command takes a pointer to a `struct flock`, which it reads and may change.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    if done == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()) }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// A process that takes a lock, says so, and holds it until its input ends.
struct Holder {
    process: Child,
    lines: BufReader<ChildStdout>,
    /// The thread in it that takes the lock.
    thread: i32,
}

impl Holder {
    /// `task`: `flock` or `posix START LEN`.
    fn start(path: &Path, task: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(TASK, format!("{}\n{task}", path.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let mut holder = Self { process, lines, thread: 0 };
        holder.thread = holder.said().parse().unwrap();
        holder
    }

    /// The next line that it prints: `locked`, or an error.
    fn said(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the other process ended");
            if let Some(said) = line.trim().split_once("said: ") {
                return said.1.to_owned();
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Sends a signal to the thread that takes the lock.
    fn signal(&self) {
        let pid = self.pid().as_raw_nonzero().get();
        // SAFETY: the call takes three numbers.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, self.thread, libc::SIGUSR1) };
        assert_eq!(sent, 0);
    }

    /// Lets it end, and waits.
    fn end(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

extern "C" fn on_signal(_: libc::c_int) {}

/// Not a test of its own: the work of a [`Holder`].
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    // A handler without SA_RESTART: waits end with EINTR.
    // SAFETY: the handler does nothing, and the structure is valid when zeroed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    println!("\nsaid: {}", rustix::thread::gettid().as_raw_nonzero());
    let (path, how) = task.split_once('\n').unwrap();
    let file = open(Path::new(path));
    if how == ALARMS {
        return alarms(&file);
    }
    let words: Vec<_> = how.split(' ').collect();
    let locked = match words[..] {
        ["flock"] => rustix::fs::flock(&file, FlockOperation::LockExclusive),
        ["posix", start, len] => {
            fcntl(&file, libc::F_SETLKW, &mut range(WRITE, start.parse().unwrap(), len.parse().unwrap()))
        }
        _ => panic!("{how}"),
    };
    let said = locked.map_or_else(|error| format!("{error:?}"), |()| "locked".to_owned());
    println!("said: {said}");
    std::io::stdout().flush().unwrap();
    let mut end = String::new();
    std::io::stdin().read_to_string(&mut end).unwrap();
}

/// Waits for a lock again and again, each time until a signal comes, at any moment.
fn alarms(file: &File) {
    let each = libc::timespec { tv_sec: 0, tv_nsec: 230_000 };
    let times = libc::itimerspec { it_interval: each, it_value: each };
    // SAFETY: the handler does nothing; the structures are valid when zeroed, and there for the
    // calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer = std::ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
        assert_eq!(libc::timer_settime(timer, 0, &raw const times, std::ptr::null_mut()), 0);
    }
    for _ in 0..2000 {
        assert_eq!(fcntl(file, libc::F_SETLKW, &mut range(WRITE, 0, 0)), Err(Errno::INTR));
    }
    std::process::exit(0);
}

/// The file's lines of `/proc/locks`; of the waiters for a lock, or of the holders.
fn shown(path: &Path, are_waiting: bool) -> Vec<String> {
    let meta = std::fs::metadata(path).unwrap();
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let file = format!(" {major:02x}:{minor:02x}:{} ", meta.ino());
    let all = std::fs::read_to_string("/proc/locks").unwrap();
    all.lines()
        .filter(|line| line.contains(&file) && line.contains("->") == are_waiting)
        .map(str::to_owned)
        .collect()
}

fn waits(path: &Path, n: usize) {
    eventually("a wait for a lock", || shown(path, true).len() == n);
}

/// Checks that no request was for a lock, whatever the test did.
fn end(mounted: Mounted) {
    let stats = mounted.view.stats();
    for op in [Opcode::GetLk, Opcode::SetLk, Opcode::SetLkW] {
        assert_eq!(stats.of(op), 0, "{op:?}");
    }
    mounted.unmount();
}

#[test]
fn the_two_families_do_not_see_each_other() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let mut other = Holder::start(&path, "flock");
    assert_eq!(other.said(), "locked");
    let file = open(&path);
    fcntl(&file, libc::F_SETLK, &mut range(WRITE, 0, 0)).unwrap();
    assert_eq!(rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
    other.end();
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    drop(file);
    end(mounted);
}

#[test]
fn who_waits_gets_the_lock_and_all_are_in_proc_locks() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    for (task, kind) in [("posix 0 10", "POSIX  ADVISORY  WRITE"), ("flock", "FLOCK  ADVISORY  WRITE")] {
        let mut first = Holder::start(&path, task);
        assert_eq!(first.said(), "locked");
        let held = shown(&path, false);
        let by = format!("{kind} {} ", first.pid().as_raw_nonzero());
        assert!(held.len() == 1 && held[0].contains(&by), "{held:?}, not {by}");
        let mut second = Holder::start(&path, if kind.starts_with("POSIX") { "posix 5 10" } else { task });
        waits(&path, 1);
        // Another range is free.
        let file = open(&path);
        fcntl(&file, libc::F_SETLK, &mut range(WRITE, 100, 5)).unwrap();
        drop(file);
        first.end();
        assert_eq!(second.said(), "locked");
        second.end();
        assert_eq!(shown(&path, false), [""; 0]);
    }
    end(mounted);
}

/// A clone shows the same file: its locks are the same.
#[test]
fn a_file_that_is_seen_twice_has_its_locks_once() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let second = tempfile::tempdir().unwrap();
    let Ok(()) = rustix::mount::mount_bind(mounted.path(), second.path()) else {
        end(mounted);
        return common::skipped("only root can mount it a second time");
    };
    let (one, other) = (open(&path), open(&second.path().join("file")));
    fcntl(&one, libc::F_OFD_SETLK, &mut range(WRITE, 0, 0)).unwrap();
    assert_eq!(fcntl(&other, libc::F_OFD_SETLK, &mut range(WRITE, 0, 1)), Err(Errno::AGAIN));
    rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(rustix::fs::flock(&one, FlockOperation::NonBlockingLockExclusive), Err(Errno::AGAIN));
    drop((one, other));
    common::umount(second.path());
    end(mounted);
}

#[test]
fn any_signal_interrupts_a_wait() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    for task in ["flock", "posix 0 0"] {
        let mut holder = Holder::start(&path, task);
        assert_eq!(holder.said(), "locked");
        let mut waiter = Holder::start(&path, task);
        waits(&path, 1);
        waiter.signal();
        assert_eq!(waiter.said(), "Os { code: 4, kind: Interrupted, message: \"Interrupted system call\" }");
        waiter.end();
        holder.end();
    }
    // Nothing of it is left.
    let file = open(&path);
    fcntl(&file, libc::F_SETLK, &mut range(WRITE, 0, 0)).unwrap();
    drop(file);
    end(mounted);
}

#[test]
fn a_signal_at_any_moment_interrupts_a_wait() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let mut holder = Holder::start(&path, "posix 0 0");
    assert_eq!(holder.said(), "locked");
    let mut waiter = Holder::start(&path, ALARMS);
    // A signal that was forgotten would leave it waiting for ever.
    let mut status = None;
    eventually("the end of all waits", || {
        status = waiter.process.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    holder.end();
    end(mounted);
}

#[test]
fn a_killed_waiter_and_a_killed_holder_leave_nothing() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let mut holder = Holder::start(&path, "posix 0 0");
    assert_eq!(holder.said(), "locked");
    let mut killed = Holder::start(&path, "posix 0 0");
    waits(&path, 1);
    killed.process.kill().unwrap();
    assert_eq!(killed.process.wait().unwrap().signal(), Some(9));
    let mut next = Holder::start(&path, "posix 0 0");
    waits(&path, 1);
    holder.process.kill().unwrap();
    assert_eq!(holder.process.wait().unwrap().signal(), Some(9));
    assert_eq!(next.said(), "locked");
    next.end();
    end(mounted);
}

#[test]
fn waits_occupy_no_thread() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let file = open(&path);
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || {
                let file = open(&path);
                rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
            })
        })
        .collect();
    waits(&path, 50);
    assert_eq!(mounted.view.under_way(), 0, "no thread is busy with it");
    drop(file);
    for waiter in waiters {
        waiter.join().unwrap();
    }
    end(mounted);
}

#[test]
fn the_holder_of_a_lock_is_named() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let mut holder = Holder::start(&path, "posix 10 20");
    assert_eq!(holder.said(), "locked");
    let file = open(&path);
    let mut lock = range(READ, 0, 0);
    fcntl(&file, libc::F_GETLK, &mut lock).unwrap();
    assert_eq!((i32::from(lock.l_type), lock.l_start, lock.l_len), (WRITE, 10, 20));
    assert_eq!(lock.l_pid, holder.pid().as_raw_nonzero().get());
    let mut free = range(READ, 0, 10);
    fcntl(&file, libc::F_GETLK, &mut free).unwrap();
    assert_eq!(i32::from(free.l_type), NONE);
    let mut tail = range(WRITE, 30, 0);
    fcntl(&file, libc::F_SETLK, &mut tail).unwrap();
    holder.end();
    drop(file);
    end(mounted);
}

#[test]
fn locks_of_a_description_end_with_it() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let (one, two) = (open(&path), open(&path));
    fcntl(&one, libc::F_OFD_SETLK, &mut range(WRITE, 0, 100)).unwrap();
    assert_eq!(fcntl(&two, libc::F_OFD_SETLK, &mut range(WRITE, 50, 100)), Err(Errno::AGAIN));
    let copy = one.try_clone().unwrap();
    drop(one);
    assert_eq!(fcntl(&two, libc::F_OFD_SETLK, &mut range(WRITE, 50, 100)), Err(Errno::AGAIN));
    drop(copy);
    // A process that another test starts has all open files until its `execve`.
    eventually("the description is gone", || {
        fcntl(&two, libc::F_OFD_SETLK, &mut range(WRITE, 50, 100)).is_ok()
    });
    drop(two);
    end(mounted);
}

#[test]
fn any_close_of_the_file_ends_the_process_record_locks() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let file = open(&path);
    fcntl(&file, libc::F_SETLK, &mut range(WRITE, 0, 0)).unwrap();
    let mut other = Holder::start(&path, "posix 0 0");
    waits(&path, 1);
    // As POSIX has it.
    drop(open(&path));
    assert_eq!(other.said(), "locked");
    other.end();
    drop(file);
    end(mounted);
}
