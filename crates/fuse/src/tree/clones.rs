//! Namespaces, and where the kernel shows them.
//!
//! Purpose: a mountpoint shows a [`NamespaceView`]: a namespace whose root is the session's own
//! volume. The first view is that of the session's mount. A clone of it is shown at a second
//! mountpoint by the *same* file system of the kernel: its root is a directory of its own there,
//! under a name that is looked up once, by [`show`](crate::mount::show), and mounted from there. So
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
//! | `NamespaceView::is_shown` | atomic; falls once | [`MountTree::release`] |
//! | `NamespaceView::lookups` | atomic: look-ups of the root that the kernel has; 0 is final once it was more | look-ups, FORGET |
//! | `NamespaceView::on_unused` | under its lock, a leaf; taken once | the caller of `when_unused` |

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::Arc;

use mounts::{Inode, MountId, Namespace, NewMount, Propagation, VfsPath};
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use volume::NodeId;

use super::attached_volume::AttachedVolume;
use super::change::{TreeError, invalidate_name};
use super::resolve::{Attachment, Dentry, NodePin};
use super::wire::{self, NodeTag};
use super::{MountNode, MountTree};
use crate::dev::Dev;
use crate::mount::CLONE_PREFIX;
use crate::notify::{self, Invalidation};

/// Called once, when a clone has no user any more.
pub(crate) type OnUnused = Box<dyn FnOnce() + Send>;

/// A namespace and where the kernel shows it.
pub(crate) struct NamespaceView {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) root: Arc<MountNode>,
    /// The name in the root directory of the file system; empty for the first view.
    pub(crate) name: OsString,
    is_shown: AtomicBool,
    lookups: AtomicU64,
    /// None: no callback was set, or it was called.
    on_unused: Mutex<Option<OnUnused>>,
}

impl fmt::Debug for NamespaceView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamespaceView").field("name", &self.name).finish_non_exhaustive()
    }
}

impl NamespaceView {
    pub(super) fn new(namespace: Arc<Namespace>, root: Arc<MountNode>, name: OsString) -> Self {
        let (is_shown, lookups) = (AtomicBool::new(true), AtomicU64::new(0));
        Self { namespace, root, name, is_shown, lookups, on_unused: Mutex::default() }
    }

    /// Whether a mountpoint may still lead there.
    pub(crate) fn is_shown(&self) -> bool {
        // ORDERING: Relaxed, see `MountTree::release`.
        self.is_shown.load(Ordering::Relaxed)
    }

    /// The kernel is about to learn of the root.
    pub(crate) fn looked_up(&self) {
        // ORDERING: AcqRel here and in `forgotten`: the thread that counts the last look-up down
        // comes after all that counted up.
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }

    /// The kernel has dropped `n` look-ups of the root: if these were the last, the clone is not
    /// used any more. Ending it may wait for stores, and is left to a thread of its own: this one
    /// serves requests.
    pub(crate) fn forgotten(&self, tree: &Arc<MountTree>, n: u64) {
        // ORDERING: AcqRel, see `looked_up`.
        if self.lookups.fetch_sub(n, Ordering::AcqRel) != n {
            return;
        }
        let told = self.on_unused.lock().take();
        let (tree, name) = (Arc::clone(tree), self.name.clone());
        let end = move || match told {
            Some(on_unused) => on_unused(),
            None => tree.end_clone_named(&name),
        };
        if let Err(error) = std::thread::Builder::new().name("clone-end".to_owned()).spawn(end) {
            tracing::error!(%error, "a clone that nobody uses stays until the mountpoint ends");
        }
    }

    /// From now on, when the clone has no user any more, `on_unused` is called instead of ending
    /// it.
    pub(crate) fn when_unused(&self, on_unused: OnUnused) {
        *self.on_unused.lock() = Some(on_unused);
    }
}

impl super::Snapshot {
    /// The clone whose root has this tag.
    pub(crate) fn clone_of(&self, tag: NodeTag) -> Option<&Arc<NamespaceView>> {
        self.clones.get(&tag)
    }
}

impl MountTree {
    /// The clone of this name.
    pub(crate) fn clone_named(&self, name: &OsStr) -> Option<Arc<NamespaceView>> {
        self.state.lock().snapshot.clones.values().find(|view| view.name == name).map(Arc::clone)
    }

