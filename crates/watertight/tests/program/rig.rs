//! The basis of the tests: directories of their own, the program, and an end to all of it.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testing::patience;
use watertight::control::client::{CallError, Client};
use watertight::host::open_dir::OpenDir;

/// The way to the process that listens at `socket`, in a runtime directory of this user's.
pub(crate) fn connect(socket: &Path) -> Result<Client, CallError> {
    let uid = rustix::process::geteuid().as_raw();
    let dir = OpenDir::own(socket.parent().unwrap(), uid).unwrap().unwrap();
    Client::connect(&dir, socket.file_name().unwrap().to_str().unwrap())
}

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_watertight");
/// Far longer than anything takes; a test that waits so long has failed. Waits here are longer
/// where the machine is slow (`patience`).
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Prints that a test could not run.
pub(crate) fn skipped(why: &str) {
    testing::skipped(why);
}

/// Whether this machine and user can mount; prints the reason if not.
pub(crate) fn can_mount() -> bool {
    let why = if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse"
    } else if !rustix::process::geteuid().is_root() {
        "needs root"
    } else {
        return true;
    };
    skipped(why);
    false
}

/// Whether the program `name` is installed; prints it if not.
pub(crate) fn has(name: &str) -> bool {
    tool(name).is_some()
}

/// The path of the program `name`, in `WATERTIGHT_TOOLS` or `PATH`; prints it if it is in neither.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let dirs = ["WATERTIGHT_TOOLS", "PATH"].map(|variable| std::env::var_os(variable).unwrap_or_default());
    let found =
        dirs.iter().flat_map(std::env::split_paths).map(|dir| dir.join(name)).find(|path| path.is_file());
    if found.is_none() {
        skipped(&format!("{name} is not installed"));
    }
    found
}

/// One test's world.
pub(crate) struct Rig {
    pub(crate) root: PathBuf,
    pub(crate) store: PathBuf,
    pub(crate) mnt: PathBuf,
    pub(crate) runtime: PathBuf,
    daemons: Vec<Arc<Mutex<Option<Child>>>>,
    _dir: TempDir,
}

