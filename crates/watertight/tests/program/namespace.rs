//! A mount namespace of a test's own, where `/sbin` is an overlay with the helpers and `/run/mount`
//! is empty, so that the host's are not touched.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::rig::{Out, PROGRAM, Rig, has, run, skipped, unshare};

/// The beginning of each script. An overlay is not available everywhere.
const PREAMBLE: &str = r#"
set -eu
mount --make-rprivate /
# This namespace has copies of the mounts of tests that run beside this one; they would outlive the originals.
sed -n 's/^[^ ]* \([^ ]*\) fuse[a-z]*.watertight .*/\1/p' /proc/self/mounts | while read -r copy; do umount -i -l "$copy" || true; done
mkdir -p "$ROOT/over" /run/mount
mount -t tmpfs tmpfs "$ROOT/over"
mkdir "$ROOT/over/upper" "$ROOT/over/work"
sbin=$(readlink -f /sbin)
mount -t overlay overlay -o "lowerdir=$sbin,upperdir=$ROOT/over/upper,workdir=$ROOT/over/work" "$sbin" || { echo NO-OVERLAY; exit 0; }
mount -t tmpfs tmpfs /run/mount
"$PROGRAM" install-helpers >/dev/null
"#;

fn no_overlay() {
    skipped("this kernel lets nobody put an overlay over /sbin");
}

/// unshare(1) with a script that begins as all do, and the right to run it.
fn command(rig: &Rig, text: &str) -> Option<(impl Drop + use<>, Command)> {
    if !has("unshare") {
        return None;
    }
    let (alone, mut command) = unshare();
    command.args(["--mount", "sh", "-c", &format!("{PREAMBLE}{text}")]);
    command.env("PROGRAM", PROGRAM).env("ROOT", &rig.root).env("STORE", &rig.store).env("MNT", &rig.mnt);
    command.env("WATERTIGHT_RUNTIME_DIR", &rig.runtime);
    Some((alone, command))
}

/// Runs a script as root in a namespace of its own; none where that is not possible here.
pub(crate) fn script(rig: &Rig, text: &str) -> Option<Out> {
    let (_alone, command) = command(rig, text)?;
    let out = run(command);
    if out.stdout.contains("NO-OVERLAY") {
        no_overlay();
        return None;
    }
    Some(out)
}

/// A namespace that stays until this is dropped, and every process in it has ended.
pub(crate) struct Namespace {
    keeper: Child,
}

impl Namespace {
    /// None where that is not possible here.
    pub(crate) fn new(rig: &Rig) -> Option<Self> {
        if !has("nsenter") {
            return None;
        }
        let (_alone, mut command) = command(rig, "echo ready; exec cat")?;
        let keeper = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // From now on it ends with this.
        let mut namespace = Self { keeper };
        let mut line = String::new();
        let out = namespace.keeper.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        match line.trim() {
            "ready" => Some(namespace),
            "NO-OVERLAY" => {
                no_overlay();
                None
            }
            _ => panic!("no namespace: {line:?}"),
        }
    }

    /// The command, inside.
    pub(crate) fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.id()));
        inside.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// The path outside for a path of the inside.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.keeper.id())).join(path.strip_prefix("/").unwrap())
    }

    pub(crate) fn is_mounted(&self, path: &Path) -> bool {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.keeper.id())).unwrap();
        table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ended = self.keeper.wait();
    }
}
