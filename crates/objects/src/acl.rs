//! Access control lists, as the kernel stores them in `system.posix_acl_*`; analogous to Linux's
//! `posix_acl_create` and `posix_acl_chmod`.

use store::{Error, ErrorKind, Result};

pub(crate) const ACCESS: &str = "system.posix_acl_access";
pub(crate) const DEFAULT: &str = "system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// An entry: tag, permissions, the id of a user or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A list, in the kernel's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

impl Acl {
    /// Reads the value of an attribute.
    pub(crate) fn read(value: &[u8]) -> Result<Self> {
        let wrong = || Error::with(ErrorKind::Invalid, "access control list", "it is malformed");
        let (version, rest) = value.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (entries, []) = rest.as_chunks::<8>() else { return Err(wrong()) };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(wrong());
        }
        let entries: Vec<_> = entries
            .iter()
            .map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| AclEntry {
                tag: u16::from_le_bytes([t0, t1]),
                perm: u16::from_le_bytes([p0, p1]),
                id: u32::from_le_bytes([i0, i1, i2, i3]),
            })
            .collect();
        let acl = Self(entries);
        let has_each = [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| acl.find(*tag).is_some());
        if has_each && acl.0.iter().all(|entry| entry.perm <= 7) { Ok(acl) } else { Err(wrong()) }
    }

    /// The value of an attribute.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.perm.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    fn find(&self, tag: u16) -> Option<&AclEntry> {
        self.0.iter().find(|entry| entry.tag == tag)
    }

    /// The tag whose permissions are the group's bits of the mode.
    fn group_class(&self) -> u16 {
        if self.find(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// The entries that the mode shows, with the place of their bits in it.
    fn shown(&self) -> [(u16, u32); 3] {
        [(USER_OBJ, 6), (self.group_class(), 3), (OTHER, 0)]
    }

    /// The permission bits that it stands for.
    pub(crate) fn mode(&self) -> u32 {
        let bits = |(tag, shift)| self.find(tag).map_or(0, |entry| u32::from(entry.perm) << shift);
        self.shown().into_iter().map(bits).sum()
    }

    /// Whether the mode says all of it.
    pub(crate) fn is_mode_alone(&self) -> bool {
        self.0.len() == 3
    }

    /// Gives it the permission bits of `mode`.
    pub(crate) fn chmod(&mut self, mode: u32) {
        self.change(|_, bits| bits, mode);
    }

    /// Takes the bits that `mode` has not: that of a new file in a directory with this default.
    pub(crate) fn restrict(&mut self, mode: u32) {
        self.change(|perm, bits| perm & bits, mode);
    }

    fn change(&mut self, new: impl Fn(u16, u16) -> u16, mode: u32) {
        for (tag, shift) in self.shown() {
            let bits = u16::try_from(mode >> shift & 7).unwrap_or(0);
            let entries = self.0.iter_mut().filter(|entry| entry.tag == tag);
            entries.for_each(|entry| entry.perm = new(entry.perm, bits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }).collect())
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_anything_else_is_refused() {
        let list =
            acl(&[(USER_OBJ, 7, u32::MAX), (2, 5, 1000), (GROUP_OBJ, 5, 0), (MASK, 5, 0), (OTHER, 0, 0)]);
        let bytes = list.to_bytes();
        assert_eq!(Acl::read(&bytes).unwrap(), list);
        for len in 0..bytes.len() {
            assert!(Acl::read(&bytes[..len]).is_err(), "{len} bytes of it");
        }
        let mut other_version = bytes.clone();
        other_version[0] = 3;
        assert!(Acl::read(&other_version).is_err());
        let mut too_much = bytes;
        too_much[6] = 8;
        assert!(Acl::read(&too_much).is_err());
        assert!(Acl::read(&acl(&[(USER_OBJ, 7, 0), (OTHER, 7, 0)]).to_bytes()).is_err(), "no group");
    }

    #[test]
    fn the_mask_is_the_group_s_part_of_the_mode() {
        let mut list = acl(&[(USER_OBJ, 7, 0), (2, 7, 1000), (GROUP_OBJ, 7, 0), (MASK, 7, 0), (OTHER, 5, 0)]);
        list.restrict(0o640);
        assert_eq!(list.mode(), 0o640);
        assert_eq!(list.find(GROUP_OBJ).unwrap().perm, 7, "the mask limits the group");
        list.chmod(0o755);
        assert_eq!(list.mode(), 0o755);
        let mut plain = acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0), (OTHER, 7, 0)]);
        assert!(plain.is_mode_alone() && !list.is_mode_alone());
        plain.restrict(0o750);
        assert_eq!(plain.mode(), 0o750);
    }
}
