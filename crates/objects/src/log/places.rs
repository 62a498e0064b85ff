//! Where the data of an object of the log was written to.

use std::ops::Range;

use bytes::Bytes;
use slatedb::ValueDeletable;
use store::Result;

use super::CommitLog;
use super::object::{self, Header, damaged};
use crate::rows::{self, ExtentRow, Object};

impl CommitLog {
    /// The inodes and ranges in them that the rows of the whole object `number` say its data is
    /// for.
    ///
    /// # Errors
    /// `Io`: the object is damaged.
    pub(crate) fn places(&self, number: u64, whole: &Bytes) -> Result<Vec<(u64, Range<u64>)>> {
        let header = Header::read(whole, number)?;
        let sealed = whole.get(header.rows()).ok_or_else(|| damaged(number, "it is cut off"))?;
        let rows = object::read_rows(self.codec.open(&header.context(), sealed)?, number)?;
        let mut places = Vec::new();
        for row in rows.into_iter().filter(|row| row.key.first() == Some(&b'E')) {
            let ValueDeletable::Value(value) = row.value else { continue };
            let extent: ExtentRow = rows::from_bytes(&value, "an extent")?;
            if extent.data.is_some_and(|(stored, _)| stored.object == Object::Log(number)) {
                let end = rows::extent_end(&row.key)?;
                places.push((rows::ino_of(&row.key)?, end.saturating_sub(extent.len)..end));
            }
        }
        Ok(places)
    }
}
