//! The volume itself: its parts and its beginning.

use std::sync::Arc;
use std::time::Duration;

use store::Store;
use writeback::{Bdi, BdiOptions, Budget};

use crate::core::Core;
use crate::handles::{DirHandle, FileHandle, Handles};
use crate::life::Life;
use crate::page::PAGE;
use crate::{Error, Options, Result};

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
    pub(crate) life: Life,
}

impl Volume {
    /// Takes a store into use; its flushers start.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cache of less than 4 MiB; a store error when the host gives no thread.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Result<Arc<Self>> {
        if options.cache_bytes_max < CACHE_BYTES_MIN {
            return Err(Error::Invalid("the cache must be 4 MiB or more"));
        }
        let budget = Budget::new(options.cache_bytes_max / PAGE);
        let bdi_options = BdiOptions {
            flushers: options.flushers,
            dirty_after: options.dirty_after,
            background_pages: budget.limit() / 2,
            background_inodes: BACKGROUND_INODES,
            retry_pause: options.retry_pause.max(Duration::from_millis(1)),
            clock: Arc::clone(&options.clock),
        };
        let bdi = Bdi::start("wt", bdi_options, Arc::clone(&budget)).map_err(|error| {
            store::Error::with(store::ErrorKind::NoMemory, "start flushers", error.to_string())
        })?;
        Ok(Arc::new(Self {
            core: Core::new(store, options, budget, bdi),
            files: Handles::default(),
            dirs: Handles::default(),
            life: Life::default(),
        }))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Inodes and the core hold each other, flushers hold the device; a volume that was not shut down
        // must not keep them for ever.
        if self.report().is_none() {
            self.shutdown();
        }
    }
}
