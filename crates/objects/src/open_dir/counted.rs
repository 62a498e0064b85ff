//! Names of a directory in their own order, and places that count them.
//!
//! A place counts the names that this opening has read, behind `.` and `..`. To another opening it means
//! the same only if nothing was made or removed before it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;

use recovery::Place;
use store::{Error, ErrorKind, Result};

use crate::hex;
use crate::listing::HashPlace;
use crate::rows::EntryRow;

/// The place behind `.` and `..`.
pub(super) const DOTS: u64 = 2;
/// Names that are read at a time.
pub(super) const LIST_BATCH: usize = 512;
/// Batches that an open directory keeps.
const LIST_BATCHES: usize = 128;
/// Those of them that the next program of the process gets: one may have been read to its end.
const HANDED_BATCHES: usize = 2;

/// Names that were read together.
pub(super) type NameBatch = Arc<Vec<(OsString, EntryRow)>>;

/// Names that were read, in batches.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Where they were begun to be read: so many names come before, the last of which is this one.
    pub(super) begin: Begin,
    /// The same of an earlier place, where the listing may be continued.
    earlier: Option<Begin>,
    /// The last name of each batch: the next begins behind it.
    pub(super) lasts: Vec<OsString>,
    /// The latest batches, by number.
    kept: VecDeque<(usize, NameBatch)>,
}

/// How many names come before, and the last of them.
type Begin = (usize, Option<OsString>);

/// [`Names`] to be written down: the last name of each batch; of the newest ones their numbers, their
/// names and what these name.
type ListedNames = (Vec<Vec<u8>>, Vec<(usize, Vec<(Vec<u8>, EntryRow)>)>);

impl Names {
    /// Those of a listing that another process has continued up to these places, the newest first; `None`:
    /// it has counted no names.
    pub(crate) fn behind(places: Vec<Place>) -> Option<Self> {
        let begin = |place: Place| {
            if HashPlace::of_offset(place.next).is_some() {
                return None;
            }
            let before = usize::try_from(place.next.checked_sub(DOTS)?).ok()?;
            Some(if before == 0 { Begin::default() } else { (before, Some(place.name)) })
        };
        let mut places = places.into_iter().filter_map(begin);
        Some(Self { begin: places.next()?, earlier: places.next(), ..Self::default() })
    }

    /// Begins anew where the listing can be continued behind so many names.
    pub(super) fn begin_for(&mut self, before: usize) {
        if before < self.begin.0 {
            let earlier = self.earlier.take().filter(|earlier| earlier.0 <= before);
            *self = Self { begin: earlier.unwrap_or_default(), ..Self::default() };
        }
    }

    /// Of the batches that are kept the newest: a reader that reads on is there. Others are read again.
    pub(super) fn to_text(&self) -> Result<String> {
        if self.begin.0 > 0 {
            // A server that follows another one hands nothing over: yet another one follows it.
            return Err(Error::new(ErrorKind::Unsupported, "hand a directory over"));
        }
        let bytes = |name: &OsString| name.as_bytes().to_vec();
        let older = self.kept.len().saturating_sub(HANDED_BATCHES);
        let kept =
            self.kept.iter().skip(older).map(|(number, batch)| {
                (*number, batch.iter().map(|(name, row)| (bytes(name), *row)).collect())
            });
        let listed: ListedNames = (self.lasts.iter().map(bytes).collect(), kept.collect());
        let bytes = postcard::to_allocvec(&listed);
        bytes
            .map(|bytes| hex::encode(&bytes))
            .map_err(|_| Error::new(ErrorKind::TooBig, "hand a directory over"))
    }

    pub(crate) fn from_text(text: &str) -> Result<Self> {
        let mut bytes = vec![0; text.len() / 2];
        if !hex::decode(text.as_bytes(), &mut bytes) {
            return Err(Error::new(ErrorKind::Invalid, "take over a directory"));
        }
        Self::from_bytes(&bytes)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let listed = postcard::from_bytes(bytes);
        let (lasts, kept): ListedNames =
            listed.map_err(|_| Error::new(ErrorKind::Invalid, "take over a directory"))?;
        let lasts = lasts.into_iter().map(OsString::from_vec).collect();
        let batch = |batch: Vec<(Vec<u8>, EntryRow)>| {
            Arc::new(batch.into_iter().map(|(name, row)| (OsString::from_vec(name), row)).collect())
        };
        let kept = kept.into_iter().map(|(number, names)| (number, batch(names))).collect();
        Ok(Self { lasts, kept, ..Self::default() })
    }

    pub(super) fn kept(&self, number: usize) -> Option<NameBatch> {
        self.kept.iter().find(|(kept, _)| *kept == number).map(|(_, batch)| Arc::clone(batch))
    }

    pub(super) fn keep(&mut self, number: usize, batch: &NameBatch) {
        if let Some((last, _)) = batch.last()
            && number == self.lasts.len()
            && batch.len() == LIST_BATCH
        {
            self.lasts.push(last.clone());
        }
        self.kept.push_back((number, Arc::clone(batch)));
        if self.kept.len() > LIST_BATCHES {
            self.kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose state has version 2 has left the bytes themselves.
    #[test]
    fn a_listing_is_read_as_either_version_has_it() {
        let names = Names { lasts: vec!["a".into(), "b".into()], ..Names::default() };
        let text = names.to_text().unwrap();
        let mut bytes = vec![0; text.len() / 2];
        assert!(hex::decode(text.as_bytes(), &mut bytes));
        for read in [Names::from_text(&text), Names::from_bytes(&bytes)] {
            assert_eq!(read.unwrap().lasts, names.lasts);
        }
        assert!(Names::from_bytes(&[0xff]).is_err());
    }
}
