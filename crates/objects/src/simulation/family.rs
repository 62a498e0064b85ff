//! Clones in the simulation: a holder makes one of a snapshot of its volume, which may be a clone
//! itself; hosts take it as they take the first volume, until it is deleted.
//!
//! - A clone that was acknowledged opens for every host, and the first that holds it finds what the
//!   snapshot showed. What later ones find is decided as for any volume.
//! - The snapshot stays as long as the clone is there, also where a host tries to delete it and where
//!   processes crash meanwhile; when no clone of it is there any more, it can be deleted.
//! - A clone whose making was interrupted may be refused. If it opens, it is as any other.
//! - Nothing of this shows in the volume that a clone was made of.

use std::sync::Arc;

use parking_lot::Mutex;
use store::{Error, ErrorKind};

use super::faults::Random;
use super::model::Seen;
use super::volume::Volume;
use crate::api::delete_objects;
use crate::bucket::Bucket;
use crate::clone_volume;
use crate::format::Uuid;

/// The most volumes of a family: more take time and show nothing else.
const MEMBERS_MAX: usize = 6;

/// The first volume, and its clones in the order in which they were begun.
#[derive(Debug, Clone)]
pub(super) struct Family(Arc<Mutex<Vec<Known>>>);

#[derive(Debug)]
struct Known {
    volume: Volume,
    /// What it was made of; none: it is the first.
    origin: Option<Origin>,
    state: State,
}

#[derive(Debug, Clone)]
struct Origin {
    parent: usize,
    snapshot: String,
    shows: Seen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Somebody makes it.
    Making,
    /// Its maker crashed, or has not been told that it is there.
    Interrupted,
    /// Its maker was told that it is there.
    Made,
    /// Its maker was told that it is not.
    Refused,
    /// Somebody has begun to delete it.
    Deleting,
    Deleted,
}

/// A volume of a family.
#[derive(Debug, Clone)]
pub(super) struct Member {
    family: Family,
    pub(super) number: usize,
}

/// A clone that is being made: interrupted, if this is dropped before its end is known.
struct Making<'a>(&'a Family, usize);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |known| {
            if known.state == State::Making {
                known.state = State::Interrupted;
            }
        });
    }
}

impl Family {
    pub(super) fn new(first: Volume) -> Self {
        let first = Known { volume: first, origin: None, state: State::Made };
        Self(Arc::new(Mutex::new(vec![first])))
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Known)) {
        change(&mut self.0.lock()[number]);
    }

    fn numbers(&self, is_one: impl Fn(&Known) -> bool) -> Vec<usize> {
        let all = self.0.lock();
        all.iter().enumerate().filter(|(_, known)| is_one(known)).map(|(number, _)| number).collect()
    }

    /// Volumes that hosts may take, in the order in which they were begun.
    pub(super) fn mountable(&self) -> Vec<Member> {
        let numbers = self.numbers(|known| matches!(known.state, State::Made | State::Interrupted));
        numbers.into_iter().map(|number| Member { family: self.clone(), number }).collect()
    }

    /// Clones that nobody needs for clones of them.
    pub(super) fn deletable(&self) -> Vec<Member> {
        let is_there = |known: &Known| !matches!(known.state, State::Refused | State::Deleted);
        let all = self.0.lock();
        let is_parent = |number| {
            let mut children = all.iter().filter(|known| is_there(known)).filter_map(|k| k.origin.as_ref());
            children.any(|origin| origin.parent == number)
        };
        let is_free = |(number, known): &(usize, &Known)| {
            let is_at_rest = matches!(known.state, State::Made | State::Interrupted | State::Deleting);
            known.origin.is_some() && is_at_rest && !is_parent(*number)
        };
        let free = all.iter().enumerate().filter(is_free);
        free.map(|(number, _)| Member { family: self.clone(), number }).collect()
    }
}

impl Member {
    pub(super) fn volume(&self) -> Volume {
        self.family.0.lock()[self.number].volume.clone()
    }

    fn state(&self) -> State {
        self.family.0.lock()[self.number].state
    }

    /// What the first holder finds.
    pub(super) fn begins_as(&self) -> Option<Seen> {
        self.family.0.lock()[self.number].origin.as_ref().map(|origin| origin.shows.clone())
    }

    /// Whether every host can open it.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.state() == State::Made
    }

    /// It does not open: it may only be that it never came to be, and says so.
    pub(super) fn assert_refused(&self, error: &Error) {
        let is_refusal = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Busy);
        assert!(
            self.state() == State::Interrupted && is_refusal,
            "a clone does not open, which is {:?}: {error}",
            self.state()
        );
    }

    /// Clones of this volume's snapshot, whose origin and state are such.
    fn clones(&self, snapshot: &str, is_one: impl Fn(State) -> bool) -> Vec<Volume> {
        let all = self.family.0.lock();
        let of_it = all.iter().filter(|known| {
            let is_of = |origin: &Origin| origin.parent == self.number && origin.snapshot == snapshot;
            known.origin.as_ref().is_some_and(is_of) && is_one(known.state)
        });
        of_it.map(|known| known.volume.clone()).collect()
    }

    /// Whether a clone needs a snapshot of this volume, that was acknowledged and nobody deletes.
    pub(super) fn need(&self, snapshot: &str) -> bool {
        !self.clones(snapshot, |state| state == State::Made).is_empty()
    }

    /// Whether something of a clone of a snapshot is there, for which it is not deleted.
    pub(super) async fn may_need(&self, snapshot: &str) -> bool {
        if !self.clones(snapshot, |state| state == State::Making).is_empty() {
            return true;
        }
        for clone in self.clones(snapshot, |_| true) {
            if clone.world.has(&format!("{}/format", clone.root)).await {
                return true;
            }
        }
        false
    }

    /// Makes a clone of one of this volume's snapshots, if there are any.
    pub(super) async fn make_clone(&self, bucket: &Bucket, random: &mut Random) {
        let volume = self.volume();
        let Some(snapshots) = &volume.snapshots else { return };
        let Some((name, shows)) = snapshots.any_acknowledged(random) else { return };
        let (number, clone) = {
            let mut all = self.family.0.lock();
            if all.len() >= MEMBERS_MAX {
                return;
            }
            let (number, clone) = (all.len(), volume.another(format!("c{}", all.len())));
            let origin = Origin { parent: self.number, snapshot: name.clone(), shows };
            all.push(Known { volume: clone.clone(), origin: Some(origin), state: State::Making });
            (number, clone)
        };
        let making = Making(&self.family, number);
        let uuid = Uuid::from_bytes([u8::try_from(number).expect("few"); 16]);
        let to = bucket.beside(clone.root.as_str().into());
        let made = clone_volume::make_as(uuid, bucket, &name, &to).await;
        let state = match made {
            Ok(_) => State::Made,
            Err(error) => {
                let may_be_gone = error.kind() == ErrorKind::NotFound && snapshots.was_deleted(&name);
                assert!(may_be_gone, "a clone of a snapshot that nobody deletes is not made: {error}");
                State::Refused
            }
        };
        self.family.change(number, |known| known.state = state);
        drop(making);
    }

    /// From now on nobody takes it, and this deletes it.
    pub(super) fn delete(&self) -> impl Future<Output = ()> + 'static {
        self.family.change(self.number, |known| known.state = State::Deleting);
        let this = self.clone();
        async move {
            let bucket = this.volume().bucket(u8::MAX, &Arc::default());
            delete_objects(&bucket, async || Ok(())).await.expect("nobody else does it");
            this.family.change(this.number, |known| known.state = State::Deleted);
        }
    }
}
