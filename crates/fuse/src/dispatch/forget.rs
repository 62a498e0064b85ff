//! Look-ups that the kernel gives back.

use volume::NodeId;

use crate::admission;
use crate::connection::Connection;
use crate::in_flight::{RequestClass, RequestSlot};
use crate::tree::wire::{self, NodeTag};
use crate::tree::{AttachedVolume, SnapshotCache};

/// Gives look-ups back, if the volume is still there.
pub(super) fn forget(shared: &Connection, slot: &RequestSlot, cache: &mut SnapshotCache, node: u64, n: u64) {
    let tree = &shared.tree;
    let (tag, id) = wire::split(node);
    // A request for the attributes of a file without a name may hang.
    let forget = |served: &AttachedVolume| {
        let class =
            RequestClass { volume: served.tag, quota_exempt: true, empty_reply: false, in_place: false };
        if admission::may_take_thread(shared, slot, class) {
            served.volume.forget(id, n);
        } else {
            served.volume.forget_later(id, n);
        }
        slot.clear_volume();
    };
    if tag == NodeTag::ROOT {
        return forget(tree.root());
    }
    let snapshot = tree.snapshot(cache);
    if let Some(mount_node) = snapshot.mount_node(tag)
        && let Some(_asked) = mount_node.served.enter()
    {
        forget(&mount_node.served);
    }
    if id == NodeId::ROOT
        && let Some(clone) = snapshot.clone_of(tag)
    {
        tree.forget_clone_root(clone, n);
    }
}
