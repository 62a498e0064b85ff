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

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};
    use object_store::ObjectMeta;

    use super::*;

    /// An object that is announced with so many bytes, and comes in frames of these lengths.
    fn comes_in(frames: &[usize], announced: u64) -> GetResult {
        let all: Vec<u8> = (0..=u8::MAX).cycle().take(frames.iter().sum()).collect();
        let mut left = Bytes::from(all);
        let frames: Vec<StoreResult<Bytes>> = frames.iter().map(|len| Ok(left.split_to(*len))).collect();
        GetResult {
            payload: GetResultPayload::Stream(stream::iter(frames).boxed()),
            meta: ObjectMeta {
                location: "o".into(),
                last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
                size: announced,
                e_tag: Some("one".to_owned()),
                version: None,
            },
            range: 0..announced,
            attributes: object_store::Attributes::default(),
            extensions: Default::default(),
        }
    }

    #[tokio::test]
    async fn pieces_are_the_object_whatever_frames_it_comes_in() {
        for frames in [&[100][..], &[0, 100], &[1; 100], &[33, 33, 34], &[64, 36], &[99, 0, 1]] {
            let whole: Vec<u8> = (0..100).collect();
            for piece in [1, 7, 32, 50, 64, 99, 100, 101, usize::MAX] {
                let Got::Object(pieces, _) = collect(comes_in(frames, 100), 100, piece).await.unwrap() else {
                    panic!("{frames:?} in {piece}");
                };
                assert_eq!(pieces.concat(), whole, "{frames:?} in {piece}");
                let (last, others) = pieces.split_last().unwrap();
                assert!(others.iter().all(|one| one.len() == piece), "{frames:?} in {piece}");
                assert!((1..=piece).contains(&last.len()), "{frames:?} in {piece}");
            }
        }
    }

    #[tokio::test]
    async fn more_or_less_than_was_announced_is_told() {
        for piece in [32, 101, usize::MAX] {
            for frames in [&[101][..], &[99, 2], &[64, 64]] {
                let got = collect(comes_in(frames, 100), 100, piece).await.unwrap();
                assert!(matches!(got, Got::TooLarge), "{frames:?} in {piece}");
            }
            let got = collect(comes_in(&[99], 100), 100, piece).await.unwrap();
            assert!(matches!(got, Got::TooShort), "{piece}");
            let got = collect(comes_in(&[100], 100), 99, piece).await.unwrap();
            assert!(matches!(got, Got::TooLarge), "{piece}");
        }
    }
}
