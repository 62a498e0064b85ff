//! How large the extended attributes of one inode are, and may be.

use std::ffi::OsStr;

/// Names of one inode's attributes, with a NUL each, as the kernel's own bound.
pub(crate) const NAMES_BYTES_MAX: usize = 65536;
/// All attributes of one inode, with what each costs beside its name and value: a user's quota does
/// not count them.
const BYTES_MAX: usize = 192 << 10;
const ROW_BYTES: usize = 64;

/// The sizes of an inode's attributes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct XattrSizes {
    /// Of their names, with a NUL each.
    names: usize,
    /// Of all that they take.
    all: usize,
}

impl XattrSizes {
    pub(crate) fn add(&mut self, name: &OsStr, value: &[u8]) {
        self.names += name.len() + 1;
        self.all += name.len() + value.len() + ROW_BYTES;
    }

    pub(crate) fn remove(&mut self, name: &OsStr, value: &[u8]) {
        self.names = self.names.saturating_sub(name.len() + 1);
        self.all = self.all.saturating_sub(name.len() + value.len() + ROW_BYTES);
    }

    /// Whether an inode may not have so much.
    pub(crate) fn are_too_large(self) -> bool {
        self.names > NAMES_BYTES_MAX || self.all > BYTES_MAX
    }
}
