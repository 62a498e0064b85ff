//! The bytes of an object, in bounds, whatever the server sends.

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt as _;
use object_store::{Error as StoreError, GetResult, GetResultPayload, Result as StoreResult, UpdateVersion};

use super::Tag;
use crate::requests::{limit, over_limit};

/// An object as the store returned it.
pub(super) enum Got {
    Object(Bytes, Tag),
    TooLarge,
    TooShort,
}

/// The bytes of an object, or of a part, up to `most`.
pub(super) async fn collect(got: GetResult, most: u64) -> StoreResult<Got> {
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
    let read = tokio::time::timeout(time, read(got, announced)).await;
    let bytes = read.map_err(|_| over_limit(time))??;
    Ok(match (bytes.len() as u64).cmp(&announced) {
        std::cmp::Ordering::Less => Got::TooShort,
        std::cmp::Ordering::Equal => Got::Object(bytes, tag),
        std::cmp::Ordering::Greater => Got::TooLarge,
    })
}

/// The bytes that come, until they are more than were announced.
async fn read(got: GetResult, announced: u64) -> StoreResult<Bytes> {
    if let GetResultPayload::File(..) = got.payload {
        return got.bytes().await;
    }
    let mut stream = got.into_stream();
    let first = stream.try_next().await?.unwrap_or_default();
    if first.len() as u64 >= announced {
        return Ok(first);
    }
    let mut all = BytesMut::with_capacity(usize::try_from(announced).unwrap_or_default());
    all.extend_from_slice(&first);
    while let Some(more) = stream.try_next().await? {
        all.extend_from_slice(&more);
        if all.len() as u64 > announced {
            break;
        }
    }
    Ok(all.freeze())
}
