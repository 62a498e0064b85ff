//! Healthy volumes are unmounted, and mounted again: as often as a figure needs, each time as the
//! first time.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;

use super::{Rig, Volume, eventually};
use crate::control::{self, Control};
use crate::isolation::keeper::mounts_below;

/// The data that a volume has to write when it is unmounted, and its file.
static DIRTY: [u8; 256 << 10] = [3; 256 << 10];
const FILE: &str = "last";

/// The verb that a volume is unmounted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::isolation) enum Way {
    /// `umount`, not held.
    Plain,
    /// `umount --lazy`, while a file is open.
    Lazy,
}

impl Rig {
    /// Unmounts a healthy volume that has something to write; returns the time of the verb. Nothing
    /// is left of the volume then, and it is mounted again, without the written file.
    pub(in crate::isolation) fn umount(&mut self, at: usize, way: Way) -> anyhow::Result<Duration> {
        let name = self.healthy[at].name.clone();
        let took = match way {
            Way::Plain => self.umount_plainly(at)?,
            Way::Lazy => self.umount_lazily(&name)?,
        };
        self.is_gone(at)?;
        self.is_stored(at)?;
        fs::remove_file(self.healthy[at].store.join(FILE))?;
        self.mount_again(at)?;
        Ok(took)
    }

    fn umount_plainly(&self, at: usize) -> anyhow::Result<Duration> {
        let name = &self.healthy[at].name;
        fs::write(self.at(name).join(FILE), DIRTY)?;
        let done = self.verb(&["umount"], Some(name))?;
        ensure!(done.status.success(), "umount: {}", done.error);
        self.is_stored(at)?;
        Ok(done.took)
    }

    fn umount_lazily(&self, name: &str) -> anyhow::Result<Duration> {
        let mut held = File::create(self.at(name).join(FILE))?;
        held.write_all(&DIRTY)?;
        let done = self.verb(&["umount", "--lazy"], Some(name))?;
        ensure!(done.status.success(), "umount --lazy: {}", done.error);
        ensure!(done.out.contains("still held"), "umount --lazy did not say that it is held: {}", done.out);
        Ok(done.took)
    }

    /// Checks that the written data is on the store. The file is new each time.
    fn is_stored(&self, at: usize) -> anyhow::Result<()> {
        let Volume { name, store, .. } = &self.healthy[at];
        let stored = fs::metadata(store.join(FILE))?.len();
        ensure!(stored == DIRTY.len() as u64, "{name} is unmounted, and its store has {stored} bytes");
        Ok(())
    }

    /// Waits until nothing is left of a volume that was unmounted: no process of its own, no
    /// record. Its mount has gone before.
    fn is_gone(&mut self, at: usize) -> anyhow::Result<()> {
        let place = self.at(&self.healthy[at].name);
        ensure!(mounts_below(&place).is_empty(), "{} is a mountpoint still", place.display());
        if let Some(server) = self.healthy[at].server.take() {
            server.stop()?;
        }
        self.healthy[at].control = None;
        eventually("a volume's end", || Ok(self.control_at(&place)?.is_none()))
    }

    fn mount_again(&mut self, at: usize) -> anyhow::Result<()> {
        let name = self.healthy[at].name.clone();
        if self.main.is_some() {
            self.attach(&self.healthy[at])?;
        } else {
            let server = self.mount(&self.healthy[at])?;
            server.mounted(&self.log(&name))?;
            self.healthy[at].server = Some(server);
        }
        let (place, mut found) = (self.at(&name), None);
        eventually("a volume's control socket", || {
            found = self.control_at(&place)?;
            Ok(found.is_some())
        })?;
        self.healthy[at].control = found;
        Ok(())
    }

    /// The way to the volume there, if one has a record.
    fn control_at(&self, place: &PathBuf) -> anyhow::Result<Option<Control>> {
        let known = control::known(&self.path("run"))?;
        Ok(known.into_iter().find(|(at, _)| at == place).map(|(_, control)| control))
    }
}
