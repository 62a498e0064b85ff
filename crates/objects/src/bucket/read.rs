//! The bytes of an object, in bounds, whatever the server sends.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::{Error as StoreError, GetResult, GetResultPayload, Result as StoreResult, UpdateVersion};

use super::Tag;
use crate::buffers::Buffer;
use crate::requests::{limit, over_limit};

/// An object as the store returned it.
pub(super) enum Got {
    /// All of it has come, this many bytes.
    Object(u64, Tag),
    TooLarge,
    TooShort,
}

/// Reads an object, or a part, of `most` bytes at most. Passes it on in pieces of `piece` bytes, of
/// which the last may be shorter, each when it has come. Each is in memory of its own.
pub(super) async fn collect(
    got: GetResult,
    most: u64,
    piece: usize,
    mut pass_on: impl FnMut(Bytes),
) -> StoreResult<Got> {
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
    let read = tokio::time::timeout(time, read(got, announced, piece, &mut pass_on)).await;
    let came = read.map_err(|_| over_limit(time))??;
    Ok(match came.cmp(&announced) {
        std::cmp::Ordering::Less => Got::TooShort,
        std::cmp::Ordering::Equal => Got::Object(came, tag),
        std::cmp::Ordering::Greater => Got::TooLarge,
    })
}

/// Passes on the bytes that come; returns how many came, which may be more than were announced. Those
/// beyond are not passed on, nor is a last piece that is cut.
async fn read(
    got: GetResult,
    announced: u64,
    piece: usize,
    pass_on: &mut impl FnMut(Bytes),
) -> StoreResult<u64> {
    if let GetResultPayload::File(..) = got.payload {
        let whole = got.bytes().await?;
        let came = whole.len() as u64;
        if came == announced && whole.len() <= piece {
            pass_on(whole);
        } else if came == announced {
            whole.chunks(piece).map(Bytes::copy_from_slice).for_each(pass_on);
        }
        return Ok(came);
    }
    let mut stream = got.into_stream();
    let first = stream.try_next().await?.unwrap_or_default();
    if first.len() as u64 == announced && piece == usize::MAX {
        pass_on(first);
        return Ok(announced);
    }
    let mut left = usize::try_from(announced).unwrap_or(usize::MAX);
    let mut last = Buffer::new(piece.min(left));
    let mut next = Some(first);
    while let Some(mut more) = next {
        if more.len() > left {
            return Ok(announced + (more.len() - left) as u64);
        }
        while !more.is_empty() {
            let part = more.split_to(more.len().min(piece - last.len()));
            last.extend_from_slice(&part);
            left -= part.len();
            if last.len() == piece || left == 0 {
                pass_on(std::mem::replace(&mut last, Buffer::new(piece.min(left))).freeze());
            }
        }
        next = stream.try_next().await?;
    }
    Ok(announced - left as u64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
                let mut pieces = Vec::new();
                let got = collect(comes_in(frames, 100), 100, piece, |one| pieces.push(one)).await.unwrap();
                assert!(matches!(got, Got::Object(100, _)), "{frames:?} in {piece}");
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
            let passed_on = Cell::new(0);
            let count = |one: Bytes| passed_on.set(passed_on.get() + one.len());
            for frames in [&[101][..], &[99, 2], &[64, 64]] {
                let got = collect(comes_in(frames, 100), 100, piece, count).await.unwrap();
                assert!(matches!(got, Got::TooLarge), "{frames:?} in {piece}");
            }
            passed_on.set(0);
            let got = collect(comes_in(&[99], 100), 100, piece, count).await.unwrap();
            assert!(matches!(got, Got::TooShort), "{piece}");
            assert_eq!(passed_on.take(), 99 / piece * piece, "no piece that is cut");
            let got = collect(comes_in(&[100], 100), 99, piece, count).await.unwrap();
            assert!(matches!(got, Got::TooLarge), "{piece}");
            assert_eq!(passed_on.get(), 0);
        }
    }

    #[tokio::test]
    async fn a_piece_is_passed_on_when_it_has_come() {
        let mut got = comes_in(&[70, 30], 100);
        let (first, _) = comes_in(&[70], 70).into_stream().into_future().await;
        let stalls = stream::iter(first).chain(stream::pending());
        got.payload = GetResultPayload::Stream(stalls.boxed());
        let mut pieces = Vec::new();
        let read = collect(got, 100, 32, |one| pieces.push(one));
        assert!(tokio::time::timeout(std::time::Duration::from_millis(10), read).await.is_err());
        assert_eq!(pieces.concat(), (0..64).collect::<Vec<u8>>());
    }
}
