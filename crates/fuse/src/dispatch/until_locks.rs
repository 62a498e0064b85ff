//! Locks until the volume has its own: not negotiated, so that the kernel keeps them itself for this mount.

use volume::{Lock, LockDone, LockFamily, LockWait, NodeId, Result, Volume};

pub(crate) trait UntilLocks {
    fn get_lock(&self, _: NodeId, _: &Lock) -> Result<Option<Lock>> {
        Err(volume::Error::NoLocks)
    }
    fn set_lock(&self, _: NodeId, _: &Lock) -> Result<()> {
        Err(volume::Error::NoLocks)
    }
    fn wait_lock(&self, _: NodeId, _: &Lock, done: LockDone) -> Option<LockWait> {
        done(Err(volume::Error::NoLocks));
        None
    }
    fn cancel_lock(&self, _: &LockWait) {}
    fn unlock(&self, _: NodeId, _: LockFamily, _: u64, _: u64, _: u64) {}
}

impl UntilLocks for Volume {}
