//! What quotas count, and hold to.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib schedules`

use std::io::IoSlice;

use object_store::memory::InMemory;
use store::{Creator, FileType, NewNode, RenameFlags};

use super::*;
use crate::garbage::tests::open;
use crate::rows::Totals;

const CREATOR: Creator = Creator { uid: 0, gid: 0, umask: 0 };
const FILE: NewNode<'_> = NewNode::Special { kind: FileType::Regular, rdev: 0 };

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_ref()).unwrap()
}

const fn limits(bytes: Option<u64>, inodes: Option<u64>) -> QuotaLimits {
    QuotaLimits { bytes, inodes }
}

async fn make(tree: &Arc<Tree>, dir: &Pin, file: &str, what: NewNode<'_>) -> Result<Pin> {
    let made = tree.make(ObjectId(dir.ino), name(file), what, 0o755, CREATOR).await?;
    let pin = tree.pin_used(made.id.0, "test")?;
    tree.forget(made.id.0, 1);
    Ok(pin)
}

async fn dir(tree: &Arc<Tree>, path: &str) -> Pin {
    tree.directory_at(Path::new(path)).await.unwrap()
}

async fn used(tree: &Arc<Tree>, path: &str) -> (u64, u64) {
    let quota = tree.quota(dir(tree, path).await.ino).await.unwrap();
    assert!(quota.is_counted);
    assert_eq!(quota.path, Path::new(path));
    (quota.used_bytes, quota.used_inodes)
}

