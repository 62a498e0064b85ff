//! The volumes that run on this host: the control sockets in the runtime directories.
//!
//! | file | meaning |
//! |---|---|
//! | `ID.sock` | a mount process's control socket; if no process listens, it died |
//! | `ID.json` | the mount's [`Record`]: owner and place, and at the end how it ended |
//! | `index/` | finds them by path, without reading all of them: see `index` |
//!
//! The directory is `/run/watertight` for root, `$XDG_RUNTIME_DIR/watertight` for others, or
//! `/tmp/watertight-UID` where there is none; `WATERTIGHT_RUNTIME_DIR` names another. It is made
//! with 0700, and not used where it is open to others, another user's, a link, or, in `/tmp`, a
//! mountpoint. Its files are reached through its descriptor.
//!
//! Each user sees the own volumes, and so does root, unless `--all-users` was given: then root
//! looks into others' directories, too. Those are *foreign*: nothing in them is written, created or
//! removed, their index is not read, and a record's content is only its user's claim (modules
//! `host::open_dir` and `record`). The work is bounded in count, bytes and time.
//!
//! A socket appears under its name only when it listens already (bound under another name, then
//! renamed), so a process that finds one that refuses a connection may remove it; the record comes
//! after the socket and says how the mount ended before the socket goes. Records of ended mounts
//! stay, the newest 64, so that `wait` tells the truth about a volume whose process is gone.

mod index;
pub mod missing;
pub mod nested;
mod record;
pub mod survey;
pub mod target;
#[cfg(test)]
mod tests;
mod users;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::control::api::Ended;
use crate::control::client::{CallError, Client, TAKEOVER, TAKEOVER_LOOK};
use crate::control::volume_id::VolumeId;
use crate::host::checks;
use crate::host::new_file;
use crate::host::open_dir::OpenDir;
use crate::host::users::includes_all_users;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Name, Show as _};
use index::{Index, PathKind};

pub use record::{NotARecord, Record, RecordedJournal};
pub use users::DIR_VARIABLE;

/// How many records of ended mounts a directory keeps.
const ENDED_MAX: usize = 64;
/// How many stores below a directory are checked: one that runs is enough.
const NESTED_MAX: usize = 64;
/// A record is far smaller than this, even with a thousand named files.
const RECORD_BYTES_MAX: u64 = 4 << 20;
/// The bounds on reading another user's directory: so many records, of so many bytes together, in
/// so much time.
const FOREIGN_RECORDS_MAX: usize = 4096;
const FOREIGN_BYTES_MAX: u64 = 32 << 20;
const FOREIGN_TIME: Duration = Duration::from_secs(2);
/// How many other files of another user's are read.
const FOREIGN_FILES_MAX: usize = 16;

/// One user's runtime directory.
#[derive(Debug, Clone)]
pub struct RuntimeDir {
    path: PathBuf,
    uid: u32,
    open: OpenDir,
}

/// A volume that was found.
#[derive(Debug)]
pub struct Found {
    /// The record that its process wrote.
    pub record: Record,
    /// The way to its process; none if that is gone.
    pub client: Option<Client>,
    /// Why there is no way to a process that may be there.
    pub silent: Option<String>,
}

