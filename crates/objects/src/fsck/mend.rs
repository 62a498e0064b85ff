//! What is done about each damage of the rows: one batch for each, which leaves nothing wrong that a
//! later round does not find.

use std::ffi::OsString;
use std::sync::Arc;

use store::{Creator, Error, ErrorKind, Result};

use super::damage::Damage;
use super::names::is_in_circle;
use super::record::ROOT;
use super::steps::OP;
use crate::engine::{Batch, Engine};
use crate::rows::{
    self, EntryRow, Extent, ExtentRow, InodeRow, Kind, Object, Totals, Usage, entry_key, extent_end,
    extent_key, inode_key, inode_to_bytes, live_key, orphan_key, to_bytes,
};
use crate::tree::{Tree, new_row};

/// Where inodes go that have lost their name.
const LOST_AND_FOUND: &str = "lost+found";
/// Names that are tried for that directory, and in it for an inode.
const NAMES_MAX: u32 = 100;
/// Rows that are removed at a time.
const BATCH: usize = 1024;

/// Mends the rows of a volume that this process holds, and that nobody else uses.
pub(super) struct Mender {
    tree: Arc<Tree>,
    /// The inode of the directory for what has lost its name, if one was looked for.
    lost_and_found: Option<u64>,
}

impl Mender {
    pub(super) const fn new(tree: Arc<Tree>) -> Self {
        Self { tree, lost_and_found: None }
    }

    fn engine(&self) -> &dyn Engine {
        &*self.tree.engine
    }

    /// An inode's row, and the project that it counts for.
    async fn load(&self, ino: u64) -> Result<Option<(InodeRow, Option<u64>)>> {
        let row = self.engine().get(&inode_key(ino)).await?;
        Ok(row.and_then(|row| rows::inode_from_bytes(&row).ok()))
    }

    /// Mends one damage; returns whether that was done.
    ///
    /// # Errors
    /// The engine's.
    pub(super) async fn mend(&mut self, damage: &Damage) -> Result<bool> {
        let mut batch = Batch::default();
        match damage {
            Damage::Row { key } => batch.delete(key.clone()),
            Damage::NoInode { ino, kind } => self.make_inode(*ino, *kind, &mut batch).await?,
            Damage::NameOfMissing { dir, name, .. }
            | Damage::BadName { dir, name }
            | Damage::NameOutside { dir, name }
            | Damage::SecondName { dir, name, .. } => batch.delete(entry_key(*dir, name)),
            Damage::NameKind { dir, name, ino, right } => {
                batch.put(entry_key(*dir, name), to_bytes(&EntryRow { ino: *ino, kind: *right }));
            }
            Damage::Orphan { ino } => batch.delete(orphan_key(*ino)),
            Damage::RowsOfMissing { ino, tag } => return self.remove_rows(*ino, *tag).await,
            Damage::NoName { ino } => self.give_name(*ino, &mut batch).await?,
            Damage::Unreachable { ino } => {
                if !is_in_circle(self.engine(), *ino).await? {
                    return Ok(true);
                }
                self.cut_circle(*ino, &mut batch).await?;
            }
            Damage::Links { ino, right, .. } => {
                self.change(*ino, &mut batch, |row| row.nlink = *right).await?;
            }
            Damage::Parent { ino, right, .. } => {
                self.change(*ino, &mut batch, |row| row.parent = *right).await?;
            }
            Damage::Allocated { ino, right, .. } => {
                self.change(*ino, &mut batch, |row| row.allocated = *right).await?;
            }
            Damage::Overlap { ino, first, second } => {
                self.cut_extent(*ino, *first, *second, &mut batch).await?;
            }
            Damage::Totals { right_bytes, right_inodes, .. } => {
                let totals = Totals { bytes: *right_bytes, inodes: *right_inodes };
                batch.put(rows::TOTALS.to_vec(), to_bytes(&totals));
            }
            Damage::Quota { dir, right, .. } => batch.put(rows::usage_key(*dir), to_bytes(right)),
            Damage::Usage { object, right, .. } => self.set_usage(*object, *right, &mut batch).await?,
            Damage::Lease { .. }
            | Damage::Log { .. }
            | Damage::Metadata { .. }
            | Damage::Snapshot { .. }
            | Damage::Extent { .. }
            | Damage::Data { .. } => return Ok(false),
        }
        self.engine().write(batch).await?;
        Ok(true)
    }

