//! Rows that are wrong, one kind after another: each is found, mended, and nothing else changes.

use bytes::Bytes;

use super::super::damage::{Damage, Findings};
use super::super::mend::Mender;
use super::super::{inodes, usage};
use super::*;
use crate::engine::Batch;
use crate::rows::{
    Extent, ExtentRow, InodeRow, Object, Totals, Usage, entry_key, extent_key, inode_key, live_key,
    orphan_key, to_bytes, xattr_key,
};

/// Writes rows as no call does.
pub(in crate::fsck) async fn damage(mounted: &Mounted, rows: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::default();
    rows(&mut batch);
    mounted.tree().engine.write(batch).await.unwrap();
    mounted.tree().engine.commit().await.unwrap();
}

pub(super) fn put_name(batch: &mut Batch, name: &str, ino: u64, kind: Kind) {
    batch.put(entry_key(ROOT.0, name.as_ref()), to_bytes(&EntryRow { ino, kind }));
}

/// The inodes that [`fill`] makes.
#[derive(Debug, Clone, Copy)]
struct Inodes {
    small: u64,
    large: u64,
    dir: u64,
    below: u64,
}

async fn inodes_of(tree: &Arc<Tree>) -> Inodes {
    Inodes {
        small: ino_at(tree, "small").await,
        large: ino_at(tree, "large").await,
        dir: ino_at(tree, "dir").await,
        below: ino_at(tree, "dir/below").await,
    }
}

/// A volume whose rows were damaged: what is found, and what files there are after a repair beside
/// those that were there before.
async fn case(
    what: &[&str],
    rows: impl AsyncFnOnce(&mut Batch, Inodes, &Arc<Tree>),
) -> (World, BTreeMap<String, Option<Vec<u8>>>, Inodes) {
    let world = World::new().await;
    let mounted = world.open().await;
    let inodes = inodes_of(mounted.tree()).await;
    let mut batch = Batch::default();
    rows(&mut batch, inodes, mounted.tree()).await;
    damage(&mounted, |to| *to = batch).await;
    // As a crash leaves it: the next mount would act on the rows.
    mounted.tree().engine.close().await.unwrap();
    let checked = world.check().await;
    assert_eq!(whats(&checked), what, "{checked:#?}");
    assert!(!checked.whole);
    world.assert_mended().await;
    let files = world.files().await;
    (world, files, inodes)
}

async fn undamaged() -> BTreeMap<String, Option<Vec<u8>>> {
    World::new().await.files().await
}

async fn row_of(tree: &Arc<Tree>, ino: u64) -> InodeRow {
    tree.load(ino).await.unwrap().0
}

/// A row of an inode with a change.
async fn changed(tree: &Arc<Tree>, ino: u64, change: impl FnOnce(&mut InodeRow)) -> (Vec<u8>, Bytes) {
    let mut row = row_of(tree, ino).await;
    change(&mut row);
    (inode_key(ino), to_bytes(&row))
}

#[tokio::test]
async fn what_is_counted_wrongly_is_counted() {
    let before = undamaged().await;
    let counts = ["links", "links", "links", "allocated", "usage", "totals"];
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    let world = World::new().await;
    let mounted = world.open().await;
    let tree = mounted.tree();
    let Inodes { small, large, dir, .. } = inodes_of(tree).await;
    let mut batch = Batch::default();
    for (ino, nlink) in [(small, 7), (dir, 0), (ROOT.0, 9)] {
        let (key, row) = changed(tree, ino, |row| row.nlink = nlink).await;
        batch.put(key, row);
    }
    let (key, row) = changed(tree, large, |row| row.allocated += 1).await;
    batch.put(key, row);
    batch.totals = Totals { bytes: -5, inodes: 3 };
    let extent = tree.extents(large, (0, 1), 1).await.unwrap().remove(0);
    batch.usage.insert(extent.row.data.unwrap().0.object, Usage { live: 17, written: 0 });
    damage(&mounted, |to| *to = batch).await;
    mounted.tree().engine.close().await.unwrap();
    let checked = world.check().await;
    let mut found = whats(&checked);
    found.sort_unstable();
    assert_eq!(found, sorted, "{checked:#?}");
    let small = checked.findings.iter().find(|finding| finding.inode == Some(small)).unwrap();
    assert!(small.path.is_some() && small.detail.contains("is 7, and should be 2"), "{small:?}");
    world.assert_mended().await;
    assert_eq!(world.files().await, before);
    let mounted = world.open().await;
    crate::garbage::tests::assert_counted(mounted.tree()).await.unwrap();
    assert_eq!(row_of(mounted.tree(), dir).await.nlink, 3);
    mounted.close().await;
}

