//! A file's size. What lies behind a smaller one goes in batches, each of a bounded size.
//!
//! A truncation that does not fit into one batch marks the file with its first: by an orphan row that
//! has the size as its value. The last takes the mark away. The inode is locked meanwhile, so that no
//! call sees the file in between; after a crash the next holder goes on before the volume is used.
//! A file without a name needs no mark: the next holder removes all of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::Result;

use crate::data::{end_of, may_have_data};
use crate::engine::Batch;
use crate::extent_cache::{FileExtents, Known};
use crate::extents::ExtentChange;
use crate::node::{Locked, Pin};
use crate::rows;
use crate::tree::{Tree, now};

impl Tree {
    /// Changes a file's size.
    pub(crate) async fn set_size(self: &Arc<Self>, pin: &Pin, size: u64) -> Result<()> {
        end_of(size, 0, "set size")?;
        let mut state = self.lock_to_cut(pin, size).await?;
        if size > state.charge {
            state.charge_to(&self.quotas, size, "set size")?;
        }
        (state.row.mtime, state.row.ctime) = (now(), now());
        self.cut_behind(pin, &mut state, size).await?;
        state.charge_to(&self.quotas, size, "set size")?;
        // ORDERING: Relaxed. A walk that counts the inode has it locked.
        state.accepted.store(size, Ordering::Relaxed);
        // An empty round gives the memory back of what was cut.
        self.settle(pin, &mut state, true);
        Ok(())
    }

    /// Locks a file of whose data only what lies behind `size` has no extents: that need not be
    /// written first.
    async fn lock_to_cut(self: &Arc<Self>, pin: &Pin, size: u64) -> Result<Locked> {
        loop {
            let mut state = pin.lock().await?;
            may_have_data(&state, "set size")?;
            let mut rounds = state.pieces.rounds();
            if pin.ended.get() >= rounds {
                if !state.pieces.have_before(size) {
                    return Ok(state);
                }
                rounds = self.settle(pin, &mut state, true);
            }
            drop(state);
            pin.wait_begins(rounds);
            self.wait_for(pin, rounds).await?;
        }
    }

    /// Goes on with a truncation to `size` that a crash has interrupted.
    pub(crate) async fn finish_truncation(self: &Arc<Self>, ino: u64, size: &[u8]) -> Result<()> {
        let size = size.try_into().map_err(|_| rows::corrupted("an orphan"))?;
        let pin = self.pin(ino);
        let mut state = pin.lock().await?;
        state.is_cut_in_part = true;
        self.cut_behind(&pin, &mut state, u64::from_be_bytes(size)).await
    }

