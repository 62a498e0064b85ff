//! Stores by name.

use std::sync::Arc;

use crate::{DirStore, Error, ErrorKind, Result, Store};

/// Opens the store that `spec` names: `dir:PATH`, or a bare path.
///
/// # Errors
/// [`ErrorKind::Invalid`] for what names no store; what the store's own opening says.
pub fn open(spec: &str) -> Result<Arc<dyn Store>> {
    let path = spec.strip_prefix("dir:").unwrap_or(spec);
    if path.is_empty() {
        return Err(Error::with(ErrorKind::Invalid, "open store", "no path is given"));
    }
    Ok(DirStore::open(path)?)
}