#[tokio::test]
async fn names_of_nothing_go_and_wrong_kinds_are_set() {
    let before = undamaged().await;
    let (_, files, _) = case(&["name", "name", "name", "links"], async |batch, inodes, _| {
        put_name(batch, "gone", 99, Kind::Regular);
        put_name(batch, "gone-too", 98, Kind::Directory);
        put_name(batch, "large", inodes.large, Kind::Symlink);
    })
    .await;
    assert_eq!(files, before);
}

#[tokio::test]
async fn names_that_cannot_be_go_and_what_they_named_is_found_again() {
    let (_, files, inodes) = case(&["name", "name", "links"], async |batch, inodes, _| {
        batch.delete(entry_key(ROOT.0, "large".as_ref()));
        put_name(batch, "a/b", inodes.large, Kind::Regular);
        // In a file.
        batch.put(
            entry_key(inodes.small, "inside".as_ref()),
            to_bytes(&EntryRow { ino: inodes.large, kind: Kind::Regular }),
        );
    })
    .await;
    assert_eq!(files[&format!("/lost+found/#{}", inodes.large)], Some(vec![2; LARGE]), "{:?}", files.keys());
}

#[tokio::test]
async fn what_has_no_name_gets_one_with_all_that_is_below() {
    let (world, files, inodes) = case(&["unnamed", "unnamed"], async |batch, _, tree| {
        batch.delete(entry_key(ROOT.0, "large".as_ref()));
        batch.delete(entry_key(ROOT.0, "dir".as_ref()));
        let (key, row) = changed(tree, ROOT.0, |row| row.nlink -= 1).await;
        batch.put(key, row);
    })
    .await;
    let Inodes { large, dir, .. } = inodes;
    assert_eq!(files[&format!("/lost+found/#{large}")], Some(vec![2; LARGE]), "{:?}", files.keys());
    assert_eq!(files[&format!("/lost+found/#{dir}/second")], Some(vec![1; 5000]));
    assert!(files.contains_key(&format!("/lost+found/#{dir}/below/")));
    let mounted = world.open().await;
    let found = row_of(mounted.tree(), ino_at(mounted.tree(), "lost+found").await).await;
    assert_eq!((found.perm, found.uid, found.nlink), (0o700, 0, 3), "it is root's alone");
    mounted.close().await;
}

/// A mount would remove it.
#[tokio::test]
async fn what_is_marked_to_be_removed_and_has_a_name_stays() {
    let before = undamaged().await;
    let (_, files, _) = case(&["orphan"], async |batch, inodes, _| {
        batch.put(orphan_key(inodes.large), Bytes::new());
    })
    .await;
    assert_eq!(files, before);
}

#[tokio::test]
async fn rows_of_nothing_go() {
    let before = undamaged().await;
    let (_, files, _) = case(&["row", "rows", "rows", "row"], async |batch, inodes, _| {
        batch.put(xattr_key(77, "user.x".as_ref()), Bytes::from_static(b"x"));
        batch.put(orphan_key(77), Bytes::new());
        batch.put(b"I!".to_vec(), Bytes::from_static(b"what"));
        batch.put(entry_key(inodes.dir, "unreadable".as_ref()), Bytes::from_static(b"\xff"));
    })
    .await;
    assert_eq!(files, before);
}

