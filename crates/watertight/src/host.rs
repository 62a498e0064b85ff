//! This host: the kernel's mounts and their holders, processes, files, signals, the service manager.
//!
//! | module | purpose |
//! |---|---|
//! | `mountinfo`, `holders`, `unmount` | the kernel's mounts, what keeps them busy, taking them away |
//! | `mount_agent` | the process that makes a mount process's calls about its own mount |
//! | `checks` | a source and a mountpoint before anything is mounted |
//! | `utab` | the entry that makes umount(8) call our helper |
//! | `pods` | Kubernetes' pods: their cgroups and names |
//! | `process`, `privileges`, `users` | figures of a process, rights that it gives up, whose volumes it sees |
//! | `open_dir` | a runtime directory that another user may change meanwhile |
//! | `signals`, `notify` | signals as events; the service manager |

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

pub mod checks;
pub mod holders;
pub mod keeper_id;
pub mod mount_agent;
pub mod mountinfo;
pub mod notify;
pub mod open_dir;
pub mod pods;
pub mod privileges;
pub mod process;
pub mod signals;
pub mod unmount;
pub mod users;
pub mod utab;

/// Makes a file that does not exist; the file that an earlier process of this name has left is
/// removed. A link is not followed.
pub(crate) fn new_file(path: &Path) -> io::Result<File> {
    let _left_over = fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Runs `work` on a thread of its own, and returns the channel that its result comes by: the caller
/// waits only for as long as it likes.
///
/// # Errors
/// When the host gives no thread.
pub(crate) fn spawn_for_result<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Receiver<T>> {
    let (sender, receiver) = channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || drop(sender.send(work())))?;
    Ok(receiver)
}
