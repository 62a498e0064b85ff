//! Closes and forgets, by another thread, while the store does not answer.
//!
//! Purpose: closing a file or directory, and forgetting an inode without look-ups, may need the
//! store: close(2) of a file on a server that hangs waits for the server. No process waits for
//! these calls, but the thread that makes them is one of those that serve a mountpoint with other
//! volumes. So while the store is known not to answer, or where the caller asks for it
//! ([`Volume::release_later`](crate::Volume::release_later)), the file, directory or inode goes
//! onto a list instead, and one thread of the volume's own (`wt-later`) closes or forgets
//! it. That thread is made when the list gets its first entry, and gone when it is empty. The
//! volume's end waits for it ([`DeferredClose::wait`]), before the store is released.
//!
//! Bounded: an inode is on the list once at most ([`State::is_deferred`]), a directory once for
//! each time that it was opened.
//!
//! Lock order: [`Inode::state`](crate::inode::Inode), then `DeferredClose::list`, a leaf. The store
//! is called with neither held.
//!
//! Where no thread can be made, the calling thread does the work.
//!
//! [`State::is_deferred`]: crate::inode::State

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sync::mutant::is_on;
use sync::{Condvar, Mutex, thread};

use crate::NodeId;
use crate::core::Core;
use crate::handles::DirHandle;
use crate::inode::Inode;

/// An entry of the list.
#[derive(Debug)]
pub(crate) enum Deferred {
    /// Closed, or without look-ups: the thread checks whether it is still needed.
    Inode(Arc<Inode>),
    /// An open directory.
    Dir(#[allow(dead_code, reason = "dropping it is what is left to do")] Arc<DirHandle>),
}

/// The list of one volume.
#[derive(Debug, Default)]
pub(crate) struct DeferredClose {
    list: Mutex<List>,
    /// The thread has ended, or no caller is to wait for it any more.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct List {
    left: VecDeque<Deferred>,
    /// Set by the thread that adds an entry, cleared by the list's thread when it finds nothing:
    /// under one lock with the list, so that an entry on it has a thread.
    has_thread: bool,
}

impl DeferredClose {
    /// Adds an entry; says whether a thread has to be made.
    #[must_use]
    fn add(&self, left: Deferred) -> bool {
        let mut list = self.list.lock();
        list.left.push_back(left);
        !std::mem::replace(&mut list.has_thread, true)
    }

    /// The next entry; if there is none, the thread ends.
    fn next(&self) -> Option<Deferred> {
        let mut list = self.list.lock();
        if let Some(left) = list.left.pop_front() {
            return Some(left);
        }
        if is_on("later-ends-late") {
            drop(list);
            list = self.list.lock();
        }
        list.has_thread = false;
        drop(list);
        self.ended.notify_all();
        None
    }

    /// Waits until all of it is done, or the caller is not to wait any more.
    pub(crate) fn wait(&self, is_not_to: impl Fn() -> bool) {
        if is_on("later-not-waited-for") {
            return;
        }
        let mut list = self.list.lock();
        while list.has_thread && !is_not_to() {
            self.ended.wait(&mut list);
        }
    }

    /// Whether something is left to close.
    pub(crate) fn is_busy(&self) -> bool {
        self.list.lock().has_thread
    }

    /// Makes the waiting thread check whether to go on.
    pub(crate) fn wake(&self) {
        // A thread that has checked already waits by then.
        drop(self.list.lock());
        self.ended.notify_all();
    }
}

impl Core {
    /// An opening of a file is over.
    pub(crate) fn release(self: &Arc<Self>, inode: &Arc<Inode>) {
        if self.stall.is_reported() {
            return self.defer_inode(inode);
        }
        inode.close_file_if_idle();
        self.drop_unused(inode);
    }

    /// Look-ups of an inode were given back.
    pub(crate) fn release_lookups(self: &Arc<Self>, inode: &Arc<Inode>) {
        if self.stall.is_reported() {
            return self.defer_inode(inode);
        }
        self.drop_unused(inode);
    }

    /// An opening of a directory is over.
    pub(crate) fn release_dir(self: &Arc<Self>, dir: Arc<DirHandle>) {
        if self.stall.is_reported() {
            self.defer_dir(dir);
        }
    }

    pub(crate) fn defer_dir(self: &Arc<Self>, dir: Arc<DirHandle>) {
        self.defer(Deferred::Dir(dir));
    }

    pub(crate) fn defer_inode(self: &Arc<Self>, inode: &Arc<Inode>) {
        {
            let mut state = inode.state();
            if state.opens > 0 || std::mem::replace(&mut state.is_deferred, true) {
                return;
            }
        }
        self.defer(Deferred::Inode(Arc::clone(inode)));
    }

    fn defer(self: &Arc<Self>, left: Deferred) {
        if !self.deferred_close.add(left) {
            return;
        }
        thread::will_make_threads();
        let core = Arc::clone(self);
        if let Err(error) =
            thread::Builder::new().name("wt-later".to_owned()).spawn(move || core.run_deferred())
        {
            tracing::warn!(%error, "cannot start a thread that closes the files of a store that does not answer");
            self.run_deferred();
        }
    }

    fn run_deferred(self: &Arc<Self>) {
        let _of_the_volume = self.span.enter();
        while let Some(left) = self.deferred_close.next() {
            // A panic over one must not keep the others open.
            if catch_unwind(AssertUnwindSafe(|| self.close_deferred(left))).is_err() {
                tracing::error!("the store panicked while a file was closed");
            }
        }
    }

    fn close_deferred(self: &Arc<Self>, left: Deferred) {
        match left {
            Deferred::Inode(inode) => {
                // Before the check: a thread that releases the inode from now on puts it onto the
                // list once more.
                if !is_on("later-looks-first") {
                    inode.state().is_deferred = false;
                }
                inode.close_file_if_idle();
                self.drop_unused(&inode);
                if is_on("later-looks-first") {
                    inode.state().is_deferred = false;
                }
            }
            Deferred::Dir(dir) => drop(dir),
        }
    }

    /// Forgets an inode without look-ups and openings; with it the data of a file without a name.
    pub(crate) fn drop_unused(&self, inode: &Arc<Inode>) {
        let (unknown, listed) = {
            let state = inode.state();
            (state.lookups == 0 && state.opens == 0, state.listed)
        };
        if !unknown {
            return;
        }
        if listed && self.store.attr(inode.id).is_ok_and(|attr| attr.nlink == 0) {
            inode.discard();
        }
        self.retire(inode.id);
    }

    /// Forgets an inode that is not needed any more; says whether it did.
    pub(crate) fn retire(&self, id: NodeId) -> bool {
        // No look-up stands for the root's reference: it is never given back.
        let unused = id != NodeId::ROOT && self.table.remove_unused(id);
        if unused {
            self.store.forget(id, 1);
        }
        unused
    }
}

#[cfg(all(test, shuttle))]
mod schedules;
