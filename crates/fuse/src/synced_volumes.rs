//! The volumes of a session, as a write of its sync page makes them durable.
//!
//! # A store that does not answer
//! The page must not wait for it: otherwise every process that calls sync(2) on the host would. So
//! a thread of its own syncs the volumes. When the session's own volume is known to stall, the
//! kernel gets EIO and the page stays dirty. So it is when the connection is aborted: a forced unmount
//! writes the page as any other does, and waits for no store. Attached volumes that stall are left out as
//! in any sync of the mountpoint. There is at most one thread that hangs so.
//!
//! # Lock order
//! `SyncDetector::left` is held for as long as a run is waited for, by the thread that serves the
//! device and no other.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::io::Errno;
use sync::atomic::Ordering;
use volume::{Cancel, CgroupPath};

use crate::connection::Connection;
use crate::sync_page::Volumes;
use crate::threads::spawn;

/// How often a sync checks whether a store has stopped answering.
const LOOK: Duration = Duration::from_millis(50);

/// The volumes of a session.
pub(crate) struct SessionVolumes(pub(crate) Arc<Connection>);

impl Volumes for SessionVolumes {
    fn has_undurable(&self) -> bool {
        let root = CgroupPath::root();
        let tree = &self.0.tree;
        tree.root().volume.has_unsynced_of(&root)
            || (!tree.is_plain() && tree.sync_targets().iter().any(|one| one.has_unsynced_of(&root)))
    }

    fn has_open_files(&self) -> bool {
        let tree = &self.0.tree;
        tree.root().volume.has_open_files()
            || (!tree.is_plain() && tree.sync_targets().iter().any(|one| one.has_open_files()))
    }

    fn sync(&self) -> Result<(), Errno> {
        let Some(detector) = &self.0.page else { return Ok(()) };
        // One at a time: one thread serves the device, and waits for the run that was left behind.
        let mut left = detector.left.lock();
        if let Some(run) = left.take()
            && self.wait(&run).is_none()
        {
            *left = Some(run);
            return Err(Errno::IO);
        }
        detector.wait_for_collected(&self.0.in_flight, &self.0.master);
        let (tell, told) = channel();
        let shared = Arc::clone(&self.0);
        let sync = move || {
            // The caller is not known, so no limit holds: an unmount may be among the callers.
            let own = || shared.tree.root().volume.sync_all();
            let synced = shared.sync_attached(CgroupPath::root, &Cancel::default(), own).into_result();
            let _nobody_waits_any_more = tell.send(synced);
        };
        spawn("wt-fuse-synced", sync).map_err(|_| Errno::IO)?;
        let Some(synced) = self.wait(&told) else {
            *left = Some(told);
            return Err(Errno::IO);
        };
        synced.map_err(|error| crate::protocol::errno::of(&error))
    }
}

impl SessionVolumes {
    fn is_aborted(&self) -> bool {
        // ORDERING: Relaxed: the waiting thread checks again soon.
        self.0.aborted.load(Ordering::Relaxed)
    }

    /// How a run went; none if it goes on and the session's own volume stalls, or the connection was
    /// aborted.
    fn wait(&self, run: &Receiver<volume::Result<()>>) -> Option<volume::Result<()>> {
        loop {
            match run.recv_timeout(LOOK) {
                Ok(synced) => return Some(synced),
                // It panicked.
                Err(RecvTimeoutError::Disconnected) => return Some(Err(volume::Error::Released)),
                Err(RecvTimeoutError::Timeout)
                    if self.0.tree.root().volume.is_known_to_stall() || self.is_aborted() =>
                {
                    return None;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}
