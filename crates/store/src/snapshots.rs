//! Snapshots: states of a store that are kept, and can be read when it has changed.

use crate::Result;

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// When it was made, in UTC by RFC 3339.
    pub created: String,
    /// Bytes of the files that it shows.
    pub bytes: u64,
    /// Its files, directories and links.
    pub files: u64,
}

/// A store that keeps snapshots.
pub trait Snapshots {
    /// Makes a snapshot of all calls that have completed, and returns when it is durable.
    ///
    /// # Errors
    /// [`Exists`](crate::ErrorKind::Exists): there is one of that name;
    /// [`Invalid`](crate::ErrorKind::Invalid): none can have it.
    fn create(&self, name: &str) -> Result<Snapshot>;

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): there is none of that name.
    fn delete(&self, name: &str) -> Result<()>;

    /// The snapshots, the oldest first.
    ///
    /// # Errors
    /// The medium's.
    fn list(&self) -> Result<Vec<Snapshot>>;
}
