//! One volume of the campaign: the thread of its events, the threads of its workers, and what is
//! sampled of it.

use std::time::Duration;

use anyhow::Context as _;

use super::super::bucket::Server;
use super::campaign::Campaign;
use super::events::{Counts, End, Event, Events};
use super::figures::Sample;
use super::volume::{Pace, Volume};

/// How long a worker may hold up a sample of the data.
const SAMPLE_PATIENCE: Duration = Duration::from_secs(1);
/// How long a volume has been mounted when it is looked at before the load.
const IDLE_FOR: Duration = Duration::from_secs(20);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) volume: Volume,
    pub(super) counts: Counts,
    pub(super) events: &'static [Event],
    /// Until when there is load, and when it is unmounted.
    pub(super) load: Duration,
    pub(super) whole: Duration,
    /// About so long from one event to the next.
    pub(super) pause: Duration,
    pub(super) seed: u64,
}

/// What a volume is like when nobody uses it, and at the end.
#[derive(Debug, Default)]
pub(super) struct Rest {
    pub(super) before: Option<Sample>,
    /// When it has rested, with what is in the bucket and what is needed then.
    pub(super) after: Option<(Sample, u64, u64)>,
    pub(super) end: Option<End>,
}

/// The data of a volume at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    pub(super) at: Duration,
    pub(super) stored: u64,
    pub(super) needed: u64,
    /// By the workers, so far.
    pub(super) written: u64,
}

/// What was sampled of a volume.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    pub(super) process: Vec<Sample>,
    pub(super) data: Vec<Data>,
}

impl Rig {
    /// Runs the volume's part of the campaign, from `format` to the last unmount.
    pub(super) fn run(&self, campaign: &Campaign, server: Server) -> Rest {
        let mut rest = Rest::default();
        if let Err(error) = self.run_to_the_end(campaign, server, &mut rest) {
            campaign.fail(format!("{error:#}"));
        }
        rest
    }

    fn run_to_the_end(&self, campaign: &Campaign, server: Server, rest: &mut Rest) -> anyhow::Result<()> {
        let volume = &self.volume;
        let mut events = Events::new((volume, campaign, &self.counts), server, self.seed);
        events.begin()?;
        campaign.wait_until(campaign.elapsed() + IDLE_FOR);
        rest.before = self.sample(campaign);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..volume.workers.len())
                .map(|number| scope.spawn(move || self.work(campaign, number)))
                .collect();
            let done = events.fill().and_then(|()| events.run(self.events, self.pause, self.load));
            if let Err(error) = done {
                // Before the workers are waited for: they look whether it has failed.
                campaign.fail(format!("{error:#}"));
            }
            workers.into_iter().try_for_each(|worker| {
                worker.join().map_err(|_| anyhow::anyhow!("{}: a worker panicked", volume.name))
            })
        })?;
        if !campaign.failures().is_empty() {
            // The evidence stays as it is; what is mounted is unmounted with the lab's end.
            return Ok(());
        }
        campaign.say(&format!("{}: the load has ended", volume.name));
        if self.load < self.whole {
            events.delete_snapshots()?;
            campaign.wait_until(self.whole);
            let stored = events.stored()?;
            let needed = volume.needed(Duration::MAX).context("workers do not rest")?;
            // One that was stopped has had no time to rest.
            if !campaign.is_given_up() {
                rest.after = self.sample(campaign).map(|sample| (sample, stored, needed));
            }
        }
        rest.end = Some(events.end()?);
        campaign.say(&format!("{}: unmounted, checked, collected and compared", volume.name));
        Ok(())
    }

    fn work(&self, campaign: &Campaign, number: usize) {
        let mut pace = Pace::new(self.seed.wrapping_mul(31) + number as u64);
        let is_over = || campaign.elapsed() >= self.load || campaign.is_given_up();
        if let Err(error) = self.volume.run_worker(number, &mut pace, is_over) {
            campaign.fail(format!("{error:#}"));
        }
    }

    /// Its process now, if one is there that answers.
    fn sample(&self, campaign: &Campaign) -> Option<Sample> {
        let at = campaign.elapsed();
        let status = self.volume.control()?.status().ok()?;
        let figure = |name: &str| status["process"][name].as_f64();
        Some(Sample {
            at,
            memory_mib: figure("resident_bytes")? / f64::from(1 << 20),
            descriptors: figure("open_fds")?,
            threads: figure("threads")?,
            tasks: figure("tasks")?,
        })
    }

    /// Samples its process and its data; what cannot be sampled at the moment is left out.
    pub(super) fn look(&self, campaign: &Campaign, server: &Server, sampled: &mut Sampled) {
        sampled.process.extend(self.sample(campaign));
        let at = campaign.elapsed();
        let Ok(stored) = server.bytes(self.volume.name) else { return };
        let Some(needed) = self.volume.needed(SAMPLE_PATIENCE) else { return };
        let Some((written, ..)) = self.volume.work(SAMPLE_PATIENCE) else { return };
        sampled.data.push(Data { at, stored, needed, written });
    }
}
