//! The caches: ours, foyer's, and files that nobody checks.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use objects::{DiskCache, DiskCacheOptions, Object};
use tokio::task::spawn_blocking;

use super::content::{CAPACITY, block};

/// The names, the default first.
pub(super) const VARIANTS: [&str; 3] = ["default", "foyer", "files"];
const IDENTITY: [u8; 16] = [7; 16];

/// A cache that is open.
pub(super) enum Subject {
    /// Ours.
    Ours(DiskCache),
    /// foyer's.
    #[cfg(feature = "foyer")]
    Foyer(super::peer::Peer),
    /// A file for each block, as it is, in this directory.
    Files(PathBuf),
}

/// Why this build has not a cache of this name, if so.
pub(super) fn missing(variant: &str) -> Option<&'static str> {
    (variant == "foyer" && !cfg!(feature = "foyer")).then_some("built without the feature `foyer`")
}

fn key(number: u64) -> (Object, u32) {
    (Object::Segment(1, number), 0)
}

impl Subject {
    /// Opens the cache in `dir`, and makes the directory where there is none.
    pub(super) async fn open(variant: &str, dir: &Path) -> anyhow::Result<Self> {
        match variant {
            "default" => {
                let options = DiskCacheOptions { dir: dir.to_owned(), bytes_max: CAPACITY };
                Ok(Self::Ours(DiskCache::open(&options, IDENTITY)?))
            }
            #[cfg(feature = "foyer")]
            "foyer" => Ok(Self::Foyer(super::peer::Peer::open(dir).await?)),
            "files" => {
                std::fs::create_dir_all(dir)?;
                Ok(Self::Files(dir.to_owned()))
            }
            other => anyhow::bail!("{}", missing(other).unwrap_or("no such cache")),
        }
    }

    /// Keeps blocks, and returns when each is written or refused.
    pub(super) async fn fill(&self, numbers: Range<u64>) -> anyhow::Result<()> {
        match self {
            Self::Ours(cache) => {
                for number in numbers {
                    cache.keep(key(number), block(number)).await;
                }
                cache.settle().await;
            }
            #[cfg(feature = "foyer")]
            Self::Foyer(cache) => cache.fill(numbers).await?,
            Self::Files(dir) => {
                let dir = dir.clone();
                let write = move |number: u64| std::fs::write(dir.join(number.to_string()), block(number));
                // Where the directory is gone, nothing is kept.
                let _refused: io::Result<()> =
                    spawn_blocking(move || { numbers }.try_for_each(write)).await?;
            }
        }
        Ok(())
    }

    /// Reads a block; none: it is not there.
    pub(super) async fn read(&self, number: u64) -> anyhow::Result<Option<Bytes>> {
        match self {
            Self::Ours(cache) => Ok(cache.read(vec![key(number)]).await.pop().map(|(_, bytes)| bytes)),
            #[cfg(feature = "foyer")]
            Self::Foyer(cache) => cache.read(number).await,
            Self::Files(dir) => {
                let path = dir.join(number.to_string());
                match spawn_blocking(move || std::fs::read(path)).await? {
                    Ok(bytes) => Ok(Some(bytes.into())),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// Writes what is not written yet, and uses the directory no more.
    pub(super) async fn close(&self) -> anyhow::Result<()> {
        match self {
            Self::Ours(cache) => cache.close(),
            #[cfg(feature = "foyer")]
            Self::Foyer(cache) => cache.close().await?,
            Self::Files(_) => {}
        }
        Ok(())
    }
}
