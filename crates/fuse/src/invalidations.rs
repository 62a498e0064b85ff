//! Notifications to the kernel about one volume's names, beside the answers to requests.
//!
//! Purpose: the kernel has to forget a name in three cases. The name was changed in a directory
//! that the kernel knows by another number, too; or it was changed after the caller had its answer,
//! since the caller was killed; or a program says so ([`Notifier`](crate::Notifier)). And where the
//! kernel knows too many files, it is asked to forget some that no program uses. For the
//! notification the kernel takes the directory's lock, which the caller of another request may hold
//! that waits for the volume's store. So no thread that serves requests sends it, and none that
//! other volumes need: each volume has a list and a thread of its own (`wt-fuse-tell`), made when
//! the list gets its first entry, gone when it is empty. The list is bounded: a caller that finds
//! it full gets an error.
//!
//! While the kernel waits for a directory's lock there, that thread cannot be killed: if the daemon
//! is killed then, the connection stays until the holder of the lock is answered. `umount --force`
//! and an abort of the connection do that.
//!
//! # Lock order
//! `InvalidationQueue::list` is a leaf: the thread sends notifications without it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Instant;

use sync::mutant::is_on;
use sync::{Condvar, Mutex, thread};
use volume::NodeId;

use crate::device::Dev;
use crate::notify::{self, Invalidation, NotifyError, QUEUE_MAX};

/// The stack of the thread.
const STACK: usize = 256 << 10;

/// The list of one volume.
#[derive(Debug, Default)]
pub(crate) struct InvalidationQueue {
    list: Mutex<List>,
    /// All notifications were sent.
    all_sent: Condvar,
}

#[derive(Debug, Default)]
struct List {
    invalidations: VecDeque<Invalidation>,
    /// Set by the thread that adds an entry, cleared by the sending thread when it finds nothing:
    /// under one lock with the list, so that an entry on it has a thread.
    has_thread: bool,
    /// The connection has ended, and the kernel has forgotten everything.
    has_ended: bool,
}

impl InvalidationQueue {
    /// Whether nothing is to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        let list = self.list.lock();
        list.invalidations.is_empty() && !list.has_thread
    }

    /// Queues notifications to the kernel.
    ///
    /// # Errors
    /// When too much waits, or the connection has ended: nothing is queued. When there is no
    /// thread: these are sent with the next ones.
    pub(crate) fn invalidate<const N: usize>(
        self: &Arc<Self>,
        dev: &Arc<Dev>,
        invalidations: [Invalidation; N],
    ) -> Result<(), NotifyError> {
        let mut list = self.list.lock();
        if list.has_ended {
            return Err(NotifyError::Ended);
        }
        if list.invalidations.len() >= QUEUE_MAX {
            return Err(NotifyError::Full);
        }
        list.invalidations.extend(invalidations);
        if !list.has_thread {
            let (invalidations, dev) = (Arc::clone(self), Arc::clone(dev));
            let span = tracing::Span::current();
            let body = move || span.in_scope(|| invalidations.send_all(&dev));
            let thread = thread::Builder::new().name("wt-fuse-tell".to_owned()).stack_size(STACK);
            thread::will_make_threads();
            thread.spawn(body).map_err(|_| NotifyError::NoThread)?;
            list.has_thread = true;
        }
        Ok(())
    }

    /// Waits until everything on the list was sent, at most until `until`; returns whether it was.
    pub(crate) fn wait_until(&self, until: Instant) -> bool {
        let mut list = self.list.lock();
        while list.has_thread {
            if self.all_sent.wait_until(&mut list, until) {
                return false;
            }
        }
        list.invalidations.is_empty()
    }

    /// Waits until everything on the list was sent, or is not to be sent any more.
    pub(crate) fn wait(&self) {
        let mut list = self.list.lock();
        while list.has_thread {
            self.all_sent.wait(&mut list);
        }
    }

    /// The connection has ended: the list is dropped.
    pub(crate) fn end(&self) {
        let mut list = self.list.lock();
        list.has_ended = true;
        list.invalidations.clear();
    }

    /// Body of the thread.
    fn send_all(&self, dev: &Dev) {
        while let Some(invalidation) = self.next() {
            notify::send(dev, &invalidation);
        }
    }

    /// The next notification; if there is none, the thread ends.
    fn next(&self) -> Option<Invalidation> {
        let mut list = self.list.lock();
        let next = list.invalidations.pop_front();
        if next.is_none() {
            if is_on("teller-ends-late") {
                drop(list);
                list = self.list.lock();
            }
            list.has_thread = false;
            self.all_sent.notify_all();
        }
        next
    }
}

