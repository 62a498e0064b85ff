//! What the kernel is told of one volume's names, beside the answers to requests.
//!
//! Purpose: a name was changed in a directory that the kernel knows by another number, too; or
//! after the caller had its answer, since it was killed; or a program says so
//! ([`Notifier`](crate::Notifier)). For the notification the kernel takes the directory's lock,
//! which the caller of another request may have that waits for the volume's store. So no thread
//! that serves requests sends it, and none that other volumes need: each volume has a list and a
//! thread of its own (`wt-fuse-tell`), made when the list gets its first entry, gone when it is
//! empty. The list is bounded: whoever fills it is told.
//!
//! While the kernel waits for a directory's lock there, that thread cannot be killed: of a process
//! that is killed then, the connection stays until whoever has the lock is answered, which
//! `umount --force` and an abort of the connection do.
//!
//! # Lock order
//! `Teller::list` is a leaf: the kernel is told without it.

use std::collections::VecDeque;
use std::sync::Arc;

use sync::mutant::is_on;
use sync::{Condvar, Mutex, thread};

use crate::dev::Dev;
use crate::notify::{self, Note, NotifyError, QUEUE_MAX};

/// The stack of the thread.
const STACK: usize = 256 << 10;

/// The list of one volume.
#[derive(Debug, Default)]
pub(crate) struct Teller {
    list: Mutex<List>,
    /// All was told.
    told: Condvar,
}

#[derive(Debug, Default)]
struct List {
    notes: VecDeque<Note>,
    /// Set by who adds, cleared by the thread when it finds nothing: under one lock with the list,
    /// so that what is on it has a thread.
    has_thread: bool,
    /// The connection has ended, and the kernel has forgotten everything.
    has_ended: bool,
}

impl Teller {
    /// Has the kernel told.
    ///
    /// # Errors
    /// When too much waits, or the connection has ended; nothing is told then. When there is no
    /// thread: it is told with what comes next.
    pub(crate) fn tell<const N: usize>(
        self: &Arc<Self>,
        dev: &Arc<Dev>,
        notes: [Note; N],
    ) -> Result<(), NotifyError> {
        let mut list = self.list.lock();
        if list.has_ended {
            return Err(NotifyError::Ended);
        }
        if list.notes.len() >= QUEUE_MAX {
            return Err(NotifyError::Full);
        }
        list.notes.extend(notes);
        if !list.has_thread {
            let (teller, dev) = (Arc::clone(self), Arc::clone(dev));
            let span = tracing::Span::current();
            let body = move || span.in_scope(|| teller.tell_all(&dev));
            let thread = thread::Builder::new().name("wt-fuse-tell".to_owned()).stack_size(STACK);
            thread::will_make_threads();
            thread.spawn(body).map_err(|_| NotifyError::NoThread)?;
            list.has_thread = true;
        }
        Ok(())
    }

    /// Waits until everything that is on the list was told, or is not to be told any more.
    pub(crate) fn wait(&self) {
        let mut list = self.list.lock();
        while list.has_thread {
            self.told.wait(&mut list);
        }
    }

    /// The connection has ended: what is on the list is dropped.
    pub(crate) fn end(&self) {
        let mut list = self.list.lock();
        list.has_ended = true;
        list.notes.clear();
    }

    /// Body of the thread.
    fn tell_all(&self, dev: &Dev) {
        while let Some(note) = self.next() {
            notify::send(dev, &note);
        }
    }

    /// What is next; if there is nothing, the thread ends.
    fn next(&self) -> Option<Note> {
        let mut list = self.list.lock();
        let next = list.notes.pop_front();
        if next.is_none() {
            if is_on("teller-ends-late") {
                drop(list);
                list = self.list.lock();
            }
            list.has_thread = false;
            self.told.notify_all();
        }
        next
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
        let teller = Arc::new(Teller::default());
        let tell = {
            let (teller, dev) = (Arc::clone(&teller), Arc::clone(&dev));
            move |number| {
                let note = || Note::Inode { id: store::ObjectId(number), offset: -1, len: 0 };
                teller.tell(&dev, [note(), note()]).unwrap();
            }
        };
        let other = thread::spawn({
            let tell = tell.clone();
            move || tell(5)
        });
        tell(6);
        other.join().unwrap();
        teller.wait();
        assert_eq!(sent(&reader), 4, "the kernel was not told");
    }

    /// What the kernel is to be told has a thread that tells it.
    #[test]
    fn all_that_is_on_the_list_is_told() {
        model::check(two_tell);
    }

    #[test]
    fn mutant_without_a_thread_for_what_came_last() {
        let test = "teller::schedules::all_that_is_on_the_list_is_told";
        mutant::assert_caught(test, &["teller-ends-late"], "the kernel was not told");
    }
}
