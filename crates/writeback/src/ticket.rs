//! A place among the waiters of a limit.

use std::sync::Arc;
use std::time::Duration;

use crate::group::{Counted, Request};
use crate::throttle::{Chain, Throttle};

/// A place among the waiters. Given back if it is dropped unused.
#[derive(Debug)]
pub struct Ticket<'a> {
    throttle: &'a Throttle,
    chain: Arc<Chain>,
    request: Request,
    /// By group.
    counted: Vec<Counted>,
    /// Whether it is a place to wait at.
    is_place: bool,
    is_used: bool,
}

/// Whether the place's turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Turn {
    /// Yes.
    Come,
    /// Not before this time, unless a boost covers it.
    At(Duration),
    /// Limits were changed: the place is worth nothing, and its holder has to ask again.
    Lost,
}

impl<'a> Ticket<'a> {
    pub(crate) fn new(
        throttle: &'a Throttle,
        chain: &Arc<Chain>,
        request: Request,
        counted: Vec<Counted>,
        is_place: bool,
    ) -> Self {
        Self { throttle, chain: Arc::clone(chain), request, counted, is_place, is_used: false }
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

    /// Whether the place's turn has come.
    pub fn turn(&self) -> Turn {
        // A request that went ahead has no turn to lose.
        if !self.is_place || self.chain.is_empty() {
            return Turn::Come;
        }
        if !self.throttle.is_current(&self.chain) {
            return Turn::Lost;
        }
        let now = self.throttle.now();
        let places = self.chain.groups().iter().zip(&self.counted);
        let turns = places.map(|(group, counted)| group.buckets().turn(*counted, &self.request));
        turns.max().filter(|turn| *turn > now).map_or(Turn::Come, Turn::At)
    }

    /// The turn had come, and so much of the request was done.
    pub fn used(mut self, bytes: u64, operations: u64) {
        self.is_used = true;
        let rest = Request {
            bytes: self.request.bytes.saturating_sub(bytes),
            operations: self.request.operations.saturating_sub(operations),
            ..self.request
        };
        self.throttle.refund(&self.chain, &self.counted, &rest);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.throttle.refund(&self.chain, &self.counted, &self.request);
        }
    }
}
