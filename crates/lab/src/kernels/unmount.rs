//! The wait of an unmount of an unused mount: bind mounts of the kernel, and volumes that are
//! attached to a mountpoint of the product, in turn.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use super::namespace::{self, Kind};
use crate::child::Server;
use crate::experiment::Settings;
use crate::progress::Progress;
use crate::report::{Metric, Recorder};
use crate::scale::{How, Rig};

const fn ms(name: &'static str) -> Metric {
    Metric::new(name, "ms")
}

const UMOUNT: Metric = ms("umount");
const LAZY: Metric = ms("umount-lazy");
const WHOLE: Metric = ms("whole");

/// Threads that walk, and as many that have RCU callbacks to be run.
const LOADED: usize = 3;
/// Mounts in bulk: the kernel's, and as many as the product has attached.
const BULK: usize = 1000;
const ATTACHED: usize = 200;
/// Samples of measurements that take all of them.
const WHOLES: usize = 5;

/// After which a new mount is idle.
const SETTLED: Duration = Duration::from_secs(5);
const HUNG_ITSELF: &str = "unmount-hung-itself";

const NORMAL: &str = "/sys/kernel/rcu_normal";
const EXPEDITED: &str = "/sys/kernel/rcu_expedited";

/// The values of rcu_normal and rcu_expedited; `None`: as they were at boot.
type Setting = Option<(&'static str, &'static str)>;

/// The kernel's mounts, and the grace periods that it is set to: `None` as it booted.
const KERNELS: [(&str, Kind, Setting); 4] = [
    ("kernel", Kind::Binds, None),
    ("kernel-rcu-normal", Kind::Binds, Some(("1", "0"))),
    ("kernel-rcu-expedited", Kind::Binds, Some(("0", "1"))),
    ("kernel-tmpfs", Kind::Tmpfs, None),
];

/// The switches' values at boot.
struct GracePeriods {
    normal: String,
    expedited: String,
}

impl GracePeriods {
    fn as_booted() -> anyhow::Result<Self> {
        let read = |file: &str| fs::read_to_string(file).with_context(|| format!("cannot read {file}"));
        Ok(Self { normal: read(NORMAL)?.trim().to_owned(), expedited: read(EXPEDITED)?.trim().to_owned() })
    }

    fn set(&self, setting: Setting) -> anyhow::Result<()> {
        let (normal, expedited) = setting.unwrap_or((&self.normal, &self.expedited));
        fs::write(NORMAL, normal).with_context(|| format!("cannot write {NORMAL}"))?;
        fs::write(EXPEDITED, expedited).with_context(|| format!("cannot write {EXPEDITED}"))
    }
}

/// A tmpfs of our own: mounts on it propagate to no other namespace.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
        mount("lab", directory.path(), "tmpfs", MountFlags::empty(), None::<&std::ffi::CStr>)?;
        mount_change(directory.path(), MountPropagationFlags::PRIVATE)?;
        fs::create_dir_all(directory.path().join("walked/a/b"))?;
        fs::create_dir(directory.path().join("churned"))?;
        Ok(Self(directory))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.0.path(), UnmountFlags::DETACH) {
            eprintln!("lab: cannot unmount {}: {error}", self.0.path().display());
        }
    }
}

/// Unmounts, and returns how long that took.
fn timed(place: &Path, flags: UnmountFlags) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    loop {
        match unmount(place, flags) {
            Ok(()) => return Ok(begun.elapsed()),
            Err(Errno::BUSY) if begun.elapsed() < Duration::from_secs(30) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot unmount {}", place.display())),
        }
    }
}

fn in_ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

const WAYS: [(Metric, UnmountFlags, How); 2] =
    [(UMOUNT, UnmountFlags::empty(), How::Plain), (LAZY, UnmountFlags::DETACH, How::Lazy)];

/// The part.
pub(super) fn run(
    settings: &Settings,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<Vec<String>> {
    let part = Unmounts {
        tmpfs: Tmpfs::new()?,
        periods: GracePeriods::as_booted()?,
        rig: Rig::new(settings, 1)?,
        rounds: settings.runs.unwrap_or(40),
        settings,
        progress,
    };
    let booted = format!(
        "As it boots, rcu_normal is {} and rcu_expedited {}.",
        part.periods.normal, part.periods.expedited
    );
    part.all(recorder)?;
    part.rig.stop()?;
    let mut notes = notes();
    notes.push(format!("Linux {}: {booted}", rustix::system::uname().release().to_string_lossy()));
    Ok(notes)
}

struct Unmounts<'a> {
    tmpfs: Tmpfs,
    periods: GracePeriods,
    rig: Rig,
    rounds: usize,
    settings: &'a Settings,
    progress: &'a Progress,
}

