//! Errors that end a walk in a section, each beside a change of mounts that happens while the
//! superblock answers.
//!
//! The path leads to a file before the change and after it. The superblock that is covered by the
//! change forgets the file only after that, so its error never was the answer to the path. A walk
//! that reports the error did not check the sequence after the superblock's answer.
//!
//! | end of the walk | test | mutant |
//! |---|---|---|
//! | error of a look-up | [`a_lookup_error_beside_a_change`] | `mounts-no-recheck-before-lookup-error` |
//! | error of a link's target | [`a_link_error_beside_a_change`] | `mounts-no-recheck-before-link-error` |
//! | too many links | [`too_many_links_beside_a_change`] | `mounts-no-recheck-before-too-many-links` |
//! | a place, after a link to `.` | [`a_link_to_its_directory_beside_a_change`] | `mounts-no-recheck-after-link` |
//! | not a directory, after a crossing | [`a_file_in_the_way_beside_a_change`] | `mounts-no-recheck-after-miss` |
//! | a place, after a crossing | [`a_result_beside_a_change`] | `mounts-no-recheck-after-miss` |
//! | the parent's place, after `..` | [`a_parent_beside_a_change`] | `mounts-no-recheck-after-miss` |
//!
//! The change happens inside of the superblock's answer, so that no schedule has to be found. The
//! checks are left out only in a build for shuttle:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-mounts --test early_returns`
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use common::{Fs, namespace};
use sync::{Mutex, thread};
use watertight_mounts::{
    Base, Error, FinalSymlink, FoundInode, Inode, Kind, Namespace, Result, Superblock, SuperblockRef, VfsPath,
};

const DIR: Inode = Inode(2);
const ENTRY: Inode = Inode(3);
const BELOW: Inode = Inode(4);

/// How many links a walk follows.
const LINKS_MAX: usize = 40;

/// The superblock's answer while mounts change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    NoEntry,
    LinkError,
    Loop,
    LinkToHere,
    File,
    Found,
    Parent,
}

/// A superblock whose answer of one kind comes after a change of mounts.
struct Covered {
    case: Case,
    ns: OnceLock<Arc<Namespace>>,
    /// The superblock that the change mounts on it.
    cover: Mutex<Option<SuperblockRef>>,
    links: Mutex<usize>,
}

impl fmt::Debug for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Covered").field("case", &self.case).finish_non_exhaustive()
    }
}

impl Covered {
    /// Covers this superblock's mount, once, by another thread, which holds no read section.
    fn change(&self) {
        let Some(cover) = self.cover.lock().take() else { return };
        let ns = Arc::clone(self.ns.get().unwrap());
        thread::spawn(move || ns.attach(Base::Root, "a", &cover).map(drop)).join().unwrap().unwrap();
    }
}

impl Superblock for Covered {
    fn lookup_rcu(&self, dir: Inode, name: &OsStr) -> Option<Result<FoundInode>> {
        let entry = |inode, kind| Some(Ok(FoundInode { inode, kind }));
        if dir == Inode::ROOT && name == "d" {
            return entry(DIR, Kind::Directory);
        }
        if dir == DIR && name == "e" {
            return entry(BELOW, Kind::Directory);
        }
        match self.case {
            Case::NoEntry => {
                self.change();
                Some(Err(Error::NoEntry { name: name.to_string_lossy().into_owned() }))
            }
            Case::LinkError | Case::Loop | Case::LinkToHere => entry(ENTRY, Kind::Symlink),
            Case::File | Case::Found | Case::Parent => {
                self.change();
                entry(ENTRY, Kind::Other)
            }
        }
    }

    fn parent_rcu(&self, _: Inode) -> Option<Inode> {
        self.change();
        // Not the root: the crossing from there would find the cover by itself.
        Some(DIR)
    }

