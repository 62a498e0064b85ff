//! What the program before has left to this one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::SealFlags;

use crate::sys;

/// The largest state, in bytes: a million nodes and open files.
pub const STATE_BYTES_MAX: u64 = 1 << 30;

/// Descriptors 0 to 2 are never handed over.
const STANDARD: RawFd = 2;

/// What the program before has left to this one.
///
/// To be made first of all: the descriptors that the state names belong to no object of this
/// program only as long as that has opened nothing.
#[derive(Debug)]
pub struct Incoming {
    state: RawFd,
    content: Vec<u8>,
    listed: BTreeSet<RawFd>,
}

/// Whether there was one.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

impl Incoming {
    /// Opens the state under this number, which must be a sealed memory file.
    ///
    /// # Errors
    /// When it is none, when it is too large, and the second time.
    pub fn open(state: RawFd) -> io::Result<Self> {
        let wrong =
            |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {state} {what}"));
        // ORDERING: Relaxed, the one caller that finds it unset goes on; nothing is published.
        if state <= STANDARD || IS_TAKEN.swap(true, Ordering::Relaxed) {
            return Err(wrong("cannot be the state of a program before this one"));
        }
        let copy = sys::copy(state)?;
        let seals = rustix::fs::fcntl_get_seals(&copy).map_err(|_| wrong("is no memory file"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL) {
            return Err(wrong("is not sealed"));
        }
        let mut file = File::from(copy);
        if file.metadata()?.len() > STATE_BYTES_MAX {
            return Err(wrong("is too large for a state"));
        }
        // The position is that of the other descriptor, too.
        file.rewind()?;
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        sys::set_cloexec(state, true)?;
        Ok(Self { state, content, listed: BTreeSet::from([state]) })
    }

    /// The state.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// The descriptors that the state names; from now on no other program gets them.
    ///
    /// # Errors
    /// When one of them is not open: nothing was changed then.
    pub fn list(&mut self, numbers: &[RawFd]) -> io::Result<()> {
        if let Some(bad) = numbers.iter().find(|number| **number <= STANDARD || !sys::is_open(**number)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("descriptor {bad} was not handed over"),
            ));
        }
        // There may be very many, and requests wait.
        let ends = numbers.iter().min().zip(numbers.iter().max());
        if !ends.is_some_and(|(&first, &last)| sys::set_all_cloexec(first, last)) {
            numbers.iter().try_for_each(|&number| sys::set_cloexec(number, true))?;
        }
        self.listed.extend(numbers);
        Ok(())
    }

    /// A copy of one of them.
    ///
    /// # Errors
    /// When it is not one of them, or the process has no descriptor left.
    pub fn take(&self, number: RawFd) -> io::Result<OwnedFd> {
        if !self.listed.contains(&number) || number == self.state {
            let error = format!("the state does not list descriptor {number}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        sys::copy(number)
    }

    /// All of them with the state, to hand them on unchanged.
    #[must_use]
    pub fn numbers(&self) -> Vec<RawFd> {
        self.listed.iter().copied().collect()
    }

    /// The copies are in use: closes the originals.
    pub fn commit(self) {
        self.listed.iter().for_each(|number| sys::close(*number));
    }
}
