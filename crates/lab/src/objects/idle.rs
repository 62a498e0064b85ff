//! Volumes that are attached in one process, and that nobody uses: what each of them costs.
//!
//! A process for each size, and all of them idle in one and the same window. It begins when no
//! volume has sent anything but the question for its lease for a while; in a whole run it is longer
//! than twice the period of the collection of garbage (300 s); each volume looks for a newer manifest
//! once an hour as well. Memory of a volume is what a process has more than the one with one volume.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::bucket::Server;
use super::growth::UMOUNT_MS;
use super::requests::Requests;
use super::subject::umount;
use crate::child::Server as Process;
use crate::control::Control;
use crate::experiment::Settings;
use crate::progress::Progress;
use crate::report::{Metric, Recorder};

/// Scenarios, and how many volumes each has.
pub(super) const SIZES: [(&str, usize); 3] = [("idle-1", 1), ("idle-100", 100), ("idle-1000", 1000)];
/// More than these are not attached with `--quick`.
const QUICK_MAX: usize = 100;

const ATTACH_MS: Metric = Metric::new("attach_each", "ms");
const RESIDENT: Metric = Metric::new("memory", "KiB");
const RESIDENT_EACH: Metric = Metric::new("memory_each", "KiB");
const THREADS: Metric = Metric::new("threads", "");
const FILES: Metric = Metric::new("descriptors", "");
const WAKE_UPS: Metric = Metric::new("wakeups_per_s", "");
const CPU: Metric = Metric::new("processor_per_s", "ms");
const GETS: Metric = Metric::new("gets_each_per_min", "");
const LISTS: Metric = Metric::new("lists_each_per_hour", "");
const PUTS: Metric = Metric::new("puts_each_per_hour", "");
const DELETES: Metric = Metric::new("deletes_each_per_hour", "");

const VARIANT: &str = "default";
/// Processes that make volumes at a time.
const MAKERS: usize = 4;
/// How long the volumes may take to become idle, and how long they are to have been.
const IDLE_AFTER_MAX: Duration = Duration::from_secs(180);
const IDLE_FOR: Duration = Duration::from_secs(15);
const LOOK_EACH: Duration = Duration::from_secs(5);
/// How long they are watched, in a whole run and with `--quick`.
const WATCHED: Duration = Duration::from_secs(660);
const WATCHED_QUICK: Duration = Duration::from_secs(20);

/// Whether a scenario is one of these.
pub(super) fn is_one(scenario: &str) -> bool {
    SIZES.iter().any(|(name, _)| *name == scenario)
}

/// Attaches volumes, as many as the chosen scenarios say, and watches them.
pub(super) fn measure(
    settings: &Settings,
    (program, server, scratch): (&Path, &Server, &Path),
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let is_chosen = |name| settings.variants.contains(&VARIANT) && settings.scenarios.contains(&name);
    let mut rigs = Vec::new();
    for (scenario, volumes) in SIZES.into_iter().filter(|(name, _)| is_chosen(*name)) {
        if settings.quick && volumes > QUICK_MAX {
            recorder.absent(scenario, VARIANT, RESIDENT_EACH, "not with --quick");
            continue;
        }
        if settings.stop.is_set() {
            return Ok(());
        }
        progress.step(&format!("{volumes} volumes are made and attached"));
        let (rig, attached) = Rig::new(program, server, &scratch.join(scenario), volumes)?;
        let each = attached.as_secs_f64() * 1000.0 / volumes as f64;
        recorder.value(scenario, VARIANT, ATTACH_MS, each);
        rigs.push((scenario, rig));
    }
    if rigs.is_empty() {
        return Ok(());
    }
    for (scenario, rig) in &rigs {
        progress.step(&format!("{scenario} becomes idle"));
        rig.wait_until_idle().with_context(|| format!("{scenario} does not become idle"))?;
    }
    let watched = if settings.quick { WATCHED_QUICK } else { WATCHED };
    let before = rigs.iter().map(|(_, rig)| rig.figures()).collect::<Result<Vec<_>, _>>()?;
    let begun = Instant::now();
    while begun.elapsed() < watched && !settings.stop.is_set() {
        progress.now(&format!("idle for {} of {} s", begun.elapsed().as_secs(), watched.as_secs()));
        std::thread::sleep(Duration::from_secs(1).min(watched));
    }
    // In the order of `before`, so that each window is as long as the others.
    let after = rigs.iter().map(|(_, rig)| rig.figures()).collect::<Result<Vec<_>, _>>()?;
    let alone = after.iter().zip(&rigs).find(|(_, (_, rig))| rig.volumes == 1).map(|(figures, _)| figures);
    for (((scenario, rig), before), after) in rigs.iter().zip(&before).zip(&after) {
        record(scenario, rig.volumes, (before, after), alone, recorder);
    }
    for (scenario, rig) in rigs {
        progress.step(&format!("{scenario} is unmounted"));
        let took = rig.unmount()?;
        recorder.value(scenario, VARIANT, UMOUNT_MS, took.as_secs_f64() * 1000.0);
        let note = format!(
            "idle: watched for {} s; umount: of all volumes, with the process's end",
            watched.as_secs()
        );
        recorder.note(scenario, VARIANT, &note);
    }
    Ok(())
}