/// Its data and its names are there still.
#[tokio::test]
async fn an_inode_that_is_missing_or_unreadable_is_made_of_what_there_is() {
    let before = undamaged().await;
    let (world, files, inodes) = case(&["inode", "inode", "totals"], async |batch, inodes, _| {
        batch.delete(inode_key(inodes.large));
        batch.put(inode_key(inodes.dir), Bytes::from_static(b"\xff\xff"));
    })
    .await;
    assert_eq!(files, before);
    let mounted = world.open().await;
    let row = row_of(mounted.tree(), inodes.large).await;
    assert_eq!((row.perm, row.uid, row.size), (0o600, 0, LARGE as u64), "it is root's alone");
    mounted.close().await;
    // The root as well.
    let (_, files, _) = case(&["inode", "totals"], async |batch, _, _| batch.delete(inode_key(ROOT.0))).await;
    assert_eq!(files, before);
    // One that has nothing is not there.
    let (_, files, _) = case(&["row"], async |batch, inodes, _| {
        batch.put(inode_key(inodes.below), Bytes::from_static(b"\xff\xff"));
    })
    .await;
    assert!(!files.contains_key("/dir/below/") && files.len() == before.len() - 1);
}

#[tokio::test]
async fn a_directory_is_where_its_name_is_and_has_one() {
    let before = undamaged().await;
    let (_, files, _) = case(&["parent"], async |batch, inodes, tree| {
        let (key, row) = changed(tree, inodes.below, |row| row.parent = 12345).await;
        batch.put(key, row);
    })
    .await;
    assert_eq!(files, before);
    let (_, files, _) = case(&["links", "name", "name"], async |batch, inodes, _| {
        put_name(batch, "another", inodes.below, Kind::Directory);
        put_name(batch, "up", ROOT.0, Kind::Directory);
    })
    .await;
    assert_eq!(files, before);
}

#[tokio::test]
async fn directories_that_lie_in_one_another_are_brought_to_the_light() {
    let (_, files, inodes) = case(&["unreachable"], async |batch, inodes, tree| {
        // `dir` lies in `below`, which lies in `dir`.
        batch.delete(entry_key(ROOT.0, "dir".as_ref()));
        let entry = EntryRow { ino: inodes.dir, kind: Kind::Directory };
        batch.put(entry_key(inodes.below, "dir".as_ref()), to_bytes(&entry));
        for (ino, by) in [(ROOT.0, -1), (inodes.below, 1)] {
            let (key, row) = changed(tree, ino, |row| row.nlink = row.nlink.saturating_add_signed(by)).await;
            batch.put(key, row);
        }
        let (key, row) = changed(tree, inodes.dir, |row| row.parent = inodes.below).await;
        batch.put(key, row);
    })
    .await;
    let dir = inodes.dir;
    assert_eq!(files[&format!("/lost+found/#{dir}/second")], Some(vec![1; 5000]), "{:?}", files.keys());
}

#[tokio::test]
async fn extents_that_overlap_are_cut_and_what_is_read_stays() {
    let before = undamaged().await;
    let (_, files, _) = case(&["overlap", "allocated", "totals", "usage"], async |batch, inodes, tree| {
        let extent = tree.extents(inodes.large, (0, 1), 1).await.unwrap().remove(0);
        let part: Extent = extent.part(1000, 5000);
        batch.put(extent_key(inodes.large, 5000), to_bytes(&part.row));
    })
    .await;
    assert_eq!(files, before);
}

