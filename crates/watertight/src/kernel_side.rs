//! What a mount process asks the kernel about its own mount, asked by a process of its own.
//!
//! Unmounting and syncfs(2) wait for answers that the mount process itself has to give. A thread that waits for its
//! own process keeps that process from ending when it is killed: its descriptors stay open, the connection is
//! not aborted, and the thread waits for ever. So another process waits: this program, by its hidden verb
//! `kernel-side`.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use clap::ValueEnum;
use rustix::fs::{Mode, OFlags, open, syncfs};

use crate::cli::KernelSideArgs;
use crate::console::console;
use crate::mountinfo::{self, Mount, MountTable};
use crate::problem::{Problem, Result};
use crate::unmount::{self, Outcome};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ask {
    /// Hand over the dirty pages (syncfs).
    Flush,
    /// Unmount, unless somebody holds the mount.
    Umount,
    /// Take the path away.
    Detach,
    /// Abort the connection and take the path away.
    Force,
    /// Whether the server is gone; prints it. For any process that must not wait itself.
    Probe,
}

impl Ask {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Asks by way of another process, and waits for it.
///
/// # Errors
/// What that process said.
pub fn ask(what: Ask, mount: &Mount) -> Result<Outcome> {
    let failed =
        |why: String| Problem::failure(format!("{} {}: {why}", what.name(), mount.mountpoint.display()));
    let output = Command::new("/proc/self/exe")
        .args(["kernel-side", &what.name(), "--id", &mount.id.to_string()])
        .arg(&mount.mountpoint)
        .stdin(Stdio::null())
        // Ctrl-C in the terminal is for the mount process.
        .process_group(0)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("watertight:").trim();
        let said = if said.is_empty() { output.status.to_string() } else { said.to_owned() };
        return Err(Problem::failure(said));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// Runs the hidden verb: asks the kernel, and prints the [`Outcome`].
///
/// # Errors
/// What the kernel said.
pub fn run(args: &KernelSideArgs) -> Result<()> {
    if args.ask == Ask::Probe {
        console().print(unmount::says_dead(&args.mountpoint));
        return Ok(());
    }
    let table = MountTable::read();
    let is_meant = |m: &&Mount| m.id == args.id && m.mountpoint == args.mountpoint && mountinfo::is_ours(m);
    let outcome = match table.iter().find(is_meant) {
        None => Outcome::Gone,
        Some(mount) => match args.ask {
            Ask::Flush => flush(mount).map(|()| Outcome::Gone)?,
            Ask::Umount => unmount::plain(mount)?,
            Ask::Detach => unmount::detach(mount).map(|()| Outcome::Gone)?,
            Ask::Probe => Outcome::Gone,
            Ask::Force => unmount::force(mount).map(|()| Outcome::Gone)?,
        },
    };
    let text = serde_json::to_string(&outcome).map_err(|error| Problem::failure(error.to_string()))?;
    console().print(&text);
    Ok(())
}

/// Has the kernel hand over the dirty pages of the file system at `mount`, and on `fuseblk` waits until
/// they are durable.
///
/// # Errors
/// Those of opening the mountpoint and of syncfs(2).
pub fn flush(mount: &Mount) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let flush = || syncfs(open(&mount.mountpoint, flags, Mode::empty())?);
    flush().map_err(|error| {
        let error = io::Error::from(error);
        Problem::failure(format!("{}: not everything is durable: {error}", mount.mountpoint.display()))
    })
}
