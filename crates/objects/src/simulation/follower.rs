//! A reader elsewhere that follows the volume from holder to holder.
//!
//! It is slow, fails, loses its mark and what it shows, as hosts do: then it shows nothing. What it
//! shows is written down, and compared with what the holders did when these have ended.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use store::{ErrorKind, Result};

use super::faults::Random;
use super::host::{Host, observe};
use super::model::{Floor, Seen};
use super::volume::{Taker, Volume};
use crate::bucket::Bucket;
use crate::garbage::Timing;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::readers::Mark;

/// How often it looks at the log.
const EVERY: Duration = Duration::from_millis(500);
/// How often its user looks at it.
const LOOKS_MILLIS: usize = 3000;

/// What was seen, and the epoch of the holder that made it so; 0: that is not known.
type Shown = Arc<Mutex<Vec<(u64, Seen)>>>;

/// See the [module](self).
pub(super) struct Follower {
    host: Host,
    shown: Shown,
}

impl Follower {
    pub(super) fn new(volume: &Volume, random: Random) -> Self {
        let (shown, is_cut) = (Shown::default(), Arc::<AtomicBool>::default());
        let life = live(volume.clone(), Arc::clone(&is_cut), random, Arc::clone(&shown));
        Self { host: Host::with(life, is_cut), shown }
    }

    pub(super) fn run(&mut self, time: Duration) {
        self.host.run(time);
    }

    /// All that it showed is what the holders did, in this order.
    pub(super) fn check(&self, holders: &[Arc<Taker>]) {
        let shown = self.shown.lock();
        let (mut holder, mut step, mut floor) = (0, 0, Floor::default());
        for (number, (epoch, seen)) in shown.iter().enumerate() {
            let so_far = &shown[number.saturating_sub(2)..=number];
            // Of a state that the tables had it is not known whose it is.
            let is_known = *epoch != 0;
            let is_of = |taker: &Arc<Taker>| is_known && taker.found().is_some_and(|(its, _)| its <= *epoch);
            while let Some(next) = holders.get(holder + 1).filter(|next| is_of(next)) {
                // What it showed of this holder's, the next one found, or something later.
                let (next, found) = next.found().expect("it held the volume");
                let kept = holders[holder].model(|model| model.first_that_shows(&found, step, &mut floor));
                assert!(
                    kept.is_some(),
                    "a follower shows what the volume never was, or was before: {so_far:?}, and holder {next} found \
                     {found:?}"
                );
                (holder, step, floor) = (holder + 1, 0, Floor::default());
            }
            let shows = |holder: &Arc<Taker>, step, floor: &mut Floor| {
                holder.model(|model| model.first_that_shows(seen, step, floor))
            };
            let found = if is_known {
                shows(&holders[holder], step, &mut floor)
            } else {
                let later =
                    || holders[holder + 1..].iter().any(|h| shows(h, 0, &mut Floor::default()).is_some());
                let now = shows(&holders[holder], step, &mut floor.clone());
                now.is_some().then_some(step).or_else(|| later().then_some(step))
            };
            step = found.unwrap_or_else(|| {
                panic!("a follower shows what the volume never was, or was before: {so_far:?}");
            });
        }
        let last = holders.last().map(|last| last.model(|model| model.now()));
        let shown = shown.last().map(|(_, seen)| seen.clone());
        assert_eq!(
            shown.unwrap_or_default(),
            last.unwrap_or_default(),
            "a follower shows the last state in the end"
        );
    }
}

async fn live(volume: Volume, is_cut: Arc<AtomicBool>, mut random: Random, shown: Shown) {
    loop {
        // Its own for each opening: one that is given up takes its way to the bucket with it.
        let bucket = volume.bucket(u8::MAX, &is_cut);
        // Of an error another opening makes the best.
        let _failed = follow(&bucket, volume.window, &mut random, &shown).await;
        tokio::time::sleep(EVERY).await;
    }
}

async fn follow(bucket: &Bucket, window: u64, random: &mut Random, shown: &Shown) -> Result<()> {
    let mark = Mark::set(bucket.clone()).await?;
    let Some(last) = newest_manifest(bucket).await? else { return mark_removed(mark).await };
    let garbage = Timing { every: Duration::from_secs(1), passes: 1, left_alone: 0 };
    let options = MountOptions { follow: Some(EVERY), garbage, ..MountOptions::plain(window, [0; 16]) };
    let mounted = match Mounted::open_read_only(bucket.clone(), last, options).await {
        Ok(mounted) => mounted,
        Err(error) => return mark_removed(mark).await.and(Err(error)),
    };
    mounted.keep(Some(mark));
    let tree = mounted.tree();
    let followed = tree.engine.followed().expect("it follows");
    let mut failures = 0;
    while failures < 8 {
        tokio::time::sleep(Duration::from_millis(random.below(LOOKS_MILLIS) as u64)).await;
        let call = async { observe(tree).await };
        let view = followed.current();
        let seen = followed.within_view(Arc::clone(&view), call).await;
        match seen {
            Ok(seen) => {
                failures = 0;
                let now = (view.epoch(), seen);
                let mut shown = shown.lock();
                if shown.last() != Some(&now) {
                    shown.push(now);
                }
            }
            // The volume is new.
            Err(error) if error.kind() == ErrorKind::Stale => {}
            Err(_) => failures += 1,
        }
    }
    mounted.abort();
    mounted.close().await;
    Ok(())
}

async fn mark_removed(mark: Mark) -> Result<()> {
    mark.remove().await;
    Ok(())
}
