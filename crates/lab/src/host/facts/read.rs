//! Facts that need no FUSE server: most are read from files of the kernel.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{Found, is, no, yes};

/// `LOOP_CTL_GET_FREE`.
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;

pub(super) fn release() -> anyhow::Result<Found> {
    let uname = rustix::system::uname();
    is(uname.release().to_string_lossy(), uname.version().to_string_lossy())
}

pub(super) fn preemption() -> anyhow::Result<Found> {
    let uname = rustix::system::uname();
    let version = uname.version().to_string_lossy();
    let named = version.split_whitespace().find(|word| word.starts_with("PREEMPT"));
    is(named.unwrap_or("not named"), version.as_ref())
}

pub(super) fn loop_device() -> anyhow::Result<Found> {
    let control = match File::options().read(true).write(true).open("/dev/loop-control") {
        Ok(control) => control,
        Err(error) => return no(format!("/dev/loop-control: {error}")),
    };
    // SAFETY: this ioctl(2) takes no argument and returns a number.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    if number < 0 {
        return no(format!("LOOP_CTL_GET_FREE: {}", std::io::Error::last_os_error()));
    }
    yes("a free one is there")
}

pub(super) fn uring_switch() -> anyhow::Result<Found> {
    match std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring") {
        Ok(text) if text.starts_with(['Y', '1']) => is("on", "on as it was found"),
        Ok(_) => is("off", "off as it was found"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if Path::new("/sys/module/fuse").exists() {
                return is("none", "the module has no such parameter");
            }
            bail!("/sys/module/fuse is not there")
        }
        Err(error) => Err(error).context("enable_uring"),
    }
}

pub(super) fn cgroup_v2() -> anyhow::Result<Found> {
    let Some(at) = mounted("cgroup2").into_iter().next() else { return no("not mounted") };
    let controllers = std::fs::read_to_string(Path::new(&at).join("cgroup.controllers"));
    let controllers = controllers.with_context(|| format!("{at}/cgroup.controllers"))?;
    let controllers = controllers.trim();
    yes(format!("at {at}: {}", if controllers.is_empty() { "no controllers" } else { controllers }))
}

pub(super) fn cgroup_v1() -> anyhow::Result<Found> {
    let there = mounted("cgroup");
    if !there.is_empty() {
        return yes(format!("mounted: {}", there.join(", ")));
    }
    let filesystems = std::fs::read_to_string("/proc/filesystems").context("/proc/filesystems")?;
    if !filesystems.lines().any(|line| line.ends_with("\tcgroup")) {
        return no("the kernel has no such file system");
    }
    let dir = tempfile::tempdir()?;
    let data = c"none,name=watertight-lab";
    rustix::mount::mount("cgroup", dir.path(), "cgroup", MountFlags::empty(), data)
        .context("a hierarchy without controllers cannot be mounted")?;
    rustix::mount::unmount(dir.path(), UnmountFlags::DETACH).context("umount2(2)")?;
    is("can be mounted", "none is mounted; one without controllers could be")
}

/// Where file systems of a type are mounted.
fn mounted(kind: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields.get(2) == Some(&kind)).map(|fields| fields[1].to_owned()).collect()
}

pub(super) fn membarrier() -> anyhow::Result<Found> {
    for (command, name) in [
        (libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, "the registration"),
        (libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, "the barrier"),
    ] {
        // SAFETY: membarrier(2) takes three numbers and touches no memory of this process.
        let said = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        if said != 0 {
            return no(format!("{name}: {}", std::io::Error::last_os_error()));
        }
    }
    yes("registered and called")
}

pub(super) fn rcu_normal() -> anyhow::Result<Found> {
    number("/sys/kernel/rcu_normal")
}

pub(super) fn rcu_expedited() -> anyhow::Result<Found> {
    number("/sys/kernel/rcu_expedited")
}

fn number(file: &str) -> anyhow::Result<Found> {
    let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
    is(text.trim(), file)
}

pub(super) fn lockdown() -> anyhow::Result<Found> {
    let chosen = |text: &str| {
        let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
        is(chosen.unwrap_or("unknown"), text.trim())
    };
    if let Ok(text) = std::fs::read_to_string("/sys/kernel/security/lockdown") {
        return chosen(&text);
    }
    // Not every host has this file system mounted.
    let dir = tempfile::tempdir()?;
    rustix::mount::mount("securityfs", dir.path(), "securityfs", MountFlags::empty(), None)
        .context("securityfs is not mounted, and cannot be")?;
    let text = std::fs::read_to_string(dir.path().join("lockdown"));
    rustix::mount::unmount(dir.path(), UnmountFlags::DETACH).context("umount2(2)")?;
    match text {
        Ok(text) => chosen(&text),
        Err(_) => is("not there", "the kernel runs without this security module"),
    }
}

pub(super) fn user_namespaces() -> anyhow::Result<Found> {
    let as_other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let unshare = ["unshare", "-Ur", "true"];
    let is_root = rustix::process::geteuid().is_root();
    let words = if is_root { [&as_other[..], &unshare].concat() } else { unshare.to_vec() };
    let out = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let out = out.with_context(|| words[0].to_owned())?;
    if out.status.success() {
        return yes("a user without rights made one");
    }
    no(String::from_utf8_lossy(&out.stderr).trim())
}

pub(super) fn fusermount() -> anyhow::Result<Found> {
    match Command::new("fusermount3").arg("--version").stdin(Stdio::null()).output() {
        Ok(out) => yes(String::from_utf8_lossy(&out.stdout).trim()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => no("not installed"),
        Err(error) => Err(error).context("fusermount3"),
    }
}
