//! Stores by name.

use std::sync::Arc;

use crate::{Error, ErrorKind, Result, Store};

/// Opens the store that `spec` names: `dir:PATH`, a bare path, or `mem:`.
///
/// # Errors
/// [`ErrorKind::Invalid`] for what names no store.
pub fn open(spec: &str) -> Result<Arc<dyn Store>> {
    Err(Error::with(ErrorKind::Invalid, "open store", spec.to_owned()))
}
