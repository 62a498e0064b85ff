//! Node numbers as the kernel has them.
//!
//! The kernel hands them to programs, too, in handles (`name_to_handle_at`), with the node's
//! generation. A number of the root volume is its store's, which finds it again after the kernel
//! has forgotten it, and after a remount.
//!
//! | bits | of a node of the root volume | of any other |
//! |---|---|---|
//! | 63 | 0 | 1 |
//! | 40..63 | part of the node's number | a [`NodeTag`] |
//! | 0..40 | the node's number in its volume | the same |
//!
//! A tag is never used again, so that a number that the kernel kept never leads to another volume's
//! files. Directories have the tag of the mount that they are seen through: the same directory in
//! two places is two for the kernel, which allows a directory only one. Every other node has the
//! tag of its volume: a file is one file, with one page cache, wherever it is seen.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;

use volume::NodeId;

const TAGGED: u64 = 1 << 63;
const NODE_BITS: u32 = 40;
const TAG_MAX: u32 = (1 << (63 - NODE_BITS)) - 1;

/// A mount's or a volume's number in node numbers; 0 for the root volume and its first mount.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct NodeTag(u32);

impl NodeTag {
    /// Of the root volume.
    pub(crate) const ROOT: Self = Self(0);

    /// For people, and to compare.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.0)
    }

    /// The one whose [`number`](Self::number) this is.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(u32::try_from(number).unwrap_or(TAG_MAX))
    }

    /// The next one; none when all have been used.
    pub(crate) fn next(self) -> Option<Self> {
        (self.0 < TAG_MAX).then_some(Self(self.0 + 1))
    }
}

/// The kernel's number for this node; none if its number is too large for a node that is not the
/// root volume's.
pub(crate) fn join(tag: NodeTag, node: NodeId) -> Option<u64> {
    let limit = if tag == NodeTag::ROOT { TAGGED } else { 1 << NODE_BITS };
    let mount_node = if tag == NodeTag::ROOT { 0 } else { TAGGED | (u64::from(tag.0) << NODE_BITS) };
    (node.0 < limit).then_some(mount_node | node.0)
}

/// Whether this is a node of the root volume, seen through its first mount (or a file of it,
/// wherever it is seen).
#[inline]
pub(crate) const fn is_plain(wire: u64) -> bool {
    wire & TAGGED == 0
}

/// The node that a number of the kernel's stands for.
pub(crate) fn split(wire: u64) -> (NodeTag, NodeId) {
    if is_plain(wire) {
        return (NodeTag::ROOT, store::ObjectId(wire));
    }
    (NodeTag::from_number((wire & !TAGGED) >> NODE_BITS), store::ObjectId(wire & ((1 << NODE_BITS) - 1)))
}

/// The inode number that programs see: that of the store, told apart from those of other volumes,
/// since all have one device number. Programs take two files with the same numbers for one.
pub(crate) fn ino(volume: NodeTag, ino: u64) -> u64 {
    ino ^ (u64::from(volume.0) << (NODE_BITS + 1))
}

/// Told apart by it are the generations of attached volumes' nodes in this process.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// The generation that the kernel keeps beside a node's number, in handles too. Tags begin anew
/// with each process: a handle of an attached volume's file is not to lead into what has its tag in
/// the next one.
pub(crate) fn generation(volume: NodeTag, generation: u32) -> u32 {
    if volume == NodeTag::ROOT { generation } else { generation ^ of_process() }
}

/// What tells this process's generations apart.
pub(super) fn of_process() -> u32 {
    *PROCESS.get_or_init(|| {
        let [a, b, c, d, ..] = RandomState::new().hash_one(0_u8).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    })
}

/// This program goes on with the generations of the one before. To be called before the first is
/// asked for; later calls change nothing.
pub(super) fn resume_generations(of_process: u32) {
    let _known_already = PROCESS.set(of_process);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_they_were() {
        let tags = [NodeTag::ROOT, NodeTag(1), NodeTag(TAG_MAX)];
        for (tag, node) in tags.iter().flat_map(|&tag| [1, 77, (1 << NODE_BITS) - 1].map(|node| (tag, node)))
        {
            let wire = join(tag, store::ObjectId(node)).unwrap();
            assert_eq!(split(wire), (tag, store::ObjectId(node)));
            assert_eq!(is_plain(wire), tag == NodeTag::ROOT);
        }
        assert_eq!(join(NodeTag::ROOT, store::ObjectId(1)), Some(1), "the kernel's own number for the root");
        assert_eq!(join(NodeTag(1), store::ObjectId(1 << NODE_BITS)), None);
        assert_eq!(join(NodeTag::ROOT, store::ObjectId(1 << NODE_BITS)), Some(1 << NODE_BITS));
        assert_eq!(NodeTag(TAG_MAX).next(), None);
    }

    #[test]
    fn files_of_two_volumes_have_two_numbers() {
        assert_eq!(ino(NodeTag::ROOT, 5), 5);
        assert_ne!(ino(NodeTag(1), 5), 5);
        assert_ne!(ino(NodeTag(1), 5), ino(NodeTag(2), 5));
    }
}
