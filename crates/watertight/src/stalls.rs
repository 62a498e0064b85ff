//! What the log says of stores that do not answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use volume::Volume;

use crate::live::stalled;
use crate::units;

/// The stalls that the log was told of and that have not ended: by where their volumes are, and since when.
#[derive(Debug, Default)]
pub struct Stalls(HashMap<String, Instant>);

impl Stalls {
    /// Looks at all volumes of the process, and tells what is new. Whoever listens to their events is told by this, too.
    pub fn look(&mut self, volumes: impl IntoIterator<Item = (String, Arc<Volume>)>) {
        let mut before = std::mem::take(&mut self.0);
        for (at, volume) in volumes {
            match (volume.status().stalled, before.remove(&at)) {
                (Some(call), known) => {
                    if known.is_none() {
                        tracing::warn!(volume = volume.name(), "{at} is stalled: {}", stalled(&call));
                    }
                    self.0.insert(at, known.unwrap_or(call.since));
                }
                (None, Some(since)) => {
                    let after = units::duration(since.elapsed());
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
