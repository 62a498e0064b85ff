//! `isolation`: what does a stalled neighbour cost a healthy volume?
//!
//! Processes of the product with real mounts: ten healthy volumes, and beside them stalled ones, whose stores lie on a FUSE server that was
//! stopped by a signal. Each stalled volume has something to write and a caller who waits for it in fsync(2); that is so before and after
//! everything that is measured, or nothing is. Stalled volumes are compared with as many that nobody uses and whose stores answer: with the run
//! without stalls. Each world is made anew in each round, so that `alone` nobody else is there. [`world`] is such a world, [`load`] what is done in
//! it, [`keeper`] who waits, and who cleans up should this process be gone.

pub(crate) mod keeper;
mod load;
mod world;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Baseline, Metric, Recorder, Shown};
use crate::volumes::ours::program;
use load::{Amount, Found};
use world::{HEALTHY, STALL_AFTER, Way, World};

/// The experiment.
#[derive(Debug)]
pub(crate) struct Isolation;

const VARIANTS: [&str; 2] = ["default", "attached"];
const ALONE: &str = "alone";
const SCENARIOS: [&str; 7] =
    [ALONE, "idle-1", "stalled-1", "idle-10", "stalled-10", "idle-100", "stalled-100"];
const STALLED: &str = "stalled-";

const fn metric(name: &'static str, unit: &'static str) -> Metric {
    Metric { name, unit, shown: Shown::P50, larger_is_better: false }
}

const LARGE: Metric = Metric { larger_is_better: true, ..metric("write-1m", "MB/s") };
const WRITE: Metric = metric("write-4k", "ms");
const FSYNC: Metric = metric("fsync", "ms");
const SYNC: Metric = metric("sync", "ms");
const STAT: Metric = metric("stat", "ms");
const UMOUNT: Metric = metric("umount", "ms");
const LAZY: Metric = metric("umount-lazy", "ms");
const STATUS: Metric = metric("status", "ms");
const FORCE: Metric = metric("force", "ms");
const NOTICED: Metric = metric("stall-noticed", "ms");
const THREADS: Metric = metric("threads", "");
const MEMORY: Metric = metric("memory", "MiB");
/// Those that every scenario has.
const METRICS: [Metric; 10] = [LARGE, WRITE, FSYNC, SYNC, STAT, UMOUNT, LAZY, STATUS, THREADS, MEMORY];

/// How often the ten are gone through, each unmounted once: both ways in turn, so that what changes meanwhile is in the figures of both alike.
const TURNS: usize = 8;
/// Stalled volumes that are given up in each round.
const FORCED: usize = 5;

