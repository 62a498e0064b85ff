//! The rows of inodes, each against its others: one walk over all tags in the inodes' order.
//!
//! What needs another inode's rows, names above all, is checked for a **window** of inodes at a
//! time ([`super::names`]): a record of fixed size for each, so that memory is bounded whatever the
//! volume holds. A volume with more inodes than a window has takes as many walks over its names as
//! it has windows.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use store::Result;

use super::cursor::Cursor;
use super::damage::{Damage, Findings};
use super::names;
use super::quotas::Used;
use super::record::{ROOT, Record, signed};
use super::steps::Steps;
use crate::engine::Engine;
use crate::rows::{self, EntryRow, ExtentRow, InodeRow, Kind, Totals};

/// Inodes of a window.
pub(super) const WINDOW: usize = 4 << 20;
/// The longest name.
const NAME_BYTES_MAX: usize = 255;

/// What was counted on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) inodes: u64,
    pub(crate) names: u64,
    pub(crate) extents: u64,
    pub(crate) bytes: u64,
    /// An extent could not be read: sums are not known.
    pub(crate) is_incomplete: bool,
}

/// The places of a walk over all rows of inodes.
struct Walk<'a> {
    inodes: Cursor<'a>,
    names: Cursor<'a>,
    extents: Cursor<'a>,
    orphans: Cursor<'a>,
    xattrs: Cursor<'a>,
    counted: Counted,
    has_root: bool,
    quotas: Used,
}

/// Checks inodes, names, attributes and extents as rows, `window` inodes at a time.
///
/// # Errors
/// The engine's: a table is damaged, or the bucket does not answer.
pub(super) async fn check(
    engine: &dyn Engine,
    window: usize,
    steps: &Steps,
    found: &mut Findings,
) -> Result<Counted> {
    let mut walk = Walk {
        inodes: Cursor::new(engine, b'I'),
        names: Cursor::new(engine, b'D'),
        extents: Cursor::new(engine, b'E'),
        orphans: Cursor::new(engine, b'O'),
        xattrs: Cursor::new(engine, b'X'),
        counted: Counted::default(),
        has_root: false,
        quotas: Used::of_none(engine, found).await?,
    };
    let (mut records, mut from) = (Vec::new(), 0);
    while let Some(ino) = walk.next_ino().await? {
        records.extend(walk.inode(ino, found).await?);
        steps.tell("inodes", walk.counted.inodes);
        if records.len() >= window {
            names::check(engine, &mut records, from..=ino, steps, found).await?;
            records.clear();
            from = ino.saturating_add(1);
        }
    }
    walk.quotas.check(engine, found).await?;
    let counted = walk.counted;
    if !walk.has_root && counted != Counted::default() {
        found.add(Damage::NoInode { ino: ROOT, kind: Kind::Directory });
    }
    names::check(engine, &mut records, from..=u64::MAX, steps, found).await?;
    if !counted.is_incomplete {
        let is = engine.totals().await.unwrap_or(Totals { bytes: -1, inodes: -1 });
        let right = Totals { bytes: signed(counted.bytes), inodes: signed(counted.inodes) };
        if is != right {
            found.add(Damage::Totals {
                bytes: is.bytes,
                inodes: is.inodes,
                right_bytes: right.bytes,
                right_inodes: right.inodes,
            });
        }
    }
    Ok(counted)
}

