//! The credentials with which an object is made.
//!
//! An object must belong to its creator from its first moment: a process killed between making it
//! and changing its owner would leave a file of root's behind. So the *thread* that makes it takes
//! the creator's file-system ids and umask, and the file system below does the rest as for any
//! other process: set-group-id directories, default ACLs, quotas.
//!
//! # What changes in a thread that has created something
//! * `SECBIT_NO_SETUID_FIXUP` is set, so that its capabilities stay when its file-system uid
//!   changes.
//! * Its root, working directory and umask are its own (`CLONE_FS` unshared): the umask of one
//!   thread would otherwise be that of all.
//! * Its file-system ids and umask stay those of the last creator, unless the medium checks ids
//!   where capabilities ought to do (network file systems): there the guard puts the ids back. On
//!   local file systems, only creation checks them while the capabilities are there.
//! * The kernel makes a process undumpable when a thread changes its ids (no core files).
//!
//! Threads that such a thread starts inherit all of this; they take their own ids before they
//! create. Nothing outside this module may change the file-system ids or the umask of a thread that
//! uses a store: the module remembers what it set.
//!
//! Without the capabilities (not root) only the umask is set, and objects belong to the process.
//! Where even `CLONE_FS` may not be unshared (some containers' system call filters), the process's
//! umask is cleared and the creator's bits are taken from the mode here; a directory's default ACL
//! is then narrowed by the umask, which the kernel would not have done.

use std::cell::Cell;
use std::marker::PhantomData;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet};

use crate::Creator;

/// How creation sets the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Objects belong to the process.
    Process,
    /// The creator's ids are taken, and kept until another creator's are needed.
    Creator,
    /// The creator's ids are taken, and given back after each creation.
    CreatorForOneCall,
}

impl Ownership {
    /// The ownership that the calling thread's capabilities allow; `local` says that the medium
    /// decides by capabilities alone.
    pub(crate) fn possible(local: bool) -> Self {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::SETPCAP;
        if !capabilities().contains(needed) {
            Self::Process
        } else if local {
            Self::Creator
        } else {
            Self::CreatorForOneCall
        }
    }
}

/// The effective capabilities of the calling thread; none when they cannot be read.
pub(crate) fn capabilities() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