fn record(
    scenario: &str,
    volumes: usize,
    (before, after): (&Figures, &Figures),
    alone: Option<&Figures>,
    recorder: &mut Recorder,
) {
    let seconds = (after.at - before.at).as_secs_f64();
    let mut value = |metric, value| recorder.value(scenario, VARIANT, metric, value);
    value(RESIDENT, after.resident_kib);
    if let Some(alone) = alone.filter(|_| volumes > 1) {
        value(RESIDENT_EACH, (after.resident_kib - alone.resident_kib) / (volumes - 1) as f64);
    }
    value(THREADS, after.threads);
    value(FILES, after.descriptors);
    value(WAKE_UPS, after.wake_ups_since(before) as f64 / seconds);
    value(CPU, (after.cpu.saturating_sub(before.cpu)).as_secs_f64() * 1000.0 / seconds);
    let sent = after.requests - before.requests;
    let each = |count: u64, period: f64| count as f64 * period / seconds / volumes as f64;
    value(GETS, each(sent.gets, 60.0));
    value(LISTS, each(sent.lists, 3600.0));
    value(PUTS, each(sent.puts, 3600.0));
    value(DELETES, each(sent.deletes, 3600.0));
}

/// What a process uses, and has used.
#[derive(Debug)]
struct Figures {
    at: Instant,
    resident_kib: f64,
    threads: f64,
    descriptors: f64,
    /// Of all volumes.
    requests: Requests,
    cpu: Duration,
    /// Voluntary context switches by thread: each is the end of a wait.
    wake_ups: HashMap<PathBuf, u64>,
}

impl Figures {
    /// Of threads that were there at both times; one that began between them began with none.
    fn wake_ups_since(&self, before: &Self) -> u64 {
        let more = |(thread, now): (&PathBuf, &u64)| {
            now.saturating_sub(before.wake_ups.get(thread).copied().unwrap_or(0))
        };
        self.wake_ups.iter().map(more).sum()
    }
}

/// A process with its volumes.
#[derive(Debug)]
struct Rig {
    volumes: usize,
    control: Control,
    process: Process,
    at: PathBuf,
}

impl Rig {
    /// Makes the volumes, mounts a directory, and attaches them; and how long the attaching took.
    fn new(
        program: &Path,
        server: &Server,
        directory: &Path,
        volumes: usize,
    ) -> anyhow::Result<(Self, Duration)> {
        let (at, run) = (directory.join("mount"), directory.join("run"));
        for number in 0..volumes {
            fs::create_dir_all(directory.join(format!("root/{number}")))?;
        }
        fs::create_dir_all(&at)?;
        fs::create_dir_all(&run)?;
        fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let url = |number: usize| format!("{name}-{number}");
        make(program, &(0..volumes).map(|number| server.url(&url(number))).collect::<Vec<_>>())?;
        let mut command = Command::new(program);
        command.arg("mount").arg(directory.join("root")).arg(&at);
        command.env("WATERTIGHT_RUNTIME_DIR", &run).env_remove("AWS_CA_BUNDLE");
        let process = Process::start(&mut command, &at, &directory.join("mount.log"))?;
        let control = super::subject::control(&run)?;
        let rig = Self { volumes, control, process, at };
        let begun = Instant::now();
        for number in 0..volumes {
            let wish =
                json!({ "path": number.to_string(), "source": server.url(&url(number)), "options": [] });
            rig.control.call("POST", "/v1/attach", &wish)?;
        }
        Ok((rig, begun.elapsed()))
    }

    /// The requests of all volumes.
    fn requests(&self) -> anyhow::Result<Requests> {
        let (mut sum, mut volumes, mut after) = (Requests::default(), 0, String::new());
        loop {
            let page = self.control.call("GET", &format!("/v1/volumes?after={after}"), &Value::Null)?;
            let page = page.as_array().context("the volumes are no list")?;
            for volume in page {
                sum = sum + Requests::of_status(volume).context("a volume without requests")?;
            }
            let Some(last) = page.last().and_then(|volume| volume["id"].as_str()) else { break };
            volumes += page.len();
            ensure!(last > after.as_str(), "the volumes are not in the order of their ids");
            last.clone_into(&mut after);
        }
        ensure!(volumes == self.volumes, "{volumes} volumes of {} are attached", self.volumes);
        Ok(sum)
    }

