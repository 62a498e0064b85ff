//! Open files and directories.
//!
//! | word | |
//! |---|---|
//! | 0 | 1: a file, 2: a directory; 0: it does not count |
//! | 1, 2 | the number that the kernel has, the node |
//! | 3 | flags; bit 32: another user can have mapped it |
//! | 4, 5 | the thread that opened it, the request that did |

use super::{
    Journal, NEXT_NUMBER, OPEN, OPENS_AT, OPENS_MAX, OPENS_USED, OpenKind, OpenRecord, RESENT, Slot, low,
    request_in_hand,
};

impl Journal {
    /// Notes an opening. `None` where there is no room: the journal is not complete any more then.
    #[must_use]
    pub fn add_open(&self, record: &OpenRecord) -> Option<Slot> {
        let slot = self.take(&self.opens, OPENS_MAX, OPENS_USED)?;
        let at = OPENS_AT + slot.0 as usize * OPEN;
        self.set(at + 1, record.handle);
        self.set(at + 2, record.node);
        self.set(at + 3, u64::from(record.flags) | u64::from(record.is_foreign_mapper) << 32);
        self.set(at + 4, u64::from(record.opener_pid));
        self.set(at + 5, record.request & !RESENT);
        if record.kind == OpenKind::Dir {
            self.clear_places(slot);
        }
        self.memory.raise(NEXT_NUMBER, record.handle + 1);
        self.set(at, if record.kind == OpenKind::File { 1 } else { 2 });
        Some(slot)
    }

    /// It was closed.
    pub fn remove_open(&self, slot: Slot) {
        self.set(OPENS_AT + slot.0 as usize * OPEN, 0);
        self.opens.lock().back.push(slot.0);
    }

    /// All that is open.
    #[must_use]
    pub fn opens(&self) -> Vec<(Slot, OpenRecord)> {
        let used = u32::try_from(self.used(OPENS_USED, OPENS_MAX)).unwrap_or(0);
        (0..used).filter_map(|slot| Some((Slot(slot), self.open(slot)?))).collect()
    }

    /// What the request in the calling thread's hands has opened already, for a server before.
    #[must_use]
    pub fn opened_before(&self) -> Option<OpenRecord> {
        self.opened.lock().remove(&request_in_hand())
    }

    /// The number that the next opening gets: none that was open has it.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.get(NEXT_NUMBER).max(1)
    }

    fn open(&self, slot: u32) -> Option<OpenRecord> {
        let at = OPENS_AT + slot as usize * OPEN;
        let kind = match self.get(at) {
            1 => OpenKind::File,
            2 => OpenKind::Dir,
            _ => return None,
        };
        let flags = self.get(at + 3);
        Some(OpenRecord {
            kind,
            handle: self.get(at + 1),
            node: self.get(at + 2),
            flags: low(flags),
            is_foreign_mapper: flags >> 32 != 0,
            opener_pid: low(self.get(at + 4)),
            request: self.get(at + 5),
        })
    }
}
