//! The campaign: as many seeds as are asked for, with what goes on said meanwhile.
//!
//! `SEEDS=100000 cargo test --release -p watertight-objects --lib simulation::campaign -- --ignored`, and as
//! variables:
//!
//! | variable | meaning |
//! |---|---|
//! | `FIRST`, `SEEDS` | the seeds from `FIRST` (0) on, so many (100,000) |
//! | `SECONDS` | it ends after so many seconds, and says with which seed it goes on |
//! | `TRIES` | each seed so often (once): the order of tasks within a host is not the seed's to decide |
//! | `SNAPSHOTS` | hosts make, read and delete snapshots |
//! | `CLONES` | and clones of these |
//! | `JOURNAL`, `ACCEPTS` | one has a journal, which accepts changes as well |
//! | `CACHE` | one has a disk cache |
//! | `REWRITES` | parts of files are written again, so that objects are repacked |
//! | `FOLLOWED` | a reader follows |
//! | `ALL` | all of these |

use std::io::Write as _;
use std::time::{Duration, Instant};

use super::kills::Kills;
use super::{With, try_seed};

/// How often it says how far it is.
const EVERY: Duration = Duration::from_secs(30);
/// Failures after which it ends: they are one defect, or the simulation's.
const FAILURES_MAX: usize = 20;

fn number(name: &str) -> Option<u64> {
    let given = std::env::var(name).ok()?;
    Some(given.parse().unwrap_or_else(|_| panic!("{name}={given} is no number")))
}

fn with() -> With {
    let is_given = |name| std::env::var_os(name).is_some() || std::env::var_os("ALL").is_some();
    With {
        snapshots: is_given("SNAPSHOTS") || is_given("CLONES"),
        clones: is_given("CLONES"),
        journal: is_given("JOURNAL") || is_given("ACCEPTS"),
        accepts: is_given("ACCEPTS"),
        cache: is_given("CACHE"),
        rewrites: is_given("REWRITES"),
        follower: is_given("FOLLOWED"),
    }
}

/// The variables that ask for the same again.
fn variables() -> String {
    let names = ["ALL", "SNAPSHOTS", "CLONES", "JOURNAL", "ACCEPTS", "CACHE", "REWRITES", "FOLLOWED"];
    names.iter().filter(|name| std::env::var_os(name).is_some()).map(|name| format!("{name}=1 ")).collect()
}

struct Campaign {
    begun: Instant,
    first: u64,
    next: u64,
    end: u64,
    kills: Kills,
    failed: Vec<u64>,
}

impl Campaign {
    /// Says it at once: the harness keeps what tests print until they end.
    fn say(text: &str) {
        let _nobody_listens = writeln!(std::io::stderr(), "simulation: {text}");
    }

    fn progress(&self) -> String {
        let (done, seconds) = (self.next - self.first, self.begun.elapsed().as_secs_f64());
        let speed = done as f64 / seconds.max(0.001);
        let left = (self.end - self.next) as f64 / speed.max(0.001) / 60.0;
        let Kills { processes, hosts, .. } = &self.kills;
        format!(
            "{done} of {} seeds, {speed:.1} a second, {left:.0} minutes left; killed: {processes} processes, {hosts} \
             hosts; {} seeds failed; goes on with {}FIRST={} SEEDS={}",
            self.end - self.first,
            self.failed.len(),
            variables(),
            self.next,
            self.end - self.next
        )
    }

    fn run(&mut self) {
        let (with, tries, seconds) = (with(), number("TRIES").unwrap_or(1), number("SECONDS"));
        let mut said = Instant::now();
        while self.next < self.end && self.failed.len() < FAILURES_MAX {
            if seconds.is_some_and(|seconds| self.begun.elapsed().as_secs() >= seconds) {
                break;
            }
            let seed = self.next;
            self.next += 1;
            for _ in 0..tries {
                match try_seed(seed, with) {
                    Ok(kills) => self.kills += kills,
                    Err(why) => {
                        self.failed.push(seed);
                        let again = format!("{}FIRST={seed} SEEDS=1 TRIES=20", variables());
                        Self::say(&format!("seed {seed} failed: {why}; again: {again} and the same command"));
                        break;
                    }
                }
            }
            if said.elapsed() >= EVERY {
                said = Instant::now();
                Self::say(&self.progress());
            }
        }
        Self::say(&self.progress());
    }
}

#[test]
#[ignore = "long; see the head of this module"]
fn campaign() {
    let (first, seeds) = (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(100_000));
    let end = first.checked_add(seeds).expect("seeds are numbers of 64 bits");
    let (begun, kills, failed) = (Instant::now(), Kills::default(), Vec::new());
    let mut campaign = Campaign { begun, first, next: first, end, kills, failed };
    campaign.run();
    assert!(campaign.failed.is_empty(), "seeds failed: {:?}", campaign.failed);
}
