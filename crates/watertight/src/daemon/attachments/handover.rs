//! The attached volumes in the hands of the next program of the process.
//!
//! Each goes over as the mountpoint's own volume does: its data is durable, its store, nodes and open
//! files are written down. Where it is attached is in the tree, which the session writes down.

use std::os::fd::RawFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Instant;

use ::handover::{Incoming, Kept};
use fuse::{ResumedVolume, SessionHandover};
use serde::{Deserialize, Serialize};
use store::DirStore;
use volume::{DrainReport, Volume, VolumeHandover};

use super::types::{Attached, Attachments};
use crate::cli::opts::MountOptions;
use crate::control::api::{Ended, Propagation};
use crate::control::volume_id::VolumeId;
use crate::object_volumes;
use crate::registry::Registration;
use crate::term::shown::Show as _;

/// An attached volume, written down.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AttachedState {
    pub(crate) id: VolumeId,
    number: u64,
    listener: RawFd,
    /// The options that it was attached with, as they were given.
    pub(crate) options: Vec<String>,
    read_only: bool,
    started_ms: u64,
    pub(crate) volume: VolumeHandover,
}

/// Where a clone of the mountpoint is shown.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CloneState {
    /// Its name in the tree.
    pub(super) name: Vec<u8>,
    pub(super) mountpoint: Vec<u8>,
    pub(super) propagation: Propagation,
}

/// An attached volume that was taken over, but for its place.
#[derive(Debug)]
pub(crate) struct ResumedAttached<'a> {
    pub(crate) state: &'a AttachedState,
    pub(crate) options: MountOptions,
    pub(crate) registration: Registration,
    pub(crate) volume: Arc<Volume>,
    /// Its store, if that is a directory's.
    pub(crate) directory: Option<Arc<DirStore>>,
}

/// What the program before could take back until this one serves.
#[derive(Debug, Default)]
pub(crate) struct Shared(Vec<SharedVolume>);

#[derive(Debug)]
struct SharedVolume {
    attached: Arc<Attached>,
    /// None: the volume has it.
    registration: Option<Registration>,
    directory: Option<Arc<DirStore>>,
}

impl Shared {
    /// Requests are about to be served: from here on an end is recorded.
    pub(crate) fn enter(&mut self) {
        for one in &mut self.0 {
            *one.attached.registration.lock() = one.registration.take();
        }
    }

    /// The program before does not take them back any more.
    pub(crate) fn settle(self) {
        for one in self.0 {
            one.attached.registration.lock().iter_mut().for_each(Registration::settle);
            one.directory.iter().for_each(|directory| directory.settle());
        }
    }
}

/// Whether the store of a volume can be handed over, of this kind and opened so.
///
/// # Errors
/// Why not, in words.
pub(crate) fn check_store(source: &str, read_only: bool) -> Result<(), String> {
    let is_on_objects = object_volumes::looks_like(source);
    if !is_on_objects && !source.starts_with("dir:") {
        return Err(format!(
            "only volumes in directories and on object storage can be handed over to another program, and its \
             store is {}",
            source.shown()
        ));
    }
    if is_on_objects && read_only {
        return Err(
            "it only reads a volume on object storage, of which nothing is handed over: unmount it, and mount it \
             with the new program"
                .to_owned(),
        );
    }
    Ok(())
}

/// Whether another program could open a volume on object storage again.
///
/// # Errors
/// Why not, in words.
pub(crate) fn check_reopening(source: &str, options: &MountOptions) -> Result<(), String> {
    if !object_volumes::looks_like(source) {
        return Ok(());
    }
    object_volumes::check_reopening(source, &options.objects)
        .map_err(|why| format!("another program could not open {}: {why}", source.shown()))
}

impl Attachments {
    /// Those that ended with data that was not written, in the program before too.
    pub(crate) fn resume_failed(&self, failed: &[(String, Ended)]) {
        self.failed.lock().extend_from_slice(failed);
    }

    /// Whether all of them can be handed over.
    ///
    /// # Errors
    /// Which cannot, and why.
    pub(crate) fn check_handover(&self) -> Result<(), String> {
        if let Some(ending) = self.tree.ending() {
            return Err(format!("{ending}, which was attached, has not ended yet"));
        }
        self.each(|one| {
            if one.volume.is_aborted() {
                return Err("it was given up, and has not ended yet".to_owned());
            }
            check_store(&one.source, one.read_only)
        })
    }

    /// Whether another program could open those on object storage again. Asks their buckets.
    ///
    /// # Errors
    /// Which could not be opened, and why.
    pub(crate) fn check_reopening(&self) -> Result<(), String> {
        self.each(|one| check_reopening(&one.source, &one.options))
    }

    fn each(&self, check: impl Fn(&Attached) -> Result<(), String>) -> Result<(), String> {
        let named = |one: &Arc<Attached>| {
            check(one).map_err(|why| format!("{}, which is attached: {why}", one.known_path().shown()))
        };
        self.all().iter().try_for_each(named)
    }

    /// Writes all of them down.
    ///
    /// # Errors
    /// Which cannot be handed over, and why.
    pub(crate) fn hand_over(&self, kept: &mut Kept, until: Instant) -> Result<Vec<AttachedState>, String> {
        let mut states = Vec::new();
        for one in self.all() {
            let state = one.hand_over(kept, until);
            let named = |why| format!("{}, which is attached: {why}", one.known_path().shown());
            states.push(state.map_err(named)?);
        }
        Ok(states)
    }

    /// Attaches what the program before had attached, there and in clones.
    ///
    /// # Errors
    /// Why it cannot be, in words.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        session: &SessionHandover,
        (resumed, clones): (Vec<ResumedAttached<'_>>, &[CloneState]),
        incoming: &Incoming,
    ) -> Result<Shared, String> {
        let (mut shared, mut volumes) = (Shared::default(), Vec::new());
        for ResumedAttached { state, options, registration, volume, directory } in resumed {
            let record = registration.record().clone();
            let attached = Attached {
                started_ms: state.started_ms,
                ..Attached::new(self, record, None, (&volume, &options, &state.options), state.read_only)
            };
            let attached = Arc::new(attached);
            let ends = Arc::clone(&attached);
            let on_end = Box::new(move |report: &DrainReport| ends.finish(report));
            volumes.push(ResumedVolume { number: state.number, volume, on_end });
            let listener = incoming.take(state.listener).map_err(|error| error.to_string())?;
            let listener = self.listen(&attached, UnixListener::from(listener));
            attached.set_listener(listener.map_err(|error| error.to_string())?);
            shared.0.push(SharedVolume { attached, registration: Some(registration), directory });
        }
        let places = self.tree.take_over(session, volumes).map_err(|error| error.to_string())?;
        for (SharedVolume { attached, .. }, place) in shared.0.iter().zip(places) {
            attached.set_place(place);
            let mut list = self.list.lock();
            list.add(attached);
            list.number(attached);
        }
        self.take_over_clones(clones);
        Ok(shared)
    }
}

impl Attached {
    fn hand_over(&self, kept: &mut Kept, until: Instant) -> Result<AttachedState, String> {
        let number = self.number().ok_or("it is being attached just now")?;
        let listener = self.listener.lock().as_ref().map(|listener| kept.copy(listener.socket()));
        let listener = listener.ok_or("it is ending")?.map_err(|error| error.to_string())?;
        let volume = self.volume.hand_over(kept, until).map_err(|error| error.to_string())?;
        Ok(AttachedState {
            id: self.id.clone(),
            number,
            listener,
            options: self.given_options.clone(),
            read_only: self.read_only,
            started_ms: self.started_ms,
            volume,
        })
    }
}
