//! The agreement with the kernel when a connection begins.
//!
//! Purpose: [`negotiate`] is a pure function from the kernel's offer and the daemon's wishes to the
//! reply.

use crate::protocol::abi::{self, InitFlags, InitIn, InitOut};
use crate::protocol::decode::Agreed;

/// Largest WRITE and READ, in bytes: the most that the kernel sends at once as it comes (256 pages
/// of 4 KiB, unless `fs.fuse.max_pages_limit` was raised).
pub const MAX_WRITE: u32 = 1 << 20;

/// Which side holds dirty data that was only written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Every write(2) comes to the daemon, with its writer; the volume's cache holds it.
    #[default]
    WriteThrough,
    /// The kernel's page cache collects writes and sends them when it likes, without saying whose
    /// they are.
    KernelWriteback,
}

/// The daemon's wishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wishes {
    /// Which side holds dirty data.
    pub mode: Mode,
    /// Requests that the kernel may have under way without a process waiting for them.
    pub max_background: u16,
    /// Bytes that the kernel may read ahead.
    pub max_readahead: u32,
    /// The machine's page size, in bytes.
    pub page_bytes: u32,
    /// The kernel is to be asked to send requests again.
    pub resend: bool,
    /// Talk over io_uring. When it is agreed, the kernel sends nothing until it knows the entries.
    pub uring: bool,
}

/// The agreement with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// The smaller of the two minor versions.
    pub minor: u32,
    /// The flags that both sides can do and the daemon wants.
    pub flags: InitFlags,
    /// The part of it that changes decoding.
    pub agreed: Agreed,
}

/// Why no agreement was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The kernel is too old.
    #[error(
        "this kernel speaks FUSE {major}.{minor}; at least {}.{} is needed (Linux 5.4)",
        abi::KERNEL_VERSION,
        abi::OLDEST_MINOR_VERSION
    )]
    TooOld {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
}

/// The answer to INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitReply {
    /// Agreed: this reply, and the connection is up.
    Agreed(InitOut, Negotiated),
    /// The kernel speaks a newer major version: this reply, and it will ask again.
    AskAgain(InitOut),
}

/// Answers the kernel's offer.
///
/// # Errors
/// When the kernel is too old.
pub fn negotiate(offer: &InitIn, wishes: &Wishes) -> Result<InitReply, InitError> {
    let (major, minor) = (offer.major, offer.minor);
    if major > abi::KERNEL_VERSION {
        let out =
            InitOut { major: abi::KERNEL_VERSION, minor: abi::KERNEL_MINOR_VERSION, ..InitOut::default() };
        return Ok(InitReply::AskAgain(out));
    }
    if major < abi::KERNEL_VERSION || minor < abi::OLDEST_MINOR_VERSION {
        return Err(InitError::TooOld { major, minor });
    }
    let offered = InitFlags::from_bits_retain(u64::from(offer.flags) | (u64::from(offer.flags2) << 32));
    let uring = if wishes.uring { InitFlags::OVER_IO_URING } else { InitFlags::empty() };
    let resend = if wishes.resend { InitFlags::HAS_RESEND } else { InitFlags::empty() };
    let flags = (wanted(wishes.mode) | uring | resend) & offered;
    let minor = minor.min(abi::KERNEL_MINOR_VERSION);
    let pages = (MAX_WRITE / wishes.page_bytes.max(1)).max(1);
    let [low, high] = halves(flags.bits());
    let out = InitOut {
        major: abi::KERNEL_VERSION,
        minor,
        max_readahead: wishes.max_readahead,
        flags: low,
        max_background: wishes.max_background,
        congestion_threshold: wishes.max_background / 4 * 3,
        max_write: MAX_WRITE,
        time_gran: 1,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        flags2: high,
        ..InitOut::default()
    };
    let agreed = Agreed { setxattr_ext: flags.contains(InitFlags::SETXATTR_EXT) };
    Ok(InitReply::Agreed(out, Negotiated { minor, flags, agreed }))
}

