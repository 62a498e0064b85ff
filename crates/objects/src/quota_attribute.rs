//! Quotas of a volume in use, by attributes of its directories, which no listing shows.
//!
//! | attribute | is |
//! |---|---|
//! | `trusted.watertight.quota` | of a directory: its [`QuotaInfo`], set by [`QuotaLimits`], in JSON |
//! | `trusted.watertight.quotas` | of anything: a [`QuotaPage`] |
//! | `trusted.watertight.quotas.NUMBER` | the page that follows |
//!
//! The kernel lets none but root at attributes of this kind.

use std::ffi::OsStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind, ObjectId, Result};

use crate::mount::Mounted;
use crate::quota_walks::QuotaInfo;
use crate::quotas::QuotaLimits;
use crate::tree::{Tree, fail};

/// The name of the attribute that is a directory's quota.
pub const QUOTA_ATTRIBUTE: &str = "trusted.watertight.quota";
/// The name of the attribute that is the first page of quotas.
pub const QUOTAS_ATTRIBUTE: &str = "trusted.watertight.quotas";
/// Quotas of a page.
const PAGE: usize = 64;
/// The largest page: what the kernel takes for an attribute.
const PAGE_BYTES_MAX: usize = 64 << 10;
const OP: &str = "quota";

/// Some quotas of a volume.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct QuotaPage {
    /// In the order in which their directories were made.
    pub quotas: Vec<QuotaInfo>,
    /// The page that follows; none: this is the last.
    pub next: Option<u64>,
}

/// One of the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaAttribute {
    Own,
    Page(Option<u64>),
}

impl QuotaAttribute {
    /// The one with this name.
    pub(crate) fn of(name: &OsStr) -> Option<Self> {
        let name = name.to_str()?;
        if name == QUOTA_ATTRIBUTE {
            return Some(Self::Own);
        }
        match name.strip_prefix(QUOTAS_ATTRIBUTE)? {
            "" => Some(Self::Page(None)),
            number => number.strip_prefix('.')?.parse().ok().map(|after| Self::Page(Some(after))),
        }
    }

    pub(crate) async fn get(self, tree: &Arc<Tree>, id: ObjectId) -> Result<Vec<u8>> {
        if tree.engine.followed().is_some() {
            // It knows what changes in the volume, but not the sums.
            return fail(ErrorKind::Unsupported, OP);
        }
        let mut max = PAGE;
        loop {
            let json = match self {
                Self::Own => serde_json::to_vec(&tree.quota(id.0).await?),
                Self::Page(after) => {
                    let (quotas, last) = tree.some_quotas(after, max).await;
                    let next = Some(last).filter(|last| tree.quotas.has_behind(*last));
                    serde_json::to_vec(&QuotaPage { quotas, next })
                }
            };
            let json = json.map_err(|error| Error::with(ErrorKind::Io, OP, error.to_string()))?;
            if json.len() <= PAGE_BYTES_MAX || max == 1 {
                return Ok(json);
            }
            // Their paths are long.
            max /= 2;
        }
    }

    pub(crate) async fn set(self, mounted: &Mounted, id: ObjectId, value: &[u8]) -> Result<()> {
        if self != Self::Own {
            return fail(ErrorKind::NotPermitted, OP);
        }
        let limits: QuotaLimits =
            serde_json::from_slice(value).map_err(|_| Error::new(ErrorKind::Invalid, OP))?;
        mounted.set_quota(id.0, limits).await
    }

    pub(crate) async fn remove(self, tree: &Arc<Tree>, id: ObjectId) -> Result<()> {
        if self != Self::Own {
            return fail(ErrorKind::NotPermitted, OP);
        }
        tree.delete_quota(id.0).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_known_by_its_name() {
        let of = |name: &str| QuotaAttribute::of(name.as_ref());
        assert_eq!(of(QUOTA_ATTRIBUTE), Some(QuotaAttribute::Own));
        assert_eq!(of(QUOTAS_ATTRIBUTE), Some(QuotaAttribute::Page(None)));
        assert_eq!(of("trusted.watertight.quotas.12"), Some(QuotaAttribute::Page(Some(12))));
        for other in ["trusted.watertight.quotas.", "trusted.watertight.quotasx", "user.watertight.quota", ""]
        {
            assert_eq!(of(other), None);
        }
    }
}
