//! Reads names of a directory into what its openings share.

use store::Result;

use crate::listing::{Count, HashPlace, Listing, NAMES_MAX, PIECE, ToRead};
use crate::node::Pin;
use crate::tree::Tree;

/// Reads names until those are there that follow `place`, or `max` were read; says whether they are
/// there. The caller has the listing's turn.
pub(super) async fn fill(
    listing: &Listing,
    tree: &Tree,
    dir: &Pin,
    place: HashPlace,
    max: usize,
) -> Result<bool> {
    loop {
        // The names do not change until the piece is in the part.
        let _state = dir.lock().await?;
        let range = match listing.to_read(dir.ino, place, max) {
            ToRead::Nothing => return Ok(true),
            ToRead::NoMore => return Ok(false),
            ToRead::Rows(range) => range,
        };
        let rows = tree.engine.scan(range, PIECE).await?;
        if let Some(seen) = listing.add(&rows)? {
            dir.names.set_count(seen);
        }
    }
}

/// Whether the directory has few names, of which no more than `max` are read to find that out. Says
/// so of one that has more than [`NAMES_MAX`] once so many were read.
pub(super) async fn is_few(listing: &Listing, tree: &Tree, dir: &Pin, max: usize) -> Result<bool> {
    if dir.names.count() == Count::Unknown {
        let _turn = listing.turn().await;
        if !fill(listing, tree, dir, HashPlace::START, max).await? && max >= NAMES_MAX {
            dir.names.set_many();
            listing.clear();
        }
    }
    Ok(matches!(dir.names.count(), Count::Exactly(count) if count <= NAMES_MAX))
}