impl Rig {
    /// Directories for one test.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("watertight-test.")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let (store, mnt, runtime) = (root.join("store"), root.join("mnt"), root.join("run"));
        fs::create_dir(&store).unwrap();
        fs::create_dir(&mnt).unwrap();
        Self { root, store, mnt, runtime, daemons: Vec::new(), _dir: dir }
    }

    /// A rig, where mounting is possible.
    pub(crate) fn mounting() -> Option<Self> {
        can_mount().then(Self::new)
    }

    /// The program with these arguments.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).env("WATERTIGHT_RUNTIME_DIR", &self.runtime).env_remove("RUST_LOG");
        command.env_remove("NOTIFY_SOCKET");
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Out {
        run(self.command(arguments))
    }

    /// Runs `watertight VERB MOUNTPOINT MORE…`.
    pub(crate) fn verb(&self, verb: &str, more: &[&str]) -> Out {
        let mut command = self.command(&[verb]);
        command.arg(&self.mnt).args(more);
        run(command)
    }

    /// Mounts the store with these options, in the foreground.
    pub(crate) fn mount(&mut self, options: &str) -> Daemon {
        let source = format!("dir:{}", self.store.display());
        self.mount_source(&source, options)
    }

    /// Mounts the store with faults, in the foreground.
    pub(crate) fn mount_faulty(&mut self, rules: &str, options: &str) -> Daemon {
        let source = format!("fault:{rules},dir:{}", self.store.display());
        self.mount_source(&source, options)
    }

    /// Mounts any source, in the foreground, and waits until it is ready.
    pub(crate) fn mount_source(&mut self, source: &str, options: &str) -> Daemon {
        let mut command = self.command(&["mount", source]);
        command.arg(&self.mnt);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        self.start(command)
    }

    /// Runs a shell's command line on a terminal; also gives what the screen has been sent.
    pub(crate) fn on_a_terminal(&self, line: &str) -> (Child, impl Fn() -> String + use<>) {
        let typescript = self.root.join("typescript");
        let child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", line])
            .arg(&typescript)
            .env("WATERTIGHT_RUNTIME_DIR", &self.runtime)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        (child, move || String::from_utf8_lossy(&fs::read(&typescript).unwrap_or_default()).into_owned())
    }

    /// Starts a mount process that ends with the test, and waits until it is ready.
    pub(crate) fn start(&mut self, command: Command) -> Daemon {
        let daemon = Daemon::start(command);
        self.daemons.push(Arc::clone(&daemon.child));
        let ready = daemon.line(LONG).unwrap_or_else(|| panic!("not ready: {}", daemon.stderr()));
        assert!(ready.starts_with("ready: "), "{ready}");
        daemon
    }

    /// `status --json` of everything.
    pub(crate) fn status(&self) -> serde_json::Value {
        let out = self.run(&["status", "--json"]).ok();
        serde_json::from_str(&out.stdout).unwrap()
    }

    /// The one running volume.
    pub(crate) fn volume(&self) -> serde_json::Value {
        let status = self.status();
        let volumes = status["volumes"].as_array().unwrap();
        assert_eq!(volumes.len(), 1, "{status}");
        volumes[0].clone()
    }

    /// Waits until the one running volume is called stalled because of this call. On a busy machine
    /// any other may take long for once.
    #[track_caller]
    pub(crate) fn is_stalled_in(&self, call: &str) {
        eventually("it is called stalled", || is_stalled_in(&self.volume(), call));
    }

    /// The control socket of the one running volume.
    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime.join(format!("{}.sock", self.volume()["id"].as_str().unwrap()))
    }

    /// Waits until nothing runs, where nobody's call ends with the mount process: its mount is gone
    /// before its process is.
    #[track_caller]
    pub(crate) fn will_be_quiet(&self) {
        eventually("nothing runs", || self.status()["volumes"].as_array().unwrap().is_empty());
        self.is_quiet();
    }

    /// Nothing runs, and nothing ended badly. (Dead mounts may be other people's.)
    #[track_caller]
    pub(crate) fn is_quiet(&self) {
        let status = self.status();
        for what in ["volumes", "ended", "silent"] {
            assert_eq!(status[what].as_array().unwrap().len(), 0, "{status}");
        }
    }

    /// Whether something is mounted at the mountpoint.
    pub(crate) fn is_mounted(&self) -> bool {
        is_mounted(&self.mnt)
    }

    /// A file of the store's own directory.
    pub(crate) fn stored(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.store.join(name)).ok()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for daemon in &self.daemons {
            let mut daemon = daemon.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(child) = daemon.as_mut() {
                let _ = child.kill();
                let _ = wait(child, Duration::from_secs(10));
            }
        }
        // Mounts of background processes and of the tests themselves.
        for mount in watertight::host::mountinfo::MountTable::read().iter() {
            if mount.mountpoint.starts_with(&self.root) {
                let _ = rustix::mount::unmount(&mount.mountpoint, UnmountFlags::DETACH);
            }
        }
    }
}

pub(crate) fn is_mounted(path: &Path) -> bool {
    watertight::host::mountinfo::MountTable::read().at(path).is_some()
}

/// Whether `status` calls a volume stalled because of this call.
pub(crate) fn is_stalled_in(volume: &serde_json::Value, call: &str) -> bool {
    volume["state"] == "stalled" && volume["stalled"]["call"] == call
}

/// The result of a run of the program.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Out {
    /// It went well.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.ends(0, "")
    }

    /// It ended with this code and said this on standard error.
    #[track_caller]
    pub(crate) fn ends(self, code: i32, said: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.stderr.contains(said), "no {said:?} in: {}", self.stderr);
        self
    }

    /// It said this on standard output.
    #[track_caller]
    pub(crate) fn says(self, what: &str) -> Self {
        assert!(self.stdout.contains(what), "no {what:?} in: {}", self.stdout);
        self
    }
}

/// Runs a command to its end, with a limit.
pub(crate) fn run(command: Command) -> Out {
    run_within(LONG, command)
}

/// Runs a command to its end, with a limit of its own.
pub(crate) fn run_within(limit: Duration, mut command: Command) -> Out {
    let begun = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = gather(child.stdout.take().unwrap());
    let stderr = gather(child.stderr.take().unwrap());
    let status = wait(&mut child, limit).unwrap_or_else(|| {
        let _ = child.kill();
        panic!("{command:?} does not end")
    });
    let text = |gathered: Receiver<String>| gathered.recv_timeout(patience(LONG)).unwrap();
    Out { code: status.code(), stdout: text(stdout), stderr: text(stderr), took: begun.elapsed() }
}

