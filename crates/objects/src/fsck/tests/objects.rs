//! Objects of the bucket that are missing or damaged, but for the log's tail.

use store::ErrorKind;

use super::*;
use crate::lease::Lease;
use crate::newest_manifest::newest_manifest;
use crate::object_names::object_name;

async fn first(world: &World, dir: &str) -> String {
    world.names(dir).await.remove(0)
}

#[tokio::test]
async fn without_its_format_nothing_is_a_volume() {
    let world = World::new().await;
    world.put("format", &b"{}"[..]).await;
    let before = world.everything().await;
    let error = format::read(&world.bucket()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("put the object back"), "{error}");
    assert_eq!(world.everything().await, before);
}

#[tokio::test]
async fn a_lease_that_is_missing_or_damaged_is_made_anew() {
    for damaged in [None, Some(&b"garbage"[..]), Some(&[b'x'; 100_000][..])] {
        let world = World::new().await;
        let before = world.files().await;
        match damaged {
            None => world.delete("lease").await,
            Some(bytes) => world.put("lease", bytes).await,
        }
        let checked = world.check().await;
        assert_eq!(whats(&checked), ["lease"], "{checked:#?}");
        let repaired = world.assert_mended().await;
        let notes = repaired.repair.unwrap().notes;
        assert!(notes.last().unwrap().contains("loses it"), "{notes:?}");
        if let Some(bytes) = damaged {
            assert_eq!(world.get("damaged/lease").await, bytes);
        }
        let lease = Lease::read(&world.bucket()).await.unwrap().unwrap();
        let last = newest_manifest(&world.bucket()).await.unwrap().unwrap();
        assert!(lease.holder.is_none() && lease.epoch >= last.epoch, "{lease:?}, {last:?}");
        assert_eq!(world.files().await, before);
    }
}

