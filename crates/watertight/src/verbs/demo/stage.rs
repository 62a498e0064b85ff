//! The demo's directory, its mounts and its processes.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use sync::Mutex;
use tempfile::TempDir;

use super::say::failed;
use crate::control::progress::REDRAW;
use crate::daemon::background::READY;
use crate::registry::DIR_VARIABLE;
use crate::term::console::console;
use crate::term::problem::Result;
use crate::term::shown::Show as _;
use crate::term::units;

/// How often something may come, or still be there, while its directory is being removed.
const REMOVALS: usize = 1000;
/// The time that a process needs to leave a cgroup.
const LEAVING: Duration = Duration::from_millis(5);

/// The paths.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    program: PathBuf,
    root: PathBuf,
}

/// Everything that is to be taken down.
#[derive(Debug)]
pub(super) struct Stage {
    processes: Vec<Child>,
    mountpoints: Vec<PathBuf>,
    /// Inner ones last.
    cgroups: Vec<PathBuf>,
    dir: TempDir,
}

/// The way to all of it.
#[derive(Debug)]
pub(super) struct Demo {
    paths: Paths,
    stage: Arc<Mutex<Option<Stage>>>,
    mount_type: String,
}

/// A mounted volume over a directory.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) store: PathBuf,
    pub(super) mountpoint: PathBuf,
    /// Its process's message.
    pub(super) said: String,
}

/// A volume on object storage that is mounted.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) mountpoint: PathBuf,
    /// Its process's message.
    pub(super) said: String,
}

/// A program that was started.
#[derive(Debug)]
pub(super) struct Started<'a> {
    demo: &'a Demo,
    pid: u32,
    log: PathBuf,
}

impl Demo {
    pub(super) fn new(paths: Paths, stage: Arc<Mutex<Option<Stage>>>, mount_type: &str) -> Self {
        Self { paths, stage, mount_type: mount_type.to_owned() }
    }

    /// Mounts the directory `name`, behind the faults that `faults` names, if any.
    pub(super) fn mount(&self, name: &str, faults: Option<&str>, options: &str) -> Result<Volume> {
        self.mount_as(&self.mount_type, name, faults, options)
    }

    /// Like [`mount`](Self::mount), with this mount type.
    pub(super) fn mount_as(
        &self,
        mount_type: &str,
        name: &str,
        faults: Option<&str>,
        options: &str,
    ) -> Result<Volume> {
        let [store, mountpoint] = ["store", "mnt"].map(|kind| self.paths.root.join(kind).join(name));
        for directory in [&store, &mountpoint] {
            match fs::create_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("making a directory", &error));
                }
                _ => {}
            }
        }
        let directory = format!("dir:{}", store.shown());
        let source = faults.map_or(directory.clone(), |rules| format!("fault:{rules},{directory}"));
        let mut command = self.command("mount");
        command.arg(source).arg(&mountpoint).args(["-o", &format!("type={mount_type},{options}")]);
        let said = self.mount_by(command, &mountpoint, name)?;
        Ok(Volume { store, mountpoint, said })
    }

    /// Mounts a volume on object storage, from the runtime directory `host`.
    pub(super) fn mount_url(
        &self,
        url: &str,
        name: &str,
        host: &str,
        environment: Vec<(&str, String)>,
    ) -> Result<Mounted> {
        let mountpoint = self.path("mnt").join(name);
        fs::create_dir(&mountpoint).map_err(|error| failed("making a directory", &error))?;
        let mut command = self.command_of(host, "mount");
        command.arg(url).arg(&mountpoint).args(["-o", &format!("type={}", self.mount_type)]);
        command.envs(environment);
        let said = self.mount_by(command, &mountpoint, name)?;
        Ok(Mounted { mountpoint, said })
    }

    /// Mounts by this command, and returns its message.
    fn mount_by(&self, mut command: Command, mountpoint: &Path, name: &str) -> Result<String> {
        // The demo shows its messages, some of which come at the end of a volume that is given up.
        let log = self.paths.root.join(format!("{name}.log"));
        let file = File::create(&log).map_err(|error| failed("making a log", &error))?;
        command.env("RUST_LOG", "error").stderr(file);
        self.with(|stage| stage.mountpoints.push(mountpoint.to_owned()))?;
        let out = self.start(command)?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).map_err(|error| failed("mounting", &error))?;
        let Some(said) = line.strip_prefix(READY) else {
            let why = fs::read_to_string(&log).unwrap_or_default();
            return Err(failed("mounting", &why.trim()));
        };
        Ok(said.trim_start_matches(':').trim().to_owned())
    }

    /// `watertight VERB`, for this demo's volumes.
    pub(super) fn command(&self, verb: &str) -> Command {
        self.command_of("run", verb)
    }

    /// The same, with the runtime directory of another host.
    pub(super) fn command_of(&self, host: &str, verb: &str) -> Command {
        let mut command = self.program(&self.paths.program);
        command.arg(verb).env(DIR_VARIABLE, self.path(host));
        command
    }

    /// A program, without the caller's variables for AWS, rclone and proxies: it must not send the
    /// demo's requests to a service of the caller's, nor the caller's keys to the demo's server.
    pub(super) fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        let is_of_a_service = |name: &str| {
            let name = name.to_ascii_lowercase();
            name.starts_with("aws_") || name.starts_with("rclone_") || name.ends_with("_proxy")
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_a_service)) {
            command.env_remove(name);
        }
        command
    }

    /// A path in the demo's directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.paths.root.join(name)
    }

    /// Runs `watertight VERB… PATH`.
    pub(super) fn run(&self, verb: &[&str], path: &Path) -> Result<Output> {
        let mut command = self.command(verb[0]);
        command.args(&verb[1..]).arg(path).output().map_err(|error| failed(verb[0], &error))
    }

    /// Runs `watertight VERB… PATH`, which must succeed, and returns how long it took.
    pub(super) fn timed(&self, verb: &[&str], path: &Path) -> Result<Duration> {
        let what = format!("watertight {}", verb.join(" "));
        let (out, took) = live(&what, || self.run(verb, path));
        succeeded(verb[0], &out?)?;
        Ok(took)
    }

    /// Starts a program that ends with the demo, and returns its output.
    pub(super) fn start(&self, mut command: Command) -> Result<ChildStdout> {
        command.process_group(0).stdout(Stdio::piped());
        // Under the lock: the thread that takes the stage down takes this along, or it does not
        // begin.
        let out = self.with(|stage| {
            let mut child = command.spawn()?;
            let out = child.stdout.take();
            stage.processes.push(child);
            out.ok_or_else(|| io::Error::other("it has no output"))
        })?;
        out.map_err(|error| failed("starting a program", &error))
    }

    /// Starts another program that ends with the demo, whose mountpoint goes with it; what it says
    /// goes into a file.
    pub(super) fn start_quietly(
        &self,
        mut command: Command,
        mountpoint: Option<&Path>,
        log: &str,
    ) -> Result<Started<'_>> {
        let log = self.path(log);
        let files = File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = files.map_err(|error| failed("making a log", &error))?;
        command.process_group(0).stdout(out).stderr(err);
        let pid = self.with(|stage| {
            let child = command.spawn()?;
            let pid = child.id();
            stage.mountpoints.extend(mountpoint.map(Path::to_owned));
            stage.processes.push(child);
            Ok::<_, io::Error>(pid)
        })?;
        let pid = pid.map_err(|error| failed("starting a program", &error))?;
        Ok(Started { demo: self, pid, log })
    }

    /// Makes a cgroup that goes with the demo.
    pub(super) fn make_cgroup(&self, directory: &Path) -> Result<()> {
        let made = self.with(|stage| {
            fs::create_dir(directory)?;
            stage.cgroups.push(directory.to_owned());
            Ok::<_, io::Error>(())
        })?;
        made.map_err(|error| failed("making a cgroup", &error))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Stage) -> T) -> Result<T> {
        self.stage.lock().as_mut().map(change).ok_or_else(|| failed("going on", &"stopped"))
    }
}