    fn read_link_rcu(&self, _: Inode) -> Option<Result<PathBuf>> {
        if self.case == Case::LinkError {
            self.change();
            return Some(Err(Error::Failed { what: "the link was removed".into() }));
        }
        if self.case == Case::LinkToHere {
            self.change();
            return Some(Ok(PathBuf::from(".")));
        }
        let mut links = self.links.lock();
        *links += 1;
        if *links > LINKS_MAX {
            self.change();
        }
        Some(Ok(PathBuf::from("x")))
    }

    fn shutdown(&self) {}
}

/// Walks `path` while the mount on `a` is covered. Returns the walk's result, and the place that
/// the path leads to after the change.
fn walk(case: Case, path: &str) -> (Result<VfsPath>, VfsPath) {
    let (ns, _) = namespace(&["a/"]);
    let ns = Arc::new(ns);
    let (_, cover) = Fs::new(&["x/y", "d/e/"]).mountable();
    let covered =
        Arc::new(Covered { case, ns: OnceLock::new(), cover: Mutex::new(Some(cover)), links: Mutex::new(0) });
    covered.ns.set(Arc::clone(&ns)).unwrap();
    ns.attach(Base::Root, "a", &SuperblockRef::new(Arc::clone(&covered) as _)).unwrap();
    let found = ns.resolve(Base::Root, path, FinalSymlink::Follow).map(|(place, _)| place);
    assert!(covered.cover.lock().is_none(), "nothing changed while the superblock answered");
    let expected = ns.resolve(Base::Root, path, FinalSymlink::Follow).unwrap().0;
    // The superblocks have the namespace, and it has them.
    ns.shut().unwrap();
    ns.domain().barrier();
    (found, expected)
}

fn leads_to_the_cover(case: Case, path: &'static str) {
    let check = move || {
        let (found, expected) = walk(case, path);
        assert_eq!(found, Ok(expected), "reported what never was");
    };
    #[cfg(shuttle)]
    sync::model::check(check);
    #[cfg(not(shuttle))]
    check();
}

/// A walk reports no error of a look-up that a superblock gave while mounts changed.
#[test]
fn a_lookup_error_beside_a_change() {
    leads_to_the_cover(Case::NoEntry, "a/x");
}

/// A walk reports no error of a link's target that a superblock gave while mounts changed.
#[test]
fn a_link_error_beside_a_change() {
    leads_to_the_cover(Case::LinkError, "a/x");
}

/// A walk does not report too many links of which the last was read while mounts changed.
#[test]
fn too_many_links_beside_a_change() {
    leads_to_the_cover(Case::Loop, "a/x");
}

/// A walk reports no place that it came to by a link to `.` which was read while mounts changed.
#[test]
fn a_link_to_its_directory_beside_a_change() {
    leads_to_the_cover(Case::LinkToHere, "a/x");
}

/// A walk does not report a file in the way that a superblock named while mounts changed.
#[test]
fn a_file_in_the_way_beside_a_change() {
    leads_to_the_cover(Case::File, "a/x/y");
}

/// A walk reports no place that a superblock named while mounts changed.
#[test]
fn a_result_beside_a_change() {
    leads_to_the_cover(Case::Found, "a/x");
}

/// A walk reports no parent, for `..`, that a superblock named while mounts changed.
#[test]
fn a_parent_beside_a_change() {
    leads_to_the_cover(Case::Parent, "a/d/e/..");
}

#[cfg(shuttle)]
#[test]
fn each_check_that_is_left_out_is_missed() {
    use sync::mutant::assert_caught;
    let says = "reported what never was";
    assert_caught("a_lookup_error_beside_a_change", &["mounts-no-recheck-before-lookup-error"], says);
    assert_caught("a_link_error_beside_a_change", &["mounts-no-recheck-before-link-error"], says);
    assert_caught("too_many_links_beside_a_change", &["mounts-no-recheck-before-too-many-links"], says);
    let link = ["mounts-no-recheck-after-link"];
    assert_caught("a_link_to_its_directory_beside_a_change", &link, says);
    for test in ["a_file_in_the_way_beside_a_change", "a_result_beside_a_change", "a_parent_beside_a_change"]
    {
        assert_caught(test, &["mounts-no-recheck-after-miss"], says);
    }
}
