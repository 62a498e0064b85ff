//! The bytes of an object, in bounds, whatever the server sends.

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt as _;
use object_store::{Error as StoreError, GetResult, GetResultPayload, Result as StoreResult, UpdateVersion};

use super::Tag;
use crate::requests::{limit, over_limit};

/// An object as the store returned it.
pub(super) enum Got {
    Object(Vec<Bytes>, Tag),
    TooLarge,
    TooShort,
}

/// The bytes of an object, or of a part, up to `most`, in pieces of `piece` bytes, of which the last may
/// be shorter. Each is in memory of its own.
pub(super) async fn collect(got: GetResult, most: u64, piece: usize) -> StoreResult<Got> {
    let tag = Tag(UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() });
    if tag.0.e_tag.is_none() {
        let source = "an object without ETag".into();
        return Err(StoreError::Generic { store: "bucket", source });
    }
    let announced = got.range.end.saturating_sub(got.range.start);
    if announced > most {
        return Ok(Got::TooLarge);
    }
    let time = limit(announced);
    let read = tokio::time::timeout(time, read(got, announced, piece)).await;
    let pieces = read.map_err(|_| over_limit(time))??;
    Ok(match (len_of(&pieces) as u64).cmp(&announced) {
        std::cmp::Ordering::Less => Got::TooShort,
        std::cmp::Ordering::Equal => Got::Object(pieces, tag),
        std::cmp::Ordering::Greater => Got::TooLarge,
    })
}

/// The bytes that come, until they are more than were announced.
async fn read(got: GetResult, announced: u64, piece: usize) -> StoreResult<Vec<Bytes>> {
    if let GetResultPayload::File(..) = got.payload {
        let whole = got.bytes().await?;
        return Ok(if whole.len() <= piece {
            vec![whole]
        } else {
            whole.chunks(piece).map(Bytes::copy_from_slice).collect()
        });
    }
    let mut stream = got.into_stream();
    let first = stream.try_next().await?.unwrap_or_default();
    if first.len() as u64 >= announced && piece == usize::MAX {
        return Ok(vec![first]);
    }
    let mut left = usize::try_from(announced).unwrap_or(usize::MAX);
    let mut pieces = Vec::new();
    let mut last = BytesMut::with_capacity(piece.min(left));
    let mut next = Some(first);
    while let Some(mut more) = next {
        while !more.is_empty() {
            let part = more.split_to(more.len().min(piece - last.len()));
            last.extend_from_slice(&part);
            let Some(rest) = left.checked_sub(part.len()) else {
                // More than was announced: its length says so.
                pieces.push(last.freeze());
                return Ok(pieces);
            };
            left = rest;
            if last.len() == piece {
                pieces.push(last.freeze());
                last = BytesMut::with_capacity(piece.min(left));
            }
        }
        next = stream.try_next().await?;
    }
    pieces.extend((!last.is_empty()).then(|| last.freeze()));
    Ok(pieces)
}

/// All bytes of these pieces.
pub(super) fn len_of(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// The one piece of an object that was to be in one.
pub(super) fn only(mut pieces: Vec<Bytes>) -> Bytes {
    debug_assert!(pieces.len() <= 1, "asked for in one piece");
    pieces.pop().unwrap_or_default()
}
