//! The peers, each as its users run it, and their requirements here.

use super::dirs::{self, Kind, RunDirs};
use super::target::{Start, Target};
use crate::null_server;
use anyhow::{Context as _, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The null server: this executable itself.
pub(crate) fn null(dirs: &RunDirs) -> Target {
    let start = std::env::current_exe().context("cannot find this executable").and_then(|this| {
        let mut command = Command::new(this);
        let root = dirs.mountpoint("null")?;
        command.arg(null_server::COMMAND).arg(&root);
        Ok(Start::Server { command, root, log: dirs.scratch().join("null.log") })
    });
    let note = "fuser 0.18, 2 threads, cloned descriptors, max_write 1 MiB, data discarded, no spinning";
    Target { stores_data: false, stands_for_memory: true, ..Target::new("null", possible(start), note) }
}

/// bindfs with threads, otherwise as it comes.
pub(crate) fn bindfs(dirs: &RunDirs) -> Target {
    let start = server(dirs, "bindfs", find("bindfs"), |command, store, root| {
        command.args(["-f", "--multithreaded"]).args([store, root]);
    });
    Target::new("bindfs", start, "")
}

/// rclone over a local directory. Its uploads would begin seconds after a close and run in the
/// slices of others; they are put off to after the run, which is in its favour.
pub(crate) fn rclone(dirs: &RunDirs) -> Target {
    let cache = dirs.store("rclone-cache");
    let start = server(dirs, "rclone", find("rclone"), |command, store, root| {
        command.arg("mount").args([store, root]);
        command.args(["--config", "", "--vfs-cache-mode", "writes", "--vfs-write-back", "24h"]);
        if let Ok(cache) = &cache {
            command.arg("--cache-dir").arg(cache);
        }
    });
    Target::new("rclone", start, "--vfs-cache-mode writes; uploads put off to after the run")
}

/// libfuse's example, built from the source that distributions ship with its development files.
pub(crate) fn passthrough_ll(dirs: &RunDirs) -> Target {
    let program = match find("passthrough_ll") {
        Ok(program) => Ok(program),
        Err(_) => build_passthrough_ll().map_err(|error| format!("not built: {error:#}")),
    };
    let start = server(dirs, "passthrough_ll", program, |command, store, root| {
        command.args(["-f", "-o"]).arg(format!("source={}", store.display())).arg(root);
    });
    Target::new("passthrough_ll", start, "")
}

/// ext4 without anything in front of it: a directory where one is at hand, else an image.
pub(crate) fn ext4(dirs: &RunDirs) -> Target {
    if dirs.kind() == Kind::Ext {
        return Target::new("ext4", directory(dirs.store("ext4")), "native");
    }
    if dirs::kind(dirs.scratch()) == Kind::Ext {
        return Target::new("ext4", directory(dirs.mountpoint("ext4")), "native");
    }
    let start = dirs.store("ext4-image").and_then(|directory| {
        let root = dirs.mountpoint("ext4")?;
        Ok(Start::Image { directory, root })
    });
    Target::new("ext4", possible(start), "native, on an image in the directory of the stores")
}

/// tmpfs without anything in front of it.
pub(crate) fn tmpfs(dirs: &RunDirs) -> Target {
    const NOTE: &str = "native";
    if dirs.kind() == Kind::Tmpfs {
        return Target::new("tmpfs", directory(dirs.store("tmpfs")), NOTE);
    }
    let none = || Start::Impossible("not available: neither --source nor /dev/shm is on tmpfs".to_owned());
    let start = dirs.shared_memory("tmpfs").map_or_else(none, directory);
    Target::new("tmpfs", start, NOTE)
}

fn directory(path: anyhow::Result<PathBuf>) -> Start {
    possible(path.map(Start::Directory))
}

fn possible(start: anyhow::Result<Start>) -> Start {
    start.unwrap_or_else(|error| Start::Impossible(format!("cannot mount: {error:#}")))
}

fn server(
    dirs: &RunDirs,
    name: &str,
    program: Result<PathBuf, String>,
    arguments: impl FnOnce(&mut Command, &Path, &Path),
) -> Start {
    let program = match program {
        Ok(program) => program,
        Err(why) => return Start::Impossible(why),
    };
    possible(dirs.store(name).and_then(|store| {
        let root = dirs.mountpoint(name)?;
        let mut command = Command::new(program);
        arguments(&mut command, &store, &root);
        Ok(Start::Server { command, root, log: dirs.scratch().join(format!("{name}.log")) })
    }))
}

/// A program of the PATH.
pub(crate) fn find(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file());
    found.ok_or_else(|| format!("not installed: no `{program}` on the PATH"))
}

