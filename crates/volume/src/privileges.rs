//! Set-id bits and capabilities, which a file loses when its data changes.
//!
//! | what changes | set-id bits go | `security.capability` goes |
//! |---|---|---|
//! | write(2), truncate(2) | where the kernel says so: its caller has no `CAP_FSETID` | always; for write(2) the kernel removes it |
//! | fallocate(2), copy_file_range(2) | unless the caller is root and has `CAP_FSETID` | always |
//! | write-back of a mapping or of the kernel's cache | while a user that is not root has the file open for both | likewise |
//! | chown(2) | always, of what is no directory | always; the kernel removes it |
//!
//! A request that the kernel sends for its own cache names no writer. It may write for any user
//! that can have mapped the file: those that have it open for reading and writing. The kernel
//! writes a mapping's pages before it releases the file, so such an opening is still there.
//!
//! # Order
//! `Inode::privileges` is held while bits are given or taken away, so that neither puts an old mode
//! over a new one. `State::known` is set under both locks. It is cleared, under both, before the
//! store is asked to give something. Data is changed between two reads of it: a bit that was given
//! in between goes at the second.

use store::{Attr, ErrorKind, SetAttr};

use crate::inode::Inode;
use crate::{Caller, Result};

/// The extended attribute with a file's capabilities.
const CAPABILITY: &str = "security.capability";
/// The extended attribute whose change is one of the mode as well.
const ACCESS_ACL: &str = "system.posix_acl_access";
/// The number of `CAP_FSETID`.
const CAP_FSETID: u32 = 4;
/// The ids of a process that is in no user namespace but the first.
const ALL_IDS: [&str; 3] = ["0", "0", "4294967295"];

/// The privileges that a file is known not to have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known {
    no_set_id: bool,
    no_capability: bool,
}

/// How a change of data affects the set-id bits of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SetId<'a> {
    /// They go.
    Drop,
    /// They stay, and so do capabilities: the kernel handles them.
    Keep,
    /// They go, unless the caller may set them.
    DropUnlessAllowed(&'a Caller),
}

impl Known {
    fn has_nothing(self) -> bool {
        self.no_set_id && self.no_capability
    }
}

/// Whether a change of this extended attribute can give privileges.
pub(crate) fn gives_privileges(name: &std::ffi::OsStr) -> bool {
    name == CAPABILITY || name == ACCESS_ACL
}

impl Inode {
    /// Runs an operation that may give the file set-id bits or capabilities.
    pub(crate) fn giving_privileges<T>(&self, give: impl FnOnce() -> Result<T>) -> Result<T> {
        let _held = self.privileges.lock();
        self.state().known = Known::default();
        give()
    }

    /// Runs an operation that changes the file's data, and takes its privileges away.
    pub(crate) fn changing_data<T>(
        &self,
        set_id: SetId<'_>,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.drop_privileges(set_id)?;
        let done = change();
        // Bits that were given meanwhile would be those of the new data. A part of the change may
        // be done also when it failed.
        let dropped = self.drop_privileges(set_id);
        done.and_then(|done| dropped.map(|()| done))
    }

    /// Takes set-id bits and capabilities away.
    pub(crate) fn drop_privileges(&self, set_id: SetId<'_>) -> Result<()> {
        if matches!(set_id, SetId::Keep) || self.state().known.has_nothing() {
            return Ok(());
        }
        let _held = self.privileges.lock();
        let mut known = self.state().known;
        if !known.no_set_id {
            known.no_set_id = self.drop_set_id(set_id)?;
        }
        if !known.no_capability {
            self.drop_capability()?;
            known.no_capability = true;
        }
        self.state().known = known;
        Ok(())
    }

    /// Drops the set-id bits; says whether none is left.
    fn drop_set_id(&self, set_id: SetId<'_>) -> Result<bool> {
        let attr = self.core.store.attr(self.id)?;
        let Some(perm) = without_set_id(&attr) else { return Ok(true) };
        if let SetId::DropUnlessAllowed(caller) = set_id
            && may_set_id(caller)
        {
            return Ok(false);
        }
        self.core.store.set_attr(self.id, &SetAttr { perm: Some(perm), ..SetAttr::default() })?;
        self.core.unsynced.note(|| None);
        Ok(true)
    }

    fn drop_capability(&self) -> Result<()> {
        let name = std::ffi::OsStr::new(CAPABILITY);
        // Looked for first: removing an attribute that is not there costs file systems more.
        let gone = self.core.store.get_xattr(self.id, name).and_then(|_| {
            self.core.unsynced.note(|| None);
            self.core.store.remove_xattr(self.id, name)
        });
        match gone {
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::NoAttribute | ErrorKind::Unsupported | ErrorKind::NotPermitted
                ) =>
            {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }
}

/// The permissions without the bits that a write by an unprivileged user takes away; `None` if
/// there are none.
fn without_set_id(attr: &Attr) -> Option<u32> {
    let mut perm = attr.perm & !0o4000;
    // Without group execution the bit means mandatory locking, and stays.
    if attr.perm & 0o2010 == 0o2010 {
        perm &= !0o2000;
    }
    (perm != attr.perm).then_some(perm)
}

/// Whether a caller is root with `CAP_FSETID`, in no other user namespace than this process. If
/// that cannot be found out: no.
///
/// The kernel names the user, which is checked first: a number that belongs to another process by
/// now can then only keep the bits of a file that root changed.
#[must_use]
pub fn may_set_id(caller: &Caller) -> bool {
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", caller.pid)).ok();
    let has_capability = |status: String| {
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
        Some(effective & (1 << CAP_FSETID) != 0)
    };
    caller.uid == 0
        && caller.pid != 0
        && read("status").and_then(has_capability) == Some(true)
        && read("uid_map").is_some_and(|map| map.split_whitespace().eq(ALL_IDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_set_the_bits_is_root_with_the_capability() {
        let own = Caller { pid: std::process::id(), uid: 0, gid: 0, umask: 0 };
        assert!(!may_set_id(&Caller { uid: 1000, ..own }));
        assert!(!may_set_id(&Caller { pid: 0, ..own }), "not known");
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        let has_capability = u64::from_str_radix(effective.trim(), 16).unwrap() >> CAP_FSETID & 1 == 1;
        let is_first = map.split_whitespace().eq(ALL_IDS);
        assert_eq!(may_set_id(&own), has_capability && is_first);
    }

    #[test]
    fn set_group_id_goes_only_with_group_execution() {
        let now = store::Timestamp::now();
        let attr = |perm| Attr {
            ino: 1,
            kind: store::FileType::Regular,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
        };
        for (perm, without) in [
            (0o777, None),
            (0o1777, None),
            (0o2767, None),
            (0o4755, Some(0o755)),
            (0o2755, Some(0o755)),
            (0o6767, Some(0o2767)),
            (0o6777, Some(0o777)),
        ] {
            assert_eq!(without_set_id(&attr(perm)), without, "{perm:o}");
        }
    }
}
