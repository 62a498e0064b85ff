//! The ways to unmount.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::cell::{Cell, State};
use crate::rig::{Out, eventually, no_copies, run};

/// A way to unmount.
pub(super) enum Way {
    /// `watertight umount`, with these arguments.
    Verb(&'static [&'static str]),
    /// umount(8), with this.
    Umount8(&'static [&'static str]),
    /// umount2(2).
    Call(UnmountFlags),
    Fusermount,
    /// The mount process gets SIGKILL.
    Kill,
}

impl Way {
    /// The programs that it needs.
    pub(super) const fn programs(&self) -> &'static [&'static str] {
        match self {
            Self::Umount8(_) => &["umount", "nsenter", "unshare"],
            Self::Fusermount => &["fusermount3"],
            _ => &[],
        }
    }

    /// Whether the helpers have to be installed.
    pub(super) const fn is_of_mount8(&self) -> bool {
        matches!(self, Self::Umount8(_))
    }

    /// Whether the kernel alone is asked, which knows of the mount and not of the volume.
    pub(super) const fn is_of_the_kernel(&self) -> bool {
        matches!(self, Self::Call(_) | Self::Fusermount)
    }

    /// The command, where it is one.
    pub(super) fn command(&self, cell: &Cell) -> Option<Command> {
        let mut command = match self {
            Self::Verb(more) => {
                let mut command = cell.rig.command(&["umount"]);
                command.args(*more);
                command
            }
            Self::Umount8(more) => {
                let mut command = Command::new("umount");
                command.args(*more).env("WATERTIGHT_RUNTIME_DIR", &cell.rig.runtime);
                command
            }
            Self::Fusermount => {
                let mut command = Command::new("fusermount3");
                command.arg("-u");
                command
            }
            Self::Call(_) | Self::Kill => return None,
        };
        command.arg(&cell.rig.mnt);
        Some(cell.inside(command))
    }

    /// Unmounts; on return the cell's text must hold. A call that fails is reported like a program,
    /// with exit 1.
    pub(super) fn go(&self, cell: &Cell) -> Out {
        let is_held = cell.state == State::Held && cell.is_held();
        match self {
            // A process that looks through /proc may hold the mount for a moment. A real holder is
            // reported the first time.
            Self::Call(_) | Self::Fusermount => {
                let mut out = None;
                eventually("nobody but those of the test holds the mount", || {
                    let _no_copies = no_copies();
                    let now = self.try_once(cell);
                    let is_final = is_held || !is_busy(&now);
                    out = Some(now);
                    is_final
                });
                out.unwrap()
            }
            Self::Kill => {
                cell.daemon.kill();
                out(0, String::new(), Duration::ZERO)
            }
            Self::Verb(_) | Self::Umount8(_) => self.try_once(cell),
        }
    }

    fn try_once(&self, cell: &Cell) -> Out {
        let Self::Call(flags) = self else { return run(self.command(cell).expect("a program")) };
        let begun = Instant::now();
        let result = match rustix::mount::unmount(&cell.rig.mnt, *flags) {
            // By force the kernel cuts the connection before it looks for the mount: this call's, or an
            // earlier one's, and the mount process may have taken the mount away by then.
            Err(Errno::INVAL) if *flags == UnmountFlags::FORCE => Ok(()),
            result => result,
        };
        let said = match result {
            Ok(()) => String::new(),
            Err(Errno::BUSY) => "EBUSY".to_owned(),
            Err(error) => panic!("umount2: {error}"),
        };
        out(result.is_err().into(), said, begun.elapsed())
    }
}

fn out(code: i32, stderr: String, took: Duration) -> Out {
    Out { code: Some(code), stdout: String::new(), stderr, took }
}

/// Whether it was refused because of EBUSY.
pub(super) fn is_busy(out: &Out) -> bool {
    out.code != Some(0) && (out.stderr.contains("EBUSY") || out.stderr.contains("busy"))
}
