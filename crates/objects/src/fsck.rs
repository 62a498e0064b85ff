//! `fsck`: whether a volume is whole, and what is mended of one that is not.
//!
//! ```text
//!  repair    takes the volume, mends its lease and its log, then its rows, round by round
//!   |   \
//!   |    mend    what is done about each damage of the rows
//!   |
//!  check     looks without taking it: lease, manifests and tables, the log, then
//!   |    \
//!   |     inodes    each inode's rows; `names`: what inodes are called, ways to the root
//!   |     data      extents, and the objects that `listing` has; `usage`: what is in use of each
//!   |
//!  cursor    rows in their order; `damage`: what was found; `paths`: which file that is;
//!            `report`: for people and programs, and `steps` meanwhile; `record`: an inode
//! ```
//!
//! A check writes nothing but a reader's mark. It sees what a read-only mount would see: a state
//! that some holder committed, beside a holder too.
//!
//! # Why a repair leaves a volume no worse
//! - It holds the volume as a mount does. The lease says who it is, and the log's fence keeps others
//!   from acknowledging anything.
//! - It begins only where the engine can be opened and read to its end: a damaged manifest or table
//!   cannot be mended, and what rests on it is not touched.
//! - Rows are changed by batches that a mount could have made, one for each damage. Each leaves
//!   nothing wrong that was not wrong before, or the next round, or the next repair, finds it. So a
//!   repair that is killed goes on with the next one.
//! - It never makes up data. An extent whose data is lost stays, and reads as an error: the object
//!   may be put back. What has lost its name gets one.
//! - Of the log, what is replaced is kept as a copy ([`log`]).

mod check;
mod cursor;
mod damage;
mod data;
mod inodes;
mod listing;
mod log;
mod mend;
mod names;
mod paths;
mod quotas;
mod record;
mod repair;
mod report;
mod steps;
mod usage;

use std::path::PathBuf;
use std::sync::Arc;

use store::Result;

use crate::api::{codec_of, of_family};
use crate::format;
use crate::key_file;
use crate::open::open_bucket;
use crate::url::Url;
use crate::wait::wait;
use check::Volume;
pub use report::{Checked, Finding, Repair, Unneeded};
pub use steps::Progress;
use steps::Steps;

/// How to check a volume.
#[derive(Debug, Clone, Default)]
pub struct FsckOptions {
    /// Mend what is damaged: the volume is held meanwhile.
    pub repair: bool,
    /// Read all data, and compare it with its checksums.
    pub data: bool,
    /// The file with the key of an encrypted volume.
    pub key_file: Option<PathBuf>,
}

/// Checks a volume, and mends it where that is asked for.
///
/// # Errors
/// `NotFound`: there is no volume; `Busy`: another process holds a volume that is to be mended;
/// `Invalid`: the URL or the key file is wrong; `Io`: the object `format` is damaged, or the bucket
/// does not answer. Each has its reason in plain words.
pub fn fsck(url: &str, options: &FsckOptions, progress: Arc<Progress>) -> Result<Checked> {
    let url: Url = url.parse()?;
    let key = options.key_file.as_deref().map(key_file::read).transpose()?;
    let bucket = open_bucket(&url)?;
    let runtime = crate::runtime::handle()?;
    let done = async {
        let format = format::read(&bucket).await?;
        let codec = codec_of(&format, key.as_ref())?;
        let bucket = of_family(&bucket, &format).await?;
        let steps = Steps(progress);
        run(&Volume { bucket, format, codec, reads_data: options.data, steps }, options.repair).await
    };
    let checked = wait(&runtime, done)?;
    Ok(Checked { url: url.to_string(), ..checked })
}

/// The same, of a volume whose bucket is open.
async fn run(volume: &Volume, repairs: bool) -> Result<Checked> {
    if repairs { repair::repair(volume).await } else { Ok(check::check(volume).await?.into_report()) }
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
