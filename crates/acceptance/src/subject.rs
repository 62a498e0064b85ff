//! A volume to test, mounted by the program, cleaned up whatever happens.
//!
//! A [`Subject`] owns a directory store and a mountpoint in a scratch directory, and the program
//! that serves the mount. Its `Drop` kills the program, detaches the mount and prints the program's
//! log when the test panicked. A watchdog kills the program when the test takes too long: whatever
//! hangs in a system call on the mount then fails, and the test with it.
//!
//! With `ACCEPTANCE_SUBJECT=host` the subject is the plain directory: what fails there is the
//! test's fault. With `ACCEPTANCE_STORE=s3://BUCKET` each subject is a new volume in that bucket, and
//! what a test looks at in the store is what another mount of it shows, made from another runtime
//! directory once the subject is unmounted.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Signal, pidfd_send_signal};

use crate::command::{Cmd, wait_for_spawns};
use crate::daemon::{Daemon, RUNTIME_DIR};
use crate::scratch::{Scratch, detach, mount_type, mounts_below};
use crate::{program, sys};

/// How long the program may take to leave once its mount is gone.
const EXIT_LIMIT: Duration = Duration::from_secs(120);

/// How long a mount may be busy without a reason that the test knows.
const BUSY_LIMIT: Duration = Duration::from_secs(60);

/// How the subject is to be mounted.
#[derive(Debug, Clone)]
pub struct Setup {
    options: Vec<String>,
    fault: Option<String>,
    store: Option<PathBuf>,
    limit: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self { options: Vec::new(), fault: None, store: None, limit: Duration::from_secs(420) }
    }
}

impl Setup {
    /// Adds a mount option, `cache=64M`.
    #[must_use]
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Puts a fault store with these rules over the directory: `write:delay=20ms`.
    #[must_use]
    pub fn fault(mut self, rules: impl Into<String>) -> Self {
        self.fault = Some(rules.into());
        self
    }

    /// Uses this directory as the store, not one of the subject's own.
    #[must_use]
    pub fn store(mut self, path: impl Into<PathBuf>) -> Self {
        self.store = Some(path.into());
        self
    }

    /// Ends the test after `limit`; a long version after ten times that.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    fn options(&self) -> Vec<String> {
        let mut options = self.options.clone();
        if let Ok(more) = std::env::var("ACCEPTANCE_OPTIONS") {
            options.extend(more.split(',').filter(|o| !o.is_empty()).map(str::to_owned));
        }
        options
    }
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `watertight umount PATH`.
    Program,
    /// `umount PATH`, of util-linux.
    Umount8,
    /// `umount -l PATH`: the path is gone on return; what is open keeps the volume.
    Umount8Lazy,
    /// umount2(2) and nothing else.
    Raw,
    /// Ctrl-C in the terminal of `watertight mount`.
    Interrupt,
    /// SIGTERM to it.
    Terminate,
}

/// A volume to test.
#[derive(Debug)]
pub struct Subject {
    name: String,
    setup: Setup,
    store: PathBuf,
    /// Where the volume is, if that is in a bucket; then `store` is the other mount's place.
    url: Option<String>,
    mountpoint: PathBuf,
    runtime: PathBuf,
    is_host: bool,
    daemon: Option<Daemon>,
    /// What shows the store of a volume in a bucket, from a runtime directory of its own.
    other_mount: Mutex<Option<Daemon>>,
    other_runtime: PathBuf,
    /// Programs whose mounts are gone, on their way out.
    leaving: Vec<Daemon>,
    /// What earlier programs said.
    past_log: String,
    watchdog: Watchdog,
    // Last: its directories go when everything above has let go of them.
    scratch: Scratch,
}

impl Subject {
    /// A mounted volume over a new directory store, with the program's defaults.
    #[must_use]
    pub fn start(name: &str) -> Option<Self> {
        Self::with(name, Setup::default())
    }

