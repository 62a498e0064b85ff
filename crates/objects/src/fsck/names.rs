//! The names of the inodes of a window: how many each has, and whether ways lead to the root.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStringExt as _;

use store::Result;

use super::cursor::Cursor;
use super::damage::{Damage, Findings};
use super::record::{ROOT, Record};
use super::steps::Steps;
use crate::engine::Engine;
use crate::rows::{self, EntryRow, Kind};

/// Directories with several names that are looked at in one check.
const SEVERAL_MAX: usize = 10_000;

/// Compares the names of all directories with the records of the inodes in `range`, which are in
/// their order.
pub(super) async fn check(
    engine: &dyn Engine,
    records: &mut [Record],
    range: RangeInclusive<u64>,
    steps: &Steps,
    found: &mut Findings,
) -> Result<()> {
    let (mut names, mut count) = (Cursor::new(engine, b'D'), 0);
    while let Some(row) = names.next().await? {
        count += 1;
        steps.tell("names", count);
        let Ok(entry) = rows::from_bytes::<EntryRow>(&row.value, "a directory entry") else { continue };
        if !range.contains(&entry.ino) {
            continue;
        }
        let name = || OsString::from_vec(row.rest().to_vec());
        let Some(record) = index(records, entry.ino).map(|index| &mut records[index]) else {
            found.add(Damage::NameOfMissing { dir: row.ino, name: name(), ino: entry.ino });
            continue;
        };
        record.names = record.names.saturating_add(1);
        if !record.is_lost && record.kind != entry.kind {
            found.add(Damage::NameKind { dir: row.ino, name: name(), ino: entry.ino, right: record.kind });
        }
        if record.kind == Kind::Directory && !record.is_at_parent {
            if record.names == 1 || row.ino == record.parent {
                record.found_in = row.ino;
            }
            record.is_at_parent = row.ino == record.parent;
        }
    }
    let mut several = HashSet::new();
    for record in records.iter().filter(|record| !record.is_lost) {
        if check_record(record, found) && several.len() < SEVERAL_MAX {
            several.insert(record.ino);
        }
    }
    if !several.is_empty() {
        second_names(engine, records, several, found).await?;
    }
    unreachable(engine, records, found).await
}

fn index(records: &[Record], ino: u64) -> Option<usize> {
    records.binary_search_by_key(&ino, |record| record.ino).ok()
}

/// Checks what is counted; returns whether it is a directory with a name too many.
fn check_record(record: &Record, found: &mut Findings) -> bool {
    let Record { ino, names, nlink, .. } = *record;
    let is_dir = record.kind == Kind::Directory;
    let is_root = ino == ROOT;
    if names == 0 && !is_root {
        if !record.is_orphan || nlink > 0 {
            found.add(Damage::NoName { ino });
        }
        return false;
    }
    if record.is_orphan {
        found.add(Damage::Orphan { ino });
    }
    let right = if is_dir { record.dirs.saturating_add(2) } else { names };
    if nlink != right {
        found.add(Damage::Links { ino, is: nlink, right });
    }
    let above = if is_root { ROOT } else { record.found_in };
    if is_dir && record.parent != above {
        found.add(Damage::Parent { ino, is: record.parent, right: above });
    }
    is_dir && names > u32::from(!is_root)
}

/// Finds the names that directories do not keep.
async fn second_names(
    engine: &dyn Engine,
    records: &[Record],
    several: HashSet<u64>,
    found: &mut Findings,
) -> Result<()> {
    // The root has none.
    let mut keeps = several.clone();
    keeps.remove(&ROOT);
    let mut names = Cursor::new(engine, b'D');
    while let Some(row) = names.next().await? {
        let Ok(entry) = rows::from_bytes::<EntryRow>(&row.value, "a directory entry") else { continue };
        if !several.contains(&entry.ino) {
            continue;
        }
        let is_place = index(records, entry.ino).is_some_and(|at| records[at].found_in == row.ino);
        if !(is_place && keeps.remove(&entry.ino)) {
            let name = OsString::from_vec(row.rest().to_vec());
            found.add(Damage::SecondName { dir: row.ino, name, ino: entry.ino });
        }
    }
    Ok(())
}

/// How far a way up was followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// It is followed now.
    Here,
    /// It ends, at the root or where something else is found.
    Ends,
}

/// Finds directories that lie in one another: of each circle the smallest inode.
async fn unreachable(engine: &dyn Engine, records: &[Record], found: &mut Findings) -> Result<()> {
    let mut ways = vec![Way::Unknown; records.len()];
    let mut circles = BTreeSet::new();
    for start in 0..records.len() {
        if records[start].kind != Kind::Directory || ways[start] != Way::Unknown {
            continue;
        }
        let (mut path, mut at, mut beyond) = (Vec::new(), records[start].ino, Beyond::default());
        while at != ROOT {
            let Some(here) = index(records, at) else {
                let Some(above) = beyond.above(engine, at).await? else { break };
                at = above;
                continue;
            };
            match ways[here] {
                Way::Ends => break,
                Way::Here => {
                    let circle = path.iter().skip_while(|index: &&usize| **index != here);
                    circles.extend(circle.map(|index| records[*index].ino).min());
                    break;
                }
                Way::Unknown => {}
            }
            ways[here] = Way::Here;
            path.push(here);
            if records[here].found_in == 0 {
                break;
            }
            at = records[here].found_in;
        }
        path.into_iter().for_each(|index| ways[index] = Way::Ends);
    }
    circles.into_iter().for_each(|ino| found.add(Damage::Unreachable { ino }));
    Ok(())
}

/// A way up through inodes of other windows, by what each says itself.
#[derive(Debug, Default)]
struct Beyond {
    /// A directory on the way: a way that comes to it again is a circle.
    met: u64,
    steps: u64,
}

impl Beyond {
    /// The directory above `ino`; `None`: the way ends, or is another window's circle.
    async fn above(&mut self, engine: &dyn Engine, ino: u64) -> Result<Option<u64>> {
        if ino == self.met {
            return Ok(None);
        }
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.met = ino;
        }
        above(engine, ino).await
    }
}

/// The directory that a directory says it is in; `None`: it is none, or its row is missing.
pub(super) async fn above(engine: &dyn Engine, ino: u64) -> Result<Option<u64>> {
    let row = engine.get(&rows::inode_key(ino)).await?;
    let row = row.and_then(|row| rows::inode_from_bytes(&row).ok());
    Ok(row.filter(|(row, _)| row.is_dir()).map(|(row, _)| row.parent))
}

/// Whether the way up from a directory, by what each directory says itself, comes back to it.
pub(super) async fn is_in_circle(engine: &dyn Engine, ino: u64) -> Result<bool> {
    let (mut at, mut beyond) = (ino, Beyond::default());
    while let Some(next) = beyond.above(engine, at).await? {
        if next == ino || next == ROOT {
            return Ok(next == ino);
        }
        at = next;
    }
    Ok(false)
}
