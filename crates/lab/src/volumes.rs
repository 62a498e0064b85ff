//! `volumes`: the cost of a mounted volume.
//!
//! Every target (ours in each mode on each store, and each peer) is mounted once and stays mounted;
//! a round takes each scenario in turn and gives every target a slice of it, starting with another
//! target each round. The clients are threads of this process that make the system calls themselves
//! ([`clients`]); `tar` and `git` are the programs.
//!
//! Scenario names: `seqwrite-1m` is a directory store (and every peer), `seqwrite-1m/mem` our
//! memory store, and likewise for all others. The null server has no store, so its rows stand under
//! both names.

mod clients;
mod dirs;
pub(crate) mod ours;
pub(crate) mod peers;
mod scenario;
mod sizes;
mod target;
mod trees;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::Recorder;
use anyhow::Context as _;
use dirs::RunDirs;
use scenario::{Found, Scenario};
use sizes::Sizes;
use std::time::Duration;
use target::{State, Target};
use trees::Trees;

const VARIANTS: [&str; 11] = [
    "default",
    "writethrough",
    "noidle",
    "writeback",
    "recover",
    "null",
    "bindfs",
    "rclone",
    "passthrough_ll",
    "ext4",
    "tmpfs",
];

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "volumes",
    question: "what does a mounted volume cost?",
    variants: &VARIANTS,
    scenarios: &scenario::ALL.names(),
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let sizes = Sizes::new(settings)?;
    let dirs = RunDirs::new(settings.source.as_deref())?;
    progress.now("preparing programs and trees");
    let trees = Trees::generate(dirs.scratch(), &sizes).context("cannot make the trees to unpack")?;
    let mut session = Session {
        scenarios: scenario::ALL.chosen(&settings.scenarios),
        targets: target::all(settings, &dirs),
        settings,
        sizes,
        trees,
        progress,
        recorder,
    };
    progress.expect(EXPERIMENT.name, session.expected());
    session.mount_all();
    for round in 0..session.sizes.runs {
        session.round(round);
    }
    let notes = session.notes(&dirs);
    session.unmount_all();
    Ok(notes)
}

/// One run of the experiment.
struct Session<'a> {
    settings: &'a Settings,
    sizes: Sizes,
    scenarios: Vec<Scenario>,
    targets: Vec<Target>,
    trees: Trees,
    progress: &'a Progress,
    recorder: &'a mut Recorder,
}

