//! A holder with a journal, step by step: what of it the bucket gets, and when.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use store::Result;
use tokio::time::timeout;

use crate::bucket::{Bucket, Patience};
use crate::journal::disk::Disk;
use crate::journal::memory_disk::MemoryDisk;
use crate::journal::setup::MountJournal;
use crate::journal::targets::Targets;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::node::Pin;
use crate::simulation::faults::{FaultyObjects, World};
use crate::simulation::host::{CREATOR, FILE, JOURNAL, ROOT, name, observe};
use crate::simulation::tables::alone;

/// Longer than anything takes that waits for no one.
const LONG: Duration = Duration::from_secs(60);

/// A bucket, and a host with a disk.
struct Place {
    world: Arc<World>,
    disk: Arc<MemoryDisk>,
    journal_bytes: u64,
    accepts: bool,
}

impl Place {
    fn new(journal_bytes: u64) -> Self {
        let place = Self { world: World::new(1), disk: Arc::default(), journal_bytes, accepts: false };
        place.world.heal();
        place
    }

    async fn try_open(&self, nonce: u8) -> Result<Arc<Mounted>> {
        let objects = FaultyObjects::new(&self.world, Arc::default());
        let bucket = Bucket::new(Arc::new(objects), "v".into()).seeded(nonce.into());
        let bucket = bucket.with_patience(Patience::UntilStopped);
        let disk = Arc::clone(&self.disk) as Arc<dyn Disk>;
        let targets = Targets { fsync: true, accept: self.accepts };
        let journal = Some(Arc::new(MountJournal::new(disk, JOURNAL, self.journal_bytes, targets)));
        let options = MountOptions { journal, ..MountOptions::plain(8, [nonce; 16]) };
        let last = newest_manifest(&bucket).await?;
        Mounted::open(bucket, last, options).await
    }

    async fn open(&self, nonce: u8) -> Arc<Mounted> {
        self.try_open(nonce).await.expect("nobody else holds it")
    }

    /// The names of the files that a next holder finds.
    fn found(&self, nonce: u8) -> Vec<String> {
        alone(async {
            let seen = observe(self.open(nonce).await.tree()).await.expect("it can be read");
            seen.into_iter().map(|(name, _)| name).collect()
        })
    }

    /// Of the files `a` to `d`, which were made in this order, a next holder finds the first two and
    /// none behind one that is missing.
    fn assert_next_finds_prefix(&self) {
        self.world.hold(&[]);
        let found = self.found(2);
        let all = ["a", "b", "c", "d"];
        assert!(
            found.len() >= 2 && found[..] == all[..found.len()],
            "it shows no prefix of what was done: {found:?}"
        );
    }
}

async fn make(mounted: &Mounted, file: &str) -> Pin {
    let made = mounted.tree().make(ROOT, name(file), FILE, 0o644, CREATOR).await.expect("made");
    mounted.tree().pin_used(made.id.0, "test").expect("it was made")
}