impl RuntimeDir {
    /// This user's own directory, made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made, or belongs to another user.
    pub fn own() -> Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let path = own_path(uid);
        let failed = |error: &dyn std::fmt::Display| {
            Problem::failure(format!("cannot make the runtime directory {}: {error}", path.shown()))
        };
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&error)),
            _ => {}
        }
        let open = OpenDir::own(&path, uid).map_err(Problem::failure)?;
        let open = open.ok_or_else(|| failed(&"it was removed meanwhile"))?;
        Ok(Self { path, uid, open })
    }

    /// Checks this user's own directory, and does not make it. Whether it is there.
    ///
    /// # Errors
    /// The defect of an existing directory.
    pub fn check_own() -> Result<bool, String> {
        let uid = rustix::process::geteuid().as_raw();
        OpenDir::own(&own_path(uid), uid).map(|open| open.is_some())
    }

    /// The directories that are read, this user's own first; only those that exist.
    #[must_use]
    pub fn readable() -> Vec<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let own = users::own_paths(uid).into_iter().filter_map(|path| {
            let open = OpenDir::own(&path, uid);
            let open = open.inspect_err(|reason| tracing::warn!(reason, "ignoring a runtime directory"));
            open.ok().flatten().map(|open| Self { path, uid, open })
        });
        let foreign = includes_all_users().then(|| users::foreign_dirs(uid)).into_iter().flatten();
        own.chain(foreign.map(|(path, uid, open)| Self { path, uid, open })).collect()
    }

    /// Calls `see` with a path to each directory that is read and in which a volume can appear, and
    /// to those in which such a directory can appear, always before the directory is listed. Not
    /// all of them need to exist.
    pub fn for_each_place(mut see: impl FnMut(&Path)) {
        let uid = rustix::process::geteuid().as_raw();
        users::own_paths(uid).iter().for_each(|path| see(path));
        if includes_all_users() {
            users::for_each_base(&mut see);
            users::foreign_dirs(uid).iter().for_each(|(_, _, open)| see(&open.by_descriptor()));
        }
    }

    /// This directory, with the checks that apply to another user's.
    #[cfg(fuzzing)]
    #[must_use]
    pub fn as_foreign(&self) -> Self {
        Self { open: self.open.as_foreign(), ..self.clone() }
    }

    /// Whether it is another user's.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.open.is_foreign()
    }

    /// The user it belongs to.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The volumes in this directory; sockets of the own one where no process listens are removed.
    #[must_use]
    pub fn volumes(&self) -> Vec<Found> {
        self.find_all(|_| true)
    }

    /// The volumes in this directory whose ids are wanted. Of another user's directory only a
    /// bounded part is read.
    fn find_all(&self, is_wanted: impl Fn(&VolumeId) -> bool) -> Vec<Found> {
        let (ids, mut is_all) = self.ids();
        let ids = ids.into_iter().filter(|id| is_wanted(id));
        if !self.is_foreign() {
            return ids.filter_map(|id| self.find(&id)).collect();
        }
        let (until, mut bytes, mut found) = (Instant::now() + FOREIGN_TIME, 0, Vec::new());
        for (n, id) in ids.enumerate() {
            if n >= FOREIGN_RECORDS_MAX || bytes > FOREIGN_BYTES_MAX || Instant::now() > until {
                is_all = false;
                break;
            }
            if let Some((one, length)) = self.find_measured(&id) {
                bytes += length;
                found.push(one);
            }
        }
        if !is_all {
            tracing::warn!(path = %self.path.shown().exact(), "a user's runtime directory has too many records: not all volumes are shown");
        }
        found
    }

    /// The ids of the records, and whether these are all.
    fn ids(&self) -> (Vec<VolumeId>, bool) {
        let (names, is_all) = self.open.names(".json");
        (names.iter().filter_map(|name| name.parse().ok()).collect(), is_all)
    }

    /// The files in it with this suffix; of another user's directory only some.
    pub(crate) fn files(&self, suffix: &'static str) -> impl Iterator<Item = (String, File)> {
        let (names, _) = self.open.names(suffix);
        let max = if self.is_foreign() { FOREIGN_FILES_MAX } else { usize::MAX };
        let names = names.into_iter().map(move |name| name + suffix).take(max);
        names.filter_map(|name| self.open.file(&name).map(|file| (name, file)))
    }

    /// The volume `id`, if this directory knows it.
    #[must_use]
    pub fn find(&self, id: &VolumeId) -> Option<Found> {
        self.find_measured(id).map(|(found, _)| found)
    }

    /// The volume `id`, and the length of its record in bytes.
    fn find_measured(&self, id: &VolumeId) -> Option<(Found, u64)> {
        // Connect first: a process that ends between the two leaves its final record behind.
        let mut silent = None;
        let (connected, record) = self.connect(id);
        let client = match connected {
            Ok(client) => Some(client),
            Err(CallError::Gone) if record.as_ref().is_some_and(|(record, _)| is_kept(record)) => {
                silent = Some("its process has died, and another one takes over".to_owned());
                None
            }
            Err(CallError::Gone) => {
                if !self.is_foreign() && fs::remove_file(self.path.join(socket(id))).is_ok() {
                    self.mark_dead(id);
                }
                None
            }
            Err(error) => {
                // Another user's directory may hold any number; a caller that asks for them gets
                // the error in `silent`.
                if !self.is_foreign() {
                    tracing::warn!(%id, %error, "a mount process cannot be reached");
                }
                silent = Some(error.to_string());
                None
            }
        };
        let (record, length) = record.or_else(|| self.read_measured(id))?;
        // Another user's word for a keeper is not taken.
        let keeper = record.keeper.filter(|_| !self.is_foreign());
        let client = client.map(|client| client.kept_by(keeper));
        Some((Found { record, client, silent }, length))
    }

    /// Connects to the volume's process; where that has died and another one is about to take over,
    /// waits for it. With the record, and its length, if it was read for that: another user's is not,
    /// which could name any process, and have the caller wait.
    fn connect(&self, id: &VolumeId) -> (std::result::Result<Client, CallError>, Option<(Record, u64)>) {
        let until = Instant::now() + TAKEOVER;
        loop {
            let connected = Client::connect(&self.open, &socket(id));
            if self.is_foreign() || !matches!(connected, Err(CallError::Gone | CallError::Crowded)) {
                return (connected, None);
            }
            let record = self.read_measured(id);
            if !record.as_ref().is_some_and(|(record, _)| is_kept(record)) || Instant::now() >= until {
                return (connected, record);
            }
            std::thread::sleep(TAKEOVER_LOOK);
        }
    }

    /// The volumes that `name` may mean: an id, a path where volumes are, or a store by its
    /// directory or URL. They run, or died.
    #[must_use]
    pub fn at(&self, name: &str, path: Option<&Path>) -> Vec<Found> {
        if self.is_foreign() {
            let by_id = name.parse().ok().and_then(|id| self.find(&id));
            let by_path = path.map(|path| self.find_at(|at| at == path));
            return by_id.into_iter().chain(by_path.into_iter().flatten()).collect();
        }
        let index = self.index();
        let by_path =
            |path: &Path| [index.at(PathKind::Places, path), index.at(PathKind::Stores, path)].concat();
        let mut ids: BTreeSet<VolumeId> = path.map(by_path).into_iter().flatten().collect();
        ids.extend(name.parse());
        if let Some(url) = checks::url_of(name) {
            ids.extend(index.at(PathKind::Stores, &index::path_of_url(&url)));
        }
        ids.iter().filter_map(|id| self.find(id)).collect()
    }

    fn find_at(&self, is_wanted: impl Fn(&Path) -> bool) -> Vec<Found> {
        let mut all = self.volumes();
        all.retain(|found| is_wanted(Path::new(&found.record.mountpoint)));
        all
    }

    /// Whether the volume is mounted or attached at this path, by its process's record. The process
    /// is not asked: it may have died.
    #[must_use]
    pub fn is_at(&self, path: &Path, id: &VolumeId) -> bool {
        !self.is_foreign() && self.index().is_at(PathKind::Places, path, id)
    }

    /// The volumes that are mounted or attached at this path or at a directory that it lies in, the
    /// nearest first.
    #[must_use]
    pub fn around(&self, path: &Path) -> Vec<Found> {
        if self.is_foreign() {
            return self.find_at(|at| path.starts_with(at));
        }
        let index = self.index();
        let ids = [index.at(PathKind::Places, path), index.around(PathKind::Places, path)].concat();
        ids.iter().filter_map(|id| self.find(id)).collect()
    }

    /// The volumes whose stores are directories around or below this one, a few of them; none of
    /// another user's.
    #[must_use]
    pub fn nested(&self, store: &Path) -> Vec<Found> {
        if self.is_foreign() {
            return Vec::new();
        }
        let index = self.index();
        let ids = [index.around(PathKind::Stores, store), index.below(PathKind::Stores, store, NESTED_MAX)]
            .concat();
        ids.iter().filter_map(|id| self.find(id)).collect()
    }

    /// The volumes with mounts of their own.
    #[must_use]
    pub fn mounts(&self) -> Vec<Found> {
        if self.is_foreign() {
            let mut all = self.volumes();
            all.retain(|found| found.record.attached_to.is_none());
            return all;
        }
        self.index().mounts().iter().filter_map(|id| self.find(id)).collect()
    }

    /// How the mount of this process ended, as it wrote it down; of another user's process nothing
    /// is known.
    #[must_use]
    pub fn end_of(&self, pid: u32) -> Option<Ended> {
        if self.is_foreign() {
            return None;
        }
        let of_it = |record: &Record| record.pid == pid && record.attached_to.is_none();
        self.ids().0.iter().filter_map(|id| self.read_record(id)).find(of_it)?.ended
    }

    /// The volumes that are none of these.
    #[must_use]
    pub fn others(&self, known: &BTreeSet<VolumeId>) -> Vec<Found> {
        self.find_all(|id| !known.contains(id))
    }

    fn index(&self) -> Index {
        Index::of(&self.path)
    }

    /// A volume's process is gone. Its record stays for a while, as that of one that ended.
    fn mark_dead(&self, id: &VolumeId) {
        if let Some(record) = self.read_record(id) {
            self.index().remove(&record);
            if record.ended.is_none() {
                self.index().add_ended(id, record.started_ms);
            }
        }
    }

    /// Takes the record of a volume away that has ended.
    ///
    /// # Errors
    /// Those of removing a file.
    pub fn forget(&self, id: &VolumeId) -> io::Result<()> {
        if self.is_foreign() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "its record belongs to another user",
            ));
        }
        fs::remove_file(self.record(id))
    }

    /// The record of the volume `id`.
    #[must_use]
    pub fn read_record(&self, id: &VolumeId) -> Option<Record> {
        self.read_measured(id).map(|(record, _)| record)
    }

    fn read_measured(&self, id: &VolumeId) -> Option<(Record, u64)> {
        let text = self.open.read(&format!("{id}.json"), RECORD_BYTES_MAX)?;
        let record = Record::parse(&text, id);
        let record = record.inspect_err(|error| tracing::debug!(%id, %error, "ignoring a record"));
        Some((record.ok()?, text.len() as u64))
    }

    /// Registers the volume of `record`, and returns the socket to listen on.
    ///
    /// # Errors
    /// When the files cannot be made.
    pub fn register(&self, record: Record) -> Result<(Registration, UnixListener)> {
        self.prune();
        let registration = Registration { dir: self.clone(), record, is_shared: false };
        // In this order: a record without a socket means that the process died.
        let listener = registration.listen().map_err(|error| {
            let path = self.path.join(socket(&registration.record.id));
            Problem::failure(format!("cannot make the control socket {}: {error}", path.shown()))
        })?;
        registration.write()?;
        let index = self.index();
        index.add(&registration.record).map_err(|error| {
            index.remove(&registration.record);
            let _not_to_be = fs::remove_file(self.record(&registration.record.id));
            Problem::failure(format!("cannot write the index in {}: {error}", self.path.shown()))
        })?;
        Ok((registration, listener))
    }

    /// The registration of a volume that the program before this one has registered.
    ///
    /// # Errors
    /// When there is no record of it, or it is another process's.
    pub(crate) fn resume(&self, id: &VolumeId) -> Result<Registration> {
        let wrong =
            |what: &str| Problem::failure(format!("{}: the record of volume {id} {what}", self.path.shown()));
        let record = self.read_record(id).ok_or_else(|| wrong("is gone"))?;
        if record.pid != std::process::id() || record.ended.is_some() {
            return Err(wrong("is not this process's"));
        }
        Ok(Registration { dir: self.clone(), record, is_shared: true })
    }

    /// The registration of a volume whose process has died: this one serves it now.
    ///
    /// # Errors
    /// When there is no record of it, or it cannot be written.
    pub(crate) fn take_over(&self, id: &VolumeId) -> Result<Registration> {
        let wrong =
            |what: &str| Problem::failure(format!("{}: the record of volume {id} {what}", self.path.shown()));
        let record = self.read_record(id).ok_or_else(|| wrong("is gone"))?;
        if record.ended.is_some() {
            return Err(wrong("says that it has ended"));
        }
        let record = Record { pid: std::process::id(), ..record };
        let registration = Registration { dir: self.clone(), record, is_shared: true };
        registration.write()?;
        Ok(registration)
    }

    /// Removes the oldest records of ended mounts.
    fn prune(&self) {
        for id in self.index().prune(ENDED_MAX) {
            let _another_was_faster = fs::remove_file(self.record(&id));
        }
    }

    fn record(&self, id: &VolumeId) -> PathBuf {
        self.path.join(format!("{id}.json"))
    }
}

