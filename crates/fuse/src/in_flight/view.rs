//! The requests under way, for a person.

use std::time::Duration;

use sync::ActivityView;

use super::{InFlight, RequestSlot};
use crate::protocol::abi::Opcode;

/// A request under way.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestView {
    /// The caller's thread; 0 where the kernel asks of its own accord.
    pub caller: u32,
    /// What it asks for.
    pub opcode: Opcode,
    /// The number of the volume in the tree, 0 for the mountpoint's own.
    pub volume: u64,
    /// It waits for a thread.
    pub is_queued: bool,
    /// What it is at.
    pub activity: ActivityView,
}

impl RequestView {
    /// How long ago it was read from the kernel.
    #[must_use]
    pub const fn elapsed(&self) -> Duration {
        self.activity.elapsed
    }
}

impl InFlight {
    /// The requests under way. One that ends meanwhile may be left out.
    pub(crate) fn requests(&self) -> Vec<RequestView> {
        let slots: Vec<_> = self.slots.lock().clone();
        let queued = self.queue.slots();
        let in_slots = slots.iter().filter_map(|slot| view(slot, false));
        in_slots.chain(queued.iter().filter_map(|slot| view(slot, true))).collect()
    }
}

fn view(slot: &RequestSlot, is_queued: bool) -> Option<RequestView> {
    let word = slot.in_hand();
    slot.unique_of(word)?;
    let opcode = Opcode::from_number(slot.opcode())?;
    let (caller, volume, activity) = (slot.pid(), slot.volume_number(), slot.activity().view());
    // Figures of two requests would be mixed.
    (slot.in_hand() == word).then_some(RequestView { caller, opcode, volume, is_queued, activity })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::device::Dev;
    use crate::in_flight::{AbortPolicy, RequestKey};
    use crate::transport::reply_channel::ReplyChannel;

    #[test]
    fn a_request_is_seen_until_it_is_answered() {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let slot = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::new(Dev::new(writer)))));
        let in_flight = InFlight::default();
        in_flight.add(&slot);
        assert!(in_flight.requests().is_empty());
        slot.activity().begin(Instant::now());
        let opcode = Opcode::FSync as u32;
        in_flight.begin(&slot, RequestKey { pid: 7, opcode, ..RequestKey::of(2, AbortPolicy::Always) });
        let requests = in_flight.requests();
        let [one] = requests.as_slice() else { panic!("{requests:?}") };
        assert_eq!((one.caller, one.opcode, one.volume, one.is_queued), (7, Opcode::FSync, 0, false));
        let _claimed = slot.claim();
        assert!(in_flight.requests().is_empty());
    }
}
