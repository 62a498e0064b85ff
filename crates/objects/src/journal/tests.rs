//! The format, and what a journal does with a disk that tears, is full, or breaks.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;

use bytes::Bytes;
use store::{ErrorKind, Result};

use super::dir::DirDisk;
use super::disk::Disk;
use super::format::{FILE_HEADER, RECORD_HEADER};
use super::memory_disk::MemoryDisk;
use super::{Identity, Journal, Record, contents};
use crate::uuid::Uuid;

const OWN: Identity = Identity { volume: [1; 16], id: [2; 16] };
const CONTEXT: [u8; 32] = [3; 32];

/// What was read: kinds and payloads.
type Found = Vec<(u16, Bytes)>;

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(test)
}

fn record(kind: u16, payload: impl Into<Bytes>) -> Record {
    Record { kind, about: [kind.to_le_bytes()[0]; 32], payload: vec![payload.into()] }
}

fn journal(disk: &Arc<impl Disk>, size_max: u64) -> Arc<Journal> {
    Journal::new(Arc::clone(disk) as Arc<dyn Disk>, OWN, CONTEXT, size_max)
}

async fn found(disk: &dyn Disk, identity: Identity) -> Result<Found> {
    let mut places = Vec::new();
    let mut visit = |kind: u16, about: &[u8; 32], place| {
        assert_eq!(about, &[kind.to_le_bytes()[0]; 32]);
        places.push((kind, place));
        Ok(())
    };
    let context = contents::read(disk, identity, &mut visit).await?;
    assert!(context.is_none_or(|context| context == CONTEXT));
    let mut found = Vec::new();
    for (kind, place) in places {
        found.push((kind, super::read(disk, &place).await?));
    }
    Ok(found)
}

/// A journal with four records, each synced by itself, and where the last begins.
async fn four() -> (Arc<MemoryDisk>, Found, usize) {
    let disk = Arc::<MemoryDisk>::default();
    let journal = journal(&disk, 1 << 20);
    for (kind, payload) in [(1, "first"), (2, ""), (3, "the third record"), (4, "the last one")] {
        journal.append(&[record(kind, payload)], true).await.unwrap();
    }
    let all = found(&*disk, OWN).await.unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!(all[2], (3, Bytes::from("the third record")));
    let last = disk.bytes(1).len() - RECORD_HEADER - "the last one".len().next_multiple_of(8);
    (disk, all, last)
}

#[test]
fn a_tail_that_is_torn_at_any_byte_is_cut() {
    run(async {
        let (disk, all, last) = four().await;
        let end = disk.bytes(1).len();
        for cut in last..end {
            for fill in [None, Some(0), Some(0xa5)] {
                let torn = disk.copy();
                torn.change(1, |bytes| {
                    bytes.truncate(cut);
                    fill.into_iter().for_each(|fill| bytes.resize(end, fill));
                    true
                });
                let left = found(&torn, OWN).await.unwrap();
                // What only fills the last record up is not missed.
                let is_whole = cut >= last + RECORD_HEADER + "the last one".len();
                assert_eq!(
                    left[..],
                    all[..if is_whole { 4 } else { 3 }],
                    "cut at {cut}, filled with {fill:?}"
                );
            }
        }
    });
}

#[test]
fn a_bit_that_was_changed_is_damage_or_the_torn_tail() {
    run(async {
        let (disk, all, last) = four().await;
        for at in 0..disk.bytes(1).len() {
            for bit in [0, 7] {
                let changed = disk.copy();
                changed.change(1, |bytes| {
                    bytes[at] ^= 1 << bit;
                    true
                });
                match found(&changed, OWN).await {
                    Ok(left) if at < last => assert_eq!(left, all, "byte {at} hides a record"),
                    Ok(left) => assert!(left == all || left == all[..3], "byte {at} changes a record"),
                    Err(error) => assert!(at < last, "byte {at} of the tail: {error}"),
                }
            }
        }
    });
}

#[test]
fn another_volumes_journal_and_a_newer_one_are_refused() {
    run(async {
        let (disk, ..) = four().await;
        for other in [Identity { volume: [9; 16], ..OWN }, Identity { id: [9; 16], ..OWN }] {
            let error = found(&*disk, other).await.unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("copied"), "{error}");
        }
        disk.change(1, |bytes| {
            bytes[5] = 2;
            true
        });
        let error = found(&*disk, OWN).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("version 2"), "{error}");
    });
}