#[tokio::test]
async fn a_row_of_an_extent_that_cannot_be_read_stays_an_error() {
    let world = World::new().await;
    let mounted = world.open().await;
    let large = ino_at(mounted.tree(), "large").await;
    damage(&mounted, |batch| {
        batch.put(extent_key(large, LARGE as u64), Bytes::from_static(b"\xff"));
        batch.put(extent_key(large, 1 << 40), to_bytes(&ExtentRow { len: 1 << 41, data: None }));
    })
    .await;
    mounted.tree().engine.close().await.unwrap();
    for checked in [world.check().await, world.repair().await] {
        assert_eq!(whats(&checked), ["extent"], "{checked:#?}");
        assert_eq!(checked.findings[0].path.as_deref(), Some("/large"));
        assert!(!checked.whole && !checked.findings[0].mended);
    }
    let files = world.files().await;
    assert_eq!(files["/large"], None, "no zeros are read instead");
    assert_eq!(files["/small"], Some(vec![1; 5000]));
}

/// Windows of two inodes and of one object find what one large window finds.
#[tokio::test]
async fn memory_is_bounded_by_windows_which_find_the_same() {
    let world = World::new().await;
    let mounted = world.open().await;
    let tree = mounted.tree();
    let Inodes { small, large, dir, below } = inodes_of(tree).await;
    for ino in [small, below] {
        let (key, row) = changed(tree, ino, |row| row.nlink = 9).await;
        damage(&mounted, |batch| batch.put(key, row)).await;
    }
    damage(&mounted, |batch| {
        put_name(batch, "gone", 99, Kind::Regular);
        put_name(batch, "gone-too", u64::MAX, Kind::Regular);
        put_name(batch, "another", dir, Kind::Directory);
        batch.delete(entry_key(ROOT.0, "large".as_ref()));
        batch.put(live_key(Object::Segment(77, 1)), to_bytes(&Usage { live: 3, written: 3 }));
        batch.put(live_key(Object::Log(1)), to_bytes(&Usage { live: 3, written: 3 }));
    })
    .await;
    let engine = &*tree.engine;
    let steps = Steps(Arc::new(|_, _| {}));
    let check = async |window: usize| {
        let mut found = Findings::new(1000);
        let counted = inodes::check(engine, window, &steps, &mut found).await.unwrap();
        usage::check(engine, window.div_ceil(2), &mut found).await.unwrap();
        let mut found: Vec<_> = found.kept.iter().map(|damage| format!("{damage:?}")).collect();
        found.sort_unstable();
        (counted, found)
    };
    let at_once = check(1000).await;
    assert!(at_once.1.len() >= 8, "{at_once:#?}");
    assert!(at_once.1.iter().any(|found| found.contains(&format!("NoName {{ ino: {large} }}"))));
    for window in 1..5 {
        assert_eq!(check(window).await, at_once, "windows of {window}");
    }
    mounted.abort();
}

/// A repair that is killed after any of its steps goes on with the next one.
#[tokio::test]
async fn a_repair_that_is_killed_leaves_no_more_to_do() {
    let mut killed_after = 0;
    loop {
        let world = World::new().await;
        let mounted = world.open().await;
        let tree = mounted.tree();
        let Inodes { small, large, dir, .. } = inodes_of(tree).await;
        damage(&mounted, |batch| {
            batch.delete(entry_key(ROOT.0, "dir".as_ref()));
            batch.delete(entry_key(ROOT.0, "large".as_ref()));
            put_name(batch, "gone", 99, Kind::Regular);
            batch.put(inode_key(small), Bytes::from_static(b"\xff"));
        })
        .await;
        tree.engine.close().await.unwrap();
        let mounted = world.open_as(true).await;
        let mut mender = Mender::new(Arc::clone(mounted.tree()));
        let (mut steps, mut is_done) = (0, false);
        while steps < killed_after {
            let mut found = Findings::new(1000);
            let none = Steps(Arc::new(|_, _| {}));
            inodes::check(&*mounted.tree().engine, 1000, &none, &mut found).await.unwrap();
            let round = found.kept.iter().filter_map(Damage::round).min();
            let Some(next) = found.kept.iter().find(|damage| damage.round() == round) else {
                is_done = true;
                break;
            };
            mender.mend(next).await.unwrap();
            steps += 1;
        }
        mounted.tree().engine.commit().await.unwrap();
        mounted.abort();
        let repaired = world.repair().await;
        assert!(repaired.whole, "{repaired:#?}");
        assert!(world.check_data().await.whole);
        let files = world.files().await;
        assert_eq!(files[&format!("/lost+found/#{large}")], Some(vec![2; LARGE]), "{:?}", files.keys());
        assert_eq!(files[&format!("/lost+found/#{dir}/second")], Some(vec![1; 5000]));
        assert_eq!(files["/small"], Some(vec![1; 5000]));
        if is_done {
            assert!(killed_after > 5, "{killed_after}");
            break;
        }
        killed_after += 1;
    }
}

