//! The log: objects that are replayed and are missing, cut off or changed.

use super::*;
use crate::object_names::log_name;

/// A volume whose holder crashed: files `0` to `3`, each of a commit of its own, and the numbers of
/// these.
pub(in crate::fsck) async fn crashed() -> (World, Vec<u64>) {
    let world = World::new().await;
    let mounted = world.open().await;
    let before = world.names("log").await.len();
    for n in 0..4_u8 {
        let pin = make_file(mounted.tree(), &n.to_string()).await;
        write(mounted.tree(), &pin, n, 5000).await;
    }
    mounted.abort();
    let names = world.names("log").await;
    let numbers = names[before..].iter().map(|name| name.trim_start_matches("log/").parse().unwrap());
    (world, numbers.collect())
}

/// What a repair leaves of [`crashed`], and what it says.
async fn repaired(world: &World) -> (BTreeMap<String, Option<Vec<u8>>>, Checked) {
    let checked = world.check().await;
    assert!(!checked.whole && whats(&checked).contains(&"log"), "{checked:#?}");
    let repaired = world.assert_mended().await;
    (world.files().await, repaired)
}

fn assert_old_files(files: &BTreeMap<String, Option<Vec<u8>>>) {
    assert_eq!(files["/large"], Some(vec![2; LARGE]));
    assert_eq!(files["/dir/second"], Some(vec![1; 5000]));
}

#[tokio::test]
async fn a_damaged_object_of_the_tail_is_kept_and_what_others_have_is_replayed() {
    for (which, how) in [(0, "flip"), (1, "cut"), (3, "cut"), (3, "header"), (2, "header"), (1, "gone")] {
        let (world, numbers) = crashed().await;
        assert_eq!(numbers.len(), 4, "{numbers:?}");
        let name = log_name(numbers[which]);
        let bytes = world.get(&name).await;
        match how {
            "flip" => world.flip(&name, bytes.len() - 5).await,
            "cut" => world.put(&name, bytes.slice(..bytes.len() - 20)).await,
            "header" => world.flip(&name, 9).await,
            _ => world.delete(&name).await,
        }
        let damaged = world.everything().await.get(&format!("v/{name}")).cloned();
        let (files, repaired) = repaired(&world).await;
        let kept = world.everything().await.get(&format!("v/damaged/{name}")).cloned();
        assert_eq!(kept, damaged, "{how} {which}: a copy of what was replaced");
        let notes = &repaired.repair.as_ref().unwrap().notes;
        assert!(notes.len() == 1 && notes[0].contains(&name) && notes[0].contains("is lost"), "{notes:?}");
        assert_old_files(&files);
        for n in (0..4_u8).filter(|n| usize::from(*n) != which) {
            assert_eq!(files.get(&format!("/{n}")), Some(&Some(vec![n; 5000])), "{how} {which}, file {n}");
        }
        // Nothing of what was lost is shown as something else.
        let lost = files.get(&format!("/{which}")).cloned().flatten();
        assert!(lost.is_none_or(|data| data.is_empty()), "{how} {which}");
    }
}

/// Of a fence, the numbers that it leaves out stay left out.
#[tokio::test]
async fn a_damaged_fence_is_a_fence_again() {
    let (world, numbers) = crashed().await;
    let (again, others) = (world.open().await, world.names("log").await);
    let pin = make_file(again.tree(), "later").await;
    write(again.tree(), &pin, 9, 5000).await;
    again.abort();
    let fence = others.last().unwrap().clone();
    assert_eq!(world.get(&fence).await.len(), 64);
    for how in ["flip", "short", "gone"] {
        let before = world.get(&fence).await;
        match how {
            "flip" => world.flip(&fence, 9).await,
            "short" => world.put(&fence, before.slice(..10)).await,
            _ => world.delete(&fence).await,
        }
        let volume = world.volume(false).await;
        let inventory = crate::engine::Inventory::read(&volume.bucket).await.unwrap().unwrap();
        let number = fence.trim_start_matches("log/").parse().unwrap();
        let before_it = inventory.epoch - 1;
        let stop = super::super::log::Stop { number, before: before_it, newest: inventory.epoch, window: 8 };
        super::super::log::mend(&volume.bucket, &volume.codec, stop).await.unwrap();
        let header = crate::log::object::Header::read(&world.get(&fence).await, number).unwrap();
        assert_eq!((header.kind, header.next), (crate::log::object::LogKind::Fence, number + 9), "{how}");
    }
    let checked = world.check_data().await;
    assert!(checked.whole, "{checked:#?}");
    let files = world.files().await;
    assert_eq!(files["/later"], Some(vec![9; 5000]));
    assert_eq!(files["/3"], Some(vec![3; 5000]), "{numbers:?}");
    assert_old_files(&files);
}

/// Two are damaged, and the repair is killed between any of its steps on the log.
#[tokio::test]
async fn a_repair_that_is_killed_keeps_one_copy_and_goes_on() {
    let (world, numbers) = crashed().await;
    let (first, second) = (log_name(numbers[1]), log_name(numbers[2]));
    for name in [&first, &second] {
        world.flip(name, 70).await;
        let bytes = world.get(name).await;
        world.put(name, bytes.slice(..bytes.len() - 1)).await;
    }
    // The copy was made, and nothing replaced.
    let damaged = world.get(&first).await;
    world.put(&format!("damaged/{first}"), damaged).await;
    // An earlier repair has kept another state of the second.
    world.put(&format!("damaged/{second}"), &b"other"[..]).await;
    let (files, repaired) = repaired(&world).await;
    assert_eq!(repaired.repair.unwrap().notes.len(), 2);
    let copies = world.names("damaged").await;
    let expected = [first, second.clone(), format!("{second}.1")].map(|name| format!("damaged/{name}"));
    assert_eq!(copies, expected);
    assert_eq!(files["/0"], Some(vec![0; 5000]));
    assert_eq!(files["/3"], Some(vec![3; 5000]));
}

/// An object behind a gap that a crash left does not say any more that it is none.
#[tokio::test]
async fn a_damaged_object_behind_a_gap_is_put_aside() {
    let (world, numbers) = crashed().await;
    let last = numbers[3];
    let beyond = log_name(last + 2);
    world.put(&beyond, &b"no object of the log"[..]).await;
    let (files, _) = repaired(&world).await;
    assert!(!world.names("log").await.contains(&beyond));
    assert_eq!(world.get(&format!("damaged/{beyond}")).await, &b"no object of the log"[..]);
    for n in 0..4_u8 {
        assert_eq!(files[&format!("/{n}")], Some(vec![n; 5000]));
    }
}
