//! Whether a process of the host waits for dirty pages to be written, by what `/proc` says of its
//! threads.
//!
//! A thread that waits for a page of the device sleeps uninterruptibly (state `D` in
//! `/proc/PID/task/TID/stat`), or has a processor or wants one (`R`) on the way there. For a thread
//! in `D` the file `syscall` beside it has the number and the arguments of its call. A thread that
//! runs, and one whose call may not be read, is checked again until it sleeps in another state,
//! is seen in another call, or has used more of its processor for itself than before, which it
//! cannot have done in such a call. Source: proc_pid_stat(5), proc_pid_syscall(5).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::processes::{Found, look_into};

/// How long undecided threads are checked again.
const LONGEST: Duration = Duration::from_secs(5);
/// How often: longer each time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// `linux/fs.h`: `_IO(0x12, 97)`, which writes the pages of a block device.
const BLKFLSBUF: u64 = 0x1261;

/// Freezes a file system: `_IOWR('X', 119, int)` of `linux/fs.h`.
const FIFREEZE: u64 = 0xc004_5877;
/// fsconfig(2)'s FSCONFIG_CMD_RECONFIGURE, of `linux/mount.h`.
const RECONFIGURE: u64 = 7;

/// Whether every process of the host can be seen from here: this one is in the first process-id
/// namespace.
pub(super) fn can_see_all() -> bool {
    /// Its inode number, `PROC_PID_INIT_INO` of the kernel.
    const FIRST: &str = "pid:[4026531836]";
    // `hidepid` hides other users' processes from a process that may not look into them.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new(FIRST))
        && fs::read("/proc/1/stat").is_ok()
}

/// Whether another thread may be in such a call, now or within the given time. True, too, if that
/// cannot be known.
///
/// A thread that sleeps in one is found at once. Only threads that want a processor and get none
/// hold this up, until [`LONGEST`].
pub(super) fn may_anybody_sync(within: Duration) -> bool {
    let Some(mut undecided) = undecided() else { return true };
    let (begun, mut pause) = (Instant::now(), SHORTEST_PAUSE);
    while !undecided.is_empty() || begun.elapsed() < within {
        if !undecided.is_empty() && begun.elapsed() >= LONGEST {
            return true;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        // All of them: a thread may have begun meanwhile, and should not wait for those that are
        // checked again.
        let Some(now) = self::undecided() else { return true };
        undecided.retain(|thread, before| now.get(thread) == Some(before));
    }
    false
}

/// The threads that may be in such a call, with the time that each has used, and the processes that
/// could not be looked into yet; none if one is in such a call, or if that cannot be known.
fn undecided() -> Option<HashMap<PathBuf, String>> {
    let mut processes = Vec::new();
    for process in fs::read_dir("/proc").ok()? {
        let process = process.ok()?;
        if process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            processes.push(process.path());
        }
    }
    let mut undecided = HashMap::new();
    let mut may_sync = false;
    let looked = look_into(processes, undecided_of, |process, found| {
        match found {
            Found::Seen(Some(threads)) => undecided.extend(threads),
            Found::Seen(None) => may_sync = true,
            Found::Unknown => drop(undecided.insert(process.to_owned(), String::new())),
            Found::InExecve => {}
        }
        !may_sync
    });
    looked.ok().filter(|()| !may_sync).map(|()| undecided)
}

/// As [`undecided`], of one process, except for the calling thread.
fn undecided_of(process: &Path) -> Option<Vec<(PathBuf, String)>> {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut undecided = Vec::new();
    let Some(threads) = unless_gone(fs::read_dir(process.join("task")))? else { return Some(undecided) };
    for thread in threads {
        let Some(thread) = unless_gone(thread)? else { break };
        if thread.file_name() == *own {
            continue;
        }
        let dir = thread.path();
        let Some(stat) = unless_gone(fs::read(dir.join("stat")))? else { continue };
        let Some((state, own_time)) = read(&stat) else { continue };
        let is_undecided = match state {
            'R' => true,
            'D' => match fs::read_to_string(dir.join("syscall")) {
                Ok(line) if is_of_a_sync(&line) => return None,
                Ok(line) => line.starts_with("running"),
                Err(_) => true,
            },
            _ => false,
        };
        if is_undecided {
            undecided.push((dir, own_time));
        }
    }
    Some(undecided)
}

/// The result of a read, or `Some(None)` if the thread has ended: it is in no call. `None` if that
/// cannot be known.
fn unless_gone<T>(read: io::Result<T>) -> Option<Option<T>> {
    match read {
        Ok(read) => Some(Some(read)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Some(None),
        Err(_) => None,
    }
}

/// A thread's state, and the processor time that it has used in its own program, as text that is
/// only compared. None of one that is the kernel's own, which calls nothing.
fn read(stat: &[u8]) -> Option<(char, String)> {
    /// PF_KTHREAD, PF_USER_WORKER and PF_IO_WORKER of the kernel.
    const OF_KERNEL: u64 = 0x0020_0000 | 0x4000 | 0x10;
    // The name, in parentheses, may contain any bytes; what follows does not. Of all fields flags
    // is the ninth, utime the fourteenth.
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_ends + 1..]).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let own_time = fields.nth(4)?;
    (flags & OF_KERNEL == 0).then(|| (state, own_time.to_owned()))
}

