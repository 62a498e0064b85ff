//! A mount process with many volumes attached.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::Prepared;
use crate::child::Server;
use crate::control::{self, Control};
use crate::experiment::Settings;

/// How long threads that have nothing to do may stay.
const REST_MAX: Duration = Duration::from_secs(30);
/// Looks without any change after which they are taken to have ended: longer than data rests before
/// it is written.
const LOOKS: u32 = 27;
/// Volumes that are used: a used volume keeps descriptors, of which a process has so many.
const USED_MAX: usize = 1000;

/// How a volume is detached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    /// If it is not used.
    Plain,
    /// In any case; its users go on.
    Lazy,
}

/// The process.
#[derive(Debug)]
pub(crate) struct Rig {
    size: usize,
    program: PathBuf,
    control: Control,
    /// Without any volume.
    alone: Figures,
    // The mount goes before its directory.
    server: Server,
    directory: tempfile::TempDir,
}

/// The resources that the process uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    resident_kib: f64,
    pub(super) threads: f64,
    pub(super) descriptors: f64,
}

impl Rig {
    /// Mounts, and attaches so many.
    pub(crate) fn new(settings: &Settings, size: usize) -> anyhow::Result<Self> {
        let Prepared { program, directory } = Prepared::new(settings, size)?;
        let at = |name: &str| directory.path().join(name);
        let mut command = Command::new(&program);
        command.env("WATERTIGHT_RUNTIME_DIR", at("run")).arg("mount").arg(at("root")).arg(at("mnt"));
        let server = Server::start(&mut command, &at("mnt"), &at("log"))?;
        let control = control(&at("run"))?;
        let nothing = Figures { resident_kib: 0.0, threads: 0.0, descriptors: 0.0 };
        let mut rig = Self { size, program, control, alone: nothing, server, directory };
        rig.alone = rig.figures()?;
        (0..size).try_for_each(|number| rig.attach(number))?;
        Ok(rig)
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn attach(&self, number: usize) -> anyhow::Result<()> {
        self.attach_store(&number.to_string(), &self.path(&format!("stores/{number}")))
    }

    fn attach_store(&self, name: &str, store: &Path) -> anyhow::Result<()> {
        let wish = json!({ "path": name, "source": store, "options": ["cache=16M"] });
        self.call("POST", "/v1/attach", &wish).map(drop)
    }

    pub(crate) fn attach_one_more(&self) -> anyhow::Result<()> {
        self.attach(self.size)
    }

    pub(crate) fn detach_it(&self, how: How) -> anyhow::Result<()> {
        self.detach(&self.size.to_string(), how)
    }

    /// Detaches the volume of such a name: its number.
    pub(crate) fn detach(&self, name: &str, how: How) -> anyhow::Result<()> {
        let how = match how {
            How::Plain => "plain",
            How::Lazy => "lazy",
        };
        self.call("POST", "/v1/detach", &json!({ "path": name, "how": how })).map(drop)
    }

    /// Attaches another store in the place of a volume.
    pub(crate) fn replace(&self, name: &str, store: &Path) -> anyhow::Result<()> {
        self.detach(name, How::Plain)?;
        self.attach_store(name, store)
    }

    /// Where all are attached.
    pub(crate) fn mountpoint(&self) -> PathBuf {
        self.path("mnt")
    }

    fn used(&self) -> usize {
        self.size.min(USED_MAX)
    }

    /// Writes to each, or to as many as are used, and has it synced.
    pub(super) fn use_all(&self) -> anyhow::Result<()> {
        for number in 0..self.used() {
            fs::write(self.path(&format!("mnt/{number}/file")), [1; 4096])?;
        }
        self.call("POST", "/v1/sync?all=1", &Value::Null).map(drop)
    }

    pub(super) fn figures(&self) -> anyhow::Result<Figures> {
        let status = self.call("GET", "/v1/status", &Value::Null)?;
        let figure = |name: &str| status["process"][name].as_f64().context("the status has no such figure");
        Ok(Figures {
            resident_kib: figure("resident_bytes")? / 1024.0,
            threads: figure("threads")?,
            descriptors: figure("open_fds")?,
        })
    }

    /// The figures when threads that have nothing to do have ended.
    pub(super) fn rested(&self) -> anyhow::Result<Figures> {
        let until = Instant::now() + REST_MAX;
        let mut last = self.figures()?;
        // No event reports that a thread of another process has ended.
        let mut same = 0;
        while same < LOOKS && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(300));
            let now = self.figures()?;
            same = if now.threads < last.threads { 0 } else { same + 1 };
            last = now;
        }
        Ok(last)
    }

    /// Resident memory for each volume.
    #[allow(clippy::cast_precision_loss, reason = "some thousands")]
    pub(super) fn kib_of_each(&self, now: &Figures) -> f64 {
        (now.resident_kib - self.alone.resident_kib) / self.size as f64
    }

    /// Resident memory for each volume that was used since.
    #[allow(clippy::cast_precision_loss, reason = "some thousands")]
    pub(super) fn kib_of_each_used(&self, new: &Figures, now: &Figures) -> f64 {
        self.kib_of_each(new) + (now.resident_kib - new.resident_kib) / self.used() as f64
    }

    pub(super) fn status_of_one(&self) -> anyhow::Result<()> {
        self.status(&[self.path(&format!("mnt/{}", self.size / 2))], 1)
    }

    pub(super) fn status_of_all(&self) -> anyhow::Result<()> {
        self.status(&[], self.size + 1)
    }

    /// Runs `watertight status`, and checks whether it names so many volumes.
    fn status(&self, arguments: &[PathBuf], volumes: usize) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.env("WATERTIGHT_RUNTIME_DIR", self.path("run")).arg("status").args(arguments);
        let out = command.stdin(Stdio::null()).output()?;
        ensure!(out.status.success(), "status: {}", String::from_utf8_lossy(&out.stderr));
        let shown =
            String::from_utf8_lossy(&out.stdout).lines().filter(|line| line.contains(" active ")).count();
        ensure!(shown == volumes, "status shows {shown} volumes, not {volumes}");
        Ok(())
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.control.call(method, path, body)
    }

    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.server.stop()
    }
}

/// The one volume in a runtime directory.
fn control(run: &Path) -> anyhow::Result<Control> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some((_, control)) = control::known(run)?.pop() {
            return Ok(control);
        }
        // The mount is there a moment before its record.
        ensure!(Instant::now() < until, "no control socket");
        std::thread::sleep(Duration::from_millis(5));
    }
}