#[test]
fn files_follow_each_other_and_none_may_be_missing() {
    run(async {
        let disk = Arc::<MemoryDisk>::default();
        let journal = journal(&disk, 80 << 10);
        let payload = |n: u8| Bytes::from(vec![n; 10_000]);
        let mut places = Vec::new();
        for n in 0..5 {
            places.extend(journal.append(&[record(1, payload(n))], n % 2 == 0).await.unwrap());
        }
        assert_eq!(disk.files().await.unwrap(), [1, 2, 3, 4, 5]);
        let all: Found = (0..5).map(|n| (1, payload(n))).collect();
        assert_eq!(found(&*disk, OWN).await.unwrap(), all);
        for (file, change) in [(3, None), (2, Some(9000)), (3, Some(5000))] {
            let damaged = disk.copy();
            damaged.change(file, |bytes| {
                bytes.truncate(change.map_or(0, |len| bytes.len().min(len) - 8));
                change.is_some()
            });
            let error = found(&damaged, OWN).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        }
        // It is full, until the first files are not needed any more.
        let error = journal.append(&[record(1, vec![0; 40_000])], true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        journal.release(&places[1..2]);
        journal.trim().await.unwrap();
        assert_eq!(disk.files().await.unwrap().len(), 5, "a file behind one that is needed was removed");
        journal.release(&places[..1]);
        journal.trim().await.unwrap();
        assert_eq!(disk.files().await.unwrap(), [3, 4, 5]);
        assert_eq!(journal.stats().disk_bytes, 30 << 10);
        assert_eq!(journal.stats().bytes, 30_000);
        places.extend(journal.append(&[record(1, vec![5; 40_000])], true).await.unwrap());
        assert_eq!(found(&*disk, OWN).await.unwrap()[..3], all[2..]);
        // What is needed keeps it from being removed in the end.
        journal.release(&places[2..5]);
        assert!(!journal.end().await.unwrap());
        journal.release(&places[5..]);
        assert!(journal.end().await.unwrap());
        assert_eq!(disk.files().await.unwrap(), [0; 0]);
    });
}

#[test]
fn a_disk_that_breaks_is_written_no_more() {
    run(async {
        let disk = Arc::<MemoryDisk>::default();
        let journal = journal(&disk, 1 << 20);
        disk.set_fault(Some(ErrorKind::NoSpace));
        let error = journal.append(&[record(1, "a")], true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "no file can be made now");
        disk.set_fault(None);
        journal.append(&[record(1, "a")], true).await.unwrap();
        disk.set_fault(Some(ErrorKind::Io));
        journal.append(&[record(1, "b")], true).await.unwrap_err();
        disk.set_fault(None);
        journal.append(&[record(1, "c")], true).await.unwrap_err();
        assert!(journal.stats().failed.is_some());
        assert_eq!(
            found(&*disk, OWN).await.unwrap(),
            [(1, Bytes::from("a"))],
            "what was acknowledged is there"
        );
    });
}

/// Records that no sync has ended for may be there in part, and never hide those before.
#[test]
fn a_loss_of_power_leaves_what_was_synced() {
    let mut random = 1_u64;
    let mut below = move |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % n
    };
    run(async {
        for _ in 0..300 {
            let disk = Arc::<MemoryDisk>::default();
            let journal = journal(&disk, 1 << 20);
            let (mut written, mut synced) = (Vec::new(), 0);
            for kind in 0..1 + u16::try_from(below(12)).unwrap() {
                let payload = Bytes::from(vec![kind.to_le_bytes()[0]; below(3000)]);
                let is_synced = below(3) == 0;
                journal.append(&[record(kind, payload.clone())], is_synced).await.unwrap();
                written.push((kind, payload));
                synced = if is_synced { written.len() } else { synced };
            }
            disk.lose_power(&mut below);
            let left = found(&*disk, OWN).await.unwrap();
            assert!(left.len() >= synced, "{} of {synced} synced records are there", left.len());
            assert_eq!(left[..], written[..left.len()]);
        }
    });
}

#[tokio::test]
async fn a_directory_is_one_process_s_and_nobody_else_s() {
    let root = tempfile::tempdir().unwrap();
    let volume = Uuid::random().unwrap();
    let refused = |path: &std::path::Path, words: &str| {
        let error = DirDisk::open(path, volume, None).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(&root.path().join("none"), "none: there is no such directory for the journal");
    symlink(root.path(), root.path().join("link")).unwrap();
    refused(&root.path().join("link"), "link: ");
    let open = root.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    refused(&open, "chmod go-w");
    std::fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&open, Some(1), None).unwrap();
        refused(&open, "belongs to user 1");
        std::os::unix::fs::chown(&open, Some(0), None).unwrap();
    }
    let (disk, identity) = DirDisk::open(&open, volume, None).unwrap();
    refused(&open, "another process of this host uses the journal");
    let journal = Journal::new(Arc::clone(&disk) as _, identity, CONTEXT, 1 << 20);
    let places = journal.append(&[record(1, "one"), record(2, vec![7; 300_000])], true).await.unwrap();
    // Behind a small record there are zeros, in which the next one comes.
    for small in ["three", "four"] {
        journal.append(&[record(3, small)], true).await.unwrap();
    }
    let all = found(&*disk, identity).await.unwrap();
    let large = Bytes::from(vec![7; 300_000]);
    assert_eq!(all, [(1, "one".into()), (2, large), (3, "three".into()), (3, "four".into())]);
    assert_eq!(journal.read_part(&places[1], 5..10).await.unwrap(), &[7; 5][..]);
    let dir = open.join(volume.to_string());
    let file = dir.join(format!("{:016x}", 1));
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    drop((journal, disk));
    // The same journal again, by its own number.
    let (disk, again) = DirDisk::open(&open, volume, None).unwrap();
    assert_eq!(again, identity);
    assert_eq!(found(&*disk, identity).await.unwrap(), all);
    let aside = disk.set_aside("lost").await.unwrap();
    assert!(std::path::Path::new(&aside).join(file.file_name().unwrap()).exists());
    assert_eq!(disk.files().await.unwrap(), [0; 0]);
    disk.remove(1).await.expect("one that is gone is removed");
    drop(disk);
    // It is the journal that the lease names, as before.
    let (disk, same) = DirDisk::open(&open, volume, None).unwrap();
    assert_eq!(same, identity);
    drop(disk);
    // A crash before it was written, and damage.
    std::fs::write(dir.join("id"), "").unwrap();
    drop(DirDisk::open(&open, volume, None).unwrap());
    std::fs::write(dir.join("id"), "WTjrnl1").unwrap();
    std::fs::write(&file, vec![0; FILE_HEADER]).unwrap();
    refused(&open, "is damaged, and files of the journal are there");
}
