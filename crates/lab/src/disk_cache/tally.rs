//! What a cache returns of blocks that it was given.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::content::block;
use super::subject::Subject;

/// Reads by their outcome.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// The bytes that were kept.
    pub(super) right: u64,
    /// Other bytes.
    pub(super) wrong: u64,
    /// Nothing.
    pub(super) none: u64,
    /// An error, or a panic.
    pub(super) failed: u64,
}

impl Tally {
    /// Reads each of the blocks once.
    pub(super) async fn of(subject: &Arc<Subject>, numbers: Range<u64>) -> Self {
        let mut tally = Self::default();
        for number in numbers {
            let subject = Arc::clone(subject);
            // A task of its own, so that a panic is one read's.
            let outcome = match tokio::spawn(async move { subject.read(number).await }).await {
                Ok(Ok(Some(bytes))) if bytes == block(number) => &mut tally.right,
                Ok(Ok(Some(_))) => &mut tally.wrong,
                Ok(Ok(None)) => &mut tally.none,
                Ok(Err(_)) | Err(_) => &mut tally.failed,
            };
            *outcome += 1;
        }
        tally
    }
}
