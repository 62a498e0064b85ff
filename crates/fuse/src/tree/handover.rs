//! The tree, written down for the next program of the process.
//!
//! What the kernel knows of it stays true: node numbers with their tags, generations, the names that
//! are covered. So each volume and mount has its tag in the next program too, and no tag is given
//! again. The volumes themselves are handed over beside it (`volume::handover`); their nodes have the
//! look-ups that mounts and names keep here.
//!
//! No request is under way, and nothing is attached, detached or moved meanwhile.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;

use mounts::{Inode, MountId, MountInfo, SuperblockRef, Ties, VfsPath};
use serde::{Deserialize, Serialize};
use sync::atomic::Ordering;
use volume::{HandleId, NodeId, Volume};

use super::attached_volume::{AttachedVolume, OnEnd, Open};
use super::mount_node::{Dentry, MountNode, NodePin};
use super::mount_tree::MountTree;
use super::registry::first;
use super::types::{Attached, TreeError};
use super::wire::{self, NodeTag};

/// No mount has this number: it stands for one that has left.
const LEFT: MountId = MountId(u64::MAX);

/// A tree with attached volumes, written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TreeHandover {
    last_tag: NodeTag,
    /// See [`wire::generation`].
    generation: u32,
    volumes: Vec<VolumeState>,
    names: Vec<NameState>,
    /// Each after the one that it is on.
    mounts: Vec<MountState>,
    /// Mounts that have left, of which directories are open.
    left: Vec<LeftState>,
    /// Clones of the mountpoint.
    #[serde(default)]
    clones: Vec<CloneState>,
    /// How the mountpoint's own root propagates.
    #[serde(default)]
    ties: TiesState,
}