/// A running mount's entry; its socket goes when this is dropped.
#[derive(Debug)]
pub struct Registration {
    dir: RuntimeDir,
    record: Record,
    /// The program before may take it back: its socket stays.
    is_shared: bool,
}

impl Registration {
    /// The program before does not take it back any more.
    pub(crate) fn settle(&mut self) {
        self.is_shared = false;
    }

    /// Writes down how the mount ended.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn finish(&mut self, ended: Ended) -> Result<()> {
        let ended_ms = ended.ended_ms;
        self.record.ended = Some(ended);
        self.write()?;
        let index = self.dir.index();
        index.remove(&self.record);
        index.add_ended(&self.record.id, ended_ms);
        Ok(())
    }

    /// What is written down of it.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Writes down that it is somewhere else now.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn set_mountpoint(&mut self, mountpoint: &Path) -> Result<()> {
        let to = Name::of(mountpoint);
        let (index, id) = (self.dir.index(), &self.record.id);
        let failed = |error| Problem::failure(format!("cannot write the index: {error}"));
        index.add_at(PathKind::Places, mountpoint, id).map_err(failed)?;
        index.remove_at(PathKind::Places, Path::new(&self.record.mountpoint), id);
        self.record.mountpoint = to;
        self.write()
    }

    /// Forgets the mount: it never came to be.
    pub fn withdraw(self) {
        self.dir.index().remove(&self.record);
        let _already_gone = fs::remove_file(self.dir.record(&self.record.id));
    }

    fn write(&self) -> Result<()> {
        let path = self.dir.record(&self.record.id);
        let temporary = path.with_extension("json.new");
        let write = || {
            new_file(&temporary)?.write_all(&serde_json::to_vec(&self.record)?)?;
            fs::rename(&temporary, &path)
        };
        write()
            .map_err(|error: io::Error| Problem::failure(format!("cannot write {}: {error}", path.shown())))
    }

    fn listen(&self) -> io::Result<UnixListener> {
        let path = self.dir.path.join(socket(&self.record.id));
        let temporary = path.with_extension("new");
        let _left_over = fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary)?;
        fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
        fs::rename(&temporary, &path)?;
        Ok(listener)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.is_shared {
            let _already_gone = fs::remove_file(self.dir.path.join(socket(&self.record.id)));
        }
    }
}

/// A new volume's id: eight letters and digits.
///
/// # Errors
/// When the kernel gives no random numbers.
pub fn new_id() -> Result<VolumeId> {
    let mut random = [0_u8; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Problem::failure(format!("no random numbers: {error}")))?;
    Ok(VolumeId::from_number(u32::from_le_bytes(random).max(1)))
}

/// Whether another process takes over where the volume's has died.
fn is_kept(record: &Record) -> bool {
    record.ended.is_none() && record.keeper.is_some_and(|keeper| keeper.is_running())
}

fn socket(id: &VolumeId) -> String {
    format!("{id}.sock")
}

fn own_path(uid: u32) -> PathBuf {
    // There is always one.
    users::own_paths(uid).swap_remove(0)
}