impl Walk<'_> {
    /// The next inode that has a row.
    async fn next_ino(&mut self) -> Result<Option<u64>> {
        let heads = [
            self.inodes.ino().await?,
            self.names.ino().await?,
            self.extents.ino().await?,
            self.orphans.ino().await?,
            self.xattrs.ino().await?,
        ];
        Ok(heads.into_iter().flatten().min())
    }

    /// Checks the rows of one inode; returns what names of it are compared with.
    async fn inode(&mut self, ino: u64, found: &mut Findings) -> Result<Option<Record>> {
        self.has_root |= ino == ROOT;
        let row = self.inodes.next_of(ino).await?;
        let is_there = row.is_some();
        let inode = row.and_then(|row| rows::inode_from_bytes(&row.value).ok());
        inode.iter().for_each(|(inode, project)| self.quotas.count(inode, *project));
        let inode = inode.map(|(inode, _)| inode);
        self.counted.inodes += u64::from(is_there);
        let (names, dirs) = self.names_in(ino, inode.as_ref(), found).await?;
        let held = self.extents_of(ino, found).await?;
        let mark = self.orphans.next_of(ino).await?;
        let mut has_xattrs = false;
        while self.xattrs.next_of(ino).await?.is_some() {
            has_xattrs = true;
        }
        self.report_bad(found);
        let Some(inode) = inode else {
            // A file's data, and what is below a directory, is there still: it is made anew.
            let kind = if names > 0 || ino == ROOT {
                Some(Kind::Directory)
            } else if held != Some(0) {
                Some(Kind::Regular)
            } else {
                None
            };
            match kind {
                Some(kind) => found.add(Damage::NoInode { ino, kind }),
                None if is_there => found.add(Damage::Row { key: rows::inode_key(ino) }),
                None => {
                    let tags = [(mark.is_some(), b'O'), (has_xattrs, b'X')];
                    for (_, tag) in tags.into_iter().filter(|(is_there, _)| *is_there) {
                        found.add(Damage::RowsOfMissing { ino, tag });
                    }
                    return Ok(None);
                }
            }
            let kind = kind.unwrap_or(Kind::Regular);
            return Ok(Some(Record { is_lost: true, ..Record::new(ino, kind) }));
        };
        if let Some(held) = held.filter(|held| *held != inode.allocated) {
            found.add(Damage::Allocated { ino, is: inode.allocated, right: held });
        }
        Ok(Some(Record {
            parent: inode.parent,
            nlink: inode.nlink,
            dirs,
            is_orphan: mark.is_some_and(|mark| mark.value.is_empty()),
            ..Record::new(ino, inode.kind)
        }))
    }

    /// Checks the names in a directory, as far as that is said by the directory; returns how many
    /// there are, and how many of them name directories.
    async fn names_in(
        &mut self,
        dir: u64,
        inode: Option<&InodeRow>,
        found: &mut Findings,
    ) -> Result<(u64, u32)> {
        let (mut names, mut dirs) = (0, 0_u32);
        while let Some(row) = self.names.next_of(dir).await? {
            names += 1;
            let name = OsString::from_vec(row.rest().to_vec());
            match rows::from_bytes::<EntryRow>(&row.value, "a directory entry") {
                Err(_) => found.add(Damage::Row { key: row.key.to_vec() }),
                Ok(_) if inode.is_some_and(|inode| !inode.is_dir()) => {
                    found.add(Damage::NameOutside { dir, name });
                }
                Ok(_) if !is_name(row.rest()) => found.add(Damage::BadName { dir, name }),
                Ok(entry) => dirs = dirs.saturating_add(u32::from(entry.kind == Kind::Directory)),
            }
        }
        self.counted.names += names;
        Ok((names, dirs))
    }

    /// Checks the extents of a file; returns how many bytes they hold, if all can be read.
    async fn extents_of(&mut self, ino: u64, found: &mut Findings) -> Result<Option<u64>> {
        let (mut last, mut held) = (0, Some(0_u64));
        while let Some(row) = self.extents.next_of(ino).await? {
            self.counted.extents += 1;
            let extent = rows::from_bytes::<ExtentRow>(&row.value, "an extent").ok();
            let end = rows::extent_end(&row.key)?;
            let part = extent.filter(|extent| extent.len > 0 && extent.len <= end);
            let Some(extent) = part else {
                if held.take().is_some() {
                    found.add(Damage::Extent { ino });
                }
                self.counted.is_incomplete = true;
                continue;
            };
            if end - extent.len < last {
                found.add(Damage::Overlap { ino, first: last, second: end });
            }
            last = end;
            held = held.map(|held| held.saturating_add(extent.len));
            self.counted.bytes = self.counted.bytes.saturating_add(extent.len);
        }
        Ok(held)
    }

    /// Reports keys that no call makes.
    fn report_bad(&mut self, found: &mut Findings) {
        let all = [&mut self.inodes, &mut self.names, &mut self.extents, &mut self.orphans, &mut self.xattrs];
        for key in all.into_iter().flat_map(Cursor::take_bad) {
            match rows::ino_of(&key) {
                // It may be data: nothing says whose bytes would be zeros without it.
                Ok(ino) if key.first() == Some(&b'E') => {
                    self.counted.is_incomplete = true;
                    found.add(Damage::Extent { ino });
                }
                _ => found.add(Damage::Row { key }),
            }
        }
    }
}

/// Whether a call can make a name.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !matches!(name, b"." | b"..")
        && !name.contains(&b'/')
        && !name.contains(&0)
}