/// How a mount propagates, by numbers of groups that mean something in one handover only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct TiesState {
    shared: Option<u64>,
    master: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CloneState {
    /// Its root's; its name is made of it.
    tag: NodeTag,
    /// Look-ups of its root that the kernel has.
    lookups: u64,
    is_shown: bool,
    /// Directories that are open through its root.
    dirs: usize,
    ties: TiesState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct VolumeState {
    tag: NodeTag,
    is_read_only: bool,
    /// What is open, and keeps it.
    open: Vec<(Open, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NameState {
    /// The volume of the directory that it is in, and that directory.
    volume: NodeTag,
    dir: NodeId,
    wire: u64,
    name: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MountState {
    tag: NodeTag,
    volume: NodeTag,
    root: NodeId,
    /// The mount that it is on, and the directory there.
    on: NodeTag,
    covered: NodeId,
    /// Which of the names it has.
    name: usize,
    /// Directories that are open through it.
    dirs: usize,
    #[serde(default)]
    ties: TiesState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LeftState {
    tag: NodeTag,
    volume: NodeTag,
    root: NodeId,
    dirs: usize,
}

/// A volume that was attached in the program before.
pub struct ResumedVolume {
    /// Its number there, and here.
    pub number: u64,
    /// The volume.
    pub volume: Arc<Volume>,
    /// Called when it has ended.
    pub on_end: OnEnd,
}

impl std::fmt::Debug for ResumedVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResumedVolume").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Names, each once: several mounts may have one.
#[derive(Default)]
struct Names {
    at: HashMap<*const Dentry, usize>,
    states: Vec<NameState>,
}

impl Names {
    fn index_of(&mut self, name: &Arc<Dentry>) -> usize {
        *self.at.entry(Arc::as_ptr(name)).or_insert_with(|| {
            let (volume, dir) = (name.dir.served.tag, name.dir.node);
            self.states.push(NameState { volume, dir, wire: name.wire, name: name.name.as_bytes().to_vec() });
            self.states.len() - 1
        })
    }
}

impl MountTree {
    /// Writes it down; none if nothing was ever attached.
    ///
    /// # Errors
    /// Why it cannot be handed over now.
    pub(crate) fn hand_over(&self) -> Result<Option<TreeHandover>, &'static str> {
        if self.is_plain() {
            return Ok(None);
        }
        let views = || self.clones().into_iter().chain([Arc::clone(&self.first)]);
        // Of each namespace, each after the one that it is on.
        let order: Vec<_> = views().map(|view| (view.namespace.mounts(), view)).collect();
        let state = self.state.lock();
        let (mut names, mut mounts, mut left, mut volumes) =
            (Names::default(), Vec::new(), Vec::new(), Vec::new());
        let (mut clones, mut own_ties) = (Vec::new(), TiesState::default());
        for (infos, view) in &order {
            for MountInfo { mount, shared, master, .. } in infos {
                let ties = TiesState { shared: *shared, master: *master };
                if view.root.mount != Some(*mount) {
                    let at = state.attachments.get(mount).ok_or("what is attached to it changes just now")?;
                    mounts.push(MountState {
                        tag: at.mount_node.tag,
                        volume: at.mount_node.served.tag,
                        root: at.mount_node.root,
                        on: at.on.tag,
                        covered: at.covered.node,
                        name: names.index_of(&at.name),
                        dirs: open_dirs(&at.mount_node),
                        ties,
                    });
                } else if view.root.tag == NodeTag::ROOT {
                    own_ties = ties;
                } else {
                    clones.push(CloneState {
                        tag: view.root.tag,
                        lookups: view.lookups(),
                        is_shown: view.is_shown(),
                        dirs: open_dirs(&view.root),
                        ties,
                    });
                }
            }
        }
        for node in state.snapshot.by_tag.values() {
            let (tag, volume) = (node.tag, node.served.tag);
            if node.mount.is_none() {
                if node.served.is_ending() {
                    return Err("a volume that was attached is ending");
                }
                let open =
                    node.served.all_open().into_iter().map(|(what, handle)| (what, handle.0)).collect();
                volumes.push(VolumeState { tag, is_read_only: node.served.is_read_only, open });
            } else if node.is_gone() {
                left.push(LeftState { tag, volume, root: node.root, dirs: open_dirs(node) });
            }
        }
        let (last_tag, names) = (state.last_tag, names.states);
        let (generation, ties) = (wire::of_process(), own_ties);
        Ok(Some(TreeHandover { last_tag, generation, volumes, names, mounts, left, clones, ties }))
    }

    /// A volume that has begun to end.
    pub(crate) fn ending(&self) -> Option<String> {
        self.volumes().iter().find(|one| one.is_ending()).map(|one| one.volume.name().to_owned())
    }

    /// Attaches what the program before had attached, where it was. Returns where each volume is, in
    /// their order. To be called once, before requests are served.
    ///
    /// # Errors
    /// [`TreeError::BadState`], and those of the namespace.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        state: &TreeHandover,
        volumes: Vec<ResumedVolume>,
    ) -> Result<Vec<Attached>, TreeError> {
        wire::resume_generations(state.generation);
        // Also where nothing is attached any more: the next program has to know the tag, too.
        self.change(|now, _| now.last_tag = state.last_tag);
        let mut resumed =
            Resumed { tree: self, volumes: HashMap::new(), mounts: HashMap::new(), ties: Vec::new() };
        let first = &self.first.root;
        resumed.volumes.insert(NodeTag::ROOT, (Arc::clone(&first.served), first.superblock.clone()));
        resumed.record_mount(first, state.ties);
        let mut places = Vec::with_capacity(volumes.len());
        for one in volumes {
            let tag = NodeTag::from_number(one.number);
            let known = state.volumes.iter().find(|known| known.tag == tag);
            resumed.volume(known.ok_or(TreeError::BadState("a volume is not in it"))?, one);
            places.push(tag);
        }
        if places.len() != state.volumes.len() {
            return Err(TreeError::BadState("a volume is missing"));
        }
        let names = state.names.iter().map(|name| resumed.name(name)).collect::<Result<Vec<_>, _>>()?;
        for clone in &state.clones {
            resumed.resume_clone(clone)?;
        }
        for mount in &state.mounts {
            resumed.mount(mount, &names)?;
        }
        // Before that, no mount would have been made where it was alone.
        self.first.namespace.tie(&resumed.ties)?;
        for left in &state.left {
            resumed.left(left)?;
        }
        places.into_iter().map(|tag| resumed.place_of(tag)).collect()
    }
}

fn open_dirs(node: &MountNode) -> usize {
    // ORDERING: Relaxed, no request is under way.
    node.dirs.load(Ordering::Relaxed)
}

/// What was taken over so far, by tag.
struct Resumed<'a> {
    tree: &'a Arc<MountTree>,
    volumes: HashMap<NodeTag, (Arc<AttachedVolume>, SuperblockRef)>,
    mounts: HashMap<NodeTag, Arc<MountNode>>,
    ties: Vec<(MountId, Ties)>,
}

impl Resumed<'_> {
    fn record_mount(&mut self, node: &Arc<MountNode>, TiesState { shared, master }: TiesState) {
        self.mounts.insert(node.tag, Arc::clone(node));
        let ties = Ties { shared, master, is_unbindable: false };
        self.ties.extend(node.mount.map(|mount| (mount, ties)));
    }

    fn resume_clone(&mut self, state: &CloneState) -> Result<(), TreeError> {
        let namespace = Arc::new(self.tree.first.namespace.try_beside()?);
        let view = self.tree.view_of(state.tag, &namespace)?.resumed(state.is_shown, state.lookups);
        // ORDERING: Relaxed here and below, no request is served yet.
        view.root.dirs.store(state.dirs, Ordering::Relaxed);
        let view = self.tree.add_clone(view);
        self.record_mount(&view.root, state.ties);
        Ok(())
    }

    fn served(&self, tag: NodeTag) -> Result<(Arc<AttachedVolume>, SuperblockRef), TreeError> {
        self.volumes.get(&tag).cloned().ok_or(TreeError::BadState("it names a volume that is not in it"))
    }

    fn volume(&mut self, state: &VolumeState, one: ResumedVolume) {
        let served = self.tree.attached_volume(&one.volume, state.tag, state.is_read_only, one.on_end);
        let (superblock, holds) = SuperblockRef::resume(Arc::clone(&served) as Arc<_>, state.open.len());
        for ((what, handle), hold) in state.open.iter().zip(holds) {
            served.opened(*what, HandleId(*handle), Some(hold));
        }
        let namespace = &self.tree.first.namespace;
        let files = MountNode::of_files(state.tag, (Arc::clone(&served), superblock.clone()), namespace);
        self.tree.change(|state, snapshot| state.add_node(snapshot, Arc::new(files)));
        self.volumes.insert(state.tag, (served, superblock));
    }

    /// The look-up that the name keeps is one that the volume has.
    fn name(&self, state: &NameState) -> Result<Arc<Dentry>, TreeError> {
        let dir = NodePin { served: self.served(state.volume)?.0, node: state.dir };
        let name = OsString::from_vec(state.name.clone());
        Ok(Arc::new(Dentry { dir, wire: state.wire, name }))
    }

    fn mount(&mut self, state: &MountState, names: &[Arc<Dentry>]) -> Result<(), TreeError> {
        let (served, superblock) = self.served(state.volume)?;
        let on = self.mounts.get(&state.on).map(Arc::clone);
        let on = on.ok_or(TreeError::BadState("a mount is on none"))?;
        let name = names.get(state.name).ok_or(TreeError::BadState("a mount has no name"))?;
        let namespace = Arc::clone(&on.namespace);
        let mount = on.mount.ok_or(TreeError::BadState("a mount is on a volume's files"))?;
        let place = VfsPath { mount, inode: Inode(state.covered.0) };
        served.add_mount(state.tag);
        let made = namespace.attach_dir_all(place, "", &superblock, Inode(state.root.0))?;
        let (mount, volume) = ((first(&made), state.root), (Arc::clone(&served), superblock));
        let mount_node = MountNode::of_mount(state.tag, mount, volume, &namespace);
        mount_node.dirs.store(state.dirs, Ordering::Relaxed);
        let covered = NodePin { served: Arc::clone(&on.served), node: state.covered };
        let shown = NodePin { served, node: state.root };
        let is_new = self.tree.register((mount_node, shown), (on, covered), name);
        let known = self.tree.mount_node(first(&made)).filter(|_| is_new);
        self.record_mount(&known.ok_or(TreeError::BadState("a mount is in it twice"))?, state.ties);
        Ok(())
    }

    fn left(&self, state: &LeftState) -> Result<(), TreeError> {
        let volume = self.served(state.volume)?;
        let namespace = &self.tree.first.namespace;
        let node = MountNode::of_mount(state.tag, (LEFT, state.root), volume, namespace);
        node.dirs.store(state.dirs, Ordering::Relaxed);
        node.is_gone.store(true, Ordering::Relaxed);
        self.tree.change(|state, snapshot| state.add_node(snapshot, Arc::new(node)));
        Ok(())
    }

    fn place_of(&self, volume: NodeTag) -> Result<Attached, TreeError> {
        let superblock = self.served(volume)?.1;
        // The whole of it rather than a part, and the oldest of these.
        let mounts = self.mounts.values().filter(|mount| mount.served.tag == volume);
        let first = mounts.min_by_key(|mount| (mount.root != NodeId::ROOT, mount.tag));
        let mount = first.and_then(|mount| mount.mount).unwrap_or(LEFT);
        Ok(Attached { mount, volume, superblock })
    }
}
