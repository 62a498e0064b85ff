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
//! - What its disk has in a cache changes nothing, whole or damaged.
//!
//! Hosts may make snapshots ([`snapshots`]) and clones ([`family`]), and a reader elsewhere may
//! follow the volume ([`follower`]).
//!
//! A seed decides what hosts do, when each runs, and what becomes of each request. In which order the
//! tasks of one host go on where several can is tokio's to decide, and not the seed's: one that fails
//! is tried several times.

mod campaign;
mod family;
mod faults;
mod follower;
mod host;
mod kills;
mod model;
mod schedules;
mod snapshots;
mod sweep;
mod tables;
mod volume;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use family::{Family, Member};
use faults::{Random, World};
use follower::Follower;
use host::Host;
use kills::Kills;
use snapshots::Snapshots;
use volume::{JOURNAL_BYTES, Volume};

use crate::disk_cache::memory_dir::MemoryDir;

/// Times that the volume changes its holder.
const CHANGES: usize = 4;
/// The longest time that a host runs at a time.
const SLICE_MILLIS: usize = 4000;

/// A reader shows the last state after this time.
const FOLLOWED: Duration = Duration::from_secs(30);

/// What the hosts have and do beside the volume.
#[derive(Debug, Clone, Copy, Default)]
struct With {
    /// They make, read and delete snapshots.
    snapshots: bool,
    /// They make clones of those, take them, and delete them.
    clones: bool,
    /// One has a journal on its disk.
    journal: bool,
    /// Changes are in that journal's files before they return.
    accepts: bool,
    /// One, the same, has a cache of the bucket's data on its disk.
    cache: bool,
    /// They write parts of files again, so that objects are repacked.
    rewrites: bool,
    /// A reader elsewhere follows them.
    follower: bool,
}

impl With {
    const ALL: Self = Self {
        snapshots: true,
        clones: true,
        journal: true,
        accepts: true,
        cache: true,
        rewrites: true,
        follower: true,
    };
}

struct Simulation {
    random: Random,
    volume: Volume,
    hosts: Vec<Host>,
    /// Decides which processes run on the host with the disk, if there is one.
    local: Option<Random>,
    kills: Kills,
    follower: Option<Follower>,
    /// The volume and its clones, and what decides of them.
    family: Option<(Family, Random)>,
}

impl Simulation {
    fn new(seed: u64, with: With) -> Self {
        let mut random = Random::new(seed);
        let window = [1, 2, 4, 8][random.below(4)];
        let snapshots = with.snapshots.then(Snapshots::default);
        let mut volume = Volume::new(World::new(seed), window, snapshots);
        let mut local = (with.journal || with.cache).then(|| Random::new(seed.rotate_left(32)));
        if let Some(random) = &mut local {
            volume.journal_bytes = JOURNAL_BYTES[random.below(JOURNAL_BYTES.len())];
            volume.targets.accept = with.accepts;
        }
        volume.has_journal = with.journal;
        volume.cache = with.cache.then(MemoryDir::default);
        volume.is_rewritten = with.rewrites;
        let follower = with.follower.then(|| Follower::new(&volume, random.fork()));
        let family = with.clones.then(|| {
            tables::alone(volume.format());
            (Family::new(volume.clone()), Random::new(seed.rotate_left(16)))
        });
        Self { random, volume, hosts: Vec::new(), local, kills: Kills::default(), follower, family }
    }

    /// A host takes the volume, or one of its clones.
    fn start(&mut self) {
        let member = self.family.as_mut().map(|(family, random)| {
            let mut members = family.mountable();
            members.swap_remove(random.below(members.len()))
        });
        self.start_on(member);
    }

    fn start_on(&mut self, member: Option<Member>) {
        let volume = member.as_ref().map_or_else(|| self.volume.clone(), Member::volume);
        let random = self.random.fork();
        let is_local = self.local.as_mut().is_some_and(|random| random.below(5) > 0);
        if is_local {
            self.end_local_host(&volume, member.as_ref());
        }
        self.hosts.push(Host::new((&volume, member), random, is_local));
    }

    /// Kills the processes of such hosts.
    fn kill(&mut self, is_killed: impl Fn(&Host) -> bool) {
        self.hosts.retain(|host| {
            if is_killed(host) {
                self.kills.add(host);
            }
            !is_killed(host)
        });
    }

