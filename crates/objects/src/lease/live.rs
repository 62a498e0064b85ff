//! The volumes that this process holds, by their nonces.
//!
//! A lease that names this process says nothing of whether this process still holds the volume: it
//! may have given the volume up without an answer from the bucket. Its nonce says it.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::info::Nonce;

/// One for each volume that this process holds or takes.
static LIVE: Mutex<BTreeSet<[u8; 16]>> = Mutex::new(BTreeSet::new());

/// A nonce that this process takes or holds a volume with, until it is dropped.
#[derive(Debug)]
pub(super) struct LiveNonce(Nonce);

impl LiveNonce {
    /// A new one: registered before the lease can have it.
    pub(super) fn new() -> store::Result<Self> {
        let nonce = Nonce::new()?;
        LIVE.lock().insert(nonce.to_bytes());
        Ok(Self(nonce))
    }

    pub(super) const fn get(&self) -> Nonce {
        self.0
    }
}

impl Drop for LiveNonce {
    fn drop(&mut self) {
        LIVE.lock().remove(&self.0.to_bytes());
    }
}

/// Whether this process takes or holds a volume with `nonce`.
pub(super) fn is_live(nonce: Nonce) -> bool {
    LIVE.lock().contains(&nonce.to_bytes())
}