/// Reads a line of `/proc/PID/syscall`: a number, in decimal, and six arguments in hexadecimal;
/// `running`; or -1.
fn is_of_a_sync(line: &str) -> bool {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let argument =
        |n: usize| words.get(n + 1).and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let Some(Ok(number)) = words.first().map(|word| word.parse::<libc::c_long>()) else { return false };
    match number {
        // An overlay syncs the file system of its upper directory when it is unmounted.
        libc::SYS_sync | libc::SYS_syncfs | libc::SYS_umount2 => true,
        // Commands are 32 bits; some C libraries extend the sign.
        libc::SYS_ioctl => {
            argument(1).is_some_and(|command| [FIFREEZE, BLKFLSBUF].contains(&(command & 0xffff_ffff)))
        }
        libc::SYS_mount => argument(3).is_some_and(|flags| flags & libc::MS_REMOUNT != 0),
        libc::SYS_fsconfig => argument(1).is_some_and(|command| command & 0xffff_ffff == RECONFIGURE),
        // Of programs for 32 bits: sync and syncfs of i386.
        #[cfg(target_arch = "x86_64")]
        36 | 344 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart() {
        assert!(!is_of_a_sync("running\n"));
        assert!(!is_of_a_sync("-1 0x7ffd 0x0\n"));
        assert!(!is_of_a_sync(""));
        let is = |number: libc::c_long, second: u64, fourth: u64| {
            is_of_a_sync(&format!("{number} 0x3 {second:#x} 0x0 {fourth:#x} 0x0 0x0 0x7ffd 0x7f00\n"))
        };
        assert!(is(libc::SYS_sync, 0, 0));
        assert!(is(libc::SYS_syncfs, 0, 0));
        assert!(!is(libc::SYS_fsync, 0, 0));
        assert!(is(libc::SYS_ioctl, FIFREEZE, 0));
        assert!(is(libc::SYS_ioctl, 0xffff_ffff_0000_0000 | FIFREEZE, 0));
        assert!(is(libc::SYS_ioctl, BLKFLSBUF, 0));
        assert!(is(libc::SYS_umount2, 0, 0));
        assert!(!is(libc::SYS_ioctl, 0xae80, 0));
        assert!(is(libc::SYS_mount, 0, libc::MS_REMOUNT | libc::MS_RDONLY));
        assert!(!is(libc::SYS_mount, 0, libc::MS_BIND));
        assert!(is(libc::SYS_fsconfig, RECONFIGURE, 0));
        assert!(!is(libc::SYS_fsconfig, 0, 0));
    }

    #[test]
    fn states_are_read_whatever_the_name_is() {
        let of = |flags: u64| format!(") D 1 7 7 0 -1 {flags} 9 0 0 0 123 45 0 0 20 0 1 0\n").into_bytes();
        let stat = |name: &[u8]| [b"7 (", name, &of(0x40_0000)].concat();
        assert_eq!(read(&stat(b"a")), Some(('D', "123".to_owned())));
        assert_eq!(read(&stat(b"a) R 1 (b")), Some(('D', "123".to_owned())));
        // A name is cut after 15 bytes, in the middle of a letter too.
        assert_eq!(read(&stat(b"sicherungsl\xc3")), Some(('D', "123".to_owned())));
        for of_kernel in [0x0020_0000, 0x4000, 0x10] {
            assert_eq!(read(&[b"7 (a".as_slice(), &of(of_kernel)].concat()), None);
        }
        assert_eq!(read(b"7 (a"), None);
        assert_eq!(read(b""), None);
    }

    #[test]
    fn what_cannot_be_known_is_told_from_what_has_ended() {
        let error = |number| Err::<(), _>(io::Error::from_raw_os_error(number));
        assert_eq!(unless_gone(error(libc::ESRCH)), Some(None));
        assert_eq!(unless_gone(error(libc::EMFILE)), None);
        assert_eq!(unless_gone(Ok(1)), Some(Some(1)));
    }

    #[test]
    fn a_thread_that_runs_uses_time() {
        let this = format!("/proc/self/task/{}/stat", rustix::thread::gettid().as_raw_nonzero());
        let look = || read(&fs::read(&this).unwrap()).unwrap();
        let (state, before) = look();
        assert_eq!(state, 'R');
        let mut n = 0_u64;
        while look().1 == before {
            n = std::hint::black_box(n.wrapping_add(1));
        }
    }
}