#[derive(Debug, Clone, Copy, Default)]
struct ThreadCreds {
    umask_is: Umask,
    /// Capabilities stay when ids change.
    keeps_capabilities: bool,
    ids: Option<(u32, u32)>,
    umask: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Umask {
    /// Not yet known.
    #[default]
    Untouched,
    /// This thread's own.
    Own,
    /// The process's, cleared.
    Shared,
}

thread_local! {
    static THREAD_CREDS: Cell<ThreadCreds> = const {
        Cell::new(ThreadCreds { umask_is: Umask::Untouched, keeps_capabilities: false, ids: None, umask: None })
    };
}

/// While the guard lives, objects that this thread makes belong to the creator.
#[derive(Debug)]
#[must_use]
pub(crate) struct CredsGuard {
    put_back: Option<(u32, u32)>,
    /// Bits of the mode that the kernel will not take away.
    mask: u32,
    /// Thread state: the guard must be dropped where it was made.
    not_send: PhantomData<*const ()>,
}

/// Takes the identity of `creator` for this thread.
pub(crate) fn take(how: Ownership, creator: Creator) -> Result<CredsGuard, Errno> {
    let mut held = THREAD_CREDS.get();
    let umask = creator.umask & 0o777;
    if held.umask_is == Umask::Untouched {
        held.umask_is = if raw::unshare_fs().is_ok() { Umask::Own } else { Umask::Shared };
    }
    let (wanted, mask) = if held.umask_is == Umask::Own { (umask, 0) } else { (0, umask) };
    if held.umask != Some(wanted) {
        rustix::process::umask(Mode::from_raw_mode(wanted));
        held.umask = Some(wanted);
    }
    THREAD_CREDS.set(held);
    let put_back = match how {
        Ownership::Process => None,
        Ownership::Creator => {
            take_ids(&mut held, creator.uid, creator.gid)?;
            None
        }
        Ownership::CreatorForOneCall => Some(take_ids(&mut held, creator.uid, creator.gid)?),
    };
    Ok(CredsGuard { put_back, mask, not_send: PhantomData })
}

/// Sets the thread's file-system ids, and says what they were before.
fn take_ids(held: &mut ThreadCreds, uid: u32, gid: u32) -> Result<(u32, u32), Errno> {
    if held.ids == Some((uid, gid)) {
        return Ok((uid, gid));
    }
    if !held.keeps_capabilities {
        let bits = rustix::thread::capabilities_secure_bits()?;
        rustix::thread::set_capabilities_secure_bits(bits | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
        held.keeps_capabilities = true;
    }
    held.ids = None;
    THREAD_CREDS.set(*held);
    let before = (raw::set_fs_uid(uid)?, raw::set_fs_gid(gid)?);
    held.ids = Some((uid, gid));
    THREAD_CREDS.set(*held);
    Ok(before)
}

impl CredsGuard {
    /// The mode to give to the system call.
    pub(crate) fn mode(&self, perm: u32) -> Mode {
        Mode::from_raw_mode(perm & 0o7777 & !self.mask)
    }
}

impl Drop for CredsGuard {
    fn drop(&mut self) {
        let Some((uid, gid)) = self.put_back else { return };
        let mut held = THREAD_CREDS.get();
        // Going back to ids that this thread had is always allowed; if it fails even so, the next
        // creation notices that `ids` is unknown and sets them again.
        let _ = take_ids(&mut held, uid, gid);
    }
}

mod raw {
    use rustix::io::Errno;
    use rustix::thread::UnshareFlags;

    /// Gives this thread a root, working directory and umask of its own.
    pub(super) fn unshare_fs() -> Result<(), Errno> {
        // SAFETY: only `CLONE_FS` is unshared; the table of descriptors stays shared.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
    }

    /// Sets the file-system uid of this thread alone, and says what it was.
    ///
    /// The kernel reports no failure: it returns the id from before, so a second call with an id
    /// that cannot be set returns the present one.
    pub(super) fn set_fs_uid(uid: u32) -> Result<u32, Errno> {
        // SAFETY: numbers only; the call changes this thread's credentials, which this module owns.
        let (before, now) =
            unsafe { (libc::syscall(libc::SYS_setfsuid, uid), libc::syscall(libc::SYS_setfsuid, u32::MAX)) };
        told(uid, before, now)
    }

    /// Sets the file-system gid of this thread alone, and says what it was.
    pub(super) fn set_fs_gid(gid: u32) -> Result<u32, Errno> {
        // SAFETY: as above.
        let (before, now) =
            unsafe { (libc::syscall(libc::SYS_setfsgid, gid), libc::syscall(libc::SYS_setfsgid, u32::MAX)) };
        told(gid, before, now)
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ids are 32 bits wide")]
    fn told(wanted: u32, before: i64, now: i64) -> Result<u32, Errno> {
        if now as u32 == wanted { Ok(before as u32) } else { Err(Errno::PERM) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file-system uid and gid, and the umask, of this thread.
    fn state() -> (u32, u32, u32) {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let field = |key: &str, n: usize| {
            let line = status.lines().find(|l| l.starts_with(key)).unwrap();
            line.split_whitespace().nth(n).unwrap().to_owned()
        };
        let id = |key| field(key, 4).parse().unwrap();
        (id("Uid:"), id("Gid:"), u32::from_str_radix(&field("Umask:", 1), 8).unwrap())
    }

    fn on_a_thread_of_its_own(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| scope.spawn(test).join().unwrap());
    }

    fn can_switch() -> bool {
        let can = Ownership::possible(true) == Ownership::Creator;
        if !can {
            testing::skipped("taking other ids needs root");
        }
        can
    }

    const SOMEBODY: Creator = Creator { uid: 4711, gid: 815, umask: 0o037 };

    #[test]
    fn ids_stay_with_the_thread_and_capabilities_with_them() {
        if !can_switch() {
            return;
        }
        let before = state();
        on_a_thread_of_its_own(|| {
            let had = capabilities();
            drop(take(Ownership::Creator, SOMEBODY).unwrap());
            assert_eq!(state(), (4711, 815, 0o037));
            assert_eq!(capabilities(), had);
            drop(take(Ownership::Creator, Creator { uid: 0, gid: 0, umask: 0o022 }).unwrap());
            assert_eq!(state(), (0, 0, 0o022));
        });
        assert_eq!(state(), before, "other threads are as they were");
    }

    #[test]
    fn for_one_call_the_ids_come_back() {
        if !can_switch() {
            return;
        }
        on_a_thread_of_its_own(|| {
            let (uid, gid, _) = state();
            for _ in 0..2 {
                let guard = take(Ownership::CreatorForOneCall, SOMEBODY).unwrap();
                assert_eq!(state(), (4711, 815, 0o037));
                drop(guard);
                assert_eq!(state(), (uid, gid, 0o037));
            }
        });
    }

    #[test]
    fn threads_started_by_a_changed_thread_take_their_own() {
        if !can_switch() {
            return;
        }
        on_a_thread_of_its_own(|| {
            let _guard = take(Ownership::Creator, SOMEBODY).unwrap();
            on_a_thread_of_its_own(|| {
                let other = Creator { uid: 1, gid: 2, umask: 0o077 };
                drop(take(Ownership::Creator, other).unwrap());
                assert_eq!(state(), (1, 2, 0o077));
            });
            assert_eq!(state(), (4711, 815, 0o037), "not those of the thread it started");
        });
    }

    #[test]
    fn an_id_that_is_none_is_refused() {
        if !can_switch() {
            return;
        }
        on_a_thread_of_its_own(|| {
            let nobody = Creator { uid: u32::MAX, gid: 0, umask: 0 };
            // The kernel takes (uid_t)-1 for "no id".
            let before = state();
            let result = take(Ownership::Creator, nobody);
            assert!(result.is_err());
            assert_eq!(state().0, before.0);
        });
    }

    #[test]
    fn the_process_s_own_ids_need_nothing() {
        on_a_thread_of_its_own(|| {
            let (uid, gid, _) = state();
            let guard = take(Ownership::Process, SOMEBODY).unwrap();
            assert_eq!(state(), (uid, gid, 0o037));
            assert_eq!(guard.mode(0o777).as_raw_mode(), 0o777, "the umask is the kernel's business");
        });
    }
}