/// Notifies the kernel that what it remembers of the mountpoint's own volume is no longer so; in
/// the order of the calls.
#[derive(Debug, Clone)]
pub struct Notifier {
    invalidations: Arc<InvalidationQueue>,
    dev: Arc<Dev>,
}

impl Notifier {
    pub(crate) fn new(invalidations: Arc<InvalidationQueue>, dev: Arc<Dev>) -> Self {
        Self { invalidations, dev }
    }

    /// `name` in `parent` may no longer be what it was. A process that has it open goes on; new
    /// path look-ups ask again.
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended: nothing was queued. When
    /// there is no thread: it is sent with the next one.
    pub fn entry(&self, parent: NodeId, name: &OsStr) -> Result<(), NotifyError> {
        self.invalidate(Invalidation::Entry { parent, name: name.to_owned() })
    }

    /// Attributes of `id` may have changed, and its data from `offset` on (`len` bytes, 0 for all
    /// that follows; a negative offset: attributes only).
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended: nothing was queued. When
    /// there is no thread: it is sent with the next one.
    pub fn inode(&self, id: NodeId, offset: i64, len: i64) -> Result<(), NotifyError> {
        self.invalidate(Invalidation::Inode { id, offset, len })
    }

    /// `name` in `parent`, which is `child`, was removed; processes inside it see what rmdir(2)
    /// leaves.
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended: nothing was queued. When
    /// there is no thread: it is sent with the next one.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &OsStr) -> Result<(), NotifyError> {
        self.invalidate(Invalidation::Delete { parent, child, name: name.to_owned() })
    }

    /// Waits until everything queued so far was sent, the notifications of the volume's own
    /// requests included. What was queued when the connection ended is not sent. Not to be called
    /// by a request's handler.
    pub fn wait(&self) {
        self.invalidations.wait();
    }

    fn invalidate(&self, invalidation: Invalidation) -> Result<(), NotifyError> {
        self.invalidations.invalidate(&self.dev, [invalidation])
    }
}

#[cfg(all(test, shuttle))]
mod schedules {
    //! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

    use std::os::fd::OwnedFd;

    use sync::{model, mutant};

    use super::*;

    /// How many messages were sent.
    fn sent(reader: &OwnedFd) -> usize {
        let mut buffer = [0; 4096];
        let mut count = 0;
        while let Ok(len) = rustix::io::read(reader, &mut buffer) {
            let mut left = &buffer[..len];
            while let Some((size, _)) = left.split_first_chunk::<4>() {
                left = &left[u32::from_ne_bytes(*size) as usize..];
                count += 1;
            }
        }
        count
    }

    fn two_tell() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let dev = Arc::new(Dev::new(writer));
        let invalidations = Arc::new(InvalidationQueue::default());
        let invalidate = {
            let (invalidations, dev) = (Arc::clone(&invalidations), Arc::clone(&dev));
            move |number| {
                let invalidation = || Invalidation::Inode { id: store::ObjectId(number), offset: -1, len: 0 };
                invalidations.invalidate(&dev, [invalidation(), invalidation()]).unwrap();
            }
        };
        let other = thread::spawn({
            let invalidate = invalidate.clone();
            move || invalidate(5)
        });
        invalidate(6);
        other.join().unwrap();
        invalidations.wait();
        assert_eq!(sent(&reader), 4, "the kernel was not notified");
    }

    /// An invalidation in the queue has a thread that sends it to the kernel.
    #[test]
    fn all_that_is_on_the_list_is_told() {
        model::check(two_tell);
    }

    #[test]
    fn mutant_without_a_thread_for_what_came_last() {
        let test = "invalidations::schedules::all_that_is_on_the_list_is_told";
        mutant::assert_caught(test, &["teller-ends-late"], "the kernel was not notified");
    }
}
