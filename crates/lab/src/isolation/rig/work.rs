//! The work of neighbours: that they do it, and how much.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{Rig, Volume, eventually};
use crate::isolation::beside::Kind;
use crate::isolation::tenants::{ROOM_KIB, SIDES, limit_bytes};

/// Callers of a crowd that are seen waiting: a mount takes so many requests at once, and more only
/// where it has threads for them.
pub(in crate::isolation) const SEEN_OF_A_CROWD: usize = 32;

/// The neighbours' work up to a moment.
#[derive(Debug)]
pub(in crate::isolation) struct Look {
    at: Instant,
    /// Bytes on each one's store.
    written: Vec<u64>,
    /// Files of each that had changed their owners.
    switched: Vec<u64>,
}

/// Their work from one moment to another.
#[derive(Clone, Copy, Debug)]
pub(in crate::isolation) enum Work {
    Nothing,
    /// Percent of what their limits allow.
    OfLimit(f64),
    /// A second, all together.
    Switches(f64),
}

impl Rig {
    /// Has them begin, and waits until all are at it.
    pub(super) fn work(&mut self) -> anyhow::Result<()> {
        let places: Vec<PathBuf> = self.neighbours.iter().map(|volume| self.at(&volume.name)).collect();
        let begun = self.look()?;
        self.tenants.as_mut().context("nobody uses them")?.start(self.beside, &places)?;
        match self.beside.kind {
            kind if kind.is_limited() => self.are_throttled(),
            Kind::Churning => self.have_switched_since(&begun),
            _ => Ok(()),
        }
    }

    /// Checks that they work.
    pub(super) fn is_at_work(&mut self) -> anyhow::Result<()> {
        let Some(tenants) = &mut self.tenants else { return Ok(()) };
        tenants.are_there()?;
        match self.beside.kind {
            kind if kind.is_limited() => self.are_throttled(),
            Kind::Churning => self.have_switched_since(&self.look()?),
            _ => Ok(()),
        }
    }

    /// Waits until each is throttled. A caller may be between two calls at a moment; one that is
    /// not throttled is so again and again.
    fn are_throttled(&self) -> anyhow::Result<()> {
        let mut why = None;
        let looks = eventually("all are throttled", || {
            why = self.is_throttled()?;
            Ok(why.is_none())
        });
        looks.with_context(|| why.unwrap_or_default())
    }

    /// The mistake, if not each has its room full of dirty data, and two callers that wait in
    /// write(2) or fsync(2). Of neighbours that write through mapped memory, none waits in a
    /// request of its own: the kernel's write-back waits.
    fn is_throttled(&self) -> anyhow::Result<Option<String>> {
        let wbps = limit_bytes(self.neighbours.len());
        let mut waiting = 0;
        for volume in &self.neighbours {
            let status = volume.status()?;
            // Data written ahead of the limit, because a process called sync(2), counts as dirty
            // still.
            let limit = &status["limits"][0];
            ensure!(number(limit, "wbps")? == wbps, "{} has no limit: {limit}", volume.name);
            let room = number(&status, "dirty_bytes")? + number(limit, "owed_bytes")?;
            if room < (ROOM_KIB << 10) * 3 / 4 {
                return Ok(Some(format!("{} has {room} bytes to be written", volume.name)));
            }
            waiting += under_way(&status)?;
        }
        if let Some((_, control)) = &self.main {
            waiting = under_way(&control.status()?)?;
        }
        let callers = match self.beside.kind {
            Kind::Mapping => 1,
            Kind::Crowd => self.beside.crowd.min(SEEN_OF_A_CROWD) as u64,
            _ => (SIDES * self.neighbours.len()) as u64,
        };
        Ok((waiting < callers).then(|| format!("{waiting} of {callers} callers wait")))
    }

    /// Waits until a file of each has changed its owner again.
    fn have_switched_since(&self, before: &Look) -> anyhow::Result<()> {
        eventually("all change owners", || {
            let now = self.look()?.switched;
            Ok(now.iter().zip(&before.switched).all(|(now, before)| now > before))
        })
    }

    /// The neighbours' work so far.
    pub(in crate::isolation) fn look(&self) -> anyhow::Result<Look> {
        let mut look = Look { at: Instant::now(), written: Vec::new(), switched: Vec::new() };
        for volume in &self.neighbours {
            let status = volume.status()?;
            look.written.push(number(&status, "written_bytes")?);
            look.switched.push(number(&status, "switched_inodes")?);
        }
        Ok(look)
    }

    /// Their work from `before` to `after`.
    pub(in crate::isolation) fn worked(&self, before: &Look, after: &Look) -> Work {
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let sum = |of: fn(&Look) -> &Vec<u64>| {
            of(after).iter().zip(of(before)).map(|(after, before)| after - before).sum::<u64>() as f64
        };
        match self.beside.kind {
            kind if kind.is_limited() => {
                let allowed =
                    seconds * (limit_bytes(self.neighbours.len()) * self.neighbours.len() as u64) as f64;
                Work::OfLimit(sum(|look| &look.written) / allowed * 100.0)
            }
            Kind::Churning => Work::Switches(sum(|look| &look.switched) / seconds),
            _ => Work::Nothing,
        }
    }

    /// Percent of one processor that all volumes and their users take while the healthy ones are
    /// not used; over such a time.
    pub(in crate::isolation) fn processor(&self, time: Duration) -> f64 {
        let used = || {
            let volumes = self.healthy.iter().chain(&self.neighbours).filter_map(|v| v.server.as_ref());
            let servers = volumes.chain(self.main.as_ref().map(|(server, _)| server));
            let served: Duration = servers.filter_map(|server| server.cpu_time()).sum();
            served + self.tenants.as_ref().map(|tenants| tenants.cpu_time()).unwrap_or_default()
        };
        let (begun, before) = (Instant::now(), used());
        std::thread::sleep(time);
        used().saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0
    }
}

impl Volume {
    fn status(&self) -> anyhow::Result<Value> {
        self.control.as_ref().context("no control socket")?.status()
    }

    pub(super) fn is_stalled(&self) -> anyhow::Result<bool> {
        Ok(self.status()?["state"] == "stalled")
    }
}

fn number(of: &Value, name: &str) -> anyhow::Result<u64> {
    of[name].as_u64().with_context(|| format!("status has no {name}"))
}

/// Requests that wait: of a volume with a mount of its own, or of all in one.
fn under_way(status: &Value) -> anyhow::Result<u64> {
    number(&status["requests"], "under_way")
}