    async fn change(&self, ino: u64, batch: &mut Batch, to: impl FnOnce(&mut InodeRow)) -> Result<()> {
        if let Some((mut row, project)) = self.load(ino).await? {
            to(&mut row);
            batch.put(inode_key(ino), inode_to_bytes(&row, project));
        }
        Ok(())
    }

    /// Makes an inode anew of what there still is of it: it is root's alone.
    async fn make_inode(&self, ino: u64, kind: Kind, batch: &mut Batch) -> Result<()> {
        let perm = match (ino, kind) {
            (ROOT, _) => 0o755,
            (_, Kind::Directory) => 0o700,
            _ => 0o600,
        };
        let mut row = InodeRow { nlink: 1, ..new_row(kind, perm, of_root()) };
        if kind == Kind::Directory {
            (row.nlink, row.parent) = (2, ROOT);
        } else {
            row.size = self.end_of_data(ino).await?;
        }
        batch.put(inode_key(ino), to_bytes(&row));
        Ok(())
    }

    /// Where the last extent of a file ends.
    async fn end_of_data(&self, ino: u64) -> Result<u64> {
        let mut range = rows::keys_of(b'E', ino);
        let mut end = 0;
        loop {
            let found = self.engine().scan(range.clone(), BATCH).await?;
            let ends = found.iter().filter_map(|(key, _)| extent_end(key).ok());
            end = ends.max().unwrap_or(0).max(end);
            match found.last() {
                Some((last, _)) if found.len() == BATCH => range.start = [&last[..], &[0]].concat(),
                _ => return Ok(end),
            }
        }
    }

    /// Removes all rows with a tag of an inode that is not there.
    async fn remove_rows(&self, ino: u64, tag: u8) -> Result<bool> {
        loop {
            let found = self.engine().scan(rows::keys_of(tag, ino), BATCH).await?;
            let mut batch = Batch::default();
            found.iter().for_each(|(key, _)| batch.delete(key.to_vec()));
            self.engine().write(batch).await?;
            if found.len() < BATCH {
                return Ok(true);
            }
        }
    }

    /// Puts an inode below `lost+found`.
    async fn give_name(&mut self, ino: u64, batch: &mut Batch) -> Result<()> {
        let Some((mut row, project)) = self.load(ino).await? else { return Ok(()) };
        let dir = self.lost_and_found().await?;
        let name = self.free_name(dir, &format!("#{ino}")).await?;
        batch.put(entry_key(dir, &name), to_bytes(&EntryRow { ino, kind: row.kind }));
        if row.is_dir() {
            row.parent = dir;
        }
        row.nlink = row.nlink.max(1);
        batch.put(inode_key(ino), inode_to_bytes(&row, project));
        batch.delete(orphan_key(ino));
        Ok(())
    }

    /// Takes a directory out of a circle of directories, and puts it below `lost+found`.
    async fn cut_circle(&mut self, ino: u64, batch: &mut Batch) -> Result<()> {
        let Some((row, _)) = self.load(ino).await? else { return Ok(()) };
        let mut range = rows::keys_of(b'D', row.parent);
        loop {
            let found = self.engine().scan(range.clone(), BATCH).await?;
            for (key, entry) in &found {
                let entry = rows::from_bytes::<EntryRow>(entry, "a directory entry");
                if entry.is_ok_and(|entry| entry.ino == ino) {
                    batch.delete(key.to_vec());
                }
            }
            match found.last() {
                Some((last, _)) if found.len() == BATCH => range.start = [&last[..], &[0]].concat(),
                _ => return self.give_name(ino, batch).await,
            }
        }
    }

