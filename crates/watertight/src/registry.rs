//! Which volumes run on this host: the control sockets in the runtime directories.
//!
//! | file | meaning |
//! |---|---|
//! | `ID.sock` | a mount process's control socket; if nobody listens, the process died |
//! | `ID.json` | the mount's [`Record`]: who and where, and at the end how it ended |
//! | `index/` | finds them by path, without a look at all of them: see `index` |
//!
//! The directory is `/run/watertight` for root, `$XDG_RUNTIME_DIR/watertight` for others, or
//! `/tmp/watertight-UID` where there is none; `WATERTIGHT_RUNTIME_DIR` names another. It is 0700 and its
//! owner is checked before anything in it is believed. Root sees every user's volumes, other users
//! their own.
//!
//! A socket appears under its name only when it listens already (bound under another name, then
//! renamed), so whoever finds one that refuses a connection may remove it; the record comes after the socket
//! and says how the mount ended before the socket goes. Records of ended mounts
//! stay, the newest 64, so that `wait` tells the truth about a volume whose process is gone.

mod index;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::control::api::{Ended, now_ms};
use crate::control::client::{CallError, Client};
use crate::mountinfo::Device;
use crate::problem::{Problem, Result};
use index::{Index, Of};

/// How many records of ended mounts a directory keeps.
const ENDED_MAX: usize = 64;
/// How many stores below a directory are looked at: one that runs is enough.
const NESTED_MAX: usize = 64;
/// A record is far smaller than this, even with a thousand named files.
const RECORD_BYTES_MAX: u64 = 4 << 20;
/// Names another runtime directory.
pub const DIR_VARIABLE: &str = "WATERTIGHT_RUNTIME_DIR";

/// A mount, as its process wrote it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The volume's id.
    pub id: String,
    /// The process that serves or served it.
    pub pid: u32,
    /// The store.
    pub source: String,
    /// Where it is or was mounted.
    pub mountpoint: String,
    /// The volume of the mountpoint that it is attached to, if it has no mount of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_to: Option<String>,
    /// The mount's device number.
    pub device: Device,
    /// Milliseconds since the epoch.
    pub started_ms: u64,
    /// How it ended; none while it runs, and for ever if its process was killed.
    pub ended: Option<Ended>,
}

/// One user's runtime directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeDir {
    path: PathBuf,
    uid: u32,
}

