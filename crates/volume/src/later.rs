//! Closes and forgets, by another thread, while the store does not answer.
//!
//! Purpose: closing a file or directory, and forgetting an inode without look-ups, may need the
//! store: close(2) of a file on a server that hangs waits for the server. No process waits for
//! these calls, but the thread that makes them is one of those that serve a mountpoint with other
//! volumes. So while the store is known not to answer, or where the caller asks for it
//! ([`Volume::release_later`](crate::Volume::release_later)), the file, directory or inode goes
//! onto a list instead, and one thread of the volume's own (`wt-later`) closes or forgets it. That
//! thread is made when the list gets its first entry, and gone when it is empty. The volume's end
//! waits for it ([`Later::wait`]), before the store is released.
//!
//! Bounded: an inode is on the list once at most ([`State::is_left`]), a directory once for each
//! time that it was opened.
//!
//! Lock order: [`Inode::state`](crate::inode::Inode), then `Later::list`, a leaf. The store is
//! called with neither held.
//!
//! Where no thread can be made, the calling thread does the work.
//!
//! [`State::is_left`]: crate::inode::State

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
pub(crate) enum Left {
    /// Closed, or without look-ups: the thread looks whether it is still needed.
    Inode(Arc<Inode>),
    /// An open directory.
    Dir(#[allow(dead_code, reason = "dropping it is what is left to do")] Arc<DirHandle>),
}

/// The list of one volume.
#[derive(Debug, Default)]
pub(crate) struct Later {
    list: Mutex<List>,
    /// The thread has ended, or no caller is to wait for it any more.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct List {
    left: VecDeque<Left>,
    /// Set by the thread that adds an entry, cleared by the list's thread when it finds nothing:
    /// under one lock with the list, so that an entry on it has a thread.
    has_thread: bool,
}

impl Later {
    /// Adds an entry; says whether a thread has to be made.
    #[must_use]
    fn add(&self, left: Left) -> bool {
        let mut list = self.list.lock();
        list.left.push_back(left);
        !std::mem::replace(&mut list.has_thread, true)
    }

    /// The next entry; if there is none, the thread ends.
    fn next(&self) -> Option<Left> {
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

    /// Makes the waiting thread look whether to go on.
    pub(crate) fn wake(&self) {
        // A thread that has looked already waits by then.
        drop(self.list.lock());
        self.ended.notify_all();
    }
}

impl Core {
    /// An opening of a file is over.
    pub(crate) fn let_go(self: &Arc<Self>, inode: &Arc<Inode>) {
        if self.stall.is_told() {
            return self.leave_inode(inode);
        }
        inode.close_file_if_idle();
        self.drop_unused(inode);
    }

    /// Look-ups of an inode were given back.
    pub(crate) fn forgotten(self: &Arc<Self>, inode: &Arc<Inode>) {
        if self.stall.is_told() {
            return self.leave_inode(inode);
        }
        self.drop_unused(inode);
    }

    /// An opening of a directory is over.
    pub(crate) fn let_go_dir(self: &Arc<Self>, dir: Arc<DirHandle>) {
        if self.stall.is_told() {
            self.leave_dir(dir);
        }
    }

    pub(crate) fn leave_dir(self: &Arc<Self>, dir: Arc<DirHandle>) {
        self.leave(Left::Dir(dir));
    }

    pub(crate) fn leave_inode(self: &Arc<Self>, inode: &Arc<Inode>) {
        {
            let mut state = inode.state();
            if state.opens > 0 || std::mem::replace(&mut state.is_left, true) {
                return;
            }
        }
        self.leave(Left::Inode(Arc::clone(inode)));
    }

    fn leave(self: &Arc<Self>, left: Left) {
        if !self.later.add(left) {
            return;
        }
        thread::will_make_threads();
        let core = Arc::clone(self);
        if let Err(error) =
            thread::Builder::new().name("wt-later".to_owned()).spawn(move || core.see_to_left())
        {
            tracing::warn!(%error, "no thread to close the files of a store that does not answer with");
            self.see_to_left();
        }
    }

    fn see_to_left(self: &Arc<Self>) {
        let _of_the_volume = self.span.enter();
        while let Some(left) = self.later.next() {
            // A panic over one must not keep the others open.
            if catch_unwind(AssertUnwindSafe(|| self.see_to(left))).is_err() {
                tracing::error!("the store panicked over what was closed");
            }
        }
    }

    fn see_to(self: &Arc<Self>, left: Left) {
        match left {
            Left::Inode(inode) => {
                // Before the look: a thread that releases the inode from now on puts it onto the
                // list once more.
                if !is_on("later-looks-first") {
                    inode.state().is_left = false;
                }
                inode.close_file_if_idle();
                self.drop_unused(&inode);
                if is_on("later-looks-first") {
                    inode.state().is_left = false;
                }
            }
            Left::Dir(dir) => drop(dir),
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
