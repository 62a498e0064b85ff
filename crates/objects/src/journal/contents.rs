//! What an earlier process has left in a journal's files.
//!
//! A crash tears what was written and not yet on the disk: the end of the last file, which no fsync
//! was acknowledged by. It is cut. Everything else that cannot be read is damage: an error that
//! says where.

use store::{Error, ErrorKind, Result};

use super::disk::Disk;
use super::format::{BadFile, FILE_HEADER, FileHeader, RECORD_HEADER, RecordHeader, padded, sum};
use super::{Identity, Place};

/// The longest file that is read: longer than one that is written.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// What is called for each record, with its kind and what it is about.
pub(crate) type Visit<'a> = dyn FnMut(u16, &[u8; 32], Place) -> Result<()> + Send + 'a;

/// Reads the records in their order. Returns what was given to [`super::Journal::new`] as context;
/// `None`: there are no records.
///
/// # Errors
/// The disk's; `Io`: something is damaged; `Unsupported`: a newer version wrote it; `Invalid`: it
/// is another volume's journal; and what `visit` returns.
pub(crate) async fn read(
    disk: &dyn Disk,
    identity: Identity,
    visit: &mut Visit<'_>,
) -> Result<Option<[u8; 32]>> {
    let files = disk.files().await?;
    let mut first: Option<FileHeader> = None;
    let mut end = None;
    for (index, &number) in files.iter().enumerate() {
        let is_last = index + 1 == files.len();
        if index > 0 && number != files[index - 1] + 1 {
            return Err(damaged(number - 1, 0, "the file is missing"));
        }
        let bytes = disk.read(number, 0, FILE_BYTES_MAX + 1).await?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(damaged(number, 0, "the file is longer than any that is written"));
        }
        let header = match FileHeader::read(&bytes) {
            Ok(header) => header,
            Err(BadFile::Unfinished) if is_last && bytes.iter().all(|byte| *byte == 0) => break,
            Err(BadFile::Newer(version)) => {
                let why = format!(
                    "the journal's file {number} has version {version}, which a newer version of the program wrote: use that one"
                );
                return Err(Error::with(ErrorKind::Unsupported, "journal", why));
            }
            Err(_) => return Err(damaged(number, 0, "its header is damaged")),
        };
        if header.identity != identity {
            let why = format!("the journal's file {number} is another volume's: it was copied here");
            return Err(Error::with(ErrorKind::Invalid, "journal", why));
        }
        let of_first = *first.get_or_insert(header);
        if header.number != number || (header.salt, header.context) != (of_first.salt, of_first.context) {
            return Err(damaged(number, 0, "it is another file's content"));
        }
        if end.is_some_and(|end| end != header.previous) {
            return Err(damaged(
                number - 1,
                usize::try_from(header.previous).unwrap_or(0),
                "its end is damaged",
            ));
        }
        end = Some(read_file(&header, &bytes, is_last, visit)? as u64);
    }
    Ok(first.map(|header| header.context))
}

/// Returns where the last whole record ends.
fn read_file(header: &FileHeader, bytes: &[u8], is_last: bool, visit: &mut Visit<'_>) -> Result<usize> {
    let mut at = FILE_HEADER;
    while at < bytes.len() {
        let Some((record, place)) = record_at(header, bytes, at) else {
            check_tail(header, bytes, at, is_last)?;
            break;
        };
        visit(record.kind, &record.about, place)?;
        at += RECORD_HEADER + padded(record.len as usize);
    }
    Ok(at)
}

/// The record at `at`, if it is whole.
fn record_at(header: &FileHeader, bytes: &[u8], at: usize) -> Option<(RecordHeader, Place)> {
    let record = RecordHeader::read(header, bytes, at)?;
    let start = at + RECORD_HEADER;
    let payload = bytes.get(start..start.checked_add(record.len as usize)?)?;
    let sum = sum(&[payload]);
    let place = Place { file: header.number, at: start as u64, len: record.len, sum };
    (sum == record.sum).then_some((record, place))
}

/// What begins at `at` is no record: nothing may follow that was written after it was on the disk.
fn check_tail(header: &FileHeader, bytes: &[u8], at: usize, is_last: bool) -> Result<()> {
    let written = bytes[at..].iter().any(|byte| *byte != 0);
    if !is_last && written {
        return Err(damaged(header.number, at, "a record is damaged, and a later file is there"));
    }
    let mut later = at + 8;
    while later + RECORD_HEADER <= bytes.len() {
        if RecordHeader::read(header, bytes, later).is_some_and(|record| record.synced > at as u64) {
            return Err(damaged(header.number, at, "a record is damaged, and later ones are there"));
        }
        later += 8;
    }
    Ok(())
}

fn damaged(file: u64, at: usize, why: &str) -> Error {
    let detail = format!(
        "the journal's file {file:016x}, byte {at}: {why}; put it back as it was, or give up what only this journal \
         has with `-o abandon=HOST`, which names this host"
    );
    Error::with(ErrorKind::Io, "journal", detail)
}