    /// No mountpoint leads to a clone any more: it ends when its last user is gone.
    pub(crate) fn release(&self, dev: &Dev, view: &NamespaceView) {
        // ORDERING: Relaxed, a look-up that does not see it has the kernel keep the name, until the
        // notification below.
        view.is_shown.store(false, Ordering::Relaxed);
        if !view.name.is_empty() {
            notify::send(dev, &Invalidation::Entry { parent: NodeId::ROOT, name: view.name.clone() });
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
        let tag = self.new_tag()?;
        let mount = namespace.root().ok_or(mounts::Error::NotHere)?;
        let volume = (Arc::clone(&self.root), self.first.root.superblock.clone());
        let root = Arc::new(MountNode::of_mount(tag, (mount, NodeId::ROOT), volume, &namespace));
        let name = OsString::from(format!("{CLONE_PREFIX}{}", tag.number()));
        let view = Arc::new(NamespaceView::new(Arc::clone(&namespace), Arc::clone(&root), name));
        self.root.add_mount(tag);
        self.change(|state, snapshot| {
            state.add_node(snapshot, Arc::clone(&root));
            state.by_mount.insert(mount, root);
            snapshot.clones.insert(tag, Arc::clone(&view));
            // ORDERING: Release, with the Acquire in `has_clones`.
            self.clones.store(snapshot.clones.len(), Ordering::Release);
        });
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

    /// Registers a mount that came to be with another one: in a clone, or by propagation. None:
    /// there is nothing to register (any more).
    pub(super) fn register_copy(&self, made: NewMount) -> Result<Option<Arc<Dentry>>, TreeError> {
        let found = {
            let state = self.state.lock();
            let by_mount = &state.by_mount;
            // A clone that is just being made registers its mounts when it knows the mount below.
            let Some(on) = by_mount.get(&made.on.mount).filter(|_| !by_mount.contains_key(&made.mount))
            else {
                return Ok(None);
            };
            let node = store::ObjectId(made.on.inode.0);
            let known = on
                .namespace
                .superblock(made.mount)
                .zip(on.namespace.root_of(made.mount))
                .and_then(|(superblock, root)| Some((self.volume_of(&state, &superblock)?, root)));
            let Some((volume, root)) = known else { return Ok(None) };
            let name = named(&state.attachments, on, node);
            (Arc::clone(on), node, volume, store::ObjectId(root.0), name)
        };
        let (on, node, volume, root, name) = found;
        let failed = |error| TreeError::Path { path: String::new(), error };
        let name = match name {
            Some(Named::As(name)) => name,
            Some(Named::In { served, dir, name }) => {
                let wire = wire::join(on.tag, dir).ok_or(TreeError::NodeTooLarge)?;
                let dir = NodePin::beside(&served, dir).map_err(failed)?;
                Arc::new(Dentry { dir, wire, name })
            }
            None => return Ok(None),
        };
        let covered = NodePin::beside(&on.served, node).map_err(failed)?;
        let shown = NodePin::beside(&volume.0, root).map_err(failed)?;
        let tag = self.new_tag()?;
        let namespace = Arc::clone(&on.namespace);
        let mount_node = MountNode::of_mount(tag, (made.mount, root), volume, &namespace);
        Ok(self.register((mount_node, shown), (on, covered), &name).then_some(name))
    }

    /// The volume of a superblock that is attached.
    fn volume_of(
        &self,
        state: &super::State,
        superblock: &mounts::SuperblockRef,
    ) -> Option<(Arc<AttachedVolume>, mounts::SuperblockRef)> {
        let first = &self.first.root;
        let found = if first.superblock.is_same(superblock) { first } else { state.volume_of(superblock)? };
        Some((Arc::clone(&found.served), found.superblock.clone()))
    }

    /// Registers mounts that came by propagation with another one, and notifies the kernel of them.
    pub(super) fn register_copies(&self, dev: &Dev, made: &[NewMount]) {
        for &copy in made.get(1..).unwrap_or_default() {
            match self.register_copy(copy) {
                Ok(Some(name)) => {
                    invalidate_name(dev, &name, None);
                    self.drop_if_unmounted(dev, copy.mount);
                }
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "what was attached is not seen in a clone"),
            }
        }
    }

    /// Ends a clone, with what is attached in it and nowhere else, and waits for that. With
    /// `is_forced` unwritten data is given up. `on_abort` is called with each volume that is
    /// given up.
    pub(crate) fn end_clone(
        &self,
        dev: &Dev,
        view: &NamespaceView,
        is_forced: bool,
        mut on_abort: impl FnMut(NodeTag),
    ) {
        if is_forced {
            let there = |mount_node: &&Arc<MountNode>| Arc::ptr_eq(&mount_node.namespace, &view.namespace);
            let mine: Vec<Arc<MountNode>> =
                self.state.lock().by_mount.values().filter(there).map(Arc::clone).collect();
            for one in mine.iter().filter(|one| one.superblock.mounts() == 1) {
                one.superblock.superblock().force();
                on_abort(one.served.tag);
            }
        }
        let ended = view.namespace.shut_with(|mounts| drop(self.drop_unmounted(dev, mounts)));
        if let Err(error) = ended {
            tracing::error!(%error, "what is attached cannot be ended");
        }
        self.drop_clone(view);
    }

    /// Ends a clone whose root the kernel has dropped: the kernel needs no notification.
    fn end_clone_named(&self, name: &OsStr) {
        let Some(view) = self.clone_named(name) else { return };
        let ended = view.namespace.shut_with(|mounts| drop(self.unregister(mounts)));
        if let Err(error) = ended {
            tracing::error!(%error, "what is attached cannot be ended");
        }
        self.drop_clone(&view);
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

    /// All clones.
    pub(super) fn clones(&self) -> Vec<Arc<NamespaceView>> {
        self.state.lock().snapshot.clones.values().map(Arc::clone).collect()
    }
}

/// The name of a covered directory.
enum Named {
    /// That of the mount whose root it is.
    As(Arc<Dentry>),
    /// A name in a directory of its volume.
    In { served: Arc<AttachedVolume>, dir: NodeId, name: OsString },
}

/// The name of a directory that something is mounted on, in any namespace.
fn named(
    attachments: &std::collections::HashMap<MountId, Attachment>,
    on: &Arc<MountNode>,
    node: NodeId,
) -> Option<Named> {
    if node == on.root {
        return attachments.get(&on.mount?).map(|below| Named::As(Arc::clone(&below.name)));
    }
    let same = |at: &&Attachment| {
        at.covered.node == node && at.covered.served.tag == on.served.tag && at.on.root != node
    };
    let at = attachments.values().find(same)?;
    let (dir, name) = (at.name.dir.node, at.name.name.clone());
    Some(Named::In { served: Arc::clone(&at.name.dir.served), dir, name })
}