    /// One that fails with its first part has changed nothing; later, the file is marked, and stays
    /// as it is until a truncation has gone through.
    async fn cut_behind(&self, pin: &Pin, state: &mut Locked, size: u64) -> Result<()> {
        self.know_extents(pin.ino).await;
        loop {
            let (mut change, mut batch) = (ExtentChange::default(), Batch::default());
            let loaded = change.load_some(self, pin.ino, (size, u64::MAX)).await?;
            change.cut(size, loaded);
            let is_last = loaded == u64::MAX;
            // With the extents, under one lock: an fsync or a read beside this finds what was written
            // before, or the truncated file, and nothing older.
            state.pieces.cut_current(size);
            (state.row.size, state.stored_size) = (size, size);
            if state.row.nlink > 0 {
                if !is_last {
                    batch.put(rows::orphan_key(pin.ino), size.to_be_bytes().to_vec().into());
                } else if state.is_cut_in_part {
                    batch.delete(rows::orphan_key(pin.ino));
                }
            }
            state.is_cut_in_part = !is_last;
            self.write_extents(pin, state, change, batch).await?;
            if is_last {
                if size == 0 {
                    // Also where there were too many to be known.
                    self.extent_cache.give(pin.ino, Known::All(FileExtents::default()));
                }
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use object_store::memory::InMemory;
    use store::{Creator, FileType, NewNode, ObjectId};

    use super::*;
    use crate::bucket::Bucket;
    use crate::engine::BATCH_BYTES_MAX;
    use crate::extents::CHANGED_MAX;
    use crate::mount::{MountOptions, Mounted};
    use crate::newest_manifest::newest_manifest;

    const ROOT: ObjectId = ObjectId::ROOT;
    const EXTENTS: u64 = 5 * CHANGED_MAX as u64 / 2;

    async fn open(objects: &Arc<InMemory>) -> Arc<Mounted> {
        let bucket = Bucket::new(Arc::clone(objects) as _, "v".into());
        let options = MountOptions::plain(4, rand_nonce());
        let last = newest_manifest(&bucket).await.unwrap();
        Mounted::open(bucket, last, options).await.unwrap()
    }

    fn rand_nonce() -> [u8; 16] {
        crate::format::Uuid::random().unwrap().to_bytes()
    }

    fn name(name: &str) -> store::Name<'_> {
        store::Name::new(name.as_ref()).unwrap()
    }

    /// A file of many extents, a byte each, with a hole behind each.
    async fn fragmented(tree: &Arc<Tree>) -> Pin {
        let creator = Creator { uid: 0, gid: 0, umask: 0 };
        let what = NewNode::Special { kind: FileType::Regular, rdev: 0 };
        let made = tree.make(ROOT, name("f"), what, 0o644, creator).await.unwrap();
        let pin = tree.pin_used(made.id.0, "test").unwrap();
        for n in 0..EXTENTS {
            tree.write_at(&pin, &[IoSlice::new(b"x")], 2 * n).await.unwrap();
        }
        tree.sync_file(&pin).await.unwrap();
        assert_eq!(rows_of(tree, b'E', pin.ino).await as u64, EXTENTS);
        pin
    }

    async fn rows_of(tree: &Tree, tag: u8, ino: u64) -> usize {
        tree.engine.scan(rows::keys_of(tag, ino), usize::MAX).await.unwrap().len()
    }

    async fn assert_cut(tree: &Arc<Tree>, pin: &Pin, kept: u64) {
        assert_eq!(rows_of(tree, b'E', pin.ino).await as u64, kept);
        assert_eq!(rows_of(tree, b'O', pin.ino).await, 0, "no mark is left");
        assert_eq!(tree.engine.totals().await.unwrap().bytes, i64::try_from(kept).unwrap());
        assert_eq!(pin.lock().await.unwrap().row.allocated, kept);
        // Nothing of what was cut comes back.
        tree.set_size(pin, 2 * EXTENTS).await.unwrap();
        let mut data = vec![1; usize::try_from(2 * EXTENTS).unwrap()];
        assert_eq!(tree.read_at(pin, &mut data, 0).await.unwrap(), data.len());
        assert_eq!(data.iter().filter(|byte| **byte == b'x').count() as u64, kept);
    }

    #[tokio::test]
    async fn a_long_truncation_is_made_in_batches() {
        let mounted = open(&Arc::default()).await;
        let tree = mounted.tree();
        let pin = fragmented(tree).await;
        tree.set_size(&pin, 20).await.unwrap();
        assert_cut(tree, &pin, 10).await;
        mounted.close().await;
    }

    #[tokio::test]
    async fn a_truncation_that_a_crash_interrupts_is_finished() {
        let objects = Arc::default();
        let ino = {
            let mounted = open(&objects).await;
            let tree = mounted.tree();
            let pin = fragmented(tree).await;
            let mut state = pin.lock().await.unwrap();
            // As its first batch leaves it.
            (state.row.size, state.stored_size) = (20, 20);
            let (mut change, mut batch) = (ExtentChange::default(), Batch::default());
            let loaded = change.load_some(tree, pin.ino, (20, u64::MAX)).await.unwrap();
            change.cut(20, loaded);
            batch.put(rows::orphan_key(pin.ino), 20_u64.to_be_bytes().to_vec().into());
            tree.write_extents(&pin, &mut state, change, batch).await.unwrap();
            drop(state);
            tree.engine.commit().await.unwrap();
            mounted.abort();
            pin.ino
        };
        let mounted = open(&objects).await;
        let tree = mounted.tree();
        let pin = tree.pin(ino);
        assert_eq!(pin.lock().await.unwrap().row.size, 20);
        assert_cut(tree, &pin, 10).await;
        mounted.close().await;
    }

    #[tokio::test]
    async fn holes_and_data_over_many_extents_are_made_in_batches() {
        use store::AllocateMode;
        let mounted = open(&Arc::default()).await;
        let tree = mounted.tree();
        let pin = fragmented(tree).await;
        let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
        tree.allocate(&pin, punch, 20, 2 * EXTENTS - 40).await.unwrap();
        assert_cut(tree, &pin, 20).await;
        tree.set_size(&pin, 0).await.unwrap();
        for n in 0..EXTENTS {
            tree.write_at(&pin, &[IoSlice::new(b"x")], 2 * n).await.unwrap();
        }
        tree.sync_file(&pin).await.unwrap();
        // All of it is written over, in one round.
        let data = vec![b'y'; usize::try_from(2 * EXTENTS).unwrap()];
        tree.write_at(&pin, &[IoSlice::new(&data)], 0).await.unwrap();
        tree.sync_file(&pin).await.unwrap();
        let mut read = vec![0; data.len()];
        assert_eq!(tree.read_at(&pin, &mut read, 0).await.unwrap(), read.len());
        assert_eq!(read, data);
        assert!(rows_of(tree, b'E', pin.ino).await <= 4, "its parts only");
        mounted.close().await;
    }

    /// The largest object of the log that there can be is read back; what does not fit is refused.
    #[tokio::test]
    async fn the_largest_commit_is_read_back() {
        let objects = Arc::default();
        let row = vec![7; 1 << 20];
        let rows = BATCH_BYTES_MAX / (row.len() + 100);
        {
            let mounted = open(&objects).await;
            let tree = mounted.tree();
            let mut large = Batch::default();
            (0..=rows + 1).for_each(|n| large.put(format!("Z{n:08}").into_bytes(), row.clone().into()));
            let error = tree.engine.write(large).await.unwrap_err();
            assert!(error.detail().is_some_and(|why| why.contains("more than a commit takes")), "{error}");
            for _ in 0..30 {
                tree.segments.put_small(&[row[..256 << 10].to_vec().into()]).await.unwrap();
            }
            let mut largest = Batch::default();
            (0..rows).for_each(|n| largest.put(format!("Z{n:08}").into_bytes(), row.clone().into()));
            tree.engine.write(largest).await.unwrap();
            tree.engine.commit().await.unwrap();
            mounted.abort();
        }
        let mounted = open(&objects).await;
        let found = mounted.tree().engine.scan(rows::all_keys(b'Z'), usize::MAX).await.unwrap();
        assert_eq!(found.len(), rows);
        mounted.close().await;
    }
}