/// A volume that was found.
#[derive(Debug)]
pub struct Found {
    /// What its process wrote down.
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
    /// When it cannot be made, or belongs to somebody else.
    pub fn own() -> Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let path = own_path(uid);
        let made = DirBuilder::new().mode(0o700).create(&path);
        if let Err(error) = made
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(Problem::failure(format!(
                "cannot make the runtime directory {}: {error}",
                path.display()
            )));
        }
        let dir = Self { path, uid };
        dir.check().map_err(Problem::failure)?;
        Ok(dir)
    }

    /// The directories that this user may look into, the own one first; only those that exist.
    #[must_use]
    pub fn readable() -> Vec<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let mut dirs = vec![Self { path: own_path(uid), uid }];
        if uid == 0 && std::env::var_os(DIR_VARIABLE).is_none() {
            dirs.extend(children("/run/user").filter_map(|path| {
                let uid = path.file_name()?.to_str()?.parse().ok()?;
                Some(Self { path: path.join("watertight"), uid })
            }));
            dirs.extend(children("/tmp").filter_map(|path| {
                let uid = path.file_name()?.to_str()?.strip_prefix("watertight-")?.parse().ok()?;
                Some(Self { path, uid })
            }));
        }
        dirs.retain(|dir| match dir.check() {
            Ok(()) => true,
            Err(reason) => {
                if dir.path.exists() {
                    tracing::warn!(reason, "a runtime directory is not used");
                }
                false
            }
        });
        dirs
    }

    /// Calls `see` with each directory in which a volume that this user may see can appear, and with those in which such
    /// a directory can appear, always before what is in it is listed. Not all of them need to exist.
    pub fn for_each_place(mut see: impl FnMut(&Path)) {
        let uid = rustix::process::geteuid().as_raw();
        see(&own_path(uid));
        if uid != 0 || std::env::var_os(DIR_VARIABLE).is_some() {
            return;
        }
        for parent in ["/run/user", "/tmp"] {
            see(Path::new(parent));
        }
        for user in children("/run/user") {
            see(&user);
            see(&user.join("watertight"));
        }
        let is_ours = |path: &PathBuf| path.to_string_lossy().starts_with("/tmp/watertight-");
        children("/tmp").filter(is_ours).for_each(|path| see(&path));
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory is what it must be: a real one, its owner's, closed to others.
    fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        let meta = fs::symlink_metadata(&self.path).map_err(|error| format!("{path}: {error}"))?;
        if !meta.is_dir() {
            return Err(format!("{path} is not a directory"));
        }
        if meta.uid() != self.uid {
            return Err(format!("{path} belongs to user {}, not to {}", meta.uid(), self.uid));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(format!("{path} is open to other users: its mode should be 0700"));
        }
        Ok(())
    }

    /// The volumes in this directory; sockets where nobody listens are removed.
    #[must_use]
    pub fn volumes(&self) -> Vec<Found> {
        self.ids().filter_map(|id| self.find(&id)).collect()
    }

    fn ids(&self) -> impl Iterator<Item = String> {
        children(&self.path).filter_map(|path| {
            let is_record = path.extension().is_some_and(|ext| ext == "json");
            is_record.then(|| path.file_stem()?.to_str().map(str::to_owned)).flatten()
        })
    }

    /// The volume `id`, if this directory knows it.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Found> {
        // Connect first: a process that ends between the two leaves its final record behind.
        let socket = self.socket(id);
        let mut silent = None;
        let client = match Client::connect(&socket, self.uid) {
            Ok(client) => Some(client),
            Err(CallError::Gone) => {
                if fs::remove_file(&socket).is_ok() {
                    self.died(id);
                }
                None
            }
            Err(error) => {
                tracing::warn!(id, %error, "a mount process cannot be reached");
                silent = Some(error.to_string());
                None
            }
        };
        let record = self.read_record(id)?;
        Some(Found { record, client, silent })
    }

    /// The volumes that `name` may mean: an id, a path where volumes are, or the directory of a store. They run, or died.
    #[must_use]
    pub fn at(&self, name: &str, path: Option<&Path>) -> Vec<Found> {
        let index = self.index();
        let by_path = |path: &Path| [index.at(Of::Places, path), index.at(Of::Stores, path)].concat();
        let mut ids: BTreeSet<String> = path.map(by_path).into_iter().flatten().collect();
        if !name.contains(['/', '.']) {
            ids.insert(name.to_owned());
        }
        ids.iter().filter_map(|id| self.find(id)).collect()
    }

    /// Whether the volume is mounted or attached at this path, as its process wrote it down. Its process is not asked: it may have died.
    #[must_use]
    pub fn is_at(&self, path: &Path, id: &str) -> bool {
        self.index().is_at(Of::Places, path, id)
    }

    /// The volumes that are mounted or attached at this path or at a directory that it lies in, the nearest first.
    #[must_use]
    pub fn around(&self, path: &Path) -> Vec<Found> {
        let index = self.index();
        let ids = [index.at(Of::Places, path), index.around(Of::Places, path)].concat();
        ids.iter().filter_map(|id| self.find(id)).collect()
    }

    /// The volumes whose stores are directories around or below this one, a few of them.
    #[must_use]
    pub fn nested(&self, store: &Path) -> Vec<Found> {
        let index = self.index();
        let ids = [index.around(Of::Stores, store), index.below(Of::Stores, store, NESTED_MAX)].concat();
        ids.iter().filter_map(|id| self.find(id)).collect()
    }

    /// The volumes with mounts of their own.
    #[must_use]
    pub fn mounts(&self) -> Vec<Found> {
        self.index().mounts().iter().filter_map(|id| self.find(id)).collect()
    }

    /// How the mount of this process ended, as it wrote it down.
    #[must_use]
    pub fn end_of(&self, pid: u32) -> Option<Ended> {
        let of_it = |record: &Record| record.pid == pid && record.attached_to.is_none();
        self.ids().filter_map(|id| self.read_record(&id)).find(of_it)?.ended
    }

    /// The volumes that are none of these.
    #[must_use]
    pub fn others(&self, known: &BTreeSet<String>) -> Vec<Found> {
        self.ids().filter(|id| !known.contains(id)).filter_map(|id| self.find(&id)).collect()
    }

    fn index(&self) -> Index {
        Index::of(&self.path)
    }

    /// A volume's process is gone. Its record stays for a while, as that of one that ended.
    fn died(&self, id: &str) {
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
    pub fn forget(&self, id: &str) -> io::Result<()> {
        fs::remove_file(self.record(id))
    }

    /// What was written down about the volume `id`.
    #[must_use]
    pub fn read_record(&self, id: &str) -> Option<Record> {
        let path = self.record(id);
        let meta = fs::symlink_metadata(&path).ok()?;
        if !meta.is_file() || meta.len() > RECORD_BYTES_MAX {
            return None;
        }
        serde_json::from_slice(&fs::read(&path).ok()?).ok()
    }

    /// Makes the volume of `record` known, and gives the socket to listen on.
    ///
    /// # Errors
    /// When the files cannot be made.
    pub fn register(&self, record: Record) -> Result<(Registration, UnixListener)> {
        self.prune();
        let registration = Registration { dir: self.clone(), record };
        // In this order: a record without a socket tells of a process that died.
        let listener = registration.listen().map_err(|error| {
            let path = self.socket(&registration.record.id);
            Problem::failure(format!("cannot make the control socket {}: {error}", path.display()))
        })?;
        registration.write()?;
        let index = self.index();
        index.add(&registration.record).map_err(|error| {
            index.remove(&registration.record);
            let _not_to_be = fs::remove_file(self.record(&registration.record.id));
            Problem::failure(format!("cannot write the index in {}: {error}", self.path.display()))
        })?;
        Ok((registration, listener))
    }

    /// Removes the oldest records of ended mounts.
    fn prune(&self) {
        for id in self.index().prune(ENDED_MAX) {
            let _another_was_faster = fs::remove_file(self.record(&id));
        }
    }

    fn socket(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.sock"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.json"))
    }
}