    /// A mounted volume; `None`, with a line that says so, where nothing can be mounted.
    ///
    /// # Panics
    /// When the program does not mount.
    #[must_use]
    pub fn with(name: &str, setup: Setup) -> Option<Self> {
        let is_host = is_host();
        if !is_host && !Path::new("/dev/fuse").exists() {
            crate::skip(name, "no /dev/fuse");
            return None;
        }
        // Before the watchdog: building the program takes its time, once.
        if !is_host && !program::can_mount() {
            crate::skip(name, "the program cannot mount yet");
            return None;
        }
        let scratch = Scratch::new(name);
        let url =
            bucket().filter(|_| setup.store.is_none() && !is_host).map(|url| new_volume(&url, &scratch));
        let store = setup.store.clone().unwrap_or_else(|| scratch.dir("store"));
        let mountpoint = scratch.dir("mount");
        let runtime = scratch.private_dir("run");
        let mut subject = Self {
            name: name.to_owned(),
            watchdog: Watchdog::new(
                name,
                testing::patience(if crate::is_long() { setup.limit * 10 } else { setup.limit }),
            ),
            setup,
            store,
            url,
            mountpoint,
            runtime,
            is_host,
            daemon: None,
            other_mount: Mutex::default(),
            other_runtime: scratch.private_dir("other-run"),
            leaving: Vec::new(),
            past_log: String::new(),
            scratch,
        };
        subject.mount();
        Some(subject)
    }

    /// The name of the test.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the volume's files are reached.
    #[must_use]
    pub fn path(&self) -> &Path {
        if self.is_host { &self.store } else { &self.mountpoint }
    }

    /// A path inside the volume.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The store's own directory; of a volume in a bucket another mount, made now if there is none.
    ///
    /// # Panics
    /// When the volume is in a bucket and mounted already.
    #[must_use]
    pub fn store(&self) -> &Path {
        if self.url.is_some() {
            let mut other = self.other_mount.lock().unwrap_or_else(PoisonError::into_inner);
            if other.is_none() {
                assert!(
                    self.daemon.is_none(),
                    "{}: only a volume that is not mounted can be looked at",
                    self.name
                );
                let daemon = Daemon::mount(&self.source(), &self.store, &[], &self.other_runtime);
                *other = Some(daemon.unwrap_or_else(|said| panic!("{}: elsewhere: {said}", self.name)));
            }
        }
        &self.store
    }

    /// Where the volume is, if that is in a bucket.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// The directory of the program's control sockets.
    #[must_use]
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// Whether the volume is in a bucket, and the store no directory of the host.
    #[must_use]
    pub fn is_in_bucket(&self) -> bool {
        self.url.is_some()
    }

