//! On ordinary directories, which the kernel reports as it does cgroups.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;

struct Rig {
    dir: tempfile::TempDir,
    tree: Hierarchy,
    watch: Watch,
    told: Receiver<CgroupEvent>,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let tree = Hierarchy::at(dir.path(), "x");
    let (report, told) = channel();
    let watch = Watch::start(tree.clone(), move |event| report.send(event).unwrap()).unwrap();
    Rig { dir, tree, watch, told }
}

impl Rig {
    /// Makes and watches a directory; returns its number.
    fn add(&self, path: &str) -> CgroupId {
        std::fs::create_dir_all(self.dir.path().join(path)).unwrap();
        let found = self.tree.look_up(Path::new(path)).unwrap();
        assert!(self.watch.add(&found, |_, _, _| {}));
        found.id()
    }

    fn next(&self) -> CgroupEvent {
        self.told.recv_timeout(Duration::from_secs(60)).expect("nothing was told")
    }
}

#[test]
fn removal_and_renaming_are_told_once_each() {
    let rig = rig();
    let (a, b) = (rig.add("a"), rig.add("a/b"));
    std::fs::rename(rig.dir.path().join("a"), rig.dir.path().join("c")).unwrap();
    assert_eq!(rig.next(), CgroupEvent::Renamed(a, "c".into()));
    std::fs::remove_dir(rig.dir.path().join("c/b")).unwrap();
    assert_eq!(rig.next(), CgroupEvent::Removed(b));
    std::fs::remove_dir(rig.dir.path().join("c")).unwrap();
    assert_eq!(rig.next(), CgroupEvent::Removed(a));
    assert!(rig.watch.is_empty() && rig.told.try_recv().is_err());
}

#[test]
fn a_directory_made_again_under_the_same_name_is_another() {
    let rig = rig();
    let old = rig.add("a");
    // Its number stays taken as long as the directory is open.
    let _open = std::fs::File::open(rig.dir.path().join("a")).unwrap();
    std::fs::remove_dir(rig.dir.path().join("a")).unwrap();
    let new = rig.add("a");
    assert_ne!(old, new);
    assert_eq!(rig.next(), CgroupEvent::Removed(old));
    std::fs::remove_dir(rig.dir.path().join("a")).unwrap();
    assert_eq!(rig.next(), CgroupEvent::Removed(new));
}

#[test]
fn who_is_added_is_told_with_those_above_and_what_is_gone_is_refused() {
    let rig = rig();
    std::fs::create_dir_all(rig.dir.path().join("a/b")).unwrap();
    let found = rig.tree.look_up(Path::new("a/b")).unwrap();
    let mut made = Vec::new();
    assert!(rig.watch.add(&found, |id, parent, name| made.push((id, parent, name.to_owned()))));
    let (a, b) = (found.chain[0].0, found.chain[1].0);
    assert_eq!(made, [(a, CgroupId::ROOT, "a".into()), (b, a, "b".into())]);
    made.clear();
    assert!(rig.watch.add(&found, |id, parent, name| made.push((id, parent, name.to_owned()))));
    assert!(made.is_empty() && rig.watch.len() == 2);
    std::fs::create_dir(rig.dir.path().join("c")).unwrap();
    let gone = rig.tree.look_up(Path::new("c")).unwrap();
    std::fs::remove_dir(rig.dir.path().join("c")).unwrap();
    assert!(!rig.watch.add(&gone, |_, _, _| panic!("it is gone")));
}

#[test]
fn without_inotify_the_end_is_found_by_looking() {
    let rig = rig();
    // ORDERING: Relaxed, as in the product.
    rig.watch.inner.must_poll.store(true, Ordering::Relaxed);
    rig.watch.inner.wake();
    let a = rig.add("a");
    let watches: Vec<i32> = rig.watch.inner.state.lock().by_watch.keys().copied().collect();
    for watch in watches {
        inotify::remove_watch(rig.watch.inner.inotify.as_ref().unwrap(), watch).unwrap();
    }
    std::fs::rename(rig.dir.path().join("a"), rig.dir.path().join("b")).unwrap();
    assert_eq!(rig.next(), CgroupEvent::Renamed(a, "b".into()));
    std::fs::remove_dir(rig.dir.path().join("b")).unwrap();
    assert_eq!(rig.next(), CgroupEvent::Removed(a));
}