/// A running mount's entry; its socket goes when this is dropped.
#[derive(Debug)]
pub struct Registration {
    dir: RuntimeDir,
    record: Record,
}

impl Registration {
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

    /// Writes down that it is somewhere else now.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn moved(&mut self, mountpoint: &Path) -> Result<()> {
        let to = mountpoint.to_string_lossy().into_owned();
        let (index, id) = (self.dir.index(), &self.record.id);
        let failed = |error| Problem::failure(format!("cannot write the index: {error}"));
        index.add_at(Of::Places, mountpoint, id).map_err(failed)?;
        index.remove_at(Of::Places, Path::new(&self.record.mountpoint), id);
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
            fs::write(&temporary, serde_json::to_vec(&self.record)?)?;
            fs::rename(&temporary, &path)
        };
        write()
            .map_err(|error: io::Error| Problem::failure(format!("cannot write {}: {error}", path.display())))
    }

    fn listen(&self) -> io::Result<UnixListener> {
        let path = self.dir.socket(&self.record.id);
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
        let _already_gone = fs::remove_file(self.dir.socket(&self.record.id));
    }
}

/// A new volume's id: eight letters and digits.
///
/// # Errors
/// When the kernel gives no random numbers.
pub fn new_id() -> Result<String> {
    let mut random = [0_u8; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Problem::failure(format!("no random numbers: {error}")))?;
    Ok(format!("{:08x}", u32::from_le_bytes(random)))
}

