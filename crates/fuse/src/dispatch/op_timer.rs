//! The time of a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::{Activity, accounting};
use volume::{OpClass, OpTime, Volume};

use crate::protocol::abi::Opcode;

/// Measures one request, from when its message was read to when it was answered.
#[derive(Debug)]
pub(super) struct OpTimer {
    begun: Instant,
    queue: Duration,
}

impl OpTimer {
    /// For a request that has `waited` for a thread since then, or was read just now. Opens the
    /// thread's account. To be called before the request is in its slot, which shows `activity`
    /// from then on.
    pub(super) fn begin(waited: Option<Instant>, activity: &Arc<Activity>) -> Self {
        let now = Instant::now();
        let begun = waited.unwrap_or(now);
        accounting::open(activity, begun);
        Self { begun, queue: now.saturating_duration_since(begun) }
    }

    /// Closes the thread's account and counts the request.
    pub(super) fn end(self, volume: &Volume, opcode: u32) {
        let spent = accounting::close();
        let Some(class) = Opcode::from_number(opcode).and_then(class_of) else { return };
        let total = self.begun.elapsed();
        volume.latencies().record(class, &OpTime { total, queue: self.queue, spent });
    }
}

/// The class that a request is counted in. None: no process waits for it.
const fn class_of(opcode: Opcode) -> Option<OpClass> {
    Some(match opcode {
        Opcode::Lookup => OpClass::Lookup,
        Opcode::GetAttr | Opcode::StatX | Opcode::Access => OpClass::GetAttr,
        Opcode::SetAttr => OpClass::SetAttr,
        Opcode::ReadLink => OpClass::ReadLink,
        Opcode::Open | Opcode::OpenDir => OpClass::Open,
        Opcode::Create | Opcode::TmpFile | Opcode::MkNod | Opcode::MkDir | Opcode::Symlink | Opcode::Link => {
            OpClass::Create
        }
        Opcode::Read => OpClass::Read,
        Opcode::Write => OpClass::Write,
        Opcode::FAllocate => OpClass::FAllocate,
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => OpClass::CopyFileRange,
        Opcode::LSeek => OpClass::LSeek,
        Opcode::Flush => OpClass::Flush,
        Opcode::FSync | Opcode::FSyncDir => OpClass::FSync,
        Opcode::Release | Opcode::ReleaseDir => OpClass::Release,
        Opcode::ReadDir | Opcode::ReadDirPlus => OpClass::ReadDir,
        Opcode::Unlink | Opcode::RmDir => OpClass::Unlink,
        Opcode::Rename | Opcode::Rename2 => OpClass::Rename,
        Opcode::GetXattr | Opcode::SetXattr | Opcode::ListXattr | Opcode::RemoveXattr => OpClass::Xattr,
        Opcode::StatFs => OpClass::StatFs,
        Opcode::SyncFs => OpClass::SyncFs,
        Opcode::GetLk
        | Opcode::SetLk
        | Opcode::SetLkW
        | Opcode::BMap
        | Opcode::Ioctl
        | Opcode::Poll
        | Opcode::SetupMapping
        | Opcode::RemoveMapping => OpClass::Other,
        Opcode::Forget
        | Opcode::BatchForget
        | Opcode::Interrupt
        | Opcode::NotifyReply
        | Opcode::Init
        | Opcode::Destroy => return None,
    })
}
