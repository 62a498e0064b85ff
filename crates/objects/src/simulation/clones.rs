//! Clones of the simulated volume's snapshots: any host makes some, and uses them, whoever holds the
//! volume, while holders collect garbage and try to delete the snapshots.
//!
//! - A clone that was acknowledged shows what its snapshot showed, for good.
//! - It can be opened and changed, unless another process opens it meanwhile; what it writes and
//!   collects is its own.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use store::{ErrorKind, Result};

use super::faults::Random;
use super::host::{CREATOR, FILE, PREFIX, ROOT, Way, name, observe};
use super::model::Seen;
use crate::clone_volume;
use crate::engine::with_parents;
use crate::format;
use crate::garbage::Timing;
use crate::garbage::tests::{LARGE, assert_counted};
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;

/// A file that no model knows of.
const OTHER: &str = "other";
/// Collections of garbage come each second.
const COLLECTED: Duration = Duration::from_secs(5);

/// What is known of the clones of a volume.
#[derive(Debug, Clone, Default)]
pub(super) struct Clones(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    all: Vec<Known>,
    /// How many were begun, also of those that are not there.
    begun: usize,
    /// How often one was opened.
    opened: u64,
}

#[derive(Debug)]
struct Known {
    prefix: String,
    shows: Seen,
    /// The epochs that its openings take, by their numbers.
    epochs: Vec<(u64, u64)>,
}

/// One opening of a clone.
#[derive(Debug)]
struct Opening {
    prefix: String,
    shows: Seen,
    number: u64,
}

impl Clones {
    /// Clones the snapshot `name`, which shows this.
    pub(super) async fn make(
        &self,
        way: Way<'_>,
        (name, shows): (&str, Seen),
        is_deleted: impl Fn() -> bool,
    ) {
        let prefix = {
            let mut state = self.0.lock();
            state.begun += 1;
            format!("clone-{}", state.begun)
        };
        match clone_volume::make(&way.to(PREFIX), name, &way.to(&prefix)).await {
            Ok(_) => self.0.lock().all.push(Known { prefix, shows, epochs: Vec::new() }),
            Err(error) => assert!(is_deleted(), "a snapshot is not cloned that nobody deletes: {error}"),
        }
    }

    /// Opens one, if there is one: it shows what it has to, before and after a change of what nobody
    /// looks at.
    pub(super) async fn use_one(&self, way: Way<'_>, random: &mut Random) {
        let opening = {
            let mut state = self.0.lock();
            if state.all.is_empty() {
                return;
            }
            state.opened += 1;
            let known = &state.all[random.below(state.all.len())];
            Opening { prefix: known.prefix.clone(), shows: known.shows.clone(), number: state.opened }
        };
        if let Err(error) = self.use_clone(way, &opening).await {
            let is_taken_over = self.is_taken_over(&opening);
            assert!(is_taken_over, "a clone fails that nobody else opens: {}: {error}", opening.prefix);
        }
    }

    /// An opening takes this epoch.
    fn takes(&self, opening: &Opening, epoch: u64) {
        let mut state = self.0.lock();
        let known = state.all.iter_mut().filter(|known| known.prefix == opening.prefix);
        known.for_each(|known| known.epochs.push((opening.number, epoch)));
    }

    /// Whether another opening takes the same epoch, or a later one.
    fn is_taken_over(&self, opening: &Opening) -> bool {
        let state = self.0.lock();
        let known = state.all.iter().find(|known| known.prefix == opening.prefix);
        let epochs = known.map_or(&[][..], |known| &known.epochs);
        let own = epochs.iter().find(|(number, _)| *number == opening.number).map_or(0, |(_, epoch)| *epoch);
        epochs.iter().any(|(number, epoch)| *number != opening.number && *epoch >= own)
    }

    async fn use_clone(&self, way: Way<'_>, opening: &Opening) -> Result<()> {
        let mounted = self.open(way, opening).await?;
        let (tree, Opening { prefix, shows, .. }) = (mounted.tree(), opening);
        for _ in 0..2 {
            assert_eq!(&observe(tree).await?, shows, "a clone shows something else: {prefix}");
            let made = match tree.make(ROOT, name(OTHER), FILE, 0o644, CREATOR).await {
                // Its last user was not as far.
                Err(error) if error.kind() == ErrorKind::Exists => tree.lookup(ROOT, name(OTHER)).await?,
                made => made?,
            };
            let pin = tree.pin_used(made.id.0, "test")?;
            tree.forget(made.id.0, 1);
            tree.write_at(&pin, &[IoSlice::new(&vec![1; LARGE])], 0).await?;
            tree.sync_file(&pin).await?;
            drop(pin);
            tree.remove(ROOT, name(OTHER), false).await?;
            tree.sync_all().await?;
            tokio::time::sleep(COLLECTED).await;
        }
        assert_eq!(&observe(tree).await?, shows, "a clone shows something else: {prefix}");
        assert_counted(tree).await?;
        mounted.close().await;
        Ok(())
    }

    /// Opens a clone as the program does, but for its lease.
    async fn open(&self, way: Way<'_>, opening: &Opening) -> Result<Arc<Mounted>> {
        let bucket = way.to(&opening.prefix);
        let format = format::read(&bucket).await?;
        if newest_manifest(&bucket).await?.is_none() {
            clone_volume::begin(&bucket, &format).await?;
        }
        let bucket = with_parents(&bucket, &format.parents).await?;
        let last = newest_manifest(&bucket).await?;
        self.takes(opening, last.map_or(0, |last| last.epoch) + 1);
        let mut nonce = [way.number; 16];
        nonce[..8].copy_from_slice(&opening.number.to_be_bytes());
        let garbage = Timing { every: Duration::from_secs(1), passes: 1, left_alone: 0 };
        let options = MountOptions { garbage, ..MountOptions::plain(way.volume.window, nonce) };
        Mounted::open(bucket, last, options).await
    }
}
