//! Finding volumes without reading all of them.
//!
//! Below the runtime directory's `index`, beside the records:
//!
//! | directory | holds |
//! |---|---|
//! | `places/PATH/=/ID.volume` | a volume that is mounted or attached at `/PATH` |
//! | `stores/PATH/=/ID.volume` | a volume whose store is the directory `/PATH`, or the URL `PATH` (of long names, pieces) |
//! | `mounts/ID` | a volume with a mount of its own |
//! | `ended/MS-ID` | a record that stays for a while: its volume ended then, or was found dead and began then |
//!
//! `places` and `stores` are trees like the paths that they describe. The volumes at a path, around
//! it and below it are found in as many steps as the path has parts, however many volumes there
//! are: entries are apart from a directory's children, of which there may be thousands. It is an
//! index only: a process that finds an id reads its record and its socket, and removes an entry
//! whose process is gone.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

use super::Record;
use crate::control::volume_id::VolumeId;
use crate::host::checks;
use crate::object_volumes;

/// The directory of a path's own entries.
const HERE: &str = "=";
/// The suffix of an entry's name. A directory could have such a name, too: entries are files.
const ENTRY: &str = "volume";
/// The longest directory for a part of a URL, which may be longer than a file's name.
const PIECE_BYTES_MAX: usize = 200;
/// How often a directory may be removed by a process that removes the last entry below it.
const ATTEMPTS: usize = 1000;

/// One kind of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathKind {
    Places,
    Stores,
}

/// The index of a runtime directory.
#[derive(Debug)]
pub(super) struct Index(PathBuf);

impl Index {
    pub(super) fn of(runtime_dir: &Path) -> Self {
        Self(runtime_dir.join("index"))
    }

    /// Enters a volume that begins.
    pub(super) fn add(&self, record: &Record) -> io::Result<()> {
        if record.attached_to.is_none() {
            make_in(&self.0.join("mounts"), record.id.as_str().as_ref())?;
        }
        for (of, path) in paths_of(record) {
            self.add_at(of, &path, &record.id)?;
        }
        Ok(())
    }

    pub(super) fn add_at(&self, of: PathKind, path: &Path, id: &VolumeId) -> io::Result<()> {
        make_in(&self.dir(of, path).join(HERE), entry(id).as_ref())
    }

    /// Takes a volume out that has ended.
    pub(super) fn remove(&self, record: &Record) {
        if record.attached_to.is_none() {
            let _not_there = fs::remove_file(self.0.join("mounts").join(record.id.as_str()));
        }
        for (of, path) in paths_of(record) {
            self.remove_at(of, &path, &record.id);
        }
    }

    pub(super) fn remove_at(&self, of: PathKind, path: &Path, id: &VolumeId) {
        let root = self.root(of);
        let mut dir = self.dir(of, path).join(HERE);
        let _not_there = fs::remove_file(dir.join(entry(id)));
        while dir != root && fs::remove_dir(&dir).is_ok() && dir.pop() {}
    }

    /// The volumes at this path.
    pub(super) fn at(&self, of: PathKind, path: &Path) -> Vec<VolumeId> {
        ids(&self.dir(of, path).join(HERE))
    }

    /// Whether this volume is at this path.
    pub(super) fn is_at(&self, of: PathKind, path: &Path, id: &VolumeId) -> bool {
        self.dir(of, path).join(HERE).join(entry(id)).exists()
    }

    /// The volumes at directories that this path lies in, itself left out, the nearest first.
    pub(super) fn around(&self, of: PathKind, path: &Path) -> Vec<VolumeId> {
        path.ancestors().skip(1).flat_map(|path| self.at(of, path)).collect()
    }

    /// The volumes at this path and below it, `max` at most.
    pub(super) fn below(&self, of: PathKind, path: &Path, max: usize) -> Vec<VolumeId> {
        let mut found = Vec::new();
        let mut dirs = subdirs(&self.dir(of, path));
        while let Some(dir) = dirs.pop() {
            if dir.ends_with(HERE) {
                found.extend(ids(&dir));
            }
            if found.len() >= max {
                break;
            }
            dirs.extend(subdirs(&dir));
        }
        found.truncate(max);
        found
    }

    /// The volumes with mounts of their own.
    pub(super) fn mounts(&self) -> Vec<VolumeId> {
        names(&self.0.join("mounts")).filter_map(|name| name.parse().ok()).collect()
    }

    /// Notes that a record stays only for a while.
    pub(super) fn add_ended(&self, id: &VolumeId, ms: u64) {
        if let Err(error) = make_in(&self.0.join("ended"), format!("{ms:020}-{id}").as_ref()) {
            tracing::warn!(%error, %id, "cannot add an ended volume to the index");
        }
    }

    /// Removes the oldest records, so that `max` stay; returns their ids.
    pub(super) fn prune(&self, max: usize) -> Vec<VolumeId> {
        let dir = self.0.join("ended");
        let mut ended: Vec<String> = names(&dir).collect();
        if ended.len() <= max {
            return Vec::new();
        }
        ended.sort_unstable();
        ended.truncate(ended.len() - max);
        for name in &ended {
            let _another_was_faster = fs::remove_file(dir.join(name));
        }
        ended.iter().filter_map(|name| name.split_once('-')?.1.parse().ok()).collect()
    }

    fn root(&self, of: PathKind) -> PathBuf {
        self.0.join(match of {
            PathKind::Places => "places",
            PathKind::Stores => "stores",
        })
    }