/// Where distributions put libfuse's examples.
const EXAMPLES: [&str; 4] = [
    "/usr/share/doc/libfuse3-dev/examples",
    "/usr/share/doc/fuse3-devel/example",
    "/usr/share/doc/fuse3-devel/examples",
    "/usr/share/doc/fuse3/example",
];

/// Builds libfuse's example into the user's cache directory, once; nothing of it is part of this
/// project.
fn build_passthrough_ll() -> anyhow::Result<PathBuf> {
    let source = EXAMPLES
        .iter()
        .map(|directory| Path::new(directory).join("passthrough_ll.c"))
        .find(|file| file.is_file())
        .context("no passthrough_ll.c (Debian: libfuse3-dev)")?;
    let cache = cache_directory()?;
    let program = cache.join("passthrough_ll");
    let modified = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    if modified(&program).is_some_and(|built| modified(&source).is_some_and(|written| built > written)) {
        return Ok(program);
    }
    let flags =
        Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]).stderr(Stdio::null()).output();
    let flags = flags.context("cannot start pkg-config")?;
    ensure!(flags.status.success(), "pkg-config knows no fuse3 (Debian: libfuse3-dev)");
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    // Built beside and renamed: two labs at once do not run half a program.
    let unfinished = cache.join(format!("passthrough_ll.{}", std::process::id()));
    let output = Command::new("cc")
        .args(["-O2", "-w", "-o"])
        .arg(&unfinished)
        .arg(&source)
        .args(flags.split_whitespace())
        .output()
        .context("cannot start cc")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("cc failed: {}", said.lines().find(|line| line.contains("error")).unwrap_or("no reason given"));
    }
    std::fs::rename(&unfinished, &program)?;
    Ok(program)
}

fn cache_directory() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let directory = base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("watertight-lab");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

/// A mounted ext4 image; unmounted and removed with this value.
#[derive(Debug)]
pub(crate) struct Image {
    root: Option<PathBuf>,
}

impl Image {
    /// Makes the image in `directory` and mounts it at `root`; needs root.
    ///
    /// # Errors
    /// If `mkfs.ext4` or `mount` is missing or fails.
    pub(crate) fn mount(directory: &Path, root: &Path) -> anyhow::Result<Self> {
        const BYTES: u64 = 4 << 30;
        let image = directory.join("image");
        File::create(&image)?.set_len(BYTES)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).args([image.as_path(), root]))?;
        Ok(Self { root: Some(root.to_owned()) })
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let Some(root) = self.root.take() else { return Ok(()) };
        unmount(&root, UnmountFlags::empty()).with_context(|| format!("cannot unmount {}", root.display()))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(root) = self.root.take()
            && let Err(error) = unmount(&root, UnmountFlags::DETACH)
        {
            eprintln!("lab: cannot unmount {}: {error}", root.display());
        }
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_installed_says_so() {
        let why = find("no-such-program-of-anyone").unwrap_err();
        assert!(why.starts_with("not installed: "), "{why}");
        let dirs = RunDirs::new(None).unwrap();
        let start = server(&dirs, "peer", Err(why.clone()), |_, _, _| ());
        assert!(matches!(start, Start::Impossible(said) if said == why));
    }

    #[test]
    fn a_peer_of_the_path_is_found() {
        assert!(find("sh").unwrap().is_absolute());
    }
}
