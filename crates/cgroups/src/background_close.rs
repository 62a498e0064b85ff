//! An inotify instance whose end no thread waits for.
//!
//! Purpose: the kernel frees an instance that watches something after a grace period of the whole
//! host, for which close(2), and with it the process's end, waits: 10 to 30 ms where the CPUs are
//! busy. Files that an io_uring has registered are released by the kernel in a thread of its own,
//! once the ring is closed. So a ring has the instance from the start, and is closed after it, even
//! by a process that is killed: the kernel closes descriptors in the order of their numbers.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use io_uring::IoUring;

/// An instance, and the ring that has it. Closed in this order.
pub(crate) struct BackgroundClose {
    inotify: OwnedFd,
    /// None where the host has no io_uring: then closing waits.
    _ring: Option<IoUring>,
}

impl BackgroundClose {
    pub(crate) fn new(inotify: OwnedFd) -> Self {
        let ring = ring_of(&inotify).inspect_err(
            |error| tracing::debug!(%error, "no io_uring: the thread that closes an inotify instance waits until it has ended"),
        );
        Self { inotify, _ring: ring.ok() }
    }
}

impl AsFd for BackgroundClose {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// A ring that has the instance. Its number is the higher one, since every lower one was taken when
/// the instance was made (unless one has been closed since: then the process's end waits).
fn ring_of(inotify: &OwnedFd) -> io::Result<IoUring> {
    let ring: IoUring = IoUring::builder().dontfork().build(1)?;
    ring.submitter().register_files(&[inotify.as_raw_fd()])?;
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::epoll;
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

    use super::*;

    #[test]
    fn a_ring_takes_it_where_the_host_has_io_uring() {
        let inotify = init(CreateFlags::CLOEXEC).unwrap();
        match IoUring::builder().build(1) as io::Result<IoUring> {
            Ok(_) => {
                // Another test may close a lower descriptor between the two calls: not each time.
                let is_higher = |_| ring_of(&inotify).unwrap().as_raw_fd() > inotify.as_raw_fd();
                assert!((0..100).any(is_higher));
            }
            Err(error) => {
                eprintln!("SKIPPED: a_ring_takes_it_where_the_host_has_io_uring: no io_uring: {error}")
            }
        }
    }

    #[test]
    fn what_is_closed_ends_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let inotify = init(CreateFlags::CLOEXEC).unwrap();
        add_watch(&inotify, dir.path(), WatchFlags::DELETE).unwrap();
        // An epoll instance has it on its list until the kernel has freed it.
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, &inotify, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        let list = format!("/proc/self/fdinfo/{}", epoll.as_raw_fd());
        let is_there = || std::fs::read_to_string(&list).unwrap().contains("tfd:");
        assert!(is_there());
        drop(BackgroundClose::new(inotify));
        let until = Instant::now() + Duration::from_secs(60);
        while is_there() {
            assert!(Instant::now() < until, "it is still there");
            std::thread::yield_now();
        }
    }
}