impl Unmounts<'_> {
    fn all(&self, recorder: &mut Recorder) -> anyhow::Result<()> {
        self.one_at_a_time("unmount-alone", recorder)?;
        let walk = || {
            let _ = std::hint::black_box(rustix::fs::access(
                self.tmpfs.path("walked/a/b"),
                rustix::fs::Access::EXISTS,
            ));
        };
        beside(&walk, || self.one_at_a_time("unmount-walkers", recorder))?;
        let churn = || {
            let number = rustix::thread::gettid().as_raw_nonzero();
            let file = self.tmpfs.path(&format!("churned/{number}"));
            let _ = fs::write(&file, "").and_then(|()| fs::remove_file(&file));
        };
        beside(&churn, || self.one_at_a_time("unmount-callbacks", recorder))?;
        self.beside_hung(recorder)?;
        self.bulk(recorder)?;
        self.namespaces(recorder)?;
        self.attached(recorder)
    }

    /// Each variant in turn: mounts, and unmounts.
    fn one_at_a_time(&self, scenario: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
        self.progress.step(scenario);
        let (source, place) = (self.tmpfs.path("walked"), self.tmpfs.path("place"));
        fs::create_dir_all(&place)?;
        for _ in 0..self.rounds {
            for (metric, flags, how) in WAYS {
                for (variant, kind, setting) in KERNELS {
                    kind.mount(&source, &place)?;
                    self.periods.set(setting)?;
                    let took = timed(&place, flags);
                    self.periods.set(None)?;
                    recorder.value(scenario, variant, metric, in_ms(took?));
                }
                self.rig.attach_one_more()?;
                let begun = Instant::now();
                self.rig.detach_it(how)?;
                recorder.value(scenario, "default", metric, in_ms(begun.elapsed()));
            }
        }
        Ok(())
    }

    /// A FUSE server that answers nothing has a mount that a process is stuck in, and another one
    /// that umount2(2) is stuck in; and one of our attached volumes has its store there, with a
    /// process that is stuck in the volume.
    fn beside_hung(&self, recorder: &mut Recorder) -> anyhow::Result<()> {
        let program = crate::volumes::ours::program(self.settings).map_err(anyhow::Error::msg)?;
        let mount = |name: &str| {
            let at = |part: &str| self.tmpfs.path(&format!("{name}.{part}"));
            fs::create_dir(at("mnt"))?;
            fs::create_dir_all(at("store/inside"))?;
            let mut command = Command::new(&program);
            command.env("WATERTIGHT_RUNTIME_DIR", at("run")).args(["mount", "-o", "uring=off"]);
            command.arg(at("store")).arg(at("mnt"));
            Server::start(&mut command, &at("mnt"), &at("log"))
        };
        let (used, idle) = (mount("used")?, mount("idle")?);
        let inside = self.tmpfs.path("used.mnt/inside");
        self.rig.replace("0", &inside)?;
        // A mount asks its own kernel some questions when it begins; those must be over.
        thread::sleep(SETTLED);
        used.suspend()?;
        idle.suspend()?;
        let stuck_in = |place: PathBuf| thread::spawn(move || drop(fs::metadata(place)));
        let place = self.tmpfs.path("idle.mnt");
        let stuck = [
            stuck_in(inside.join("nothing")),
            stuck_in(self.rig.mountpoint().join("0/nothing")),
            thread::spawn(move || {
                let _until_its_server_is_killed = timed(&place, UnmountFlags::empty());
            }),
        ];
        thread::sleep(Duration::from_millis(500));
        ensure!(!stuck.iter().any(thread::JoinHandle::is_finished), "a server that was stopped answers");
        let done = self.one_at_a_time("unmount-hung", recorder);
        let begun = Instant::now();
        let itself = unmount(self.tmpfs.path("used.mnt"), UnmountFlags::DETACH);
        recorder.value(HUNG_ITSELF, "kernel", LAZY, in_ms(begun.elapsed()));
        let begun = Instant::now();
        match self.rig.detach("0", How::Lazy) {
            Ok(()) => recorder.value(HUNG_ITSELF, "default", LAZY, in_ms(begun.elapsed())),
            Err(error) => {
                let why = format!("no answer: {error:#}, after {:.0} s", begun.elapsed().as_secs_f64());
                recorder.absent(HUNG_ITSELF, "default", LAZY, &why);
            }
        }
        used.kill()?;
        idle.kill()?;
        for thread in stuck {
            let _ended_with_its_server = thread.join();
        }
        done?;
        itself.context("the mount of a server that does not answer")
    }

    /// Many, one after the other.
    fn bulk(&self, recorder: &mut Recorder) -> anyhow::Result<()> {
        for (metric, flags, _) in WAYS {
            for (variant, kind, setting) in KERNELS {
                self.progress.step(&format!("unmount-bulk-{BULK}, {}, {variant}", metric.name));
                let directory = self.tmpfs.path("bulk");
                namespace::mount_all(&directory, BULK, kind)?;
                self.periods.set(setting)?;
                let done = (0..BULK).try_for_each(|number| {
                    let took = timed(&directory.join(number.to_string()), flags)?;
                    recorder.value(&format!("unmount-bulk-{BULK}"), variant, metric, in_ms(took));
                    anyhow::Ok(())
                });
                self.periods.set(None)?;
                done?;
            }
        }
        Ok(())
    }

    /// The end of namespaces with many.
    fn namespaces(&self, recorder: &mut Recorder) -> anyhow::Result<()> {
        let directory = self.tmpfs.path("namespace");
        fs::create_dir(&directory)?;
        for count in [1, ATTACHED, BULK] {
            let scenario = format!("unmount-namespace-{count}");
            self.progress.step(&scenario);
            for _ in 0..WHOLES {
                for (variant, kind, setting) in KERNELS {
                    self.periods.set(setting)?;
                    let took = namespace::end_of(&directory, count, kind);
                    self.periods.set(None)?;
                    recorder.value(&scenario, variant, WHOLE, in_ms(took?));
                }
            }
        }
        Ok(())
    }

    /// A mountpoint with as many attached volumes, ended at once; and each of as many detached.
    fn attached(&self, recorder: &mut Recorder) -> anyhow::Result<()> {
        self.progress.step(&format!("unmount-namespace-{ATTACHED}, ours"));
        for _ in 0..WHOLES.div_ceil(2) {
            let rig = Rig::new(self.settings, ATTACHED)?;
            let begun = Instant::now();
            unmount(rig.mountpoint(), UnmountFlags::empty()).context("the mountpoint of many volumes")?;
            let took = begun.elapsed();
            recorder.value(&format!("unmount-namespace-{ATTACHED}"), "default", WHOLE, in_ms(took));
            rig.stop()?;
        }
        let rig = Rig::new(self.settings, ATTACHED)?;
        for number in 0..ATTACHED {
            let begun = Instant::now();
            rig.detach(&number.to_string(), if number % 2 == 0 { How::Plain } else { How::Lazy })?;
            let metric = if number % 2 == 0 { UMOUNT } else { LAZY };
            recorder.value(&format!("unmount-bulk-{BULK}"), "default", metric, in_ms(begun.elapsed()));
        }
        rig.stop()
    }
}