impl Session<'_> {
    /// The expected time of everything, for the progress bar.
    fn expected(&self) -> Duration {
        let is_possible = |target: &&Target| !matches!(target.start, target::Start::Impossible(_));
        let targets = u32::try_from(self.targets.iter().filter(is_possible).count()).unwrap_or(u32::MAX);
        let slices: Duration = self.scenarios.iter().map(|scenario| scenario.expected(&self.sizes)).sum();
        let rounds = u32::try_from(self.sizes.runs).unwrap_or(u32::MAX);
        (self.sizes.layout_expected() + slices * rounds) * targets
    }

    /// Mounts every target and lays its files out; one that cannot be mounted is down from here on.
    fn mount_all(&mut self) {
        for target in &mut self.targets {
            if self.settings.stop.is_set() {
                return;
            }
            self.progress.now(&format!("mounting {target}, laying out its files"));
            target.mount();
            if let State::Up(mounted) = &target.state
                && let Err(error) = clients::lay_out(mounted.root(), &self.sizes)
            {
                let why = format!("failed: cannot lay out the files: {error:#}");
                self.progress.say(&format!("{target}: {why}"));
                target.state = State::Down(why);
            }
            if matches!(target.state, State::Up(_)) {
                self.progress.done(self.sizes.layout_expected());
            }
        }
    }

    /// Gives every target a slice of every scenario.
    fn round(&mut self, round: usize) {
        for index in 0..self.scenarios.len() {
            let scenario = self.scenarios[index];
            for turn in 0..self.targets.len() {
                if self.settings.stop.is_set() {
                    return;
                }
                // Another target begins each round: none always follows one and the same neighbour.
                let at = (turn + round) % self.targets.len();
                let rounds = self.sizes.runs;
                let target = &self.targets[at];
                self.progress.now(&format!("round {} of {rounds}: {} {target}", round + 1, scenario.name()));
                if self.slice(scenario, at) {
                    self.progress.done(scenario.expected(&self.sizes));
                }
            }
        }
    }

    /// One slice of one target; whether it ran.
    fn slice(&mut self, scenario: Scenario, at: usize) -> bool {
        let target = &mut self.targets[at];
        let rows = target.rows(scenario);
        let result = match &mut target.state {
            State::Down(why) => Err(why.clone()),
            State::Up(_) if target.failed.contains(&scenario) => return false,
            State::Up(_) if !target.stores_data && scenario.needs_data() => {
                Err("not possible: this server throws data away".to_owned())
            }
            State::Up(mounted) => {
                let before = mounted.cpu_time();
                let found = scenario.run(mounted, &self.sizes, &self.trees);
                let cpu = mounted.add_own_cpu(before);
                found.map(|found| (found, cpu)).map_err(|error| format!("failed: {error:#}"))
            }
        };
        match result {
            Ok((found, cpu)) => {
                rows.iter().for_each(|row| record(self.recorder, row, target, scenario, &found, cpu));
                true
            }
            Err(why) => {
                target.failed.insert(scenario);
                for row in &rows {
                    for metric in scenario.metrics() {
                        self.recorder.absent(row, target.variant, *metric, &why);
                    }
                }
                false
            }
        }
    }

    /// Remarks on all rows.
    fn notes(&self, dirs: &RunDirs) -> Vec<String> {
        let mut notes = vec![dirs.note(), self.sizes.note()];
        notes.extend(scenario::NOTES.iter().map(|&note| note.to_owned()));
        if cfg!(debug_assertions) {
            notes.push(
                "This is a debug build of the lab: its clients and the null server are slow.".to_owned(),
            );
        }
        notes.extend(self.idle_note());
        notes.extend(self.targets.iter().filter_map(Target::command_note));
        notes
    }

    /// Whether servers that had nothing to do kept the processors busy.
    fn idle_note(&self) -> Option<String> {
        let idle = self.targets.iter().filter_map(|target| match &target.state {
            State::Up(mounted) => Some((target, mounted.idle_cpu()?)),
            State::Down(_) => None,
        });
        let (target, most) = idle.max_by_key(|(_, cpu)| *cpu)?;
        Some(format!(
            "Servers used little processor time outside of their own slices: at most {} ms in the whole run, by {target}.",
            most.as_millis()
        ))
    }

    /// Takes everything down; errors are printed, the figures stand.
    fn unmount_all(&mut self) {
        for target in &mut self.targets {
            self.progress.now(&format!("unmounting {target}"));
            let state = std::mem::replace(&mut target.state, State::Down("over".to_owned()));
            if let State::Up(mounted) = state
                && let Err(error) = mounted.stop()
            {
                self.progress.say(&format!("{target}: {error:#}"));
            }
        }
    }
}

fn record(
    recorder: &mut Recorder,
    row: &str,
    target: &Target,
    scenario: Scenario,
    found: &Found,
    cpu: Option<Duration>,
) {
    match (found, scenario.metrics()) {
        (Found::Rate { per_second, latency, operations }, [rate, more @ ..]) => {
            recorder.rate(row, target.variant, *rate, *per_second);
            if let [tail, share] = more {
                recorder.operations_us(row, target.variant, *tail, latency);
                if let Some(cpu) = cpu {
                    let per_operation = cpu.as_secs_f64() * 1e6 / *operations as f64;
                    recorder.value(row, target.variant, *share, per_operation);
                }
            }
        }
        (Found::Seconds(seconds), [metric, ..]) => recorder.value(row, target.variant, *metric, *seconds),
        (_, []) => {}
    }
    if let Some(note) = target.row_note(scenario) {
        recorder.note(row, target.variant, &note);
    }
}
