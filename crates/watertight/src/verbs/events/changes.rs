//! Reports when volumes may have appeared: inotify(7) on the runtime directories and on those that
//! they appear in.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::control::registered;
use crate::registry::RuntimeDir;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// The stream of changes.
pub(super) struct Changes(AsyncFd<OwnedFd>);

impl Changes {
    pub(super) fn new() -> Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(io::Error::from);
        inotify.and_then(|fd| registered(fd, Interest::READABLE)).map(Self).map_err(failed)
    }

    /// From here on, changes are reported.
    pub(super) fn subscribe(&self) -> Result<()> {
        RuntimeDir::own()?;
        let mask = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let mut result = Ok(());
        RuntimeDir::for_each_place(|path| match inotify::add_watch(self.0.get_ref(), path, mask) {
            // A directory that goes meanwhile, or cannot be read, has no volumes to report.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
            Err(error) => {
                result = Err(Problem::failure(format!("{} cannot be watched: {error}", path.shown())))
            }
        });
        result
    }

    /// Waits until something has changed that may be a new volume, and it is so late.
    pub(super) async fn wait(&self, not_before: Option<Instant>) -> Result<()> {
        if let Some(not_before) = not_before {
            tokio::time::sleep_until(not_before.into()).await;
        }
        loop {
            let mut told = self.0.readable().await.map_err(failed)?;
            match self.read() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Errno::AGAIN) => told.clear_ready(),
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    /// Takes the events; returns whether any of them is of interest.
    fn read(&self) -> Result<bool, Errno> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.0.get_ref(), &mut buffer);
        let mut is_news = false;
        loop {
            // Without a name: the directory itself, or more changes than the kernel has kept.
            is_news |= events.next()?.file_name().is_none_or(|name| may_be_news(name.to_bytes()));
            if events.is_buffer_empty() {
                return Ok(is_news);
            }
        }
    }
}

/// Records, runtime directories, and their parents.
fn may_be_news(name: &[u8]) -> bool {
    name.ends_with(b".json") || name.starts_with(b"watertight") || name.iter().all(u8::is_ascii_digit)
}

fn failed(error: io::Error) -> Problem {
    Problem::failure(format!("cannot watch for new volumes: {error}"))
}