    /// Gives the volume back that [`Self::store`] mounted.
    fn unmount_other(&self) {
        let other = self.other_mount.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut daemon) = other else { return };
        wait_for_spawns();
        let umount = Cmd::new(program::watertight()).env(RUNTIME_DIR, &self.other_runtime);
        umount.arg("umount").arg(&self.store).ok();
        let status = daemon.wait(EXIT_LIMIT).expect("the other mount's program ends");
        assert!(status.success(), "{}: {status}\n{}", daemon.command(), daemon.log().text());
    }

    /// A directory outside of the volume that goes with the subject.
    #[must_use]
    pub fn outside(&self, name: &str) -> PathBuf {
        self.scratch.dir(name)
    }

    /// Whether this is only a plain directory.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.is_host
    }

    /// Whether syncfs(2) and a raw umount2(2) reach the program: the mount type `fuseblk` (or a
    /// host's directory).
    #[must_use]
    pub fn kernel_waits(&self) -> bool {
        self.is_host || mount_type(&self.mountpoint).is_some_and(|kind| kind.starts_with("fuseblk"))
    }

    /// Whether written data may wait in the kernel, of which the program knows nothing.
    #[must_use]
    pub fn is_kernel_writeback(&self) -> bool {
        !self.is_host && self.setup.options().iter().any(|option| option == "mode=kernel-writeback")
    }

    /// The program that serves the mount.
    ///
    /// # Panics
    /// When nothing is mounted.
    #[must_use]
    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("mounted")
    }

    /// Mounts the volume, at once.
    ///
    /// # Panics
    /// When the program does not mount.
    pub fn mount(&mut self) {
        if self.is_host {
            return;
        }
        self.unmount_other();
        let options = self.setup.options();
        let daemon = Daemon::mount(&self.source(), &self.mountpoint, &options, &self.runtime)
            .unwrap_or_else(|said| panic!("{}: {said}", self.name));
        self.watchdog.guard(Some((daemon.pidfd(), self.mountpoint.clone())));
        self.daemon = Some(daemon);
    }

    /// Changes the rules of the fault store for the mounts to come; `None` takes it away.
    pub fn set_fault(&mut self, rules: Option<&str>) {
        self.setup.fault = rules.map(str::to_owned);
    }

    /// Unmounts as `verb` says and returns when the verb does; says how long it took.
    ///
    /// # Panics
    /// When the verb fails.
    pub fn unmount(&mut self, verb: Verb) -> Duration {
        if self.is_host {
            return Duration::ZERO;
        }
        wait_for_spawns();
        let started = Instant::now();
        let mut daemon = self.daemon.take().expect("mounted");
        match verb {
            Verb::Program | Verb::Umount8 | Verb::Umount8Lazy | Verb::Raw => self.unmount_when_free(verb),
            Verb::Interrupt | Verb::Terminate => {
                daemon.signal(if verb == Verb::Interrupt { Signal::INT } else { Signal::TERM });
                let status = daemon.wait(EXIT_LIMIT).expect("the program leaves after the signal");
                assert!(status.success(), "{}: {status}\n{}", daemon.command(), daemon.log().text());
            }
        }
        let took = started.elapsed();
        self.leaving.push(daemon);
        took
    }

    /// Unmounts, again for a while when the mount is busy: a child that another test started closes
    /// the files of this one some time after exec, when nothing here can know.
    fn unmount_when_free(&self, verb: Verb) {
        let until = Instant::now() + BUSY_LIMIT;
        while let Err(busy) = self.try_unmount(verb) {
            assert!(Instant::now() < until, "{}: busy for {BUSY_LIMIT:?}:\n{busy}", self.name);
            crate::note(&self.name, &format!("{verb:?}: busy, once more"));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Unmounts; an error, in words, when the mount is busy.
    fn try_unmount(&self, verb: Verb) -> Result<(), String> {
        let cmd = match verb {
            Verb::Raw => {
                return match rustix::mount::unmount(&self.mountpoint, UnmountFlags::empty()) {
                    Err(e @ rustix::io::Errno::BUSY) => Err(e.to_string()),
                    other => {
                        other.expect("umount2");
                        Ok(())
                    }
                };
            }
            Verb::Program => self.program().arg("umount").arg(&self.mountpoint),
            Verb::Umount8Lazy => Cmd::new("umount").arg("-l").arg(&self.mountpoint),
            _ => Cmd::new("umount").arg(&self.mountpoint),
        };
        let output = cmd.run();
        let said = output.err();
        if output.status.success() {
            Ok(())
        } else {
            assert!(said.contains("busy"), "{verb:?}: {}\n{said}", output.status);
            Err(said)
        }
    }

    /// Waits for the programs whose mounts are gone; they must have ended well.
    ///
    /// # Panics
    /// When one stays, or fails.
    pub fn finish(&mut self) {
        for mut daemon in std::mem::take(&mut self.leaving) {
            let status = daemon.wait(EXIT_LIMIT);
            let said = daemon.log().text();
            let status = status.unwrap_or_else(|| panic!("{}: still there\n{said}", daemon.command()));
            assert!(status.success(), "{}: {status}\n{said}", daemon.command());
            assert!(!said.contains("panicked at"), "{}: a thread panicked\n{said}", daemon.command());
            self.past_log.push_str(&said);
        }
        if !self.is_host && self.daemon.is_none() {
            assert_eq!(mount_type(&self.mountpoint), None, "{}: still mounted", self.name);
        }
    }

    /// Unmounts with the program's own verb, and mounts again.
    pub fn remount(&mut self) {
        self.unmount(Verb::Program);
        self.finish();
        self.mount();
    }

    /// Unmounts with the program's own verb for good.
    pub fn close(&mut self) {
        self.unmount(Verb::Program);
        self.finish();
    }

    /// `kill -9` to the program, and the dead mount cleared away.
    pub fn crash(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill();
            self.past_log.push_str(&daemon.log().text());
        }
        self.clear_mounts();
    }

    /// The program, to be given a verb about this subject.
    #[must_use]
    pub fn program(&self) -> Cmd {
        Cmd::new(program::watertight()).env(RUNTIME_DIR, &self.runtime)
    }

    /// Whether the mount still answers.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        std::fs::symlink_metadata(self.path()).is_ok() && (self.is_host || self.daemon.is_some())
    }

    fn source(&self) -> OsString {
        let mut source = OsString::new();
        if let Some(rules) = &self.setup.fault {
            source.push(format!("fault:{rules},"));
        }
        match &self.url {
            Some(url) => source.push(url),
            None => {
                source.push("dir:");
                source.push(&self.store);
            }
        }
        source
    }

    fn clear_mounts(&self) {
        for mountpoint in mounts_below(&self.mountpoint) {
            detach(&mountpoint);
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let other = self.other_mount.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let had = self.daemon.take().into_iter().chain(other);
        for mut daemon in had.chain(std::mem::take(&mut self.leaving)) {
            daemon.kill();
            self.past_log.push_str(&format!("$ {}\n{}", daemon.command(), daemon.log().text()));
        }
        self.clear_mounts();
        if thread::panicking() {
            let from = self.past_log.len().saturating_sub(20_000);
            let from = (from..).find(|at| self.past_log.is_char_boundary(*at)).unwrap_or(0);
            crate::note(&self.name, &format!("failed; the program said:\n{}", &self.past_log[from..]));
        }
    }
}

