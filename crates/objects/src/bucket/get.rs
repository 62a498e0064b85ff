//! Reads objects and parts of them.

use std::ops::Range;

use bytes::Bytes;
use object_store::{Error as StoreError, GetOptions, GetRange, Result as StoreResult};
use parking_lot::Mutex;
use store::{Error, ErrorKind, Result};

use super::read::{Got, collect};
use super::{Bucket, Tag, stepped};
use crate::problem::is_range_error;
use crate::stats::Kind;

/// The largest object that is read as a whole.
const MAX_WHOLE: u64 = 64 << 20;
/// What is wrong with an object in which what is asked for cannot be.
const TOO_SHORT: &str = "it is too short";

/// What is asked for of an object.
#[derive(Debug)]
pub(crate) enum Asked {
    /// A range, all of which must be there.
    Range(Range<u64>),
    /// What there is of a range.
    UpTo(Range<u64>),
    /// All of it, so many bytes at most.
    Whole(u64),
}

impl Asked {
    fn bytes(&self) -> Option<u64> {
        match self {
            Self::Range(range) | Self::UpTo(range) => range.end.checked_sub(range.start),
            Self::Whole(most) => Some(*most),
        }
    }

    fn range(&self) -> Option<GetRange> {
        match self {
            Self::Range(range) | Self::UpTo(range) => Some(GetRange::Bounded(range.clone())),
            Self::Whole(_) => None,
        }
    }

    fn is_answered_by(&self, got: &Range<u64>) -> bool {
        match self {
            Self::Range(range) => got == range,
            Self::UpTo(range) => got.start == range.start,
            Self::Whole(_) => got.start == 0,
        }
    }
}

impl Bucket {
    /// An object, and its version; `None`: there is none.
    pub async fn get(&self, name: &str) -> Result<Option<(Bytes, Tag)>> {
        self.get_at_most(name, MAX_WHOLE).await
    }

    /// The same, of an object that is corrupted if it is larger than `most`.
    pub async fn get_at_most(&self, name: &str, most: u64) -> Result<Option<(Bytes, Tag)>> {
        match self.get_whole(name, GetOptions::default(), most).await? {
            Ok(got) => Ok(Some(got)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.unexpected("get", name, &error)),
        }
    }

    /// An object if its version is not `tag`; `None`: it is that one still.
    pub async fn get_if_changed(&self, name: &str, tag: &Tag) -> Result<Option<(Bytes, Tag)>> {
        self.get_if_changed_at_most(name, tag, MAX_WHOLE).await
    }

    /// The same, of an object that is corrupted if it is larger than `most`.
    pub async fn get_if_changed_at_most(
        &self,
        name: &str,
        tag: &Tag,
        most: u64,
    ) -> Result<Option<(Bytes, Tag)>> {
        let options = GetOptions { if_none_match: tag.0.e_tag.clone(), ..GetOptions::default() };
        match self.get_whole(name, options, most).await? {
            Ok(got) => Ok(Some(got)),
            Err(StoreError::NotModified { .. }) => Ok(None),
            Err(error) => Err(self.unexpected("get", name, &error)),
        }
    }

    async fn get_whole(
        &self,
        name: &str,
        options: GetOptions,
        most: u64,
    ) -> Result<StoreResult<(Bytes, Tag)>> {
        let path = self.place(name);
        let attempt = || async {
            let got = stepped(self.store.get_opts(&path, options.clone())).await??;
            let mut whole = Bytes::new();
            let got = collect(got, most, usize::MAX, |bytes| whole = bytes).await?;
            Ok((got, whole))
        };
        let how = self.how(Kind::Get, None);
        match self.send("get", name, how, attempt).await?.result {
            Ok((Got::Object(len, tag), whole)) => {
                self.requests.counters.down(len);
                Ok(Ok((whole, tag)))
            }
            Ok((Got::TooLarge, _)) => Err(self.corrupted(name, &format!("it is larger than {most} bytes"))),
            Ok((Got::TooShort, _)) => Err(self.corrupted(name, "it ends before its length")),
            Err(error) => Ok(Err(error)),
        }
    }

    /// A part of an object. [`ErrorKind::NotFound`] says that there is no such object,
    /// [`ErrorKind::Io`] that it is too short.
    pub async fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let len = range.end.saturating_sub(range.start);
        let bytes = self.get_one(name, &Asked::Range(range)).await?;
        if bytes.len() as u64 == len { Ok(bytes) } else { Err(self.corrupted(name, TOO_SHORT)) }
    }

    /// The same, of an object that may end within the range.
    pub async fn get_up_to(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.get_one(name, &Asked::UpTo(range)).await
    }

    /// An object or a part of one, which may end within it, in pieces of `piece` bytes, of which the last
    /// may be shorter. Each is passed on when it has come, in memory of its own. After an error some may
    /// have been. What an attempt that failed has passed on, the next does not pass on again.
    pub(crate) async fn get_pieces(
        &self,
        name: &str,
        asked: &Asked,
        piece: usize,
        mut pass_on: impl FnMut(Bytes) + Send,
    ) -> Result<()> {
        let mut passed_on = 0;
        self.get_in_pieces(name, asked, piece, |number, bytes| {
            if number == passed_on {
                passed_on += 1;
                pass_on(bytes);
            }
        })
        .await
    }

    async fn get_one(&self, name: &str, asked: &Asked) -> Result<Bytes> {
        let mut one = Bytes::new();
        self.get_in_pieces(name, asked, usize::MAX, |_, bytes| one = bytes).await?;
        Ok(one)
    }

    /// An object or a part of one, in pieces; those of each attempt are numbered from 0.
    async fn get_in_pieces(
        &self,
        name: &str,
        asked: &Asked,
        piece: usize,
        pass_on: impl FnMut(usize, Bytes) + Send,
    ) -> Result<()> {
        let Some(len) = asked.bytes().filter(|len| *len <= MAX_WHOLE) else {
            return Err(Error::with(ErrorKind::Invalid, "get", format!("{name}: no range of an object")));
        };
        if len == 0 {
            return Ok(());
        }
        let path = self.place(name);
        let options = GetOptions { range: asked.range(), ..GetOptions::default() };
        // One attempt at a time has it.
        let pass_on = Mutex::new(pass_on);
        let attempt = || async {
            match stepped(self.store.get_opts(&path, options.clone())).await? {
                Ok(got) if !asked.is_answered_by(&got.range) => Ok(Got::TooShort),
                Ok(got) => {
                    let mut number = 0..;
                    let pass_on = |bytes| pass_on.lock()(number.next().unwrap_or(usize::MAX), bytes);
                    collect(got, len, piece, pass_on).await
                }
                // How stores say that the whole range is behind the object's end.
                Err(error) if is_range_error(&error) => Ok(Got::TooShort),
                Err(error) => Err(error),
            }
        };
        let how = self.how(Kind::Get, None);
        match self.send("get", name, how, attempt).await?.result {
            Ok(Got::Object(len, _)) => {
                self.requests.counters.down(len);
                Ok(())
            }
            Ok(Got::TooShort) => Err(self.corrupted(name, TOO_SHORT)),
            Ok(Got::TooLarge) => Err(self.corrupted(name, "more came than was asked for")),
            Err(error) => Err(self.unexpected("get", name, &error)),
        }
    }
}
