//! The running kernel: the wait of an unmount of an idle ext4 while inodes of four others change
//! owners; and an idle volume of the product's, in the same minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::churner::{Churner, WRITES};
use super::tracer::Tracer;
use crate::child::Server;
use crate::control;
use crate::experiment::Settings;
use crate::progress::Progress;
use crate::report::{Metric, Recorder};
use crate::scale::{How, Rig};

const UMOUNT: Metric = Metric::new("umount", "ms");
const DETACH: Metric = Metric::new("detach", "ms");
const DRAIN: Metric = Metric::new("drain", "ms");
const SWITCHES: Metric = Metric::rate("switches_per_s", "1/s");

/// Disks that are churned, and those that are unmounted at once; between them is the one target.
const CHURNED: usize = 4;
const TARGET: usize = CHURNED;
const AT_ONCE: usize = 8;
/// One write at a time, and each takes so long.
const WRITE: Duration = Duration::from_millis(1);
/// The time until the load is steady.
const WARM_UP: Duration = Duration::from_secs(2);
/// One of our mounts is made for so many of the kernel's: each is a process.
const ROUNDS_OF_MOUNT: usize = 2;
/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(60);

/// A load beside the unmounts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Nothing,
    /// Cgroups come and go, and writers do not change theirs.
    Steady,
    Switching,
}

/// The scenarios, named as `drain` does: the load of each.
const SCENARIOS: [(&str, Load); 5] = [
    ("drain-control", Load::Nothing),
    ("drain-control-busy", Load::Steady),
    ("drain-idle", Load::Switching),
    ("drain-concurrent-8", Load::Switching),
    ("drain-churning", Load::Switching),
];

/// The part.
pub(crate) fn run(
    settings: &Settings,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<Vec<String>> {
    progress.step("drain: disks");
    let disks = Disks::new()?;
    let tracer = Tracer::start()?;
    let rig = Rig::new(settings, 1)?;
    let rounds = settings.runs.unwrap_or(40);
    for (scenario, load) in SCENARIOS {
        progress.step(scenario);
        let mut churners = disks.load(load)?;
        let _seen_before = tracer.take()?;
        let begun = Instant::now();
        for round in 0..rounds {
            match scenario {
                "drain-concurrent-8" => disks.at_once(scenario, recorder)?,
                "drain-churning" => disks.churned_itself(scenario, recorder)?,
                _ => {
                    recorder.value(scenario, "kernel", UMOUNT, in_ms(disks.idle()?));
                    ours(settings, &rig, scenario, round, recorder)?;
                }
            }
        }
        let seen = tracer.take()?;
        recorder.rate(scenario, "kernel", SWITCHES, seen.switches as f64 / begun.elapsed().as_secs_f64());
        match &tracer.no_drain {
            Some(why) => recorder.absent(scenario, "kernel", DRAIN, &format!("no probe: {why}")),
            None => seen
                .drains
                .into_iter()
                .for_each(|took| recorder.value(scenario, "kernel", DRAIN, in_ms(took))),
        }
        ensure!(churners.iter_mut().all(Churner::is_running), "{scenario}: a churner has ended");
    }
    rig.stop()?;
    Ok(notes())
}

fn in_ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// Volumes of the product: one that is attached, and from time to time one with a process of its
/// own.
fn ours(
    settings: &Settings,
    rig: &Rig,
    scenario: &str,
    round: usize,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    rig.attach_one_more()?;
    let begun = Instant::now();
    rig.detach_it(How::Plain)?;
    recorder.value(scenario, "default", DETACH, in_ms(begun.elapsed()));
    if round.is_multiple_of(ROUNDS_OF_MOUNT) {
        recorder.value(scenario, "default", UMOUNT, in_ms(mounted(settings)?));
    }
    Ok(())
}

/// Mounts a volume, and times umount2(2) of it.
fn mounted(settings: &Settings) -> anyhow::Result<Duration> {
    let program = crate::volumes::ours::program(settings).map_err(anyhow::Error::msg)?;
    let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("mnt"))?;
    let mut command = Command::new(program);
    command.env("WATERTIGHT_RUNTIME_DIR", at("run")).args(["mount", "mem:"]).arg(at("mnt"));
    let server = Server::start(&mut command, &at("mnt"), &at("log"))?;
    let begun = Instant::now();
    while control::known(&at("run")).map_or(0, |known| known.len()) == 0 {
        ensure!(begun.elapsed() < LONG, "the volume has no record");
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = timed(&at("mnt"))?;
    server.stop()?;
    Ok(took)
}

fn timed(place: &Path) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    unmount(place, UnmountFlags::empty()).with_context(|| format!("cannot unmount {}", place.display()))?;
    Ok(begun.elapsed())
}

