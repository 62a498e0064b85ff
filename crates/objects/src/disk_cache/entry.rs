//! The file of a block: a header, then the block as it is in the bucket.
//!
//! ```text
//! "WTdcache" | length of the block, 4 bytes | CRC-32C, 4 bytes, both little endian | the block
//! ```
//!
//! The checksum covers the volume, the object, the block's number and length, and the block: a file
//! that was cut, changed, or has another's name is not this block's. It finds accidents; a user who
//! can write to the directory can calculate it, and is root or the mount's own user.

use bytes::{Buf as _, Bytes};
use crc_fast::{CrcAlgorithm, Digest};
use sync::mutant::is_on;

use crate::blocks::Key;
use crate::rows::Object;

const MAGIC: &[u8; 8] = b"WTdcache";
/// Bytes before the block.
pub(super) const HEADER: usize = 16;

fn crc(uuid: &[u8; 16], key: Key, block: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let (object, number) = key;
    let (tag, first, second) = match object {
        Object::Log(number) => (b'l', 0, number),
        Object::Segment(epoch, number) => (b's', epoch, number),
    };
    if !is_on("disk-cache-without-volume") {
        digest.update(uuid);
    }
    if !is_on("disk-cache-without-object") {
        digest.update(&[tag]);
        digest.update(&u64::to_le_bytes(first));
        digest.update(&u64::to_le_bytes(second));
        digest.update(&number.to_le_bytes());
    }
    digest.update(&(block.len() as u64).to_le_bytes());
    digest.update(block);
    u32::try_from(digest.finalize()).unwrap_or_default()
}

/// What comes before a block in its file.
pub(super) fn header(uuid: &[u8; 16], key: Key, block: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&u32::try_from(block.len()).unwrap_or(u32::MAX).to_le_bytes());
    header[12..].copy_from_slice(&crc(uuid, key, block).to_le_bytes());
    header
}

/// The block in a file, if it is this one and whole.
pub(super) fn open(uuid: &[u8; 16], key: Key, mut file: Bytes) -> Option<Bytes> {
    if file.len() < HEADER {
        return None;
    }
    let header_found = file.copy_to_bytes(HEADER);
    let is_right = header_found[..] == header(uuid, key, &file) || is_on("disk-cache-unchecked");
    is_right.then_some(file)
}
