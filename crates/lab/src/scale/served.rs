//! `watertight serve` with many volumes in its file.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::mount::UnmountFlags;
use rustix::process::{Signal, kill_process};

use super::Prepared;
use crate::child;
use crate::experiment::Settings;

/// How long anything may take.
const LONG: Duration = Duration::from_secs(120);
/// How often the lab checks whether a volume is there. No event reports it.
const LOOK: Duration = Duration::from_millis(1);

/// A configuration file, its stores, and the process, if it runs.
#[derive(Debug)]
pub(super) struct Served {
    size: usize,
    program: PathBuf,
    child: Option<Child>,
    directory: tempfile::TempDir,
}

impl Served {
    /// A file of so many volumes inside one mountpoint.
    pub(super) fn new(settings: &Settings, size: usize) -> anyhow::Result<Self> {
        let Prepared { program, directory } = Prepared::new(settings, size)?;
        // By this it is seen that the one more is there.
        fs::write(directory.path().join(format!("stores/{size}/there")), "")?;
        Ok(Self { size, program, child: None, directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the file.
    fn write(&self, volumes: usize) -> anyhow::Result<()> {
        let (stores, mnt) = (self.path("stores"), self.path("mnt"));
        let mut text = format!(
            "[defaults]\noptions = \"cache=16M\"\n[[volume]]\nsource = {:?}\nmountpoint = {mnt:?}\n",
            self.path("root")
        );
        for number in 0..volumes {
            let (store, at) = (stores.join(number.to_string()), mnt.join(number.to_string()));
            writeln!(text, "[[volume]]\nsource = {store:?}\nattach = {at:?}")?;
        }
        fs::write(self.path("volumes.toml"), text).context("the configuration file")
    }

    /// Starts it; returns when it has reported that all are there.
    pub(super) fn start(&mut self) -> anyhow::Result<Duration> {
        self.write(self.size)?;
        let log = fs::File::create(self.path("log"))?;
        let begun = Instant::now();
        let mut command = Command::new(&self.program);
        command.env("WATERTIGHT_RUNTIME_DIR", self.path("run")).arg("serve").arg(self.path("volumes.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        child::ends_with_the_lab(&mut command);
        let mut child = command.spawn()?;
        let out = child.stdout.take();
        self.child = Some(child);
        let mut line = String::new();
        BufReader::new(out.context("no output")?).read_line(&mut line)?;
        let took = begun.elapsed();
        let all = format!("ready: {0} of {0} volumes mounted", self.size + 1);
        ensure!(line.starts_with(&all), "not ready, but {line:?}: {}", self.last_words());
        Ok(took)
    }

    /// Makes it read its file again with one volume more; returns when that is there.
    pub(super) fn reload_with_one_more(&mut self) -> anyhow::Result<Duration> {
        self.reload(self.size + 1, true)
    }

    /// Makes it read its file again without that volume; returns when it is gone.
    pub(super) fn reload_without_it(&mut self) -> anyhow::Result<Duration> {
        self.reload(self.size, false)
    }

    fn reload(&mut self, volumes: usize, is_there: bool) -> anyhow::Result<Duration> {
        self.write(volumes)?;
        let marker = self.path(&format!("mnt/{}/there", self.size));
        let begun = Instant::now();
        self.signal(Signal::HUP)?;
        while marker.exists() != is_there {
            ensure!(begun.elapsed() < LONG, "the reload has no effect: {}", self.last_words());
            std::thread::sleep(LOOK);
        }
        Ok(begun.elapsed())
    }

    /// Has it unmount all; until it has ended.
    pub(super) fn stop(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.signal(Signal::TERM)?;
        let mut child = self.child.take().context("it does not run")?;
        let status = child.wait()?;
        let took = begun.elapsed();
        ensure!(status.success(), "{status}: {}", self.last_words());
        Ok(took)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let Some(child) = &self.child else { bail!("it does not run") };
        kill_process(child::pid(child)?, signal).context("it is gone")
    }

    fn last_words(&self) -> String {
        last_line(&self.path("log"))
    }
}

fn last_line(log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    said.lines().next_back().unwrap_or("it says nothing").to_owned()
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.child.is_some()
            && let Err(error) = self.stop()
        {
            eprintln!("lab: {}: {error:#}", self.path("volumes.toml").display());
            let _gone_already = rustix::mount::unmount(self.path("mnt"), UnmountFlags::DETACH);
        }
    }
}