/// A journal may have what was acknowledged and is not in the bucket.
#[tokio::test]
async fn a_damaged_lease_that_names_a_journal_is_left_alone() {
    let world = World::new().await;
    world.put("lease", &br#"{"version":1,"journal":{"host":"a""#[..]).await;
    let before = world.everything().await;
    let error = run(&world.volume(false).await, true).await.unwrap_err();
    assert!(error.to_string().contains("names a journal"), "{error}");
    assert_eq!(world.everything().await, before);
}

/// The object that has the data of a file.
async fn object_of(world: &World, path: &str) -> String {
    let mounted = world.open().await;
    let ino = ino_at(mounted.tree(), path).await;
    let extent = mounted.tree().extents(ino, (0, 1), 1).await.unwrap().remove(0);
    mounted.close().await;
    object_name(extent.row.data.unwrap().0.object)
}

/// Data is never made up: what is lost is named, reads as an error, and may be put back.
#[tokio::test]
async fn an_object_with_data_that_is_missing_cut_or_changed_is_named() {
    for (dir, path) in [("seg", "/large"), ("log", "/small")] {
        for how in ["missing", "cut", "flip"] {
            let world = World::new().await;
            let before = world.files().await;
            let name = object_of(&world, &path[1..]).await;
            assert!(name.starts_with(dir), "{name}");
            let kept = world.get(&name).await;
            match how {
                "missing" => world.delete(&name).await,
                "cut" => world.put(&name, kept.slice(..66)).await,
                _ => world.flip(&name, 70).await,
            }
            let damaged = world.everything().await;
            let checked = world.check().await;
            assert_eq!(checked.whole, how == "flip", "a flipped bit is found by reading: {checked:#?}");
            let checked = world.check_data().await;
            let found = &checked.findings[0];
            assert!(found.what == "data" && found.object.as_deref() == Some(&*name), "{checked:#?}");
            let paths: Vec<_> = checked.findings.iter().filter_map(|found| found.path.as_deref()).collect();
            assert!(paths == [path] || paths == ["/dir/second"], "{checked:#?}");
            let repaired = world.repair().await;
            assert!(!repaired.whole && repaired.repair.as_ref().unwrap().mended == 0, "{repaired:#?}");
            assert_eq!(world.everything().await, damaged, "there is nothing to mend");
            let files = world.files().await;
            assert_eq!(files[path], None, "{how} {dir}: it reads as an error");
            let others = |files: &BTreeMap<String, Option<Vec<u8>>>| {
                let is_other =
                    |file: &&String| !paths.contains(&&***file) && *file != path && *file != "/dir/second";
                files.keys().filter(is_other).map(|file| files[file].clone()).collect::<Vec<_>>()
            };
            assert_eq!(others(&files), others(&before));
            world.put(&name, kept).await;
            assert!(world.check_data().await.whole, "it was put back");
            assert_eq!(world.files().await, before);
        }
    }
}

/// Rows that are wrong are mended beside data that is lost, which stays an error.
#[tokio::test]
async fn rows_are_mended_where_data_is_lost_too() {
    let world = World::new().await;
    let mounted = world.open().await;
    rows::damage(&mounted, |batch| rows::put_name(batch, "gone", 99, Kind::Regular)).await;
    mounted.close().await;
    world.delete(&first(&world, "seg").await).await;
    let repaired = world.repair().await;
    let mended: Vec<_> = repaired.findings.iter().map(|found| (&*found.what, found.mended)).collect();
    assert_eq!(mended, [("name", true), ("data", false)], "{repaired:#?}");
    assert_eq!(whats(&world.check().await), ["data"]);
    let files = world.files().await;
    assert_eq!(files["/large"], None);
    assert!(!files.contains_key("/gone"));
}

/// What rests on a damaged manifest or table cannot be known: nothing is touched.
#[tokio::test]
async fn a_damaged_manifest_or_table_is_refused_with_what_is_left_to_do() {
    for (dir, how) in [
        ("meta/manifest", "cut"),
        ("meta/manifest", "all gone"),
        ("meta/compacted", "gone"),
        ("meta/compacted", "flip"),
        ("meta/compacted", "cut"),
    ] {
        let world = World::new().await;
        let names = world.names(dir).await;
        let name = names.last().unwrap();
        let bytes = world.get(name).await;
        match how {
            "flip" => world.flip(name, bytes.len() / 3).await,
            "cut" => world.put(name, bytes.slice(..bytes.len() / 2)).await,
            "gone" => world.delete(name).await,
            _ => {
                for name in &names {
                    world.delete(name).await;
                }
            }
        }
        let before = world.everything().await;
        let checked = world.check().await;
        assert!(!checked.whole && whats(&checked).contains(&"metadata"), "{dir} {how}: {checked:#?}");
        let repaired = world.repair().await;
        let refused = repaired.repair.unwrap().refused.unwrap();
        for part in ["nothing was touched", "put the object back", "clone of a snapshot"] {
            assert!(refused.contains(part), "{dir} {how}: {refused}");
        }
        assert!(!repaired.whole);
        assert_eq!(world.everything().await, before, "{dir} {how}");
    }
}

#[tokio::test]
async fn what_a_snapshot_needs_is_looked_for_and_the_volume_is_mended_without() {
    let world = World::new().await;
    let mounted = world.open().await;
    let snapshot = mounted.create_snapshot("base").await.unwrap();
    // What the snapshot alone needs.
    let large = mounted.tree().pin(ino_at(mounted.tree(), "large").await);
    write(mounted.tree(), &large, 7, LARGE).await;
    rows::damage(&mounted, |batch| rows::put_name(batch, "gone", 99, Kind::Regular)).await;
    drop(large);
    mounted.close().await;
    let segment = first(&world, "seg").await;
    let kept = world.get(&segment).await;
    world.flip(&segment, 100).await;
    let checked = world.check_data().await;
    assert_eq!(whats(&checked), ["name", "data"], "{checked:#?}");
    assert!(checked.findings[1].detail.contains("of the snapshot `base`"), "{checked:#?}");
    world.put(&segment, kept).await;

    let manifest = format!("meta/manifest/{:020}.manifest", snapshot.number);
    let kept = world.get(&manifest).await;
    for how in ["gone", "flip"] {
        match how {
            "gone" => world.delete(&manifest).await,
            _ => {
                world.put(&manifest, kept.clone()).await;
                world.flip(&manifest, 0).await;
            }
        }
        let checked = world.check().await;
        assert!(whats(&checked).contains(&"snapshot") && checked.unneeded.is_none(), "{how}: {checked:#?}");
        let found = checked.findings.iter().find(|found| found.what == "snapshot").unwrap();
        assert!(found.detail.contains("`base`"), "{found:?}");
        let repaired = world.repair().await;
        assert!(!repaired.whole && repaired.repair.unwrap().refused.is_none(), "the volume itself is mended");
        assert_eq!(whats(&world.check().await), ["snapshot"]);
        assert_eq!(world.files().await["/large"], Some(vec![7; LARGE]));
    }
    world.put(&manifest, kept).await;
    assert!(world.check_data().await.whole);
}

/// What nobody needs is counted, and is no damage.
#[tokio::test]
async fn what_nobody_needs_is_counted() {
    let world = World::new().await;
    let mounted = world.open().await;
    let data = vec![(0, vec![vec![1; LARGE].into()])];
    mounted.tree().segments.put_bulk(5, data, std::future::pending()).await.unwrap();
    mounted.close().await;
    let checked = world.check().await;
    let unneeded = checked.unneeded.unwrap();
    assert!(checked.whole && unneeded.objects >= 1 && unneeded.bytes > 0, "{checked:#?}");
}