/// Disks with an ext4 on each; the churned ones are mounted for good.
struct Disks {
    directory: tempfile::TempDir,
}

impl Disks {
    fn new() -> anyhow::Result<Self> {
        let count = CHURNED + 1 + AT_ONCE;
        let mut command = Command::new("modprobe");
        command.args([
            "null_blk",
            "memory_backed=1",
            "queue_mode=2",
            "submit_queues=1",
            "hw_queue_depth=1",
            "gb=1",
        ]);
        command.args([
            "irqmode=2",
            &format!("completion_nsec={}", WRITE.as_nanos()),
            &format!("nr_devices={count}"),
        ]);
        ensure!(command.status()?.success(), "no disks: modprobe null_blk failed");
        let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
        let this = Self { directory };
        for number in 0..count {
            let mut command = Command::new("mke2fs");
            command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=4"]);
            command
                .args(["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"])
                .arg(disk(number))
                .arg("32M");
            ensure!(command.stdin(Stdio::null()).status()?.success(), "mke2fs failed");
            fs::create_dir(this.place(number))?;
        }
        (0..CHURNED).try_for_each(|number| this.mount(number))?;
        Ok(this)
    }

    fn place(&self, number: usize) -> PathBuf {
        self.directory.path().join(number.to_string())
    }

    fn mount(&self, number: usize) -> anyhow::Result<()> {
        mount(disk(number), self.place(number), "ext4", MountFlags::empty(), None::<&std::ffi::CStr>)
            .with_context(|| format!("cannot mount {}", disk(number).display()))
    }

    fn load(&self, load: Load) -> anyhow::Result<Vec<Churner>> {
        if load == Load::Nothing {
            return Ok(Vec::new());
        }
        let start =
            |number| Churner::start(&self.place(number).join("file"), number, load == Load::Switching);
        let churners = (0..CHURNED).map(start).collect::<anyhow::Result<_>>()?;
        std::thread::sleep(WARM_UP);
        Ok(churners)
    }

    /// The target, to which nothing was written.
    fn idle(&self) -> anyhow::Result<Duration> {
        self.mount(TARGET)?;
        timed(&self.place(TARGET))
    }

    /// The target after a time in which it was churned as the others are.
    fn churned_itself(&self, scenario: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
        self.mount(TARGET)?;
        let churner = Churner::start(&self.place(TARGET).join("file"), TARGET, true)?;
        std::thread::sleep(WARM_UP / 4);
        drop(churner);
        recorder.value(scenario, "kernel", UMOUNT, in_ms(timed(&self.place(TARGET))?));
        Ok(())
    }

    /// Eight idle ones at once, each by a thread of its own.
    fn at_once(&self, scenario: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
        let all = TARGET + 1..=TARGET + AT_ONCE;
        all.clone().try_for_each(|number| self.mount(number))?;
        let took: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = all.map(|number| scope.spawn(move || timed(&self.place(number)))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        for took in took {
            recorder.value(scenario, "kernel", UMOUNT, in_ms(took?));
        }
        Ok(())
    }
}

fn disk(number: usize) -> PathBuf {
    PathBuf::from(format!("/dev/nullb{number}"))
}

impl Drop for Disks {
    fn drop(&mut self) {
        for number in 0..=CHURNED + AT_ONCE {
            // Most are not mounted by now.
            let _not_mounted = unmount(self.place(number), UnmountFlags::DETACH);
        }
        let _in_use = Command::new("modprobe").args(["-r", "null_blk"]).status();
    }
}

fn notes() -> Vec<String> {
    vec![
        format!(
            "`drain-…`: umount2(2) of an ext4 that was mounted a moment before and is idle, as the scenarios of `drain` have it: without load (`control`); beside four ext4 whose writers stay in their cgroups while \
             others come and go (`control-busy`); beside four whose files change owners (`idle`); eight idle ones at once (`concurrent-8`); one that was churned itself until then (`churning`). The disks are of null_blk, in memory: one write at a \
             time, each {} ms. Each load makes a cgroup, joins it, has the file's pages leave the cache, overwrites {WRITES} of them synchronously, leaves and removes the cgroup.",
            WRITE.as_millis()
        ),
        "`umount` of ours is umount2(2) of an idle volume with a process of its own; `detach` is of an attached one, asked at the control socket. Both have a store in memory or a directory of a tmpfs, and no disk, of which the unmount of an \
         ext4 writes a superblock. `drain` is the time between the entry and the return of cgroup_writeback_umount, by a probe, of all unmounts of the scenario, ours among them; `switches_per_s` counts the tracepoint inode_switch_wbs, one for each inode."
            .to_owned(),
    ]
}