impl Experiment for Isolation {
    fn name(&self) -> &'static str {
        "isolation"
    }

    fn question(&self) -> &'static str {
        "what does a stalled neighbour cost a healthy volume?"
    }

    fn variants(&self) -> &'static [&'static str] {
        &VARIANTS
    }

    fn scenarios(&self) -> &'static [&'static str] {
        &SCENARIOS
    }

    fn baseline(&self) -> Baseline {
        let pair = |&stalled: &&str| {
            stalled.strip_prefix(STALLED).map(|count| (stalled.to_owned(), format!("idle-{count}")))
        };
        Baseline::Scenario { name: "idle-N".to_owned(), of: SCENARIOS.iter().filter_map(pair).collect() }
    }

    fn run(
        &self,
        settings: &Settings,
        progress: &Progress,
        recorder: &mut Recorder,
    ) -> anyhow::Result<Vec<String>> {
        ensure!(rustix::process::geteuid().is_root(), "needs root");
        let program = program(settings).map_err(anyhow::Error::msg)?;
        let place = settings.source.clone().unwrap_or_else(|| PathBuf::from("/dev/shm"));
        let place = place.canonicalize()?;
        let rounds = settings.runs.unwrap_or(if settings.quick { 1 } else { 6 });
        let mut cells: Vec<(&str, &str)> = Vec::new();
        for &scenario in &settings.scenarios {
            cells.extend(settings.variants.iter().map(|&variant| (scenario, variant)));
        }
        let whole: Duration = cells.iter().map(|cell| expected(cell, settings.quick)).sum();
        progress.expect(self.name(), whole * u32::try_from(rounds).unwrap_or(1));
        // In their order in the tables, whichever comes first.
        for metric in METRICS.iter().chain(&[FORCE, NOTICED]) {
            for (scenario, variant) in &cells {
                if METRICS.contains(metric) || scenario.starts_with(STALLED) {
                    recorder.expect(scenario, variant, *metric);
                }
            }
        }
        for round in 0..rounds {
            // None is always the first, nor always after the same.
            let step = if round == 0 { 0 } else { (cells.len() / 2).saturating_sub(1) };
            cells.rotate_left(step);
            for (scenario, variant) in &cells {
                if settings.stop.is_set() {
                    return Ok(notes(&place));
                }
                let now = format!("round {} of {rounds}: {scenario} {variant}", round + 1);
                progress.now(&now);
                let mut cell = Cell { scenario, variant, settings, recorder };
                if let Err(error) = cell.run(&program, &place) {
                    progress.say(&format!("{now}: {error:#}"));
                    METRICS
                        .iter()
                        .for_each(|m| recorder.absent(scenario, variant, *m, &format!("{error:#}")));
                }
                progress.done(expected(&(scenario, variant), settings.quick));
            }
        }
        Ok(notes(&place))
    }
}

/// How long a cell takes, about.
fn expected((scenario, variant): &(&str, &str), is_quick: bool) -> Duration {
    let load = if is_quick { 2 } else { 11 };
    let processes = if *variant == VARIANTS[0] { neighbours(scenario) } else { 0 };
    Duration::from_secs(load) + Duration::from_millis(150) * u32::try_from(processes).unwrap_or(0)
}

/// How many neighbours there are.
fn neighbours(scenario: &str) -> usize {
    scenario.rsplit_once('-').and_then(|(_, count)| count.parse().ok()).unwrap_or(0)
}

/// Which healthy volumes are unmounted, one after the other, and how.
fn unmounts(is_quick: bool) -> impl Iterator<Item = (usize, Way)> {
    let count = if is_quick { 4 } else { TURNS * HEALTHY };
    // The next time it is the other way for each.
    let way = |n: usize| if (n + n / HEALTHY).is_multiple_of(2) { Way::Plain } else { Way::Lazy };
    (0..count).map(move |n| (n % HEALTHY, way(n)))
}

/// One scenario with one variant, in one round.
struct Cell<'a> {
    scenario: &'a str,
    variant: &'a str,
    settings: &'a Settings,
    recorder: &'a mut Recorder,
}

impl Cell<'_> {
    fn run(&mut self, program: &Path, place: &Path) -> anyhow::Result<()> {
        let (neighbours, is_stalled) = (neighbours(self.scenario), self.scenario.starts_with(STALLED));
        let mut world = World::new(program, place, self.variant == VARIANTS[1], neighbours)?;
        world.dirty()?;
        if is_stalled {
            for ms in world.stall()? {
                self.value(NOTICED, ms);
            }
        }
        world.are_as_they_were()?;
        let is_quick = self.settings.quick;
        let amount = if is_quick {
            Amount { passes: 1, slice: Duration::from_millis(200), syncs: 2 }
        } else {
            Amount { passes: 6, slice: Duration::from_millis(1500), syncs: 20 }
        };
        let found = load::measure(&world.healthy(), amount, &self.settings.stop)?;
        world.are_as_they_were()?;
        self.found(&found);
        let uses = world.uses()?;
        self.value(THREADS, uses.threads);
        self.value(MEMORY, uses.mib);
        for _ in 0..if is_quick { 1 } else { 3 } {
            self.took(STATUS, world.status()?);
        }
        for (at, way) in unmounts(is_quick) {
            if self.settings.stop.is_set() {
                break;
            }
            let took = world.umount(at, way)?;
            self.took(if way == Way::Plain { UMOUNT } else { LAZY }, took);
        }
        world.are_as_they_were()?;
        for at in 0..if is_stalled { neighbours.min(FORCED) } else { 0 } {
            self.took(FORCE, world.force(at)?);
        }
        world.end()
    }

    fn found(&mut self, found: &Found) {
        for rate in &found.large {
            self.recorder.rate(self.scenario, self.variant, LARGE, *rate);
        }
        let histograms =
            [(WRITE, &found.write), (FSYNC, &found.fsync), (SYNC, &found.sync), (STAT, &found.stat)];
        for (metric, took) in histograms {
            self.recorder.operations_ms(self.scenario, self.variant, metric, took);
        }
    }

    fn value(&mut self, metric: Metric, value: f64) {
        self.recorder.value(self.scenario, self.variant, metric, value);
    }

    fn took(&mut self, metric: Metric, took: Duration) {
        self.value(metric, took.as_secs_f64() * 1e3);
    }
}

