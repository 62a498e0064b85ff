//! Properties of the tree that hold for any sequence of requests.

use std::sync::Weak;

use super::*;
use crate::tree::OnEnd;

/// Looks, when it is dropped, whether the tree's lock is free.
struct Probe {
    tree: Weak<MountTree>,
    found: std::sync::mpsc::Sender<bool>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        let tree = self.tree.upgrade().expect("the tree outlives what is in it");
        self.found.send(tree.state.try_lock().is_some()).expect("the test waits for it");
    }
}

#[test]
fn what_has_left_the_tree_is_dropped_without_its_lock() {
    let volume = || Volume::new(store::open("mem:").unwrap(), volume::Options::default()).unwrap();
    let root = volume();
    let (_kernel, device) = rustix::pipe::pipe().unwrap();
    let tree = Arc::new(MountTree::new(Arc::clone(&root), Arc::new(Dev::new(device))));
    // Dropped by the thread that changes the tree, and by one that served a request before the
    // change.
    for is_seen in [false, true] {
        let (found, is_free) = std::sync::mpsc::channel();
        let probe = Probe { tree: Arc::downgrade(&tree), found };
        let on_end: OnEnd = Box::new(move |_| drop(probe));
        let (tag, attached) = (tree.new_tag().unwrap(), volume());
        let served = Arc::new(AttachedVolume::new(Arc::clone(&attached), tag, false, Some(on_end)));
        let superblock = SuperblockRef::new(Arc::clone(&served) as Arc<_>);
        let files = MountNode::of_files(tag, (served, superblock), &tree.first.namespace);
        tree.change(|state, snapshot| state.add_node(snapshot, Arc::new(files)));
        let mut cache = SnapshotCache::default();
        if is_seen {
            tree.snapshot(&mut cache);
        }
        tree.change(|state, snapshot| state.drop_volume(snapshot, tag));
        assert_eq!(is_free.try_recv().ok(), (!is_seen).then_some(true), "is_seen: {is_seen}");
        if is_seen {
            tree.snapshot(&mut cache);
            assert_eq!(is_free.try_recv(), Ok(true));
        }
        attached.shutdown();
    }
    root.shutdown();
}
