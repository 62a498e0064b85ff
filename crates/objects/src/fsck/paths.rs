//! Paths of inodes, for people: looked for by one walk over all names, and then from directory to
//! directory.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use store::Result;

use super::cursor::Cursor;
use super::damage::Damage;
use super::names::above;
use super::record::ROOT;
use crate::engine::Engine;
use crate::rows::{self, EntryRow};

/// Directories in one another that a path goes through.
const DEPTH_MAX: usize = 256;
/// Names of one directory that are searched for that of another.
const SEARCHED_MAX: usize = 64 << 10;

/// Where inodes are: the directory and the name there.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<u64, Option<(u64, OsString)>>);

impl Places {
    /// Looks for the inodes that these are about.
    pub(super) async fn find(engine: &dyn Engine, all: &[Damage]) -> Result<Self> {
        let wanted: HashSet<u64> = all.iter().filter_map(|damage| Some(damage.place()?.0)).collect();
        let mut places = HashMap::new();
        if wanted.iter().any(|ino| *ino != ROOT) {
            let mut names = Cursor::new(engine, b'D');
            while let Some(row) = names.next().await?
                && places.len() < wanted.len()
            {
                let Ok(entry) = rows::from_bytes::<EntryRow>(&row.value, "a directory entry") else {
                    continue;
                };
                if wanted.contains(&entry.ino) {
                    let name = OsString::from_vec(row.rest().to_vec());
                    places.entry(entry.ino).or_insert(Some((row.ino, name)));
                }
            }
        }
        Ok(Self(places))
    }

    /// The path of what this is about, from the volume's root; `None`: it has none.
    pub(super) async fn path(&mut self, engine: &dyn Engine, damage: &Damage) -> Option<PathBuf> {
        let (ino, name) = damage.place()?;
        let mut parts: Vec<OsString> = name.into_iter().cloned().collect();
        let mut at = ino;
        while at != ROOT {
            if parts.len() > DEPTH_MAX {
                return None;
            }
            let place = match self.0.get(&at) {
                Some(place) => place.clone(),
                None => {
                    let place = look_for(engine, at).await;
                    self.0.insert(at, place.clone());
                    place
                }
            };
            let (dir, name) = place?;
            parts.push(name);
            at = dir;
        }
        // A damaged name may have a slash in it, or begin with one: it leads nowhere else by that.
        let mut path = OsString::from(if parts.is_empty() { "/" } else { "" });
        for part in parts.iter().rev() {
            path.push("/");
            path.push(part);
        }
        Some(path.into())
    }
}

/// The name of a directory, by what it says itself.
async fn look_for(engine: &dyn Engine, ino: u64) -> Option<(u64, OsString)> {
    let dir = above(engine, ino).await.ok()??;
    let rows = engine.scan(rows::keys_of(b'D', dir), SEARCHED_MAX).await.ok()?;
    let (key, _) = rows.iter().find(|(_, entry)| {
        rows::from_bytes::<EntryRow>(entry, "a directory entry").is_ok_and(|entry| entry.ino == ino)
    })?;
    Some((dir, OsString::from_vec(rows::rest_of(key).to_vec())))
}