    /// The directory for what has lost its name; it is made if there is none.
    async fn lost_and_found(&mut self) -> Result<u64> {
        if let Some(ino) = self.lost_and_found {
            return Ok(ino);
        }
        let mut name = OsString::from(LOST_AND_FOUND);
        if let Some(entry) = self.tree.entry(ROOT, &name).await? {
            // Another user's could be emptied by that user, and its names be taken.
            let is_roots = |(row, _): (InodeRow, _)| row.is_dir() && row.uid == 0 && row.perm & 0o022 == 0;
            if self.load(entry.ino).await?.is_some_and(is_roots) {
                self.lost_and_found = Some(entry.ino);
                return Ok(entry.ino);
            }
            name = self.free_name(ROOT, LOST_AND_FOUND).await?;
        }
        let (ino, mut batch) = (self.tree.new_ino(), Batch::default());
        let kind = Kind::Directory;
        let row = InodeRow { nlink: 2, parent: ROOT, ..new_row(kind, 0o700, of_root()) };
        batch.put(inode_key(ino), to_bytes(&row));
        batch.put(entry_key(ROOT, &name), to_bytes(&EntryRow { ino, kind }));
        self.change(ROOT, &mut batch, |root| root.nlink = root.nlink.saturating_add(1)).await?;
        batch.totals.inodes = 1;
        self.engine().write(batch).await?;
        self.lost_and_found = Some(ino);
        Ok(ino)
    }

    /// A name that nothing has in a directory: `name`, or with a number behind it.
    async fn free_name(&self, dir: u64, name: &str) -> Result<OsString> {
        for n in 0..NAMES_MAX {
            let name = OsString::from(if n == 0 { name.to_owned() } else { format!("{name}.{n}") });
            if self.engine().get(&entry_key(dir, &name)).await?.is_none() {
                return Ok(name);
            }
        }
        let why = format!("{name} and {NAMES_MAX} names like it are taken: rename or remove some");
        Err(Error::with(ErrorKind::Exists, OP, why))
    }

    /// Of two extents that overlap, where the first ends the second goes on: as reads have it.
    async fn cut_extent(&self, ino: u64, first: u64, second: u64, batch: &mut Batch) -> Result<()> {
        let (first, second) = (self.extent(ino, first).await?, self.extent(ino, second).await?);
        let (Some(first), Some(second)) = (first, second) else { return Ok(()) };
        let end = second.end();
        if first.end() < end {
            let rest = second.part(first.end().max(second.start), end);
            batch.put(extent_key(ino, end), to_bytes(&rest.row));
        }
        // What lies before it stays, but for what others have.
        let mut until = first.start;
        while second.start < until {
            let Some(other) = self.extent(ino, until).await? else {
                let front = second.part(second.start, until);
                batch.put(extent_key(ino, until), to_bytes(&front.row));
                break;
            };
            if other.row.len == 0 {
                break;
            }
            until = other.start;
        }
        Ok(())
    }

    async fn extent(&self, ino: u64, end: u64) -> Result<Option<Extent>> {
        let row = self.engine().get(&extent_key(ino, end)).await?;
        let row: Option<ExtentRow> = row.and_then(|row| rows::from_bytes(&row, "an extent").ok());
        Ok(row.and_then(|row| Some(Extent { start: end.checked_sub(row.len)?, row })))
    }

    async fn set_usage(&self, object: Object, right: i64, batch: &mut Batch) -> Result<()> {
        let row = self.engine().get(&live_key(object)).await?;
        let written = row.and_then(|row| Usage::from_bytes(&row).ok()).map_or(0, |usage| usage.written);
        let usage = Usage { live: right, written: written.max(right) };
        batch.put(live_key(object), to_bytes(&usage));
        Ok(())
    }
}

const fn of_root() -> Creator {
    Creator { uid: 0, gid: 0, umask: 0 }
}