/// A record for a mount that begins now.
#[must_use]
pub fn new_record(id: String, source: String, mountpoint: &Path, device: Device) -> Record {
    let mountpoint = mountpoint.to_string_lossy().into_owned();
    let (pid, started_ms) = (std::process::id(), now_ms());
    Record { id, pid, source, mountpoint, attached_to: None, device, started_ms, ended: None }
}

fn own_path(uid: u32) -> PathBuf {
    if let Some(dir) = std::env::var_os(DIR_VARIABLE) {
        let dir = PathBuf::from(dir);
        if dir.is_absolute() {
            return dir;
        }
        // Found also after this process has left its working directory, which may be gone then.
        return fs::canonicalize(&dir).or_else(|_| std::path::absolute(&dir)).unwrap_or(dir);
    }
    if uid == 0 {
        return "/run/watertight".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() && Path::new(&dir).is_dir() => {
            Path::new(&dir).join("watertight")
        }
        _ => format!("/tmp/watertight-{uid}").into(),
    }
}

fn children(dir: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn dir() -> (tempfile::TempDir, RuntimeDir) {
        let temporary =
            tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        let dir = RuntimeDir { path: temporary.path().to_owned(), uid: rustix::process::geteuid().as_raw() };
        dir.check().unwrap();
        (temporary, dir)
    }

    fn record(id: &str) -> Record {
        let device = Device { major: 0, minor: 99 };
        new_record(id.to_owned(), "mem:".to_owned(), Path::new("/mnt/x"), device)
    }

    fn ended(ended_ms: u64) -> Ended {
        Ended { ended_ms, ..crate::live::ended_with(&volume::DrainReport::default()) }
    }

    #[test]
    fn a_running_mount_is_found_and_its_end_is_remembered() {
        let (_keep, dir) = dir();
        let (mut registration, _listener) = dir.register(record("a1")).unwrap();
        let found = dir.find("a1").unwrap();
        assert_eq!(found.client.unwrap().pid(), std::process::id());
        assert_eq!(found.record.ended, None);
        let mode = fs::metadata(dir.socket("a1")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);

        registration.finish(ended(7)).unwrap();
        drop(registration);
        let found = dir.find("a1").unwrap();
        assert!(found.client.is_none());
        assert_eq!(found.record.ended, Some(ended(7)));
        assert!(dir.find("b2").is_none());
    }

    #[test]
    fn a_socket_where_nobody_listens_is_removed() {
        let (_keep, dir) = dir();
        let (registration, listener) = dir.register(record("a1")).unwrap();
        drop(listener);
        assert!(dir.socket("a1").exists());
        assert!(dir.find("a1").unwrap().client.is_none());
        assert!(!dir.socket("a1").exists());
        registration.withdraw();
        assert!(dir.volumes().is_empty());
    }

    #[test]
    fn a_directory_that_others_could_have_made_is_not_believed() {
        let (_keep, dir) = dir();
        let other_uid = RuntimeDir { uid: dir.uid + 1, ..dir.clone() };
        assert!(other_uid.check().unwrap_err().contains("belongs to user"));
        let link = RuntimeDir { path: dir.path.join("link"), uid: dir.uid };
        symlink("/tmp", &link.path).unwrap();
        assert!(link.check().unwrap_err().contains("not a directory"));
        fs::set_permissions(&dir.path, Permissions::from_mode(0o755)).unwrap();
        assert!(dir.check().unwrap_err().contains("open to other users"));
    }

    #[test]
    fn only_the_newest_ended_records_stay() {
        let (_keep, dir) = dir();
        for n in 0..70 {
            let (mut registration, _listener) = dir.register(record(&format!("{n:02}"))).unwrap();
            registration.finish(ended(n)).unwrap();
        }
        let (_running, _listener) = dir.register(record("run")).unwrap();
        let mut ids: Vec<String> = dir.volumes().into_iter().map(|found| found.record.id).collect();
        ids.sort();
        assert_eq!(ids.len(), 65);
        assert_eq!(ids[0], "06");
    }
}