    fn dir(&self, of: PathKind, path: &Path) -> PathBuf {
        let mut dir = self.root(of);
        dir.extend(path.components().filter(|part| matches!(part, Component::Normal(_))));
        dir
    }
}

/// Where a volume is, and its store.
fn paths_of(record: &Record) -> impl Iterator<Item = (PathKind, PathBuf)> {
    let source = record.source.as_str();
    let url = checks::identity_of(source).filter(|name| object_volumes::looks_like(name)).map(path_of_url);
    let stores = checks::directory_of(source).into_iter().chain(url).map(|path| (PathKind::Stores, path));
    [(PathKind::Places, PathBuf::from(record.mountpoint.as_str()))].into_iter().chain(stores)
}

/// The path that a URL has in the index. An absolute path never begins like it.
pub(super) fn path_of_url(url: &str) -> PathBuf {
    let pieces = url.split('/').flat_map(|part| part.as_bytes().chunks(PIECE_BYTES_MAX));
    pieces.map(|piece| OsString::from_vec(piece.to_vec())).collect()
}

fn entry(id: &VolumeId) -> String {
    format!("{id}.{ENTRY}")
}

/// Makes an empty file in a directory, which is made as well.
fn make_in(dir: &Path, name: &OsStr) -> io::Result<()> {
    let file = dir.join(name);
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        result = fs::create_dir_all(dir).and_then(|()| touch(&file));
        match &result {
            // The process that removed the last entry removed the directory as well. It may be gone
            // even after this call found that it exists.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {}
            _ => break,
        }
    }
    result
}

/// Makes an empty file, or leaves one that is there as it is. A link is not followed.
fn touch(file: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()).open(file).map(drop)
}

fn entries(dir: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(dir).into_iter().flatten().flatten()
}

fn names(dir: &Path) -> impl Iterator<Item = String> {
    entries(dir).filter_map(|entry| entry.file_name().into_string().ok())
}

fn ids(dir: &Path) -> Vec<VolumeId> {
    let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    let id = |entry: fs::DirEntry| {
        let name = PathBuf::from(entry.file_name());
        let id = name.file_stem()?.to_str()?.parse().ok()?;
        (name.extension()? == ENTRY).then_some(id)
    };
    entries(dir).filter(is_file).filter_map(id).collect()
}

fn subdirs(dir: &Path) -> Vec<PathBuf> {
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries(dir).filter(is_dir).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_at_a_path_around_and_below_it_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::of(dir.path());
        let path = Path::new;
        for (at, text) in
            [("/srv", "1"), ("/srv/a/b", "2"), ("/srv/a/bc", "3"), ("/srv/a/b", "4"), ("/x", "5")]
        {
            index.add_at(PathKind::Stores, path(at), &id(text)).unwrap();
        }
        let sorted = |mut ids: Vec<VolumeId>| {
            ids.sort();
            ids.iter().map(VolumeId::as_str).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(sorted(index.at(PathKind::Stores, path("/srv/a/b"))), "2 4");
        assert_eq!(sorted(index.at(PathKind::Stores, path("/srv/a"))), "");
        assert!(index.is_at(PathKind::Stores, path("/srv/a/b"), &id("4")));
        assert!(
            !index.is_at(PathKind::Stores, path("/srv/a/b"), &id("3"))
                && !index.is_at(PathKind::Places, path("/srv/a/b"), &id("4"))
        );
        assert_eq!(sorted(index.at(PathKind::Places, path("/srv"))), "");
        assert_eq!(sorted(index.around(PathKind::Stores, path("/srv/a/b/c"))), "1 2 4");
        assert_eq!(index.around(PathKind::Stores, path("/srv/a/b/c")).last().unwrap().as_str(), "1");
        assert_eq!(sorted(index.below(PathKind::Stores, path("/srv/a"), 10)), "2 3 4");
        assert_eq!(sorted(index.below(PathKind::Stores, path("/"), 10)), "1 2 3 4 5");
        assert_eq!(index.below(PathKind::Stores, path("/"), 2).len(), 2);
        // An empty directory goes, and nothing else.
        index.remove_at(PathKind::Stores, path("/srv/a/b"), &id("2"));
        assert_eq!(sorted(index.below(PathKind::Stores, path("/srv"), 10)), "1 3 4");
        for (at, text) in [("/srv/a/b", "4"), ("/srv/a/bc", "3")] {
            index.remove_at(PathKind::Stores, path(at), &id(text));
        }
        assert!(!index.dir(PathKind::Stores, path("/srv/a")).exists());
        assert_eq!(sorted(index.at(PathKind::Stores, path("/srv"))), "1");
    }

    #[test]
    fn the_oldest_ended_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::of(dir.path());
        for (text, ms) in [("a", 900), ("b", 1000), ("c", 20)] {
            index.add_ended(&id(text), ms);
        }
        assert!(index.prune(3).is_empty());
        assert_eq!(index.prune(1), [id("c"), id("a")]);
        assert!(index.prune(1).is_empty());
    }

    #[test]
    fn entries_of_the_same_path_come_and_go_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let index = &Index::of(dir.path());
        let at = Path::new("/deep/down/here");
        std::thread::scope(|scope| {
            for id in ["a", "b", "c"].map(id) {
                scope.spawn(move || {
                    for _ in 0..200 {
                        index.add_at(PathKind::Places, at, &id).unwrap();
                        assert!(index.at(PathKind::Places, at).contains(&id));
                        index.remove_at(PathKind::Places, at, &id);
                    }
                });
            }
        });
        assert!(!index.root(PathKind::Places).join("deep").exists());
    }
}
