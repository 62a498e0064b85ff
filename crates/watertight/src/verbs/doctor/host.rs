//! What a host has for volumes.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

use cgroups::{Choice, Hierarchy};
use rustix::process::{Resource, getrlimit};

use super::check::Check;
use crate::registry::RuntimeDir;
use crate::term::units;
use crate::verbs::mount_helpers::NAMES;

/// Where mount(8) looks for its helpers.
const HELPERS_DIR: &str = "/sbin";
/// The kernel's switch for FUSE over io_uring.
const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Kernels from these on can do it.
const HAS_URING: (u32, u32) = (6, 14);
const HAS_RESEND: (u32, u32) = (6, 9);
const HAS_SYNCFS: (u32, u32) = (6, 18);
/// Open files beyond which a mount process does without.
const DESCRIPTORS: u64 = 65_536;
/// The default cache, and as much for the rest.
const MEMORY: u64 = 512 << 20;
/// Where systemd says that it is at work.
const SYSTEMD: &str = "/run/systemd/system";
/// Where its units are.
const UNITS: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

pub(super) fn checks() -> Vec<Check> {
    let is_root = rustix::process::geteuid().is_root();
    let mut checks = vec![device(), user(is_root)];
    if is_root {
        checks.push(loop_device());
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    checks.extend([kernel(&release), io_uring(&release), tenants(), descriptors(), memory(), runtime_dir()]);
    checks.extend([helpers(), units()].into_iter().flatten());
    checks
}

fn device() -> Check {
    let name = "fuse";
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Check::good(name, "/dev/fuse can be opened"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Check::bad(
            name,
            format!("/dev/fuse: {error}: nothing can be mounted"),
            "chmod 666 /dev/fuse, or in a container: --device /dev/fuse",
        ),
        Err(error) => Check::bad(
            name,
            format!("/dev/fuse: {error}: nothing can be mounted"),
            "modprobe fuse; in a container: --device /dev/fuse",
        ),
    }
}

fn user(is_root: bool) -> Check {
    let name = "user";
    if is_root {
        return Check::good(name, "root: umount(8) and umount2(2) wait until everything is on the store");
    }
    let found = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    if !found("fusermount3") {
        return Check::bad(
            name,
            "not root, and there is no fusermount3, which mounts for other users",
            "apt-get install fuse3, or the package of your distribution that has fusermount3",
        );
    }
    Check::warn(
        name,
        "not root: `watertight umount` waits until everything is on the store, a raw umount2(2) does not",
        "mount as root where other programs unmount",
    )
}

fn loop_device() -> Check {
    let name = "loop";
    match OpenOptions::new().read(true).write(true).open("/dev/loop-control") {
        Ok(_) => Check::good(name, "loop devices can be had: mounts are of type fuseblk"),
        Err(error) => Check::warn(
            name,
            format!(
                "/dev/loop-control: {error}: mounts are of type fuse, for which a raw umount2(2) does not wait"
            ),
            "modprobe loop",
        ),
    }
}

/// The first two numbers of a kernel's release.
fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn kernel(release: &str) -> Check {
    let (name, version) = ("kernel", version_of(release));
    if version < HAS_RESEND {
        return Check::warn(
            name,
            format!(
                "Linux {release}: a mount ends with its process, recover=on is refused; sync(2) does not tell whose it is"
            ),
            "Linux 6.9 or newer",
        );
    }
    if version < HAS_SYNCFS {
        return Check::warn(
            name,
            format!(
                "Linux {release}: sync(2) waits for volumes, and does not tell whose it is: isolation by cgroup is for fsync alone"
            ),
            "Linux 6.18 or newer",
        );
    }
    Check::good(name, format!("Linux {release}"))
}

fn io_uring(release: &str) -> Check {
    let name = "io_uring";
    if version_of(release) < HAS_URING {
        return Check::good(name, "this kernel has no FUSE over io_uring, and volumes do without");
    }
    match fs::read_to_string(URING_SWITCH).as_deref().map(str::trim) {
        Ok("Y") => Check::good(name, "FUSE over io_uring is switched on"),
        Ok(_) => Check::warn(
            name,
            "FUSE over io_uring is switched off: small requests take longer",
            format!(
                "echo Y > {URING_SWITCH}; for each start: options fuse enable_uring=Y in /etc/modprobe.d"
            ),
        ),
        Err(_) => Check::good(name, "the kernel is built without FUSE over io_uring, and volumes do without"),
    }
}

fn tenants() -> Check {
    let name = "cgroups";
    match Hierarchy::find(&Choice::Auto) {
        Ok(Some(tree)) => Check::good(name, format!("tenants are the cgroups of the tree {tree}")),
        Ok(None) => Check::warn(
            name,
            "no cgroup tree is mounted: all users of a volume are one tenant, and limits are for all of them",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ),
        Err(error) => Check::warn(name, error.to_string(), "mount -t cgroup2 none /sys/fs/cgroup"),
    }
}

fn descriptors() -> Check {
    let name = "open files";
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < DESCRIPTORS => Check::warn(
            name,
            format!("a process may have {most} open files: fewer files of a volume are in use at a time"),
            format!("ulimit -Hn {DESCRIPTORS}; in a unit: LimitNOFILE={DESCRIPTORS}"),
        ),
        Some(most) => Check::good(name, format!("a process may have {most}")),
        None => Check::good(name, "a process may have any number"),
    }
}

