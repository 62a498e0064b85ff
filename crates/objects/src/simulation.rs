//! A simulation: hosts that crash, stop, are cut off and lose answers, on paused time, against a
//! model.
//!
//! A host opens the volume, does steps, and closes it, or crashes at some await. It may also be
//! **taken over** meanwhile: it was stopped, or cut off from the bucket, or is simply at work, and
//! goes on later. Several hosts may take the volume at a time. What a host sent and got no answer
//! for may be carried out later, also when it is gone.
//!
//! - Each holder finds a prefix of what the holder before it did, with everything that the latter
//!   has ever acknowledged: also after the takeover, which it does not know of yet.
//! - A holder sees what it wrote itself, whatever others send.
//! - A holder that was taken over never acknowledges what it changes afterwards.
//! - One host may have a journal: what it has acknowledged is found by the next process on it,
//!   killed or after a loss of power, unless a process elsewhere has given the journal up in
//!   between. Where it accepts changes, too, all that were made are found after a kill.
//! - A holder fails only if another process takes the volume over.
//!
//! A reader elsewhere may follow all that ([`follower`]).

mod faults;
mod follower;
mod host;
mod model;
mod schedules;
mod snapshots;
mod tables;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use faults::{Random, World};
use follower::Follower;
use host::{Host, JOURNAL_BYTES, Volume};
use snapshots::Snapshots;

/// Times that the volume changes its holder.
const CHANGES: usize = 4;
/// The longest time that a host runs at a time.
const SLICE_MILLIS: usize = 4000;
/// A host that only has to end does so in this time, by its own clock.
const END: Duration = Duration::from_secs(600);

/// A reader shows the last state after this time.
const FOLLOWED: Duration = Duration::from_secs(30);

/// What the hosts have and do beside the volume.
#[derive(Debug, Clone, Copy, Default)]
struct With {
    /// They make, read and delete snapshots.
    snapshots: bool,
    /// One has a journal.
    journal: bool,
    /// Changes are in that journal's files before they return.
    accepts: bool,
    /// A reader elsewhere follows them.
    follower: bool,
}

struct Simulation {
    random: Random,
    volume: Volume,
    hosts: Vec<Host>,
    /// Decides who has a journal, if there is one.
    journal: Option<Random>,
    follower: Option<Follower>,
}

impl Simulation {
    fn new(seed: u64, with: With) -> Self {
        let mut random = Random::new(seed);
        let window = [1, 2, 4, 8][random.below(4)];
        let snapshots = with.snapshots.then(Snapshots::default);
        let mut volume = Volume::new(World::new(seed), window, snapshots);
        let mut journal = with.journal.then(|| Random::new(seed.rotate_left(32)));
        if let Some(random) = &mut journal {
            volume.journal_bytes = JOURNAL_BYTES[random.below(JOURNAL_BYTES.len())];
            volume.targets.accept = with.accepts;
        }
        let follower = with.follower.then(|| Follower::new(&volume, random.fork()));
        Self { random, volume, hosts: Vec::new(), journal, follower }
    }

    fn start(&mut self) {
        let random = self.random.fork();
        let has_journal = self.journal.as_mut().is_some_and(|random| random.below(5) > 0);
        if has_journal {
            self.end_host_with_journal();
        }
        self.hosts.push(Host::new(&self.volume, random, has_journal));
    }

    /// The next process with the journal begins when the one before has ended: its process was
    /// killed, or its host has lost power.
    fn end_host_with_journal(&mut self) {
        self.hosts.retain(|host| !host.has_journal);
        let Some(random) = &mut self.journal else { return };
        if random.below(2) == 0 {
            self.volume.lose_power(|n| random.below(n));
        }
    }

    /// Runs the hosts behind the first `stopped` in turn, for about so long.
    fn run(&mut self, stopped: usize, seconds: usize) {
        let mut left = self.random.below(seconds * 1000 + 1);
        while left > 0 && self.hosts[stopped..].iter().any(|host| !host.has_ended()) {
            let slice = 1 + self.random.below(SLICE_MILLIS.min(left));
            let host = stopped + self.random.below(self.hosts.len() - stopped);
            self.hosts[host].run(Duration::from_millis(slice as u64));
            if let Some(follower) = &mut self.follower {
                follower.run(Duration::from_millis(slice as u64));
            }
            left -= slice;
        }
    }

    /// One change of the holder.
    fn change(&mut self) {
        let before = self.hosts.len();
        // What becomes of those that are there.
        let stopped = match self.random.below(6) {
            0..3 => {
                self.hosts.clear();
                0
            }
            3 => before,
            4 => {
                self.hosts.iter().for_each(|host| host.cut(true));
                0
            }
            _ => 0,
        };
        self.start();
        if self.random.below(4) == 0 {
            self.start();
        }
        // Those with a journal may have been killed.
        let stopped = stopped.min(self.hosts.len() - 1);
        self.run(stopped, 60);
        self.hosts.iter().for_each(|host| host.cut(false));
        if stopped > 0 {
            self.run(0, 30);
        }
    }

    fn run_all(mut self) {
        for _ in 0..CHANGES {
            self.change();
        }
        // A host without faults finds it all; the others go on beside it.
        self.volume.world.heal();
        self.start();
        self.run(0, 60);
        self.hosts.iter_mut().rev().for_each(|host| host.run(END));
        self.hosts.clear();
        // A last one, after all that is still on its way.
        let late = async { self.volume.world.carry_out_all().await };
        futures_executor::block_on(late);
        self.start();
        self.hosts[0].run(END);
        self.check();
        if let Some(follower) = &mut self.follower {
            follower.run(FOLLOWED);
            follower.check(&self.volume.holders());
        }
    }

    /// Each holder found what the one before it left.
    fn check(&self) {
        let holders = self.volume.holders();
        assert!(self.volume.is_held_by_the_last(), "the last host has not opened the volume");
        for pair in holders.windows(2) {
            let [before, next] = pair else { continue };
            let (Some((earlier, _)), Some((later, found))) = (before.found(), next.found()) else { continue };
            assert!(earlier < later, "two holders have the epoch {earlier}");
            before.assert_left(&found, self.volume.acknowledged_by((earlier, before), (later, next)));
        }
    }
}

/// Runs seeds; the first that fails ends it, and is named.
fn run(seeds: std::ops::Range<u64>, with: With) {
    for seed in seeds {
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| Simulation::new(seed, with).run_all())) {
            let why = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref().copied());
            panic!("seed {seed}: {}", why.unwrap_or("it failed, see above"));
        }
    }
}

/// The campaign. With `SNAPSHOTS=1` hosts make, read and delete snapshots, too; with `JOURNAL=1` one
/// of them has a journal, which with `ACCEPTS=1` accepts changes as well; with `FOLLOWED=1` each seed
/// has a reader that follows:
/// `SEEDS=100000 cargo test --release -p watertight-objects --lib simulation -- --ignored`.
#[test]
#[ignore = "long; the seeds are given by SEEDS, the first by FIRST"]
fn campaign() {
    let given =
        |name: &str, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (first, seeds): (u64, u64) = (given("FIRST", 0), given("SEEDS", 100_000));
    let is_given = |name| std::env::var_os(name).is_some();
    let with = With {
        snapshots: is_given("SNAPSHOTS"),
        journal: is_given("JOURNAL"),
        accepts: is_given("ACCEPTS"),
        follower: is_given("FOLLOWED"),
    };
    run(first..first + seeds, with);
}