/// Runs `what` while threads do `load` again and again.
fn beside<T>(load: &(dyn Fn() + Sync), what: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..LOADED {
            // ORDERING: Relaxed, a flag that is polled.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    load();
                }
            });
        }
        let done = what();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

fn notes() -> Vec<String> {
    vec![
        format!(
            "`unmount-alone`: umount2(2) of a bind mount that nobody uses, without a flag (`umount`) and with MNT_DETACH (`umount-lazy`); ours: detach of an attached volume, \
             plain and lazy, asked at the control socket, whose connection is in the time. `unmount-walkers`: beside {LOADED} threads that look up a path on the same tmpfs; `unmount-callbacks`: \
             beside {LOADED} that make and remove files, whose memory is freed by RCU callbacks. `unmount-hung`: beside a FUSE server that answers nothing, with one thread stuck \
             in its mount and one in umount2(2) of another such mount, and beside an attached volume whose store is there; `{HUNG_ITSELF}`: of these themselves."
        ),
        format!(
            "`unmount-bulk-{BULK}`: {BULK} bind mounts, one after the other, and of ours {ATTACHED} attached volumes, every other one lazily. `unmount-namespace-N`: the end of a mount namespace with N \
             bind mounts, by its last user; ours: umount2(2) of a mountpoint with as many attached volumes."
        ),
        "`kernel` is as it boots; `kernel-rcu-normal` with rcu_normal 1 and rcu_expedited 0, `kernel-rcu-expedited` with rcu_normal 0 and rcu_expedited 1. These unmount \
         bind mounts, with which no file system ends. `kernel-tmpfs`, as it boots, unmounts a tmpfs each, whose superblock ends with it: what an attached volume is to ours."
            .to_owned(),
    ]
}