/// The flags that the daemon makes use of.
///
/// Left out on purpose: `ATOMIC_O_TRUNC` (the file of a running program would be truncated by an
/// open that is then refused with ETXTBSY), `AUTO_INVAL_DATA` (only this connection uses the store,
/// so that nothing changes behind the kernel's back), `ASYNC_DIO` (after an asynchronous direct
/// write the kernel leaves in its cache what another process read there meanwhile: old data),
/// `HAS_INODE_DAX`, `NO_OPEN_SUPPORT` (handles are needed), `POSIX_LOCKS` and `FLOCK_LOCKS`
/// (wherever a file is seen it is one inode of one kernel, which keeps its locks as it does for a
/// disk: `/proc/locks` shows them, and a wait needs no request), the splice flags (they only say
/// what the kernel can do).
fn wanted(mode: Mode) -> InitFlags {
    let common = InitFlags::ASYNC_READ
        | InitFlags::BIG_WRITES
        | InitFlags::DONT_MASK
        | InitFlags::EXPORT_SUPPORT
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::POSIX_ACL
        | InitFlags::ABORT_ERROR
        | InitFlags::MAX_PAGES
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::EXPLICIT_INVAL_DATA
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::SETXATTR_EXT
        | InitFlags::INIT_EXT;
    match mode {
        Mode::WriteThrough => common,
        Mode::KernelWriteback => common | InitFlags::WRITEBACK_CACHE,
    }
}

/// The low and the high half.
fn halves(bits: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = bits.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: InitFlags) -> InitIn {
        let [low, high] = halves(flags.bits());
        InitIn { major: 7, minor, max_readahead: 131_072, flags: low, flags2: high, unused: [0; 11] }
    }

    const WISHES: Wishes = Wishes {
        mode: Mode::WriteThrough,
        max_background: 64,
        max_readahead: 1 << 20,
        page_bytes: 4096,
        resend: false,
        uring: false,
    };

    #[test]
    fn old_kernels_are_refused_with_the_version() {
        let error = negotiate(&offer(30, InitFlags::all()), &WISHES).unwrap_err();
        assert_eq!(error, InitError::TooOld { major: 7, minor: 30 });
        assert!(error.to_string().contains("7.30"), "{error}");
        assert!(negotiate(&offer(31, InitFlags::all()), &WISHES).is_ok());
    }

    #[test]
    fn a_newer_major_version_is_asked_to_come_down() {
        let offer = InitIn { major: 8, ..offer(3, InitFlags::empty()) };
        let InitReply::AskAgain(out) = negotiate(&offer, &WISHES).unwrap() else { panic!("agreed") };
        assert_eq!((out.major, out.minor), (7, 45));
    }

    #[test]
    fn only_what_is_offered_is_agreed() {
        let offered = InitFlags::BIG_WRITES | InitFlags::WRITEBACK_CACHE | InitFlags::PASSTHROUGH;
        let InitReply::Agreed(out, negotiated) = negotiate(&offer(99, offered), &WISHES).unwrap() else {
            panic!("asked again")
        };
        assert_eq!(negotiated.flags, InitFlags::BIG_WRITES);
        assert_eq!((out.minor, negotiated.minor), (45, 45));
        assert!(!negotiated.agreed.setxattr_ext);
        assert_eq!((out.max_write, out.max_pages, out.time_gran), (1 << 20, 256, 1));
    }

    #[test]
    fn uring_only_when_asked_for_and_offered() {
        let both = InitFlags::all();
        for (wish, offered, expected) in
            [(true, both, true), (false, both, false), (true, both - InitFlags::OVER_IO_URING, false)]
        {
            let wishes = Wishes { uring: wish, ..WISHES };
            let InitReply::Agreed(out, negotiated) = negotiate(&offer(45, offered), &wishes).unwrap() else {
                panic!("asked again")
            };
            assert_eq!(negotiated.flags.contains(InitFlags::OVER_IO_URING), expected);
            assert_eq!(out.flags2 & (1 << 9) != 0, expected);
        }
    }

    #[test]
    fn kernel_writeback_only_when_asked_for() {
        let wishes = Wishes { mode: Mode::KernelWriteback, ..WISHES };
        for (wishes, expected) in [(WISHES, false), (wishes, true)] {
            let InitReply::Agreed(out, negotiated) =
                negotiate(&offer(45, InitFlags::all()), &wishes).unwrap()
            else {
                panic!("asked again")
            };
            assert_eq!(negotiated.flags.contains(InitFlags::WRITEBACK_CACHE), expected);
            assert_eq!(out.flags & (1 << 16) != 0, expected);
            assert!(negotiated.agreed.setxattr_ext);
        }
    }
}