    /// The next process on the host with the disk begins when the one before has ended: its process
    /// was killed, or its host has lost power.
    fn end_local_host(&mut self, volume: &Volume, member: Option<&Member>) {
        let number = member.map_or(0, |member| member.number);
        self.kill(|host| host.is_local && host.member == number);
        let Some(random) = &mut self.local else { return };
        let loses_power = random.below(2) == 0;
        if loses_power {
            volume.lose_power(|n| random.below(n));
        }
        self.kills.decide(number, loses_power);
    }

    /// Now and then, one begins to delete a clone, which nobody uses any more.
    fn delete_clone(&mut self) {
        let Some((family, random)) = &mut self.family else { return };
        let clones = family.deletable();
        if clones.is_empty() || random.below(4) > 0 {
            return;
        }
        let clone = &clones[random.below(clones.len())];
        self.kill(|host| host.member == clone.number);
        self.hosts.push(Host::with(clone.delete(), Arc::default()));
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
                self.kill(|_| true);
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
        self.delete_clone();
        // Those with a journal may have been killed.
        let stopped = stopped.min(self.hosts.len() - 1);
        self.run(stopped, 60);
        self.hosts.iter().for_each(|host| host.cut(false));
        if stopped > 0 {
            self.run(0, 30);
        }
    }

    fn run_all(mut self) -> Kills {
        for _ in 0..CHANGES {
            self.change();
        }
        // A host without faults finds it all; the others go on beside it.
        self.volume.world.heal();
        self.start_all();
        self.run(0, 60);
        self.hosts.iter_mut().rev().for_each(Host::run_to_end);
        self.kill(|_| true);
        // A last one, after all that is still on its way.
        let late = async { self.volume.world.carry_out_all().await };
        futures_executor::block_on(late);
        self.start_all();
        self.hosts.iter_mut().for_each(Host::run_to_end);
        self.kill(|_| true);
        self.check_all();
        if let Some(follower) = &mut self.follower {
            follower.run(FOLLOWED);
            follower.check(&self.volume.holders());
        }
        self.sweep();
        self.kills.decide_all()
    }

    /// A host takes the volume, and one each of its clones.
    fn start_all(&mut self) {
        match self.family.as_ref().map(|(family, _)| family.mountable()) {
            Some(members) => members.into_iter().for_each(|member| self.start_on(Some(member))),
            None => self.start_on(None),
        }
    }

    fn check_all(&self) {
        let Some((family, _)) = &self.family else { return check(&self.volume, None) };
        family.mountable().iter().for_each(|member| check(&member.volume(), Some(member)));
    }

    /// In the end some clones are deleted: what they alone needed goes, and what others need stays.
    fn sweep(&mut self) {
        let Some((family, random)) = &mut self.family else { return };
        for clone in family.deletable() {
            if random.below(2) == 0 {
                Host::with(clone.delete(), Arc::default()).run_to_end();
            }
        }
        for member in family.mountable().iter().rev() {
            sweep::sweep(member);
        }
    }
}

/// Each holder found what the one before it left.
fn check(volume: &Volume, member: Option<&Member>) {
    let holders = volume.holders();
    let was_acknowledged = member.is_none_or(Member::is_acknowledged);
    assert!(volume.is_held_by_the_last() || !was_acknowledged, "the last host has not opened the volume");
    if let (Some(shows), Some((_, found))) =
        (member.and_then(Member::begins_as), holders.first().and_then(|first| first.found()))
    {
        assert_eq!(found, shows, "a clone begins as something else than its snapshot");
    }
    for pair in holders.windows(2) {
        let [before, next] = pair else { continue };
        let (Some((earlier, _)), Some((later, found))) = (before.found(), next.found()) else { continue };
        assert!(earlier < later, "two holders have the epoch {earlier}");
        before.assert_left(&found, volume.acknowledged_by((earlier, before), (later, next)));
    }
}

/// Runs a seed.
fn try_seed(seed: u64, with: With) -> Result<Kills, String> {
    let run = || Simulation::new(seed, with).run_all();
    catch_unwind(AssertUnwindSafe(run)).map_err(|why| {
        let why = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref().copied());
        why.unwrap_or("it failed, see above").to_owned()
    })
}

/// Runs seeds; the first that fails ends it, and is named.
fn run(seeds: std::ops::Range<u64>, with: With) {
    for seed in seeds {
        if let Err(why) = try_seed(seed, with) {
            panic!("seed {seed}: {why}");
        }
    }
}
