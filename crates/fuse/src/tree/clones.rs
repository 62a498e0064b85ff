//! Namespaces, and where the kernel shows them.
//!
//! Purpose: a mountpoint shows a [`NamespaceView`]: a namespace whose root is the session's own
//! volume. The first view is that of the session's mount. A clone of it is shown at a second
//! mountpoint by the *same* file system of the kernel: its root is a directory of its own there,
//! under a name that is looked up once, by [`show`](fn@crate::mount::show), and mounted from there. So
//! a file is one file with one page cache in all of them, mapped or not. Only changes of names have
//! to be reported to the kernel for each.
//!
//! # What propagates
//! As in the crate `mounts`. The thread that asks for a change registers the mounts that the change
//! makes elsewhere, and notifies the kernel of them, before it returns.
//!
//! # The end of a clone
//! The kernel counts the users of a clone's root: mounts of it in any mount namespace, and
//! processes inside. It does not report an unmount. But once it has forgotten the root's name
//! ([`MountTree::release`], when no mountpoint is left), it reports when the last user is gone
//! (FORGET; later, if a process was inside when the last mountpoint went: names below keep the root
//! until the kernel wants its memory back). Then the clone's namespace ends, and with it what is
//! attached nowhere else. A caller that unmounts by way of the program ends the clone before its
//! call returns ([`MountTree::end_clone`]). The name is not forgotten earlier: the kernel would
//! take the directory for removed, and getcwd(3) would fail in it.
//!
//! # State
//! | what | is | changed by |
//! |---|---|---|
//! | `NamespaceView::namespace`, `root`, `name` | immutable | |
//! | `NamespaceView::was_unused` | immutable: of the program before | |
//! | `NamespaceView::is_shown` | atomic; falls once | [`MountTree::release`] |
//! | `NamespaceView::lookups` | atomic: look-ups of the root that the kernel has; 0 is final once it was more | look-ups, FORGET |
//! | `NamespaceView::on_unused` | under its lock, a leaf; taken once | the caller of `when_unused` |

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use mounts::{Inode, MountId, Namespace, NewMount, Propagation, VfsPath};
use sync::atomic::Ordering;
use volume::NodeId;

use super::mount_node::MountNode;
use super::mount_tree::MountTree;
use super::namespace_view::{NamespaceView, OnUnused};
use super::types::TreeError;
use super::wire::NodeTag;
use crate::mount::show::PREFIX;
use crate::notify::{self, Invalidation};

impl MountTree {
    /// The kernel has dropped `n` look-ups of a clone's root: if these were the last, the clone is
    /// not used any more. Ending it may wait for stores, and is left to a thread of its own: this
    /// one serves requests.
    pub(crate) fn forget_clone_root(self: &Arc<Self>, view: &NamespaceView, n: u64) {
        if view.drop_lookups(n) {
            self.end_unused(view);
        }
    }

    /// From now on, when the clone has no user any more, `on_unused` is called instead of ending
    /// it.
    pub(crate) fn when_unused(self: &Arc<Self>, view: &NamespaceView, on_unused: OnUnused) {
        view.when_unused(on_unused);
        if view.was_unused {
            self.end_unused(view);
        }
    }

    fn end_unused(self: &Arc<Self>, view: &NamespaceView) {
        let (on_unused, tree, name) = (view.take_on_unused(), Arc::clone(self), view.name.clone());
        let end = move || match on_unused {
            Some(on_unused) => on_unused(),
            None => tree.end_clone_named(&name),
        };
        if let Err(error) = std::thread::Builder::new().name("clone-end".to_owned()).spawn(end) {
            tracing::error!(%error, "a clone that no process uses stays until the mountpoint ends");
        }
    }

    /// No mountpoint leads to a clone any more: it ends when its last user is gone.
    pub(crate) fn release(&self, view: &NamespaceView) {
        // ORDERING: Relaxed, a look-up that does not see it has the kernel keep the name, until the
        // notification below.
        view.is_shown.store(false, Ordering::Relaxed);
        if !view.name.is_empty() {
            notify::send(&self.dev, &Invalidation::Entry { parent: NodeId::ROOT, name: view.name.clone() });
        }
    }

