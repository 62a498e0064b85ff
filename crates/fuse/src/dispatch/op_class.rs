//! What an operation is, for the decisions that are taken before it is served.

use crate::in_flight::AbortPolicy;
use crate::protocol::abi::{SetAttrIn, SetAttrValid, WriteIn, WriteInFlags};
use crate::protocol::decode::Op;

/// An open flag of the C library's as the protocol carries it.
pub(super) const fn flag(of: libc::c_int) -> u32 {
    of.cast_unsigned()
}

/// Whether these open flags truncate.
pub(super) fn truncates(flags: u32) -> bool {
    flags & flag(libc::O_TRUNC) != 0
}

/// Whether it is data that the kernel has collected: no process waits for this request.
pub(super) fn is_collected(arg: &WriteIn) -> bool {
    WriteInFlags::from_bits_retain(arg.write_flags).contains(WriteInFlags::CACHE)
}

/// Whether the kernel makes this request on its own: it counts for no process's cgroup, and no process's
/// end ends it. It is not refused because a store does not answer either, since something would be
/// lost; the kernel itself limits how many of these it makes. Newer kernels (7.2) name the thread that
/// such a request happens to be made in: one that syncs data of others, or that ends.
pub(super) fn has_no_caller(op: &Op<'_>) -> bool {
    match op {
        Op::Release(_) | Op::ReleaseDir(_) => true,
        Op::Write { arg, .. } => is_collected(arg),
        _ => false,
    }
}

/// Whether opening a file with these flags can change it.
pub(super) fn writes(flags: u32) -> bool {
    truncates(flags) || flags & flag(libc::O_ACCMODE) != flag(libc::O_RDONLY)
}

/// Whether a file gets another length.
pub(super) fn resizes(arg: &SetAttrIn) -> bool {
    SetAttrValid::from_bits_retain(arg.valid).contains(SetAttrValid::SIZE)
}

/// Requests whose answers carry no information: the kernel only counts them.
pub(super) fn has_empty_reply(op: &Op<'_>) -> bool {
    matches!(op, Op::Release(_) | Op::ReleaseDir(_))
}

/// Requests about directories that are open, though no path leads there.
pub(super) fn is_for_what_is_open(op: &Op<'_>) -> bool {
    matches!(op, Op::ReadDir(_) | Op::ReadDirPlus(_) | Op::ReleaseDir(_) | Op::FSyncDir(_) | Op::StatFs)
}

/// Requests that a volume which was attached read-only refuses.
pub(super) fn changes(op: &Op<'_>) -> bool {
    match op {
        Op::Open(arg) => writes(arg.flags),
        Op::Write { .. } | Op::FAllocate(_) | Op::CopyFileRange(_) | Op::CopyFileRange64(_) => true,
        op => changes_names_or_attributes(op),
    }
}

/// Requests that make, remove or move names, or set attributes, a file's length among them.
pub(super) fn changes_names_or_attributes(op: &Op<'_>) -> bool {
    matches!(
        op,
        Op::SetAttr(_)
            | Op::Symlink { .. }
            | Op::MkNod { .. }
            | Op::MkDir { .. }
            | Op::Unlink { .. }
            | Op::RmDir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Create { .. }
            | Op::TmpFile(_)
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. }
    )
}

/// When a request may be answered while its handler goes on. If its late answer would have handed
/// something out, that is taken back (see [`Sent`]), and the kernel is notified of names that were
/// made or removed late.
pub(super) fn abort_policy(op: &Op<'_>) -> AbortPolicy {
    match op {
        Op::Open(arg) if truncates(arg.flags) => AbortPolicy::Never,
        Op::Open(_)
        | Op::Lookup { .. }
        | Op::GetAttr(_)
        | Op::ReadLink
        | Op::Read(_)
        | Op::Write { .. }
        | Op::StatFs
        | Op::FSync(_)
        | Op::FSyncDir(_)
        | Op::SyncFs
        | Op::Flush(_)
        | Op::GetXattr { .. }
        | Op::ListXattr(_)
        | Op::OpenDir(_)
        | Op::ReadDir(_)
        | Op::ReadDirPlus(_)
        | Op::LSeek(_) => AbortPolicy::Always,
        Op::SetAttr(arg) if resizes(arg) => AbortPolicy::Never,
        op if changes_names_or_attributes(op) => AbortPolicy::OnKill,
        _ => AbortPolicy::Never,
    }
}

/// Whether something may not be durable after this request that was before.
pub(super) fn may_change(op: &Op<'_>) -> bool {
    match op {
        Op::Write { .. }
        | Op::FAllocate(_)
        | Op::CopyFileRange(_)
        | Op::CopyFileRange64(_)
        | Op::Create { .. }
        | Op::TmpFile(_) => true,
        // The kernel collects data that is written through a mapping, and does not report it before
        // a sync.
        Op::Open(arg) => truncates(arg.flags) || writes(arg.flags),
        op => changes_names_or_attributes(op),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::abi::ReleaseIn;

    /// A process that ends has its mapped pages written, and its files released: its end ends neither.
    #[test]
    fn what_the_kernel_does_on_its_own_is_no_processes() {
        let write = |flags: WriteInFlags| Op::Write {
            arg: WriteIn { write_flags: flags.bits(), ..WriteIn::default() },
            data: &[],
        };
        assert!(has_no_caller(&write(WriteInFlags::CACHE)));
        assert!(has_no_caller(&write(WriteInFlags::CACHE | WriteInFlags::KILL_SUIDGID)));
        assert!(!has_no_caller(&write(WriteInFlags::empty())));
        assert!(has_no_caller(&Op::Release(ReleaseIn::default())));
        assert!(has_no_caller(&Op::ReleaseDir(ReleaseIn::default())));
        assert!(!has_no_caller(&Op::StatFs));
    }
}
