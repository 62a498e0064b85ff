//! The running kernel: tmpfs, mounted and unmounted in a directory of its own, as root.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use super::subject::Subject;

const RCU_NORMAL: &str = "/sys/kernel/rcu_normal";

/// A private tmpfs with places on it.
#[derive(Debug)]
pub(crate) struct Kernel {
    base: tempfile::TempDir,
    is_normal: bool,
}

/// The switch is on as long as this lives.
#[derive(Debug)]
struct Normal {
    was: String,
}

impl Normal {
    fn set() -> Result<Self, String> {
        let was = std::fs::read_to_string(RCU_NORMAL)
            .map_err(|error| format!("not possible: {RCU_NORMAL}: {error}"))?;
        std::fs::write(RCU_NORMAL, "1").map_err(|error| format!("not possible: {RCU_NORMAL}: {error}"))?;
        Ok(Self { was: was.trim().to_owned() })
    }
}

impl Drop for Normal {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(RCU_NORMAL, &self.was) {
            eprintln!("lab: cannot put {RCU_NORMAL} back to {}: {error}", self.was);
        }
    }
}

fn tmpfs(target: &Path) -> rustix::io::Result<()> {
    mount("lab", target, "tmpfs", MountFlags::empty(), None::<&std::ffi::CStr>)
}

impl Kernel {
    /// Needs root.
    ///
    /// # Errors
    /// Words for the table.
    pub(crate) fn new(is_normal: bool) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("not root: only root may mount".into());
        }
        if is_normal {
            drop(Normal::set()?);
        }
        let base = tempfile::tempdir().map_err(|error| format!("failed: {error}"))?;
        tmpfs(base.path()).map_err(|error| format!("cannot mount: {error}"))?;
        let this = Self { base, is_normal };
        mount_change(this.base.path(), MountPropagationFlags::PRIVATE)
            .map_err(|error| format!("failed: {error}"))?;
        for place in ["m0", "m1"] {
            std::fs::create_dir_all(this.place(place).join("d"))
                .map_err(|error| format!("failed: {error}"))?;
        }
        tmpfs(&this.place("m1")).map_err(|error| format!("cannot mount: {error}"))?;
        std::fs::create_dir(this.place("m1/d")).map_err(|error| format!("failed: {error}"))?;
        std::fs::write(this.place("m1/d/f"), "").map_err(|error| format!("failed: {error}"))?;
        Ok(this)
    }

    fn place(&self, path: &str) -> PathBuf {
        self.base.path().join(path)
    }

    fn walk_to(&self, path: &str) {
        let _ = std::hint::black_box(rustix::fs::access(self.place(path), rustix::fs::Access::EXISTS));
    }
}

impl Subject for Kernel {
    fn attach(&self) -> Result<(), String> {
        tmpfs(&self.place("m0")).map_err(|error| format!("cannot mount: {error}"))?;
        std::fs::create_dir(self.place("m0/d")).map_err(|error| format!("failed: {error}"))?;
        std::fs::write(self.place("m0/d/f"), "").map_err(|error| format!("failed: {error}"))
    }

    fn umount(&self, is_lazy: bool) -> Result<Duration, String> {
        let _normal = self.is_normal.then(Normal::set).transpose()?;
        let (flags, place) =
            (if is_lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() }, self.place("m0"));
        let begun = Instant::now();
        loop {
            match unmount(&place, flags) {
                Ok(()) => return Ok(begun.elapsed()),
                Err(Errno::BUSY) => {}
                Err(error) => return Err(format!("failed: {error}")),
            }
        }
    }

    fn walk(&self) {
        self.walk_to("m0/d/f");
    }

    fn walk_elsewhere(&self) {
        self.walk_to("m1/d/f");
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for place in [self.place("m0"), self.place("m1"), self.base.path().to_owned()] {
            // `m0` is usually not mounted by now.
            match unmount(&place, UnmountFlags::DETACH) {
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => eprintln!("lab: cannot unmount {}: {error}", place.display()),
            }
        }
    }
}