    /// A clone of a namespace, with all that is attached there. `Shared`: each sees what is
    /// attached or detached in the other; `Slave`: the clone sees what is, in the first; otherwise
    /// neither.
    pub(crate) fn clone_view(
        &self,
        of: &NamespaceView,
        propagation: Propagation,
    ) -> Result<Arc<NamespaceView>, TreeError> {
        let whole = |view: &Arc<Namespace>, propagation| {
            let mount = view.root().ok_or(mounts::Error::NotHere)?;
            let root = VfsPath { mount, inode: Inode(NodeId::ROOT.0) };
            view.set_propagation(root, "", propagation, true)
        };
        let is_tied = matches!(propagation, Propagation::Shared | Propagation::Slave);
        if is_tied {
            whole(&of.namespace, Propagation::Shared)?;
        }
        let namespace = Arc::new(of.namespace.try_clone()?);
        if propagation != Propagation::Shared {
            whole(&namespace, propagation)?;
        }
        let view = self.view_of(self.new_tag()?, &namespace)?;
        let view = self.add_clone(view);
        // Until there is nothing new: of two threads that meet here, the second registers what came
        // meanwhile by propagation.
        loop {
            let all = namespace.mounts();
            let made = all.iter().filter_map(|info| Some(NewMount { mount: info.mount, on: info.on? }));
            let mut is_new = false;
            for made in made {
                is_new |= self.register_copy(made).inspect_err(|_| self.drop_clone(&view))?.is_some();
            }
            if !is_new {
                return Ok(view);
            }
        }
    }

    /// A view of a namespace whose root gets this tag.
    pub(super) fn view_of(
        &self,
        tag: NodeTag,
        namespace: &Arc<Namespace>,
    ) -> Result<NamespaceView, TreeError> {
        let mount = namespace.root().ok_or(mounts::Error::NotHere)?;
        let volume = (Arc::clone(&self.root), self.first.root.superblock.clone());
        let root = Arc::new(MountNode::of_mount(tag, (mount, NodeId::ROOT), volume, namespace));
        let name = OsString::from(format!("{PREFIX}{}", tag.number()));
        Ok(NamespaceView::new(Arc::clone(namespace), root, name))
    }

    /// Requests find the clone from now on.
    pub(super) fn add_clone(&self, view: NamespaceView) -> Arc<NamespaceView> {
        let (tag, view) = (view.root.tag, Arc::new(view));
        self.root.add_mount(tag);
        self.change(|state, snapshot| {
            state.add_node(snapshot, Arc::clone(&view.root));
            state.by_mount.extend(view.root.mount.map(|mount| (mount, Arc::clone(&view.root))));
            snapshot.clones.insert(tag, Arc::clone(&view));
            // ORDERING: Release, with the Acquire in `has_clones`.
            self.clones.store(snapshot.clones.len(), Ordering::Release);
        });
        view
    }

    /// Ends a clone, with what is attached in it and nowhere else, and waits for that. With
    /// `is_forced` unwritten data is given up. `on_abort` is called with each volume that is
    /// given up.
    pub(crate) fn end_clone(&self, view: &NamespaceView, is_forced: bool, mut on_abort: impl FnMut(NodeTag)) {
        if is_forced {
            let there = |mount_node: &&Arc<MountNode>| Arc::ptr_eq(&mount_node.namespace, &view.namespace);
            let mine: Vec<Arc<MountNode>> =
                self.state.lock().by_mount.values().filter(there).map(Arc::clone).collect();
            for one in mine.iter().filter(|one| one.superblock.mounts() == 1) {
                one.superblock.superblock().force();
                on_abort(one.served.tag);
            }
        }
        self.end_namespace(view, |mounts| self.drop_unmounted(mounts));
    }

    /// Ends a clone whose root the kernel has dropped: the kernel needs no notification.
    fn end_clone_named(&self, name: &OsStr) {
        let Some(view) = self.clone_named(name) else { return };
        self.end_namespace(&view, |mounts| drop(self.unregister(mounts)));
    }

    /// Ends what is attached in a view, `drop_mounts` being called with the mounts that leave, and
    /// the view, if it is a clone.
    fn end_namespace(&self, view: &NamespaceView, drop_mounts: impl FnOnce(&[MountId])) {
        if let Err(error) = view.namespace.shut_with(drop_mounts) {
            tracing::error!(%error, "cannot end the attached volumes");
        }
        self.drop_clone(view);
    }

    /// Nothing leads to the clone, and nothing will.
    fn drop_clone(&self, view: &NamespaceView) {
        let Some(mount) = view.root.mount.filter(|_| !view.name.is_empty()) else { return };
        self.change(|state, snapshot| {
            // ORDERING: SeqCst, as in `drop_unmounted`.
            view.root.is_gone.store(true, Ordering::SeqCst);
            state.by_mount.remove(&mount);
            snapshot.clones.remove(&view.root.tag);
            state.drop_node(snapshot, &view.root);
            // ORDERING: Release, with the Acquire in `has_clones`.
            self.clones.store(snapshot.clones.len(), Ordering::Release);
        });
        self.root.remove_mount(view.root.tag);
    }
}
