//! Room for what is written: in the cache, and under the limits of the file's owner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cgroups::CgroupId;
use sync::accounting;
use sync::mutant::is_on;
use throttle::{Completion, OnLimit};
use writeback::{Balance, DirtyReservation, InLine, Permit, Waiter};

use crate::cancel::WakeEvent;
use crate::events::Limit;
use crate::inode::Inode;
use crate::{Ctx, Error, Result};

/// How long a writer that waits for room leaves it to others to write what a limit allows: twice as
/// long each time that others did, up to a bound.
const HELD_PAUSE: Duration = Duration::from_millis(1);
const HELD_PAUSE_MAX: Duration = Duration::from_millis(128);
/// Of the writers that wait for room, this many try to help as often as one alone would.
const HELPERS: usize = 16;

/// Room that a writer was given.
pub(crate) struct CacheReservation {
    /// Under its owner's limits. Dropped first: a writer that learns of the room in the cache finds
    /// this one as well.
    _reserved: Option<DirtyReservation>,
    /// In the cache.
    pub(crate) permit: Permit,
    /// For how long the writer is slowed down after it has written: before that, its room would be
    /// taken without any data in it to be written.
    pub(crate) pause: Duration,
}

impl Inode {
    /// Room for `pages` more pages, if there is, in the cache and under its owner's limits.
    fn try_reserve(&self, pages: u64) -> Option<CacheReservation> {
        let (balance, reserved) = self.core.bdi.reserve(self, pages);
        if balance == Balance::Blocked {
            return None;
        }
        // ORDERING: Relaxed, a figure for the threshold (see `note_pages`).
        let held = self.held.load(sync::atomic::Ordering::Relaxed);
        let permit = self.core.budget.try_take(pages, held)?;
        let pause = if let Balance::Pause(pause) = balance { pause } else { Duration::ZERO };
        Some(CacheReservation { _reserved: reserved, permit, pause })
    }

    /// Makes a writer wait whose cgroup comes near its limit.
    pub(crate) fn pause_writer(&self, ctx: &Ctx<'_>, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        self.core.bdi.check_background(self);
        (ctx.before_wait)();
        self.core.counters.waits.add(1);
        let _waits = self.waits_for_limit(self.core.bdi.owner_of(self), Limit::DirtyMax);
        let event = Arc::new(WakeEvent::default());
        let _watch = ctx.cancel.watch(&event);
        let until = Instant::now() + pause;
        accounting::expect(Some(until), None);
        event.wait(Some(until));
    }

    /// The number of the line that the writers share whose pages count for the same limits.
    fn line(&self) -> u64 {
        self.core.bdi.owner_of(self).map_or(CgroupId::ROOT.0, |owner| owner.0)
    }

    /// Room for `pages` more pages. Waits while this inode's share of the cache, or its owner's, is
    /// used up.
    pub(crate) fn reserve(self: &Arc<Self>, ctx: &Ctx<'_>, pages: u64) -> Result<CacheReservation> {
        // Data of the owner's that others waited for, and that it owes, counts as dirty still.
        if self.owes_until(pages).is_none()
            && let Some(room) = self.try_reserve(pages)
        {
            return Ok(room);
        }
        (ctx.before_wait)();
        self.core.counters.waits.add(1);
        // The first that applies: a debt of the owner's, its dirty limit, room.
        let limit = if self.owes_until(pages).is_some() {
            Some(Limit::IoMax)
        } else {
            self.core.bdi.is_at_dirty_limit(self, pages).then_some(Limit::DirtyMax)
        };
        let _waits = limit.map(|limit| self.waits_for_limit(self.core.bdi.owner_of(self), limit));
        let _waits_for_room = limit.is_none().then(|| self.core.events.waits_for_room());
        let event = Arc::new(WakeEvent::default());
        let _watch = ctx.cancel.watch(&event);
        let wake = {
            let event = Arc::clone(&event);
            Box::new(move || event.set())
        };
        // Each chunk that is written would wake all writers that wait at their cgroup's limit,
        // whether or not it is room enough for any of them.
        let may_go = {
            let inode = Arc::clone(self);
            Box::new(move |promised: u64, at: InLine| {
                let owes = || at == InLine::Behind && inode.owes_until(pages + promised).is_some();
                inode.core.bdi.has_room(&inode, pages, promised) && !owes()
            })
        };
        let held = Arc::clone(&self.held);
        let waiter = Waiter { pages, held, may_go, wake };
        let queued = self.core.budget.queue(self.line(), waiter);
        if is_on("volume-reserve-once") {
            event.wait(None);
        }
        let look = |owed_until: &mut Option<Duration>| {
            queued.look(self.line(), || {
                *owed_until = self.owes_until(pages);
                if owed_until.is_none() { self.try_reserve(pages) } else { None }
            })
        };
        let (mut pause, mut wants_all) = (HELD_PAUSE, None);
        loop {
            let mut owed_until = None;
            if let Some(room) = look(&mut owed_until) {
                return Ok(room);
            }
            if ctx.cancel.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if self.core.is_aborted() {
                return Err(Error::Released);
            }
            // Room under its own dirty limit comes from its cgroup's writing, which `may_go`
            // reports. Only a writer that waits for the cache needs the data of all cgroups
            // written, for as long as it waits.
            if owed_until.is_some() || self.core.bdi.is_at_dirty_limit(self, pages) {
                wants_all = None;
                self.core.bdi.check_background(self);
            } else {
                wants_all.get_or_insert_with(|| self.core.bdi.begin_room_wait());
            }
            let mut helps_at = None;
            // A writer that fills the cache helps to empty it, so that none depends on a flusher
            // that hangs in another file.
            if self.state().cache.dirty() > 0 {
                // Other waiting writers are called for room meanwhile: the store may not answer.
                queued.set_busy();
                // An attempt, also where the last one failed: the store may have recovered.
                let write = self.core.bdi.throttled_write(self, u64::MAX, OnLimit::Skip);
                match self.writeout(&write, None, true)? {
                    (_, pages) if pages > 0 => {
                        pause = HELD_PAUSE;
                        continue;
                    }
                    // Another thread writes what the limit allows: the more often that is so, the
                    // less a helper is needed.
                    (Completion::Throttled, _) => {
                        // A whole crowd together tries no more often than that many.
                        let crowds = u32::try_from(queued.in_line() / HELPERS).unwrap_or(u32::MAX);
                        helps_at = Some(write.ready_at() + pause * crowds.saturating_add(1));
                        pause = (pause * 2).min(HELD_PAUSE_MAX);
                    }
                    _ => {}
                }
                // No thread called this one meanwhile.
                if let Some(room) = look(&mut owed_until) {
                    return Ok(room);
                }
            }
            if let Some(kind) = self.state().failing {
                return Err(Error::Writeback(kind));
            }
            // A debt is paid by time, for which the first of the line wakes.
            let paid_at = owed_until.filter(|_| queued.is_first());
            let until = paid_at.into_iter().chain(helps_at).min();
            let now = self.core.options.clock.now();
            accounting::expect(owed_until.map(|until| Instant::now() + until.saturating_sub(now)), None);
            event.wait(until.map(|until| Instant::now() + until.saturating_sub(now)));
        }
    }
}