/// What the engine has of usage is what a walk over all inodes counts, and so is what is held to: all
/// that was accepted has its rows.
async fn assert_counted(tree: &Arc<Tree>) {
    tree.sync_all().await.unwrap();
    // Files without a name go by and by.
    for _ in 0..1000 {
        if tree.engine.scan(rows::all_keys(b'O'), 1).await.unwrap().is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
    tree.sync_all().await.unwrap();
    let counted = counted(tree).await.unwrap();
    for (number, quota) in tree.quotas.all() {
        let walked = counted.get(&number).copied().unwrap_or_default();
        let row = tree.engine.get(&rows::usage_key(number)).await.unwrap();
        let row: Totals = row.map_or(Totals::default(), |row| rows::from_bytes(&row, "usage").unwrap());
        assert_eq!(row, walked, "the usage of {number} is not what is there");
        assert_eq!(
            (quota.used, quota.charged()),
            (walked, walked),
            "of {number} something is promised still"
        );
    }
    let left = counted.keys().filter(|number| tree.quotas.get(**number).is_none());
    assert_eq!(left.count(), 0, "inodes count for quotas that are gone");
}

#[tokio::test]
async fn limits_are_held_to_before_anything_is_accepted() {
    let objects = Arc::<InMemory>::default();
    let mounted = open(&objects, 1).await;
    let tree = mounted.tree();
    let root = tree.pin(ROOT);
    let project = make(tree, &root, "project", NewNode::Directory).await.unwrap();
    let file = make(tree, &project, "file", FILE).await.unwrap();
    tree.write_at(&file, &[IoSlice::new(&[1; 600])], 0).await.unwrap();
    tree.set_quota(project.ino, limits(Some(1000), Some(3))).await.unwrap();
    assert_eq!(used(tree, "/project").await, (600, 2), "what was written before, and has no rows yet");
    let kind = |result: Result<()>| result.map_err(|error| error.kind());
    // A promise counts before the data comes, and once.
    tree.promise_size(&file, 1000).await.unwrap();
    assert_eq!(kind(tree.promise_size(&file, 1001).await), Err(ErrorKind::Quota), "a limit was exceeded");
    tree.write_at(&file, &[IoSlice::new(&[1; 400])], 600).await.unwrap();
    assert_eq!(kind(tree.write_at(&file, &[IoSlice::new(b"1")], 1000).await), Err(ErrorKind::Quota));
    tree.write_at(&file, &[IoSlice::new(&[2; 1000])], 0).await.unwrap();
    assert_eq!(used(tree, "/project").await, (1000, 2));
    let other = make(tree, &project, "other", FILE).await.unwrap();
    assert_eq!(make(tree, &project, "third", FILE).await.unwrap_err().kind(), ErrorKind::Quota);
    assert_eq!(kind(tree.set_size(&other, 1).await), Err(ErrorKind::Quota));
    // What is cut or removed makes room; what was promised and never came, too.
    tree.set_size(&file, 100).await.unwrap();
    tree.promise_size(&other, 900).await.unwrap();
    assert_eq!(used(tree, "/project").await, (1000, 3));
    drop(other);
    assert_eq!(used(tree, "/project").await, (100, 3));
    tree.sync_all().await.unwrap();
    // The volume's.
    tree.set_quota(ROOT, limits(Some(500), None)).await.unwrap();
    let outside = make(tree, &root, "outside", FILE).await.unwrap();
    tree.promise_size(&outside, 400).await.unwrap();
    assert_eq!(kind(tree.promise_size(&file, 101).await), Err(ErrorKind::NoSpace));
    assert_eq!(used(tree, "/").await, (500, 5));
    // From one project to another.
    for (from, to) in [(&root, &project), (&project, &root)] {
        let moved = if from.ino == ROOT { "outside" } else { "file" };
        let renamed =
            tree.rename(ObjectId(from.ino), name(moved), ObjectId(to.ino), name("x"), RenameFlags::empty());
        assert_eq!(kind(renamed.await), Err(ErrorKind::CrossDevice));
        let linked = if from.ino == ROOT { &outside } else { &file };
        let linked = tree.link(ObjectId(linked.ino), ObjectId(to.ino), name("x")).await;
        assert_eq!(linked.unwrap_err().kind(), ErrorKind::CrossDevice);
    }
    tree.rename(ObjectId(ROOT), name("project"), ObjectId(ROOT), name("moved"), RenameFlags::empty())
        .await
        .unwrap();
    drop(outside);
    assert_counted(tree).await;
    mounted.close().await;
    let mounted = open(&objects, 2).await;
    let tree = mounted.tree();
    assert_eq!(used(tree, "/moved").await, (100, 3));
    let project = dir(tree, "/moved").await;
    assert_eq!(make(tree, &project, "third", FILE).await.unwrap_err().kind(), ErrorKind::Quota);
    // Deleted, and its directory removed.
    tree.delete_quota(project.ino).await.unwrap();
    assert_eq!(tree.quota(project.ino).await.unwrap_err().kind(), ErrorKind::NoAttribute);
    make(tree, &project, "third", FILE).await.unwrap();
    tree.set_quota(project.ino, limits(None, Some(9))).await.unwrap();
    for file in ["file", "other", "third"] {
        tree.remove(ObjectId(project.ino), name(file), false).await.unwrap();
    }
    tree.remove(ObjectId(ROOT), name("moved"), true).await.unwrap();
    drop(project);
    while tree.totals.lock().inodes > 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(tree.quotas.all().keys().copied().collect::<Vec<_>>(), [VOLUME]);
    assert_counted(tree).await;
    assert_eq!(used(tree, "/").await, (0, 2));
    mounted.close().await;
}

/// What was accepted while there was no quota, and has come to the store in part, counts for the first.
#[tokio::test]
async fn what_was_accepted_before_the_first_quota_counts() {
    let mounted = open(&Arc::default(), 1).await;
    let tree = mounted.tree();
    let project = make(tree, &tree.pin(ROOT), "project", NewNode::Directory).await.unwrap();
    let file = make(tree, &project, "file", FILE).await.unwrap();
    let cut = make(tree, &project, "cut", FILE).await.unwrap();
    tree.promise_size(&file, 5000).await.unwrap();
    tree.write_at(&file, &[IoSlice::new(&[1; 600])], 0).await.unwrap();
    tree.promise_size(&cut, 900).await.unwrap();
    tree.set_size(&cut, 100).await.unwrap();
    tree.set_quota(project.ino, limits(Some(5200), None)).await.unwrap();
    assert_eq!(used(tree, "/project").await, (5100, 3), "what was accepted is not counted");
    assert_eq!(tree.promise_size(&cut, 201).await.unwrap_err().kind(), ErrorKind::Quota);
    tree.promise_size(&cut, 200).await.unwrap();
    tree.write_at(&file, &[IoSlice::new(&[1; 4400])], 600).await.unwrap();
    assert_eq!(used(tree, "/project").await, (5200, 3));
    // What was promised and does not come makes room.
    drop((file, cut));
    assert_eq!(used(tree, "/project").await, (5100, 3));
    assert_counted(tree).await;
    // A limit that is exceeded from the start: what was accepted is taken, and no more.
    let file = tree.child(project.ino, "file".as_ref(), "test").await.unwrap();
    tree.promise_size(&file, 5050).await.unwrap();
    tree.set_quota(project.ino, limits(Some(1000), None)).await.unwrap();
    tree.write_at(&file, &[IoSlice::new(&[1; 50])], 5000).await.unwrap();
    assert_eq!(tree.promise_size(&file, 5051).await.unwrap_err().kind(), ErrorKind::Quota);
    assert_counted(tree).await;
    mounted.close().await;
}

/// A file that was removed, and is in use, goes with its quota to that above.
#[tokio::test]
async fn a_removed_file_in_use_leaves_a_quota_that_goes() {
    let mounted = open(&Arc::default(), 1).await;
    let tree = mounted.tree();
    let project = make(tree, &tree.pin(ROOT), "project", NewNode::Directory).await.unwrap();
    tree.set_quota(project.ino, limits(Some(1000), None)).await.unwrap();
    let file = make(tree, &project, "file", FILE).await.unwrap();
    tree.write_at(&file, &[IoSlice::new(&[1; 600])], 0).await.unwrap();
    tree.remove(ObjectId(project.ino), name("file"), false).await.unwrap();
    assert_eq!(used(tree, "/project").await, (600, 2), "it counts until it is closed");
    tree.delete_quota(project.ino).await.unwrap();
    tree.set_quota(project.ino, limits(Some(1000), None)).await.unwrap();
    assert_eq!(used(tree, "/project").await, (0, 1));
    tree.write_at(&file, &[IoSlice::new(&[1; 600])], 600).await.unwrap();
    drop(file);
    assert_counted(tree).await;
    assert_eq!(used(tree, "/project").await, (0, 1));
    mounted.close().await;
}

/// A whiteout that may not be made leaves all as it was.
#[tokio::test]
async fn a_rename_whose_whiteout_is_refused_changes_nothing() {
    let mounted = open(&Arc::default(), 1).await;
    let tree = mounted.tree();
    let (root, flags) = (ObjectId(ROOT), RenameFlags::WHITEOUT);
    let sub = make(tree, &tree.pin(ROOT), "sub", NewNode::Directory).await.unwrap();
    tree.set_quota(ROOT, limits(None, Some(2))).await.unwrap();
    let renamed = tree.rename(root, name("sub"), root, name("to"), flags).await;
    assert_eq!(renamed.unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(tree.lookup(root, name("sub")).await.unwrap().id.0, sub.ino);
    tree.forget(sub.ino, 1);
    tree.set_quota(ROOT, limits(None, Some(3))).await.unwrap();
    tree.rename(root, name("sub"), root, name("to"), flags).await.unwrap();
    assert_eq!(used(tree, "/").await, (0, 3));
    assert_counted(tree).await;
    mounted.close().await;
}

/// Writers that grow files at a time, by promises and without, are together within the limit.
#[tokio::test]
async fn limits_hold_under_parallel_writers() {
    let mounted = open(&Arc::default(), 1).await;
    let tree = mounted.tree();
    let project = make(tree, &tree.pin(ROOT), "project", NewNode::Directory).await.unwrap();
    tree.set_quota(project.ino, limits(Some(50_000), Some(20))).await.unwrap();
    let writer = async |number: u64| {
        let Ok(file) = make(tree, &project, &number.to_string(), FILE).await else { return 0 };
        let mut size = 0;
        for _ in 0..10 {
            if number.is_multiple_of(2) && tree.promise_size(&file, size + 700).await.is_err() {
                continue;
            }
            if tree.write_at(&file, &[IoSlice::new(&[1; 700])], size).await.is_ok() {
                size += 700;
            } else {
                assert!(!number.is_multiple_of(2), "what was promised is refused");
            }
            if number.is_multiple_of(5) {
                tree.sync_file(&file).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
        size
    };
    let written = futures_util::future::join_all((0..30).map(writer)).await;
    let files = written.iter().filter(|size| **size > 0).count();
    let bytes: u64 = written.iter().sum();
    assert!(files <= 19 && bytes <= 50_000, "a limit was exceeded: {files} files, {bytes} bytes");
    assert!(bytes > 49_000 && tree.sync_all().await.is_ok());
    assert_eq!(used(tree, "/project").await, (bytes, 20));
    drop(project);
    assert_counted(tree).await;
    mounted.close().await;
}

/// Operations by a seed, quotas that come and go, crashes and takeovers: usage is what is there.
#[tokio::test]
async fn usage_is_what_is_there_whatever_happens() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let objects = Arc::<InMemory>::default();
        for life in 1..4 {
            let mounted = open(&objects, life).await;
            let tree = mounted.tree();
            tree.clone().finish_quotas().await;
            // What was interrupted in an earlier life is counted now.
            assert_counted(tree).await;
            for _ in 0..60 {
                step(tree, &mut random).await;
            }
            if random.below(2) == 0 {
                assert_counted(tree).await;
                mounted.close().await;
            } else {
                // Some of it is in the bucket.
                tree.engine.commit().await.unwrap();
                let walks = dir(tree, "/").await;
                let walk = tree.set_quota(walks.ino, limits(Some(1 << 30), None));
                let _interrupted = tokio::time::timeout(std::time::Duration::from_micros(300), walk).await;
                mounted.abort();
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

/// One step in a tree of few names; what cannot be done is left.
async fn step(tree: &Arc<Tree>, random: &mut Random) {
    let dirs = ["/", "/d0", "/d1", "/d0/d0", "/d0/d1", "/d1/d0"];
    let at = dirs[usize::try_from(random.below(6)).unwrap()];
    let Ok(dir) = tree.directory_at(Path::new(at)).await else { return };
    let to = dirs[usize::try_from(random.below(6)).unwrap()];
    let to = tree.directory_at(Path::new(to)).await;
    let id = ObjectId(dir.ino);
    let (file, sub) = (format!("f{}", random.below(4)), format!("d{}", random.below(2)));
    let (file, sub) = (name(&file), name(&sub));
    let found = tree.child(dir.ino, file.as_os_str(), "test").await;
    let _what_cannot_be = match (random.below(14), found) {
        (0..2, _) => make(tree, &dir, &sub.as_os_str().to_string_lossy(), NewNode::Directory).await.map(drop),
        (2..4, Err(_)) => make(tree, &dir, &file.as_os_str().to_string_lossy(), FILE).await.map(drop),
        (4, _) => tree.remove(id, file, false).await,
        (5, _) => tree.remove(id, sub, true).await,
        (6, _) => {
            let Ok(to) = to else { return };
            let flags = if random.below(3) == 0 { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
            let (from, into) = if random.below(3) == 0 { (sub, sub) } else { (file, file) };
            tree.rename(id, from, ObjectId(to.ino), into, flags).await
        }
        (7, Ok(pin)) => {
            let Ok(to) = to else { return };
            tree.link(ObjectId(pin.ino), ObjectId(to.ino), file).await.map(|entry| tree.forget(entry.id.0, 1))
        }
        (8, Ok(pin)) => tree.set_size(&pin, random.below(3000)).await,
        (9, _) => {
            tree.set_quota(dir.ino, limits(Some(random.below(20_000)), Some(3 + random.below(20)))).await
        }
        (10, _) => tree.delete_quota(dir.ino).await,
        (11, Ok(pin)) => tree.promise_size(&pin, random.below(3000)).await,
        (12, Ok(pin)) => tree.sync_file(&pin).await,
        (_, Ok(pin)) => {
            let len = usize::try_from(random.below(2000)).unwrap();
            tree.write_at(&pin, &[IoSlice::new(&vec![1; len])], random.below(2000)).await
        }
        _ => Ok(()),
    };
}

#[cfg(shuttle)]
#[test]
fn quotas_that_do_not_hold_are_caught() {
    use sync::mutant::assert_caught;
    let exceeded = "a limit was exceeded";
    assert_caught(
        "quota_walks::schedules::limits_hold_under_parallel_writers",
        &["quota-not-held"],
        exceeded,
    );
    assert_caught(
        "quota_walks::schedules::what_was_accepted_before_the_first_quota_counts",
        &["quota-forgets-accepted"],
        "what was accepted is not counted",
    );
    let test = "quota_walks::schedules::usage_is_what_is_there_whatever_happens";
    assert_caught(test, &["quota-removed-counts"], "is not what is there");
}

/// Two directories that name each other: a walk comes to each once.
#[tokio::test]
async fn a_walk_ends_though_rows_are_damaged() {
    let mounted = open(&Arc::new(InMemory::new()), 1).await;
    let tree = mounted.tree();
    let root = tree.pin(ROOT);
    let project = make(tree, &root, "project", NewNode::Directory).await.unwrap();
    let outer = make(tree, &project, "outer", NewNode::Directory).await.unwrap();
    let inner = make(tree, &outer, "inner", NewNode::Directory).await.unwrap();
    make(tree, &inner, "file", FILE).await.unwrap();
    let mut batch = Batch::default();
    for (again, ino) in [("again", outer.ino), ("top", project.ino)] {
        let entry = EntryRow { ino, kind: crate::rows::Kind::Directory };
        batch.put(rows::entry_key(inner.ino, again.as_ref()), to_bytes(&entry));
    }
    tree.engine.write(batch).await.unwrap();
    let set = tree.set_quota(project.ino, limits(None, Some(9)));
    tokio::time::timeout(std::time::Duration::from_secs(60), set).await.expect("the walk ends").unwrap();
    assert_eq!(used(tree, "/project").await, (0, 4));
    mounted.close().await;
}

/// A new limit of a quota whose deletion was interrupted is there afterwards.
#[tokio::test]
async fn a_quota_is_set_anew_where_its_deletion_was_interrupted() {
    let mounted = open(&Arc::new(InMemory::new()), 1).await;
    let tree = mounted.tree();
    let root = tree.pin(ROOT);
    let project = make(tree, &root, "project", NewNode::Directory).await.unwrap();
    make(tree, &project, "file", FILE).await.unwrap();
    tree.set_quota(project.ino, limits(None, Some(9))).await.unwrap();
    tree.put_quota(project.ino, QuotaLimits::default(), Progress::Leaving).await.unwrap();
    tree.set_quota(project.ino, limits(None, Some(5))).await.unwrap();
    assert_eq!(used(tree, "/project").await, (0, 2));
    assert_eq!(tree.quota(project.ino).await.unwrap().inodes, Some(5));
    mounted.close().await;
}

#[test]
fn a_path_that_is_no_text_is_shown_all_the_same() {
    let path = PathBuf::from(OsStr::from_bytes(b"/a\xff"));
    let info = QuotaInfo { path, bytes: None, inodes: None, used_bytes: 0, used_inodes: 1, is_counted: true };
    assert!(serde_json::to_string(&info).unwrap().contains("/a\u{fffd}"));
}
