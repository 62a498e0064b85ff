//! The behaviour and the messages of `watertight mount` where a host lacks something: it is started
//! there, and its messages are kept.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// Far longer than a mount takes.
const LONG: Duration = Duration::from_secs(120);
/// The user that situations without root have.
const USER: u32 = 65534;

/// A host, or a part of one, that lacks something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// Its name in the JSON.
    pub(super) name: &'static str,
    /// A description for people.
    pub(super) title: &'static str,
    /// The words before the program's name.
    pub(super) words: &'static [&'static str],
    /// Whether the mountpoint is the user's.
    is_users: bool,
}

const AS_USER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// A /dev that has these and no other devices, as a container's:
/// `sh -ec NEW_DEV sh NAMES… -- PROGRAM…`.
const NEW_DEV: &str = r#"dev=$(mktemp -d); mount -t tmpfs dev "$dev"
while [ "$1" != -- ]; do cp -a "/dev/$1" "$dev/"; shift; done; shift
mount --move "$dev" /dev; exec "$@""#;

/// The capabilities that Docker and Podman leave to a container, and no others.
const CONTAINER: &str = "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,\
    +net_raw,+sys_chroot,+mknod,+audit_write,+setfcap";

const NO_LOOP: [&str; 12] =
    ["unshare", "-m", "sh", "-ec", NEW_DEV, "sh", "null", "zero", "urandom", "random", "fuse", "--"];

/// All of them.
pub(super) const ALL: [Situation; 9] = [
    Situation { name: "root", title: "root", words: &[], is_users: false },
    Situation {
        name: "no-loop",
        title: "root, and /dev has no loop devices",
        words: &NO_LOOP,
        is_users: false,
    },
    Situation {
        name: "no-fuse",
        title: "root, and /dev has no fuse",
        words: &["unshare", "-m", "sh", "-ec", NEW_DEV, "sh", "null", "zero", "urandom", "random", "--"],
        is_users: false,
    },
    Situation {
        name: "no-sys-admin",
        title: "root without CAP_SYS_ADMIN",
        words: &["setpriv", "--bounding-set=-sys_admin"],
        is_users: false,
    },
    Situation {
        name: "container",
        title: "root of a container: its capabilities, and of the devices /dev/fuse",
        words: &[
            "unshare", "-m", "sh", "-ec", NEW_DEV, "sh", "null", "zero", "urandom", "random", "fuse", "--",
            "setpriv", CONTAINER,
        ],
        is_users: false,
    },
    Situation { name: "user", title: "a user, with fusermount3", words: &AS_USER, is_users: true },
    Situation {
        name: "no-fusermount",
        title: "a user, without fusermount3",
        words: &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "PATH=/nowhere"],
        is_users: true,
    },
    Situation {
        name: "userns",
        title: "root of a user namespace (`unshare -Ur`)",
        words: &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Ur"],
        is_users: true,
    },
    Situation {
        name: "userns-mounts",
        title: "root of a user namespace and of a mount namespace (`unshare -Urm`)",
        words: &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urm"],
        is_users: true,
    },
];

/// The result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Attempt {
    /// Where: [`Situation::name`].
    pub(super) situation: String,
    /// The type of the mount, if it was mounted.
    pub(super) mounted: Option<String>,
    /// The exit code: of the refusal, or of the unmount by SIGTERM.
    pub(super) exit: Option<i32>,
    /// Its messages until it was mounted or had ended.
    pub(super) said: Vec<String>,
    /// Why there is no result.
    pub(super) not_measured: Option<String>,
}

/// Mounts a store in memory in each situation.
pub(super) fn all(program: &Path) -> Vec<Attempt> {
    let attempt = |situation: &Situation| {
        attempt(situation, program).unwrap_or_else(|error| Attempt {
            situation: situation.name.to_owned(),
            mounted: None,
            exit: None,
            said: Vec::new(),
            not_measured: Some(format!("{error:#}")),
        })
    };
    ALL.iter().map(attempt).collect()
}

fn attempt(situation: &Situation, program: &Path) -> anyhow::Result<Attempt> {
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let (mountpoint, runtime) = (dir.path().join("m"), dir.path().join("run"));
    for made in [&mountpoint, &runtime] {
        std::fs::create_dir(made)?;
        std::fs::set_permissions(made, std::fs::Permissions::from_mode(0o700))?;
        if situation.is_users && rustix::process::geteuid().is_root() {
            chown(made, Some(USER), Some(USER))?;
        }
    }
    let log = dir.path().join("log");
    let words: Vec<&OsStr> = situation.words.iter().map(OsStr::new).chain([program.as_os_str()]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["mount", "mem:"]).arg(&mountpoint);
    command.env("WATERTIGHT_RUNTIME_DIR", &runtime).env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
    let mut child = command.spawn().with_context(|| format!("{} cannot be started", words[0].display()))?;
    let is_ready = is_ready(&mut child)?;
    let said = std::fs::read_to_string(&log)?;
    let mounted = if is_ready { Some(type_of(child.id(), &mountpoint)?) } else { None };
    let exit = ended(&mut child)?;
    let shown = |line: &str| words_of(line).replace(&dir.path().display().to_string(), "").trim().to_owned();
    let said = said.lines().map(shown).filter(|line| !line.is_empty()).collect();
    Ok(Attempt { situation: situation.name.to_owned(), mounted, exit, said, not_measured: None })
}

/// The text of a line of its standard error: where that is no terminal, notes are objects with more
/// in them.
fn words_of(line: &str) -> String {
    let note = serde_json::from_str::<serde_json::Value>(line).ok();
    let message = note.as_ref().and_then(|note| note["message"].as_str());
    message.unwrap_or(line).to_owned()
}

/// Whether it became ready, and did not end.
fn is_ready(child: &mut Child) -> anyhow::Result<bool> {
    let out = BufReader::new(child.stdout.take().context("no standard output")?);
    let (sender, lines) = mpsc::channel();
    let read = move || out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
    std::thread::Builder::new().name("host-lines".to_owned()).spawn(read).context("no thread")?;
    let until = Instant::now() + LONG;
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) if line.starts_with("ready: ") => return Ok(true),
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                anyhow::bail!("neither mounted nor refused within {} s", LONG.as_secs())
            }
        }
    }
}

/// The type of the mount there, as the process sees it.
fn type_of(pid: u32, mountpoint: &Path) -> anyhow::Result<String> {
    let file = format!("/proc/{pid}/mounts");
    let mounts = std::fs::read_to_string(&file).context(file)?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let at = |fields: &Vec<&str>| fields.get(1).is_some_and(|at| Path::new(at) == mountpoint);
    let fields = fields.rfind(at).context("ready, and not in its mount table")?;
    let kind = fields.get(2).copied().unwrap_or_default();
    Ok(kind.split('.').next().unwrap_or(kind).to_owned())
}

/// Unmounts, if it still runs, and returns its exit code.
fn ended(child: &mut Child) -> anyhow::Result<Option<i32>> {
    let pid = crate::child::pid(child)?;
    if child.try_wait()?.is_none() {
        rustix::process::kill_process(pid, Signal::TERM)?;
    }
    let until = Instant::now() + LONG;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("it did not end within {} s after SIGTERM", LONG.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