/// Whether plain directories are tested, not mounts.
#[must_use]
pub fn is_host() -> bool {
    std::env::var("ACCEPTANCE_SUBJECT").is_ok_and(|v| v == "host")
}

/// Where volumes are made, if not in directories.
#[must_use]
pub fn bucket() -> Option<String> {
    std::env::var("ACCEPTANCE_STORE").ok().filter(|url| !url.is_empty())
}

/// Formats a volume below `url`, with a name that no other test or run takes; returns its URL.
///
/// # Panics
/// When the program cannot format it.
#[must_use]
pub fn new_volume(url: &str, scratch: &Scratch) -> String {
    let name = scratch.path().file_name().expect("a scratch directory has a name").to_string_lossy();
    let started = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    let url = format!("{}/{}-{started}-{name}", url.trim_end_matches('/'), std::process::id());
    Cmd::new(program::watertight()).arg("format").arg(&url).limit(EXIT_LIMIT).ok();
    url
}

/// Says that `test` is skipped when this is not root.
#[must_use]
pub fn need_root(test: &str) -> bool {
    if !sys::is_root() {
        crate::skip(test, "needs root");
    }
    sys::is_root()
}

type Guarded = Arc<Mutex<Option<(OwnedFd, PathBuf)>>>;

/// Kills the program when the test takes too long.
#[derive(Debug)]
struct Watchdog {
    guarded: Guarded,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    fn new(name: &str, limit: Duration) -> Self {
        let guarded = Guarded::default();
        let (stop, stopped) = mpsc::channel::<()>();
        let (name, shared) = (name.to_owned(), Arc::clone(&guarded));
        let thread = thread::spawn(move || {
            let mut left = limit;
            // Again and again: the test may mount once more before it notices.
            while stopped.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
                crate::note(&name, &format!("takes more than {limit:?}: the program is killed"));
                if let Some((pidfd, mountpoint)) = shared.lock().expect("watchdog").as_ref() {
                    let _ = pidfd_send_signal(pidfd, Signal::KILL);
                    detach(mountpoint);
                }
                left = Duration::from_secs(5);
            }
        });
        Self { guarded, stop: Some(stop), thread: Some(thread) }
    }

    fn guard(&self, what: Option<(OwnedFd, PathBuf)>) {
        *self.guarded.lock().expect("watchdog") = what;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.guard(None);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
