//! Log messages about stores that do not answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use volume::Volume;

use super::figures::stalled;
use crate::term::units;

/// Logged stalls that have not ended: their volumes, by address, and since when.
#[derive(Debug, Default)]
pub struct Stalls(HashMap<usize, (Arc<Volume>, Instant)>);

impl Stalls {
    /// Looks at all volumes of the process, and logs news. This also emits their stall events.
    /// There may be thousands of volumes: `place` is called only for those with news.
    pub fn look(
        &mut self,
        volumes: impl IntoIterator<Item = Arc<Volume>>,
        place: impl Fn(&Arc<Volume>) -> String,
    ) {
        let mut before = std::mem::take(&mut self.0);
        for volume in volumes {
            let address = Arc::as_ptr(&volume).addr();
            match (volume.look(), before.remove(&address)) {
                (Some(call), known) => {
                    if known.is_none() {
                        let at = place(&volume);
                        tracing::warn!(volume = volume.name(), "{at} is stalled: {}", stalled(&call));
                    }
                    let known = known.unwrap_or((volume, call.since));
                    self.0.insert(address, known);
                }
                (None, Some((_, since))) => {
                    let (at, after) = (place(&volume), units::duration(since.elapsed()));
                    tracing::info!(
                        volume = volume.name(),
                        "{at}: the store answers again, after {after}; nothing was lost"
                    );
                }
                (None, None) => {}
            }
        }
    }
}