#[tokio::test]
async fn what_lost_its_name_does_not_go_into_another_user_s_directory() {
    let (_, files, inodes) = case(&["unnamed"], async |batch, _, tree| {
        let set = store::SetAttr { uid: Some(1000), ..store::SetAttr::default() };
        let what = store::NewNode::Directory;
        let creator = Creator { uid: 0, gid: 0, umask: 0 };
        let made = tree.make(ROOT, name("lost+found"), what, 0o777, creator).await.unwrap();
        tree.set_attr(made.id, &set).await.unwrap();
        tree.sync_all().await.unwrap();
        batch.delete(entry_key(ROOT.0, "large".as_ref()));
    })
    .await;
    assert!(files.contains_key(&format!("/lost+found.1/#{}", inodes.large)), "{:?}", files.keys());
}

/// Whatever else is wrong: what decides how a check and a repair go on is kept.
#[test]
fn the_first_damage_of_each_kind_is_kept() {
    let mut found = Findings::new(1);
    (2..5).for_each(|ino| found.add(Damage::NoName { ino }));
    found.add(Damage::Metadata { why: "a table is gone".to_owned() });
    let kept: Vec<_> = found.kept.iter().map(Damage::word).collect();
    assert_eq!((kept, found.more), (vec!["unnamed", "metadata"], 2));
}

#[tokio::test]
async fn what_is_used_of_quotas_is_summed_anew_and_projects_stay() {
    use crate::quotas::QuotaLimits;
    use crate::quotas::VOLUME;
    use crate::rows::{inode_to_bytes, quota_key, usage_key};
    let world = World::new().await;
    let mounted = world.open().await;
    let Inodes { dir, below, .. } = inodes_of(mounted.tree()).await;
    let limits = QuotaLimits { bytes: Some(1 << 40), inodes: Some(1000) };
    mounted.set_quota(dir, limits).await.unwrap();
    mounted.tree().engine.commit().await.unwrap();
    let whole = world.check().await;
    assert!(whole.whole, "{whole:#?}");
    let row = InodeRow { nlink: 7, ..row_of(mounted.tree(), below).await };
    damage(&mounted, |batch| {
        batch.put(inode_key(below), inode_to_bytes(&row, Some(dir)));
        batch.put(usage_key(dir), to_bytes(&Totals { bytes: 1, inodes: -1 }));
        batch.put(usage_key(VOLUME), Bytes::from_static(&[0x80]));
        batch.put(quota_key(99), Bytes::from_static(&[9]));
    })
    .await;
    mounted.tree().engine.close().await.unwrap();
    let checked = world.check().await;
    assert_eq!(whats(&checked), ["row", "quota", "quota", "links"], "{checked:#?}");
    world.assert_mended().await;
    let mounted = world.open().await;
    let used = mounted.tree().quota(dir).await.unwrap();
    assert_eq!((used.used_inodes, used.used_bytes), (3, 5000), "{used:?}");
    mounted.close().await;
}
