//! The volume itself: its parts and its beginning.

use std::sync::Arc;
use std::time::Duration;

use recovery::Recovery;
use store::Store;
use throttle::CgroupPath;
use writeback::{Bdi, BdiOptions, Budget};

use crate::core::Core;
use crate::handles::{DirHandle, FileHandle, Handles};
use crate::io::page::PAGE;
use crate::lifecycle::state::Lifecycle;
use crate::{Error, Options, Result, SyncPolicy, Tenants};

/// The smallest cache: a few of the largest requests must fit.
const CACHE_BYTES_MIN: u64 = 4 << 20;

/// Dirty files above which write-back begins without rest.
const BACKGROUND_INODES: usize = 4096;

/// A store in use. See the [crate](crate).
#[derive(Debug)]
pub struct Volume {
    pub(crate) core: Arc<Core>,
    pub(crate) files: Handles<FileHandle>,
    pub(crate) dirs: Handles<DirHandle>,
    pub(crate) lifecycle: Lifecycle,
}

impl Volume {
    /// Starts to use a store. Its flushers start when there is something to write.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cache of less than 4 MiB.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Result<Arc<Self>> {
        if options.cache_bytes_max < CACHE_BYTES_MIN {
            return Err(Error::Invalid("the cache must be 4 MiB or more"));
        }
        let budget = Budget::new(options.cache_bytes_max / PAGE);
        let bdi_options = BdiOptions {
            flushers: options.flushers,
            dirty_after: options.dirty_after,
            background_pages: budget.limit() / 2,
            background_inodes: BACKGROUND_INODES.min(store.idle_files_max() / 2),
            write_behind_bytes: store.write_behind_bytes(),
            retry_pause: options.retry_pause.max(Duration::from_millis(1)),
            clock: Arc::clone(&options.clock),
        };
        let switcher = &options.tenants.switcher;
        let span = span_of(&options.name);
        let bdi = span.in_scope(|| Bdi::start("wt", bdi_options, Arc::clone(&budget), switcher));
        bdi.set_dirty_max_of_others(options.dirty_bytes_max);
        let volume = Arc::new(Self {
            core: Core::new(store, options, budget, (bdi, span)),
            files: Handles::default(),
            dirs: Handles::default(),
            lifecycle: Lifecycle::default(),
        });
        if volume.core.options.sync_policy == SyncPolicy::Isolated {
            volume.note_owners();
        }
        Ok(volume)
    }
}

/// A span that names a volume in the log lines of threads that work for it, at any log level.
#[must_use]
pub fn span_of(volume: &str) -> tracing::Span {
    // Its beginning and its end are logged with its level, where they are.
    if tracing::enabled!(tracing::Level::INFO) {
        tracing::info_span!(parent: None, "volume", volume)
    } else {
        tracing::error_span!(parent: None, "volume", volume)
    }
}

impl Volume {
    /// Sets how many bytes a cgroup and those below it may have that are not on the store
    /// (`memory.dirty_max`), whether it is there or not; `None`: the bound of the options.
    pub fn set_dirty_max(&self, cgroup: &CgroupPath, bytes_max: Option<u64>) {
        self.core.bdi.set_dirty_max(cgroup, bytes_max);
    }

    /// Brings a part of a file to the store's cache on this host's disk.
    ///
    /// # Errors
    /// The store's; `Unsupported`: it has none.
    pub fn warm(&self, node: crate::NodeId, offset: u64, len: u64) -> crate::Result<()> {
        Ok(self.core.store.warm(node, offset, len)?)
    }

    /// Whether the store's cache on this host's disk has all of a part of a file.
    ///
    /// # Errors
    /// As [`warm`](Self::warm).
    pub fn is_warm(&self, node: crate::NodeId, offset: u64, len: u64) -> crate::Result<bool> {
        Ok(self.core.store.is_warm(node, offset, len)?)
    }

    /// Where it is written down what the kernel knows, if another server can follow.
    #[must_use]
    pub fn recovery(&self) -> Option<&Arc<Recovery>> {
        self.core.options.recovery.as_ref()
    }

    /// The tenants that write.
    #[must_use]
    pub fn tenants(&self) -> &Tenants {
        &self.core.options.tenants
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Inodes and the core hold each other, flushers hold the device; a volume that was not shut
        // down must not keep them for ever.
        if self.report().is_none() {
            self.shutdown();
        }
        // Data that could not be written is lost with the volume; its memory must not be.
        self.core.bdi.evict();
    }
}