fn gather(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Waits for a child's end.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + patience(limit);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > until {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `done` returns `true`.
#[track_caller]
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + patience(LONG);
    while !done() {
        assert!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Copies a program that is to be started. Another process does it: children that other tests start
/// have this process's open files for a moment, and a file that is open for writing cannot be
/// started (ETXTBSY).
pub(crate) fn copy_program(from: &str, to: &Path) {
    let mut command = Command::new("cp");
    command.arg(from).arg(to);
    run(command).ok();
}

/// A mount namespace of a test's own has copies of the other tests' mounts, and a mount that these
/// unmount lives on there.
static NAMESPACES: RwLock<()> = RwLock::new(());

/// No process is in such a namespace, or will be, until this is dropped. Held by a test that claims
/// that umount2(2) alone ends a mount, while it runs.
pub(crate) fn no_copies() -> impl Drop {
    NAMESPACES.read().unwrap_or_else(PoisonError::into_inner)
}

/// The right to have processes in such namespaces, until this is dropped.
pub(crate) fn copies() -> impl Drop {
    NAMESPACES.write().unwrap_or_else(PoisonError::into_inner)
}

/// unshare(1), and the right to run it.
pub(crate) fn unshare() -> (impl Drop, Command) {
    (copies(), Command::new("unshare"))
}

/// umount2(2). Other tests look through /proc, and hold the files that they look at for a moment.
pub(crate) fn umount2(path: &Path, flags: UnmountFlags) {
    let _no_copies = no_copies();
    eventually("umount2 does not say EBUSY", || match rustix::mount::unmount(path, flags) {
        Err(Errno::BUSY) => false,
        result => {
            result.unwrap();
            true
        }
    });
}

/// Where the threads of a process are, for a person.
fn threads_of(pid: u32) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return "none".to_owned() };
    let of = |task: fs::DirEntry| {
        let text = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let state =
            text("stat").rsplit_once(") ").map_or(' ', |(_, rest)| rest.chars().next().unwrap_or(' '));
        format!("{} {state} {}\n{}", text("comm").trim(), text("syscall").trim(), text("stack"))
    };
    tasks.flatten().map(of).collect()
}

/// A mount process in the foreground.
pub(crate) struct Daemon {
    child: Arc<Mutex<Option<Child>>>,
    pub(crate) pid: u32,
    lines: Receiver<String>,
    log: Arc<Mutex<String>>,
    /// Closed when the log is whole.
    log_ends: Receiver<()>,
}

impl Daemon {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
        let log = Arc::new(Mutex::new(String::new()));
        let (err, shared) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
        let (whole, log_ends) = channel();
        thread::spawn(move || {
            let _closed_at_the_end: Sender<()> = whole;
            for line in err.lines().map_while(Result::ok) {
                let mut log = shared.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let pid = child.id();
        Self { child: Arc::new(Mutex::new(Some(child))), pid, lines, log, log_ends }
    }

    /// The next line of its standard output.
    pub(crate) fn line(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(patience(limit)).ok()
    }

    /// Its standard error so far.
    pub(crate) fn stderr(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it has said this.
    #[track_caller]
    pub(crate) fn says(&self, what: &str) {
        let until = Instant::now() + patience(LONG);
        while !self.stderr().contains(what) {
            assert!(Instant::now() < until, "no {what:?} in: {}", self.stderr());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops it: nothing is answered from then on. Signals take effect a little after they are
    /// sent.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let is_stopped = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
        };
        let tasks = format!("/proc/{}/task", self.pid);
        eventually("all its threads have stopped", || {
            fs::read_dir(&tasks).unwrap().map(Result::unwrap).all(is_stopped)
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid.cast_signed()).unwrap(), signal).unwrap();
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        self.end();
    }

    /// Waits for its end and returns the exit code.
    #[track_caller]
    pub(crate) fn end(&self) -> Option<i32> {
        let mut child = self.child.lock().unwrap();
        let status = wait(child.as_mut().unwrap(), LONG);
        let status = status.unwrap_or_else(|| {
            panic!("it does not end: {}\nits threads:\n{}", self.stderr(), threads_of(self.pid))
        });
        // Its last lines may still be on their way, on a busy machine for long. Children of a
        // process that was killed may have the pipe for any time.
        let limit = if status.signal().is_none() { patience(LONG) } else { Duration::from_secs(2) };
        let _whole = self.log_ends.recv_timeout(limit);
        status.code()
    }
}
