//! Volumes of this process that are attached once more: at a second place, or after a lazy detach
//! that open files outlived.
//!
//! # Invariant
//! A verb that reports a volume at a path (exit 0) has put it there, or found it there in the tree
//! itself: **this path, looked up now by any process, leads into this volume.** The registry, a
//! status or the volume's store are no evidence of that: a volume that was detached and is held has
//! its record, its socket and its store as before. So nothing is concluded from these. The volume
//! is named by its id or its store, never by the path where it was last; the call asks the tree,
//! and makes a mount unless the path leads there. Likewise a detach finds its mount once, and
//! exactly this mount leaves, wherever the path leads by then.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fuse::TreeError;
use volume::events::Life;

use super::types::{Attached, Attachments, CLOSING, Mountpoint};
use crate::cli::opts::MountOptions;
use crate::control::volume_id::VolumeId;
use crate::host::checks;
use crate::term::problem::Problem;
use crate::term::shown::Show as _;

impl Attachments {
    /// Attaches the volume that a store's name means: the one that has the store, if this process
    /// has one; a new one otherwise.
    pub(super) fn attach_source(
        self: &Arc<Self>,
        source: &str,
        options: &[String],
        place: (&Mountpoint, &Path),
    ) -> Result<VolumeId, Problem> {
        if let Some(one) = self.of_store(source) {
            if attach(&one, options, place)? {
                return Ok(one.id.clone());
            }
            // Its last file was closed just now: it has the store until it has ended.
            if !one.wait_ended_until(Instant::now() + CLOSING) {
                return Err(Problem::failure(is_ending(&one)));
            }
        }
        self.attach_store(source, options, place)
    }

    /// The volume with this store, if that has an identity.
    fn of_store(&self, source: &str) -> Option<Arc<Attached>> {
        let source = checks::source(source).ok()?;
        let identity = checks::identity_of(&source.spec)?;
        let has_it = |one: &Arc<Attached>| checks::identity_of(&one.source) == Some(identity);
        self.all().into_iter().find(has_it)
    }

    /// Why a volume that was meant by its id is not detached at a path.
    pub(super) fn not_there(&self, mountpoint: &Mountpoint, path: &Path, id: &VolumeId) -> String {
        let shown = mountpoint.join(path);
        let known = self.list.lock().of_id(id);
        match known {
            None => format!("volume {id} has ended"),
            Some(one) if !one.is_seen() => format!(
                "volume {id} is already detached, and still held: `watertight wait {id}` returns when its data is on the \
                 store, `watertight status {id}` names the holders"
            ),
            Some(_) => format!(
                "{} does not lead to volume {id}: something else is attached there; detach that first",
                shown.shown()
            ),
        }
    }
}

/// Gives a volume one more place, unless it has that already; false: it has ended, or is about to.
pub(super) fn attach(
    one: &Arc<Attached>,
    options: &[String],
    (mountpoint, path): (&Mountpoint, &Path),
) -> Result<bool, Problem> {
    if options.iter().any(|list| !list.is_empty()) && MountOptions::parse(options)? != one.options {
        return Err(Problem::failure(format!(
            "volume {} has this store already; it {}, and keeps its options: give none, or the same ones",
            one.id,
            if one.is_seen() { format!("is attached at {}", one.path().shown()) } else { held(one) },
        )));
    }
    let Some(place) = one.place() else {
        return Err(Problem::failure(format!(
            "volume {}, which has the store, is being attached just now",
            one.id
        )));
    };
    match mountpoint.tree.attach_again(path, &place) {
        Ok(place) => {
            let was_detached = !mountpoint.tree.is_attached(&one.place().unwrap_or_else(|| place.clone()));
            if was_detached {
                one.set_place(place);
            }
            one.volume.set_attached();
            one.volume.events().life(Life::Attached, Some(mountpoint.join(path)));
            // Writes down where it is.
            drop(one.path());
            Ok(true)
        }
        Err(TreeError::Tree(mounts::Error::AlreadyThere)) => Ok(true),
        Err(TreeError::Tree(mounts::Error::Ended)) => Ok(false),
        Err(error) => Err(Problem::failure(error.to_string())),
    }
}

fn held(one: &Attached) -> String {
    format!("was detached from {} and is still held", one.path().shown())
}

/// Why a volume cannot be attached again.
pub(super) fn is_ending(one: &Attached) -> String {
    let id = &one.id;
    format!(
        "volume {id}, which has the store, is ending: `watertight wait {id}` returns when the store is free"
    )
}
