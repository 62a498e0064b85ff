//! The right of one request to go on, now or when the limits allow.

use std::sync::Arc;
use std::time::Duration;

use crate::group::{Charge, Request};
use crate::throttle::{Chain, Throttle, admit};

/// A request that has been charged. What was not [committed](Self::commit) on drop is refunded.
#[derive(Debug)]
pub struct Reservation<'a> {
    throttle: &'a Throttle,
    chain: Arc<Chain>,
    request: Request,
    /// By group.
    charges: Vec<Charge>,
    /// Whether its holder waits in the order of reservations.
    is_queued: bool,
    is_committed: bool,
}

/// Whether a reservation's request may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Grant {
    /// Yes.
    Now,
    /// Not before this time, unless a boost covers it.
    NotBefore(Duration),
    /// Limits were changed: the reservation is worth nothing, and its holder has to ask again.
    Stale,
}

impl Throttle {
    /// Charges the request if it may go on now.
    ///
    /// # Errors
    /// When the request may go on.
    pub fn try_reserve(&self, chain: &Arc<Chain>, request: Request) -> Result<Reservation<'_>, Duration> {
        let now = self.now();
        let mut charges = vec![Charge::default(); chain.groups.len()];
        let ready_at = admit(chain, 0, &request, now, Duration::ZERO, false, &mut charges);
        if ready_at <= now {
            Ok(Reservation::new(self, chain, request, charges, false))
        } else {
            Err(ready_at)
        }
    }

    /// Charges a request that goes on in any case.
    pub fn charge_ahead(&self, chain: &Arc<Chain>, request: Request) -> Reservation<'_> {
        let mut charges = vec![Charge::default(); chain.groups.len()];
        admit(chain, 0, &request, self.now(), Duration::ZERO, true, &mut charges);
        Reservation::new(self, chain, request, charges, false)
    }

    /// Charges the request; the reservation says when it may go on.
    pub fn reserve(&self, chain: &Arc<Chain>, request: Request) -> Reservation<'_> {
        let now = self.now();
        let each = chain.groups.iter();
        let charges = each.map(|group| group.buckets().reserve(&chain.owner, &request, now)).collect();
        Reservation::new(self, chain, request, charges, true)
    }
}

impl<'a> Reservation<'a> {
    fn new(
        throttle: &'a Throttle,
        chain: &Arc<Chain>,
        request: Request,
        charges: Vec<Charge>,
        is_queued: bool,
    ) -> Self {
        Self { throttle, chain: Arc::clone(chain), request, charges, is_queued, is_committed: false }
    }

    /// The limits that it is for.
    #[must_use]
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// The request that it is for.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Whether the request may go on.
    pub fn grant(&self) -> Grant {
        // A request that went ahead waits for no limit that could change.
        if !self.is_queued || self.chain.is_empty() {
            return Grant::Now;
        }
        if !self.throttle.is_current(&self.chain) {
            return Grant::Stale;
        }
        let now = self.throttle.now();
        let each = self.chain.groups().iter().zip(&self.charges);
        let times = each.map(|(group, charge)| group.buckets().not_before(*charge, &self.request));
        times.max().filter(|time| *time > now).map_or(Grant::Now, Grant::NotBefore)
    }

    /// The request went on, and so much of it was done; the rest is refunded.
    pub fn commit(mut self, bytes: u64, operations: u64) {
        self.is_committed = true;
        let rest = Request {
            bytes: self.request.bytes.saturating_sub(bytes),
            operations: self.request.operations.saturating_sub(operations),
            ..self.request
        };
        self.throttle.refund(&self.chain, &self.charges, &rest);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            self.throttle.refund(&self.chain, &self.charges, &self.request);
        }
    }
}