impl Started<'_> {
    /// Whether the program has ended.
    pub(super) fn has_ended(&mut self) -> Result<bool> {
        let pid = self.pid;
        self.demo.with(|stage| {
            let child = stage.processes.iter_mut().find(|child| child.id() == pid);
            child.is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
        })
    }

    /// Ends the program.
    pub(super) fn end(&mut self) {
        let pid = self.pid;
        let _stopped_already = self.demo.with(|stage| {
            for child in stage.processes.iter_mut().filter(|child| child.id() == pid) {
                let _gone_already = child.kill();
                let _reaped = child.wait();
            }
        });
    }

    /// The last line that it has said.
    pub(super) fn log(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing").shown().to_string()
    }
}

impl Stage {
    pub(super) fn build() -> Result<(Self, Paths)> {
        let build = || {
            let dir = tempfile::Builder::new()
                .prefix("watertight-demo.")
                .permissions(Permissions::from_mode(0o700))
                .tempdir()?;
            for kind in ["store", "mnt"] {
                fs::create_dir(dir.path().join(kind))?;
            }
            let paths = Paths { program: std::env::current_exe()?, root: fs::canonicalize(dir.path())? };
            let stage = Self { processes: Vec::new(), mountpoints: Vec::new(), cgroups: Vec::new(), dir };
            Ok((stage, paths))
        };
        build().map_err(|error: io::Error| failed("making its directory", &error))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // After a demo that went well all have left by themselves.
            if !matches!(process.try_wait(), Ok(Some(_))) {
                let _gone_already = process.kill();
            }
        }
        for process in &mut self.processes {
            let _reaped = process.wait();
        }
        for mountpoint in &self.mountpoints {
            let _not_mounted = fuse::mount::unmount(mountpoint, UnmountFlags::DETACH, true);
        }
        for cgroup in self.cgroups.iter().rev() {
            // A tenant that was at work has an error now, and leaves a moment later: no event of
            // the kernel reports when.
            for _ in 0..REMOVALS {
                match fs::remove_dir(cgroup) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(LEAVING),
                    _ => break,
                }
            }
        }
        // A process that was writing files through a mount writes into its bare directory now,
        // until that is gone.
        for _ in 0..REMOVALS {
            match fs::remove_dir_all(self.dir.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => break,
            }
        }
    }
}

/// An error with the program's output, if it did not succeed.
pub(super) fn succeeded(what: &str, out: &Output) -> Result<()> {
    if out.status.success() {
        return Ok(());
    }
    Err(failed(what, &String::from_utf8_lossy(&out.stderr).trim()))
}

/// Does `work`, returns how long it took, and shows the time so far on a terminal.
pub(super) fn live<T>(what: &str, work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    thread::scope(|scope| {
        let (done, finished) = channel::<()>();
        scope.spawn(move || {
            while finished.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
                console().status(&format!("{what}: {}", units::duration(begun.elapsed())));
            }
            console().clear_status();
        });
        let value = work();
        drop(done);
        (value, begun.elapsed())
    })
}
