//! Finds the volume of a node: one mountpoint shows several volumes.
//!
//! Purpose: the mountpoint's tree is a [`mounts::Namespace`] whose root is the session's own
//! volume. A node number of the kernel's names a mount or a volume, and a node in it (module
//! [`wire`]). A look-up of a name at which something is attached crosses into that. Requests for
//! the root volume's nodes skip this module, but for look-ups: these see, by one load, that nothing
//! was ever attached.
//!
//! # State
//! | what | is | changed by |
//! |---|---|---|
//! | [`NamespaceView::namespace`] | the truth: which mount is on which directory | attaching, detaching, moving |
//! | [`Snapshot`] | for requests: volumes and mounts by tag | replaced as a whole, under `state` |
//! | `generation` | which snapshot; 0: nothing was ever attached | under `state` |
//! | `State::by_mount`, `covered` | mounts by number, directories that something is attached to | under `state` |
//! | `State::attachments` | where attached mounts are, in the kernel's words | under `state` |
//! | `State::of_volume` | which tags go with a volume | under `state` |
//!
//! Each serving thread keeps the snapshot that it saw last and reads `generation` before it uses
//! it: nothing shared is written for a request, nor locked.
//!
//! # What the kernel remembers
//! The kernel keeps names for a day. So the thread that makes a change notifies it at the end
//! (`change`). The notification waits for look-ups under way in that directory: the answers given
//! before the change are forgotten with the rest.
//!
//! # Lock order
//! ```text
//! AttachedVolume::names       of the volume that something is attached to
//!   the tree of the namespace (see the crate mounts)
//!   MountTree::state
//!   AttachedVolume::open_refs, on_end      leaves; no code that ends a volume is called under them
//! ```
//! That volume's store is called under `names`, to see that a directory is still there: its own
//! renames and removals wait meanwhile, other volumes do not.
//!
//! # Orderings
//! P1: `generation` is stored after the snapshot was replaced, both under `state`; a thread that
//! finds a new number takes `state`. A thread that finds the old number uses the old snapshot: as
//! if its request had come before the change, at whose end the kernel is notified.

mod attached_volume;
mod change;
mod clones;
mod copies;
mod handover;
mod mount_node;
mod mount_tree;
mod namespace_view;
mod persistent_map;
mod reattach;
mod registry;
mod resolve;
mod shutdown;
mod types;
pub(crate) mod wire;

pub use attached_volume::OnEnd;
pub(crate) use attached_volume::{AttachedVolume, Open};
pub use handover::ResumedVolume;
pub(crate) use handover::TreeHandover;
pub(crate) use mount_node::MountNode;
pub(crate) use mount_tree::{MountTree, SnapshotCache};
pub(crate) use namespace_view::NamespaceView;
pub use types::{Attached, AttachmentInfo, Detach, TreeError};
