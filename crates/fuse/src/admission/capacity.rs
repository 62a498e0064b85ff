//! Bounds the number of requests that are under way at the same time.
//!
//! The kernel keeps one queue for all users of a mount, or one for each CPU, and hands out requests
//! in the queue's order, whatever turn the daemon would prefer. A request that waits, for its
//! cgroup's limit say, keeps until it is answered: a thread, with io_uring an entry, and the data
//! that its caller writes. The next request is served as long as the capacity is larger than the
//! number of requests that wait. So it is large. A request that waits costs, beside the data that
//! is in it, some 70 KiB on x86-64: two stacks, the pages of its buffer's head, page tables.
//! Capacity that was never used costs nothing, with io_uring 2 KiB of page tables.

use rustix::process::{Resource, getrlimit};

use crate::protocol::init::{MAX_WRITE, Mode};

/// However small the host is.
pub(crate) const AT_LEAST: usize = 256;
/// However large.
const AT_MOST: usize = 1024;
/// Requests that the kernel may make by itself, at least; and at most where it collects writes and
/// sends them when it likes: each of them holds data.
const BACKGROUND: u16 = 64;

/// The number for this host, with what the process may have of it now.
pub(crate) fn of_host() -> usize {
    let host = rustix::system::sysinfo();
    let memory = (host.totalram as u64).saturating_mul(u64::from(host.mem_unit));
    of(memory, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// As many as hold a sixteenth of the memory if all of them are the largest writes, and take a
/// quarter of the descriptors, of which a thread has one.
fn of(memory: u64, descriptors: u64) -> usize {
    let most = (memory / 16 / u64::from(MAX_WRITE)).min(descriptors / 4);
    usize::try_from(most).unwrap_or(usize::MAX).clamp(AT_LEAST, AT_MOST)
}

/// How many of `all` may be requests that no process waits for, by the kernel's count: reading
/// ahead, which includes the first read of a file; closing. They leave room for those that a
/// process waits for.
pub(crate) fn of_background(mode: Mode, all: usize) -> u16 {
    match mode {
        Mode::WriteThrough => u16::try_from(all / 4 * 3).unwrap_or(u16::MAX).max(BACKGROUND),
        Mode::KernelWriteback => BACKGROUND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_host_can_bear() {
        assert_eq!(of(1 << 30, 1 << 20), 256);
        assert_eq!(of(8 << 30, 1 << 20), 512);
        assert_eq!(of(64 << 30, 1 << 20), 1024);
        assert_eq!(of(64 << 30, 2400), 600);
        assert_eq!(of(u64::MAX, u64::MAX), 1024);
        assert_eq!(of(0, 0), 256);
        assert!((AT_LEAST..=AT_MOST).contains(&of_host()));
    }

    #[test]
    fn reading_ahead_leaves_room_and_collected_writes_are_few() {
        assert_eq!(of_background(Mode::WriteThrough, 1024), 768);
        assert_eq!(of_background(Mode::WriteThrough, 4), 64);
        assert_eq!(of_background(Mode::WriteThrough, usize::MAX), u16::MAX);
        assert_eq!(of_background(Mode::KernelWriteback, 1024), 64);
    }
}
