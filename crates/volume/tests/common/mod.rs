//! Shared parts of the volume's tests.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod asleep;

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use store::ObjectId;
use watertight_volume::{Caller, Cancel, Ctx, HandleId, NodeId, OpenFlags, Options, Volume, WriteFlags};

/// Calls a volume the way a front end does.
pub(crate) struct Client {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cancel: Cancel,
}

impl Client {
    pub(crate) fn new(store: Arc<dyn store::Store>, options: Options) -> Self {
        Self { volume: Volume::new(store, options).expect("a volume"), cancel: Cancel::default() }
    }

    pub(crate) fn ctx(&self) -> Ctx<'_> {
        let caller = Caller { pid: std::process::id(), uid: euid(), gid: 0, umask: 0o022 };
        Ctx { caller, cancel: &self.cancel, before_wait: &|| {} }
    }

    pub(crate) fn create(&self, name: &str) -> (NodeId, HandleId) {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (entry, handle) = self
            .volume
            .create(&self.ctx(), ObjectId::ROOT, OsStr::new(name), 0o644, flags)
            .expect("a new file");
        (entry.id, handle)
    }

    pub(crate) fn open(&self, id: NodeId) -> HandleId {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        self.volume.open(&self.ctx(), id, flags).expect("an open file")
    }

    pub(crate) fn write(
        &self,
        handle: HandleId,
        offset: u64,
        data: &[u8],
    ) -> watertight_volume::Result<usize> {
        self.volume.write(&self.ctx(), handle, offset, data, WriteFlags::empty())
    }

    pub(crate) fn read(&self, handle: HandleId, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xee; len];
        let got = self.volume.read(&self.ctx(), handle, offset, &mut buf).expect("a read");
        buf.truncate(got);
        buf
    }

    pub(crate) fn fsync(&self, handle: HandleId) -> watertight_volume::Result<()> {
        self.volume.fsync(&self.ctx(), handle, false)
    }
}

/// Options of a small volume that writes only when it must.
pub(crate) fn lazy() -> Options {
    Options {
        cache_bytes_max: 4 << 20,
        dirty_after: Duration::from_secs(3600),
        retry_pause: Duration::from_millis(5),
        // Longer than a slow machine needs.
        drain_deadline: Duration::from_secs(120),
        ..Options::default()
    }
}

/// Options of one whose flushers never rest.
pub(crate) fn eager() -> Options {
    Options { dirty_after: Duration::ZERO, ..lazy() }
}

fn euid() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").map_or(0, |own| own.uid())
}