fn notes(place: &Path) -> Vec<String> {
    vec![
        format!(
            "{HEALTHY} healthy volumes on directory stores below {}; N neighbours, whose directory stores lie on a FUSE server, with 4 KiB to be written each. \
             `stalled-N`: the server was stopped by SIGSTOP, and each neighbour has a caller in fsync(2) and is stalled by what `status` says, before and after \
             what is measured. `idle-N`: the server answers, and nobody asks.",
            place.display()
        ),
        "`default`: each volume has a mount process of its own, with default options. `attached`: all are attached inside one mountpoint of one process."
            .to_owned(),
        "Load goes to the healthy volumes in turn. `write-1m`: 16 writes of 1 MiB, the fsync after them left out. `write-4k`: one write. `fsync`: a write of \
         4 KiB and its fsync(2). `sync`: of a volume with 4 KiB to be written, by syncfs(2); of an attached one, by its control socket. `stat`: statx(2) that \
         asks the volume. `umount`: the verb, its start included, of a volume with 256 KiB to be written, which are on the store when it returns. \
         `umount-lazy`: the same for `umount --lazy` while a file is open. `status`: the verb, of all volumes."
            .to_owned(),
        format!(
            "`umount` and `umount-lazy` are measured last, in turn, {} times each in a round ({TURNS} times over the ten volumes). Once a volume's mount, process and record are gone it is mounted again, which is \
             not measured; its load is not repeated.",
            TURNS * HEALTHY / 2
        ),
        format!(
            "`force`: `umount --force` of a stalled volume, its start included, until it has told what is lost. `stall-noticed`: from the fsync(2) until \
             `status` calls the volume stalled, less its `stall_after` of {} s. `threads`, `memory` (resident): of all processes that serve volumes together.",
            STALL_AFTER.as_secs()
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_scenarios_say_how_many_neighbours_there_are() {
        assert_eq!(SCENARIOS.map(neighbours), [0, 1, 1, 10, 10, 100, 100]);
    }

    #[test]
    fn volumes_are_unmounted_in_both_ways_in_turn_and_none_twice_before_the_others() {
        for (is_quick, of_each) in [(true, 2), (false, 40)] {
            let all: Vec<(usize, Way)> = unmounts(is_quick).collect();
            for way in [Way::Plain, Way::Lazy] {
                assert_eq!(all.iter().filter(|(_, by)| *by == way).count(), of_each);
            }
            assert!(all.iter().enumerate().all(|(n, (at, _))| *at == n % HEALTHY));
        }
        for at in 0..HEALTHY {
            let ways = unmounts(false).filter(|(of, _)| *of == at).map(|(_, way)| way);
            assert_eq!(ways.filter(|way| *way == Way::Lazy).count(), TURNS / 2, "of volume {at}");
        }
    }
}