    /// Returns when nothing but GETs was sent for a while.
    fn wait_until_idle(&self) -> anyhow::Result<()> {
        let (until, mut since) = (Instant::now() + IDLE_AFTER_MAX, Instant::now());
        let others = |requests: Requests| Requests { gets: 0, ..requests };
        let mut last = others(self.requests()?);
        while since.elapsed() < IDLE_FOR {
            ensure!(Instant::now() < until, "after {} s it still sends", IDLE_AFTER_MAX.as_secs());
            // No event reports that another process has become idle.
            std::thread::sleep(LOOK_EACH);
            let now = others(self.requests()?);
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    fn figures(&self) -> anyhow::Result<Figures> {
        let requests = self.requests()?;
        let status = self.control.status()?;
        let figure = |name: &str| status["process"][name].as_f64().context("the status has no such figure");
        Ok(Figures {
            at: Instant::now(),
            resident_kib: figure("resident_bytes")? / 1024.0,
            threads: figure("threads")?,
            descriptors: figure("open_fds")?,
            requests,
            cpu: self.process.cpu_time().context("no processor time")?,
            wake_ups: wake_ups(self.process.pid())?,
        })
    }

    /// Unmounts all of it, and waits for the process.
    fn unmount(self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        umount(&self.at)?;
        self.process.stop()?;
        Ok(begun.elapsed())
    }
}

/// Makes the volumes, several at a time.
fn make(program: &Path, urls: &[String]) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let one = || {
        // ORDERING: Relaxed; the counter hands out URLs that were there before the threads.
        while let Some(url) = urls.get(next.fetch_add(1, Ordering::Relaxed)) {
            let output = Command::new(program)
                .args(["format", url])
                .env_remove("AWS_CA_BUNDLE")
                .stdin(Stdio::null())
                .output()?;
            ensure!(output.status.success(), "format: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        anyhow::Ok(())
    };
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS).map(|_| scope.spawn(one)).collect();
        makers
            .into_iter()
            .try_for_each(|maker| maker.join().unwrap_or_else(|_| anyhow::bail!("a maker panicked")))
    })
}

/// How often each thread of a process has waited so far.
fn wake_ups(pid: u32) -> anyhow::Result<HashMap<PathBuf, u64>> {
    let mut all = HashMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = entry?.path();
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(thread.join("status")) else { continue };
        all.extend(voluntary_switches(&status).map(|count| (thread, count)));
    }
    Ok(all)
}

/// The figure in proc_pid_status(5).
fn voluntary_switches(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(seconds: u64, wake_ups: &[(&str, u64)]) -> Figures {
        Figures {
            at: Instant::now() + Duration::from_secs(seconds),
            resident_kib: 1000.0 + 100.0 * seconds as f64,
            threads: 3.0,
            descriptors: 7.0,
            requests: Requests { gets: 12 * seconds, ..Requests::default() },
            cpu: Duration::from_millis(seconds),
            wake_ups: wake_ups.iter().map(|(thread, count)| (PathBuf::from(thread), *count)).collect(),
        }
    }

    #[test]
    fn wake_ups_are_those_of_threads_that_are_there() {
        let (before, after) = (figures(0, &[("1", 10), ("2", 5)]), figures(1, &[("1", 14), ("3", 2)]));
        assert_eq!(after.wake_ups_since(&before), 6);
    }

    #[test]
    fn figures_are_by_volume_and_time() {
        let mut recorder = Recorder::default();
        let (alone, before, after) = (figures(0, &[]), figures(0, &[("1", 0)]), figures(10, &[("1", 50)]));
        record("idle-100", 5, (&before, &after), Some(&alone), &mut recorder);
        let rows = recorder.into_rows();
        let value = |metric: Metric| rows.iter().find(|row| row.metric == metric).unwrap().p50.unwrap();
        let is_about = |metric, wanted: f64| (value(metric) - wanted).abs() < wanted / 100.0;
        assert!(is_about(RESIDENT_EACH, 250.0) && is_about(WAKE_UPS, 5.0), "{rows:?}");
        assert!(is_about(GETS, 144.0) && value(PUTS).abs() < f64::EPSILON, "{rows:?}");
    }

    #[test]
    fn switches_are_read_from_the_status_of_a_thread() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(voluntary_switches(status), Some(42));
        assert_eq!(voluntary_switches("Name:\tx\n"), None);
        assert!(!wake_ups(std::process::id()).unwrap().is_empty());
    }
}
