//! Requests that threads have in their hands.
//!
//! | word | |
//! |---|---|
//! | 0 | the kernel's number; 0: it does not count |
//! | 1 | how far it came: 0 begun, 1 the store is asked, 2 done, 3 failed |
//! | 2 | of an outcome: the node, or the error |
//! | 3 | twice the servers that crashed with it in their hands; 1 more: it is an orphan, counted already |
//! | 4 | of an intent: what was found before |

use sync::mutant::is_on;

use super::{
    Journal, Phase, REQUEST, REQUEST_IN_HAND, REQUESTS_AT, REQUESTS_MAX, RESENT, RequestRecord, Slot,
};

impl Journal {
    /// A slot for the requests of one thread.
    #[must_use]
    pub fn add_thread(&self) -> Option<Slot> {
        let slot = self.requests.lock().take(REQUESTS_MAX).map(|(slot, _)| slot);
        if slot.is_none() {
            self.turn_off();
        }
        slot
    }

    /// The thread has ended.
    pub fn remove_thread(&self, slot: Slot) {
        self.end(slot);
        self.requests.lock().back.push(slot.0);
    }

    /// The thread has this request in its hands. For one that the kernel has sent again: how far it
    /// came.
    pub fn begin(&self, slot: Slot, unique: u64) -> Option<RequestRecord> {
        REQUEST_IN_HAND.with(|number| number.set(unique & !RESENT));
        let at = REQUESTS_AT + slot.0 as usize * REQUEST;
        let orphan =
            if unique & RESENT != 0 { self.orphans.lock().remove(&(unique & !RESENT)) } else { None };
        let record = orphan.map(|orphan| self.request(orphan)).unwrap_or_default();
        let end_orphan = || {
            if let Some(orphan) = orphan {
                self.set(REQUESTS_AT + orphan.0 as usize * REQUEST, 0);
                self.requests.lock().back.push(orphan.0);
            }
        };
        if is_on("recovery-orphan-ended-before-its-copy") {
            end_orphan();
        }
        self.store_phase(slot, record.phase);
        self.set(at + 3, record.crashes * 2);
        self.set(at, unique);
        end_orphan();
        (unique & RESENT != 0).then_some(record)
    }

    /// How far the thread's request has come.
    pub fn set_phase(&self, slot: Slot, phase: Phase) {
        let is_outcome = matches!(phase, Phase::Done(_) | Phase::Failed(_));
        if is_outcome && is_on("recovery-outcome-not-kept") {
            return;
        }
        if matches!(phase, Phase::Intent(_)) && is_on("recovery-intent-not-kept") {
            return;
        }
        self.store_phase(slot, phase);
    }

    fn store_phase(&self, slot: Slot, phase: Phase) {
        let at = REQUESTS_AT + slot.0 as usize * REQUEST;
        let (number, value) = match phase {
            Phase::Begun => (0, 0),
            Phase::Intent(value) => (1, value),
            Phase::Done(value) => (2, value),
            Phase::Failed(errno) => (3, u64::from(errno)),
        };
        // The value of an outcome goes to another word than that of an intent, which stays valid
        // until the outcome is.
        let value_at = at + if number == 1 { 4 } else { 2 };
        if is_on("recovery-outcome-counts-before-it-is-whole") {
            self.set(at + 1, number);
        }
        self.set(value_at, value);
        self.set(at + 1, number);
    }

    /// The thread's request was answered.
    pub fn end(&self, slot: Slot) {
        REQUEST_IN_HAND.with(|number| number.set(0));
        self.set(REQUESTS_AT + slot.0 as usize * REQUEST, 0);
    }

    /// All requests were read that the kernel has sent again: the orphans that are left were answered.
    pub fn drop_orphans(&self) {
        self.opened.lock().clear();
        for (_, orphan) in self.orphans.lock().drain() {
            self.set(REQUESTS_AT + orphan.0 as usize * REQUEST, 0);
            self.requests.lock().back.push(orphan.0);
        }
    }

    /// Finds the requests that the server before had in its hands.
    pub(super) fn find_orphans(&self, is_crash: bool) {
        let mut orphans = self.orphans.lock();
        for slot in 0..REQUESTS_MAX {
            let at = REQUESTS_AT + slot * REQUEST;
            let unique = self.get(at);
            let Some(number) = u32::try_from(slot).ok().filter(|_| unique != 0) else { continue };
            let crashes = self.get(at + 3);
            if crashes & 1 == 0 {
                // The server had it in its hands; else it had not read it again.
                self.set(at + 3, crashes + 2 * u64::from(is_crash) + 1);
            }
            // A server that took over an orphan had made its copy valid, and not ended the orphan. Both
            // say the same, but for the crash that the copy counts.
            if let Some(twice) = orphans.insert(unique & !RESENT, Slot(number)) {
                let is_newer = self.request(twice).crashes > self.request(Slot(number)).crashes;
                let [kept, gone] = if is_newer { [twice.0, number] } else { [number, twice.0] };
                orphans.insert(unique & !RESENT, Slot(kept));
                self.set(REQUESTS_AT + gone as usize * REQUEST, 0);
                self.requests.lock().back.push(gone);
            }
        }
    }

    fn request(&self, slot: Slot) -> RequestRecord {
        let at = REQUESTS_AT + slot.0 as usize * REQUEST;
        let phase = match self.get(at + 1) {
            1 => Phase::Intent(self.get(at + 4)),
            2 => Phase::Done(self.get(at + 2)),
            3 => Phase::Failed(u32::try_from(self.get(at + 2)).unwrap_or(0)),
            _ => Phase::Begun,
        };
        RequestRecord { phase, crashes: self.get(at + 3) / 2 }
    }
}
