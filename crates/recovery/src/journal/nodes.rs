//! Nodes that the kernel knows.
//!
//! | word | |
//! |---|---|
//! | 0 | 1: it counts |
//! | 1 | the look-ups that the kernel has |
//! | 2 | its number |
//! | 3, 4, 5 | inode number, kind, generation |
//! | 6 and on | its file handle: type and length, then bytes |

use sync::mutant::is_on;

use super::{
    HANDLE_BYTES_MAX, Journal, NODE, NODES_AT, NODES_MAX, NODES_USED, NodeKey, NodeRecord, Slot, low,
};

impl Journal {
    /// Notes a node with so many look-ups. `key`: none for an object that is gone. `None` where there
    /// is no room: the journal is not complete any more then.
    #[must_use]
    pub fn add_node(&self, id: u64, lookups: u64, key: Option<&NodeKey>) -> Option<Slot> {
        if key.is_some_and(|key| key.handle.1.len() > HANDLE_BYTES_MAX) {
            self.turn_off();
            return None;
        }
        let slot = self.take(&self.nodes, NODES_MAX, NODES_USED)?;
        let at = NODES_AT + slot.0 as usize * NODE;
        if is_on("recovery-counts-before-it-is-whole") {
            self.set(at, 1);
        }
        let gone = NodeKey { ino: 0, kind: 0, generation: None, handle: (0, Vec::new()) };
        let key = key.unwrap_or(&gone);
        let (kind, bytes) = &key.handle;
        self.set(at + 1, lookups);
        self.set(at + 2, id);
        self.set(at + 3, key.ino);
        self.set(at + 4, u64::from(key.kind));
        self.set(at + 5, key.generation.map_or(u64::MAX, u64::from));
        self.set(at + 6, u64::from(kind.cast_unsigned()) | (bytes.len() as u64) << 32);
        self.set_bytes(at + 7, bytes);
        self.set(at, 1);
        Some(slot)
    }

    /// The look-ups that the kernel has from now on.
    pub fn set_lookups(&self, slot: Slot, lookups: u64) {
        self.set(NODES_AT + slot.0 as usize * NODE + 1, lookups);
    }

    /// The kernel has forgotten the node.
    pub fn remove_node(&self, slot: Slot) {
        self.set(NODES_AT + slot.0 as usize * NODE, 0);
        self.nodes.lock().back.push(slot.0);
    }

    /// All nodes that are noted. Those without look-ups were open when the kernel gave them back.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Slot, NodeRecord)> {
        let used = u32::try_from(self.used(NODES_USED, NODES_MAX)).unwrap_or(0);
        (0..used).filter_map(|slot| Some((Slot(slot), self.node(slot)?))).collect()
    }

    fn node(&self, slot: u32) -> Option<NodeRecord> {
        let at = NODES_AT + slot as usize * NODE;
        if self.get(at) == 0 {
            return None;
        }
        let handle = self.get(at + 6);
        let (kind, len) = (low(handle), usize::try_from(handle >> 32).unwrap_or(0).min(HANDLE_BYTES_MAX));
        let ino = self.get(at + 3);
        let key = (ino != 0).then(|| NodeKey {
            ino,
            kind: u32::try_from(self.get(at + 4)).unwrap_or(u32::MAX),
            generation: u32::try_from(self.get(at + 5)).ok(),
            handle: (kind.cast_signed(), self.bytes(at + 7, len)),
        });
        Some(NodeRecord { id: self.get(at + 2), lookups: self.get(at + 1), key })
    }
}