/// Begins a sync, whose objects of the log are on their way when this returns.
async fn begin_sync(mounted: &Mounted) {
    let tree = Arc::clone(mounted.tree());
    tokio::spawn(async move { tree.sync_all().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// An fsync returns when the journal has a segment; a sync, and the making of a snapshot, when the
/// bucket has it.
#[test]
fn the_bucket_has_a_segment_before_a_sync_says_so() {
    let place = Place::new(4 << 20);
    alone(async {
        let mounted = place.open(1).await;
        let (tree, data) = (mounted.tree(), vec![7; 1_000_000]);
        let file = make(&mounted, "a").await;
        tree.sync_all().await.unwrap();
        place.world.hold(&["/seg/"]);
        tree.write_at(&file, &[IoSlice::new(&data)], 0).await.unwrap();
        timeout(LONG, tree.sync_file(&file)).await.expect("an fsync waits for the journal alone").unwrap();
        assert_eq!(place.world.waiting().len(), 1, "its data is on the way to the bucket");
        let synced = timeout(LONG, tree.sync_all()).await;
        assert!(
            synced.is_err(),
            "a sync says that the bucket has a file, and its data is in the journal alone"
        );
        let made = timeout(LONG, mounted.create_snapshot("early")).await;
        assert!(made.is_err(), "a snapshot is made of what the journal alone has");
        let mut read = vec![0; data.len()];
        assert_eq!(tree.read_at(&file, &mut read, 0).await.unwrap(), data.len());
        assert!(read == data, "it is read from the journal");
        place.world.hold(&[]);
        timeout(LONG, tree.sync_all()).await.expect("the bucket has it").unwrap();
        mounted.create_snapshot("late").await.unwrap();
        let snapshots: Vec<_> = mounted.snapshots().await.unwrap().into_iter().map(|of| of.name).collect();
        assert_eq!(snapshots, ["late"]);
    });
}

/// What is made after a crash of the part that the journal has is followed by no object that was
/// sent.
#[test]
fn an_object_of_which_the_journal_has_a_part_is_the_last_one_sent() {
    let place = Place::new(4 << 20);
    alone(async {
        let mounted = place.open(1).await;
        mounted.tree().sync_all().await.unwrap();
        place.world.hold(&["/log/"]);
        make(&mounted, "a").await;
        begin_sync(&mounted).await;
        // Behind the object on its way, the next one is open: the journal has a part of it.
        let file = make(&mounted, "b").await;
        mounted.tree().sync_file(&file).await.unwrap();
        for more in ["c", "d"] {
            make(&mounted, more).await;
            begin_sync(&mounted).await;
        }
        let waiting = place.world.waiting();
        assert!(waiting.len() >= 2, "the object of which the journal has a part is sent: {waiting:?}");
        // The one behind it arrives, if it was sent.
        place.world.hold(&[&waiting[1]]);
        tokio::time::sleep(LONG).await;
    });
    place.assert_next_finds_prefix();
}

/// What was accepted is in the journal's files, and a loss of power takes any part of what was not
/// synced: no object is sent behind one of which the disk has a part.
#[test]
fn an_object_of_which_the_disk_has_a_part_is_the_last_one_sent() {
    let mut place = Place::new(4 << 20);
    place.accepts = true;
    alone(async {
        let mounted = place.open(1).await;
        let accepted = async |file: &str| {
            let make = mounted.tree().make(ROOT, name(file), FILE, 0o644, CREATOR);
            let made = mounted.tree().accept(make).await.expect("made");
            mounted.tree().pin_used(made.id.0, "test").expect("it was made")
        };
        mounted.tree().sync_all().await.unwrap();
        place.world.hold(&["/log/"]);
        // The disk has this one, and of the same object later ones are in the files only.
        let first = accepted("a").await;
        begin_sync(&mounted).await;
        let second = accepted("b").await;
        mounted.tree().sync_file(&second).await.unwrap();
        accepted("c").await;
        begin_sync(&mounted).await;
        accepted("d").await;
        begin_sync(&mounted).await;
        drop((first, second));
        // The one behind arrives, if it was sent.
        let waiting = place.world.waiting();
        place.world.hold(&waiting[..waiting.len().min(2)].iter().map(String::as_str).collect::<Vec<_>>());
        tokio::time::sleep(LONG).await;
    });
    place.disk.lose_power(|_| 1);
    place.assert_next_finds_prefix();
}

/// A journal's first files are removed when the bucket has what is in them, also where no later
/// record says so: the bucket is asked.
#[test]
fn what_the_bucket_has_may_be_gone_from_the_journal() {
    for is_in_the_bucket in [true, false] {
        // A file for each record, or two.
        let place = Place::new(4 << 10);
        let files = alone(async {
            let mounted = place.open(1).await;
            mounted.tree().sync_all().await.unwrap();
            place.world.hold(&["/log/"]);
            for file in ["a", "b", "c", "d"] {
                let file = make(&mounted, file).await;
                mounted.tree().sync_file(&file).await.unwrap();
                // The first one's object of the log is on its way, and no other is.
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            if is_in_the_bucket {
                let first = place.world.waiting().remove(0);
                let others: Vec<_> = (0..16).map(|digit| format!("{digit:x}")).collect();
                let others = others.iter().map(|digit| format!("{}{digit}", &first[..first.len() - 1]));
                let held: Vec<_> = others.filter(|other| *other != first).collect();
                place.world.hold(&held.iter().map(String::as_str).collect::<Vec<_>>());
                tokio::time::sleep(LONG).await;
            }
            place.disk.files().await.unwrap()
        });
        assert!(files.len() > 2, "{files:?}");
        // As `trim` does when the object became durable during the last write.
        place.disk.change(files[0], |_| false);
        place.world.hold(&[]);
        if is_in_the_bucket {
            assert_eq!(place.found(2), ["a", "b", "c", "d"]);
        } else {
            let opened = alone(place.try_open(2));
            let error = opened.expect_err("something acknowledged is missing").to_string();
            assert!(error.contains("the journal is damaged"), "{error}");
        }
    }
}