fn memory() -> Check {
    let name = "memory";
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = kib.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let Some(bytes) = kib.and_then(|kib| kib.checked_mul(1024)) else {
        return Check::warn(name, "/proc/meminfo does not say what is available", "mount -t proc proc /proc");
    };
    let available = format!("{} are available", units::bytes(bytes));
    if bytes < MEMORY {
        return Check::warn(
            name,
            format!("{available}: a volume's cache alone may take 256 MiB"),
            "mount with -o cache=64M",
        );
    }
    Check::good(name, available)
}

fn runtime_dir() -> Check {
    let name = "runtime directory";
    match RuntimeDir::check_own() {
        Ok(true) => Check::good(name, "mount processes can be found and asked"),
        Ok(false) => Check::good(name, "the first mount makes it"),
        Err(problem) => Check::bad(
            name,
            format!("{problem}: nothing can be mounted"),
            "set WATERTIGHT_RUNTIME_DIR to a directory of your own, with mode 0700",
        ),
    }
}

/// Where mount(8) has a directory for helpers.
fn helpers() -> Option<Check> {
    let (name, dir) = ("mount helpers", Path::new(HELPERS_DIR));
    if !dir.is_dir() {
        return None;
    }
    let missing = NAMES.iter().filter(|helper| !dir.join(helper).exists()).count();
    Some(if missing == 0 {
        Check::good(name, format!("{HELPERS_DIR} has them: fstab, mount(8) and umount(8) work"))
    } else {
        Check::warn(
            name,
            format!(
                "{HELPERS_DIR} lacks {missing} of {}: fstab and mount -t fuse.watertight do not work, and umount -l says nothing",
                NAMES.len()
            ),
            format!("watertight install-helpers {HELPERS_DIR}"),
        )
    })
}

/// Where systemd is at work.
fn units() -> Option<Check> {
    let name = "units";
    if !Path::new(SYSTEMD).is_dir() {
        return None;
    }
    let is_there = UNITS.iter().any(|dir| Path::new(dir).join("watertight.service").is_file());
    Some(if is_there {
        Check::good(name, "systemd has watertight.service")
    } else {
        Check::warn(
            name,
            "systemd has no watertight.service: volumes are not mounted when the host starts",
            "install the package, or copy packaging/systemd to /etc/systemd/system",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::doctor::check::Verdict;

    #[test]
    fn a_kernel_is_what_it_can_do() {
        for (release, verdict) in [
            ("6.1.0-50-cloud-amd64", Verdict::Warn),
            ("6.9.0", Verdict::Warn),
            ("6.17.13+deb13", Verdict::Warn),
            ("6.18.44-fc", Verdict::Good),
            ("7.3.0-rc7", Verdict::Good),
            ("", Verdict::Warn),
        ] {
            assert_eq!(kernel(release).verdict, verdict, "{release}");
        }
        assert!(kernel("6.1.0").found.contains("recover=on is refused"));
        assert!(!kernel("6.12.1").found.contains("recover=on"));
        assert_eq!(version_of("7.2-rt"), (7, 2));
    }
}
