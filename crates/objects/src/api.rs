//! What a program does with a volume in a bucket: format it, ask about it, open it. All calls
//! block.
//!
//! The process's tokio runtime begins with the first of them that sends a request, so a process
//! that forks or leaves its terminal does that before.

mod snapshots;
mod volumes;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use serde::Serialize;
use store::{Error, ErrorKind, NumberedState, Result, Store};
use tokio::time::timeout;

use crate::bucket::{Bucket, Patience};
use crate::clone_volume as cloning;
use crate::codec::Codec;
pub use crate::compression::Compression;
use crate::crypto::{DataKey, UserKey};
use crate::disk_cache::DiskCacheOptions;
use crate::engine::{totals_in_tables, with_parents};
use crate::engine_store::fetch_tables;
use crate::find_snapshot::{find, list};
use crate::follow::nobody_else_writes;
use crate::format::{self, Format, Uuid};
use crate::garbage::Timing;
pub use crate::journal::setup::JournalOptions;
use crate::journal::setup::MountJournal;
use crate::key_file;
use crate::lease::{Host as _, Lease, Nonce, Request, State, ThisHost};
use crate::make::make;
use crate::mount::{MountOptions, Mounted, read_log};
use crate::newest_manifest::{find_newest, newest_manifest, older_metadata};
use crate::open::open_shared;
use crate::quota_walks::QuotaInfo;
use crate::quotas::QuotaLimits;
use crate::readers::Mark;
use crate::rows::Totals;
use crate::store::BucketStore;
use crate::url::Url;
use crate::utc::in_utc;
use crate::wait::wait;
use crate::wrapped_key::WrappedKey;
pub use snapshots::{Cloned, SnapshotInfo, clone_volume, create_snapshot, delete_snapshot, snapshots};
#[cfg(test)]
pub(crate) use volumes::delete_objects;
pub use volumes::{delete_volume, nested_volume, volumes};

/// The schemes of the URLs that name a volume.
pub const SCHEMES: [&str; 5] = ["s3", "gs", "az", "file", "memory"];

/// How long the log is read on when the lease is taken.
const READ_MEANWHILE: Duration = Duration::from_secs(1);

/// How to open a volume.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Where it will be mounted: another process that asks for the volume is told so.
    pub mountpoint: String,
    /// Take the volume from a holder that does not answer.
    pub takeover: bool,
    /// Give up what only the journal of this host has.
    pub abandon: Option<String>,
    /// Nothing is to be changed: the volume is not held, and shows what its holder, if there is
    /// one, had committed by now.
    pub read_only: bool,
    /// The snapshot to open, which is only read.
    pub snapshot: Option<String>,
    /// Of one that is only read: how often it is looked for what its holder has committed since, which
    /// is then shown; none: never.
    pub follow: Option<Duration>,
    /// The file with the key of an encrypted volume.
    pub key_file: Option<PathBuf>,
    /// Where data is kept on this host for the next read.
    pub disk_cache: Option<DiskCacheOptions>,
    /// A journal on a disk of this host.
    pub journal: Option<JournalOptions>,
    /// What the program before this one in its process had in use: the volume is that process's still.
    pub handed: Option<NumberedState>,
    /// The lock of the journal, if it is this process's already, by another one that has died.
    pub journal_lock: Option<Arc<OwnedFd>>,
}

/// How to make a volume.
#[derive(Debug, Clone, Default)]
pub struct FormatOptions {
    /// How its extents are compressed.
    pub compression: Compression,
    /// The file with the key to encrypt it with.
    pub key_file: Option<PathBuf>,
    /// The most bytes of data that it takes.
    pub size_max: Option<u64>,
}

/// A volume that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Formatted {
    /// Its identity.
    pub uuid: String,
    /// Its canonical name.
    pub url: String,
    /// What was found out about the bucket, in words.
    pub probe: String,
}

/// A volume, as its bucket describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Info {
    /// Its canonical name.
    pub url: String,
    /// Its identity.
    pub uuid: String,
    /// The version of its format.
    pub version: u32,
    /// When it was made, in UTC by RFC 3339.
    pub created: String,
    /// How its extents are compressed.
    pub compression: Compression,
    /// Whether it needs a key.
    pub encrypted: bool,
    /// Bytes of its files; none where they cannot be read without the key.
    pub bytes: Option<u64>,
    /// Its files, directories and links; none where they cannot be read without the key.
    pub files: Option<u64>,
    /// The process that holds it.
    pub holder: Option<Holder>,
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// A journal that may have data which the bucket has not.
    pub journal: Option<LeftJournal>,
}

/// A journal that may have data which the bucket has not: its holder's, or one that a host has
/// left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftJournal {
    /// The host's name.
    pub host: String,
    /// The directory there.
    pub directory: String,
}

/// The process that holds a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its host's name.
    pub host: String,
    /// Its number there.
    pub pid: u32,
    /// Where it has mounted the volume.
    pub mountpoint: String,
    /// Since when, by its own clock, in UTC by RFC 3339.
    pub since: String,
    /// What it does with it, in a word.
    pub state: String,
}

/// What a garbage collection did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// The volume's canonical name.
    pub url: String,
    /// Objects that were removed, or would be.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether nothing was to be removed.
    pub dry_run: bool,
    /// The objects by which mounts elsewhere say that they read the volume; because of them nothing
    /// was removed.
    pub readers: Vec<String>,
}

/// Whether this names a volume on object storage, rightly or wrongly: it begins with one of the
/// [`SCHEMES`] and `://`.
#[must_use]
pub fn is_url(spec: &str) -> bool {
    spec.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// The one name of the volume that `url` names. No request is sent, and no secret is repeated.
///
/// # Errors
/// `Invalid`, with what is wrong in plain words.
pub fn canonical(url: &str) -> Result<String> {
    Ok(url.parse::<Url>()?.to_string())
}

/// The directory of this host that a `file://` URL names.
#[must_use]
pub fn directory(url: &str) -> Option<PathBuf> {
    url.parse::<Url>().ok()?.directory()
}

/// Opens a volume for reading, beside its holder and other readers: a snapshot of it, or what was
/// committed last.
fn open_read_only(
    url: &Url,
    key: Option<&UserKey>,
    bucket: &Bucket,
    options: &OpenOptions,
) -> Result<Arc<dyn Store>> {
    let runtime = crate::runtime::handle()?;
    let opened = async {
        let format = format::read(bucket).await?;
        let codec = codec_of(&format, key)?;
        let mount = MountOptions {
            disk_cache: options.disk_cache.clone().map(|dir| Arc::new(dir) as _),
            follow: options.follow,
            ..MountOptions::new(&format, codec)
        };
        let bucket = &of_family(bucket, &format).await?;
        let snapshot = match &options.snapshot {
            Some(name) => Some(find(bucket, name).await?),
            None => None,
        };
        // Before the state that is to be read is looked for: from here on the holder removes nothing.
        let mark = Mark::set_if_possible(bucket, snapshot.as_ref().map(|snapshot| snapshot.number)).await;
        let lasting = bucket.with_patience(Patience::UntilStopped);
        let opened = async {
            if let Some(snapshot) = &snapshot {
                return Mounted::open_snapshot(lasting.clone(), snapshot, mount).await;
            }
            let Some(last) = newest_manifest(bucket).await? else {
                let why = "the volume is new, and has no root yet: mount it once without `-o ro`";
                return Err(Error::with(ErrorKind::NotFound, "open", why));
            };
            Mounted::open_read_only(lasting.clone(), last, mount).await
        };
        match opened.await {
            Ok(mounted) => {
                mounted.keep(mark);
                Ok(mounted)
            }
            Err(error) => {
                if let Some(mark) = mark {
                    mark.remove().await;
                }
                // Nothing that was begun goes on.
                lasting.stop();
                Err(error)
            }
        }
    };
    let mounted = wait(&runtime, opened)?;
    Ok(BucketStore::new(url.to_string(), mounted, runtime))
}

/// Opens a volume, which this process holds from then on, unless it is to be read alone.
///
/// # Errors
/// `Busy` names who holds it; `NotFound`: there is no volume; `Invalid`: the URL, an option or the
/// key file is wrong. Each has its reason in plain words.
pub fn open(url: &str, options: &OpenOptions) -> Result<Arc<dyn Store>> {
    let url: Url = url.parse()?;
    let key = options.key_file.as_deref().map(key_file::read).transpose()?;
    let bucket = open_shared(&url)?;
    if options.read_only || options.snapshot.is_some() {
        if options.takeover || options.abandon.is_some() {
            let why = "takeover and abandon are for a mount that writes: one with `ro` takes the volume from nobody";
            return Err(Error::with(ErrorKind::Invalid, "open", why));
        }
        if options.journal.is_some() {
            let why = "journal is for a mount that writes: one with `ro` has nothing to put there";
            return Err(Error::with(ErrorKind::Invalid, "open", why));
        }
        if options.follow.is_some() && options.snapshot.is_some() {
            return Err(nobody_else_writes());
        }
        return open_read_only(&url, key.as_ref(), &bucket, options);
    }
    if options.follow.is_some() {
        return Err(nobody_else_writes());
    }
    let runtime = crate::runtime::handle()?;
    let mounted = wait(&runtime, open_held(&bucket, key.as_ref(), options))?;
    Ok(BucketStore::new(url.to_string(), mounted, runtime))
}

/// The number of the program that held the volume before this one in its process. None of a program
/// whose state has version 2: the lease names the process, which is still this one.
fn resumed_of(options: &OpenOptions) -> Result<Option<Nonce>> {
    let Some(holder) = options.handed.as_ref().and_then(|handed| handed.holder.clone()) else {
        return Ok(None);
    };
    let invalid = || Error::with(ErrorKind::Invalid, "open", "the state names a holder that is none");
    Nonce::try_from(holder).map(Some).map_err(|_| invalid())
}

/// Whether the volume's bucket answers, and this key file is that of the volume; none: that it needs none.
///
/// # Errors
/// As [`open`].
pub fn check_key(url: &str, key_file: Option<&std::path::Path>) -> Result<()> {
    let url: Url = url.parse()?;
    let key = key_file.map(key_file::read).transpose()?;
    let bucket = open_shared(&url)?;
    let format = wait(&crate::runtime::handle()?, format::read(&bucket))?;
    codec_of(&format, key.as_ref()).map(drop)
}

/// Opens a volume, which this process holds from then on.
async fn open_held(bucket: &Bucket, key: Option<&UserKey>, options: &OpenOptions) -> Result<Arc<Mounted>> {
    let host = Arc::new(ThisHost::new()?);
    let lease = async { Ok(Lease::see(bucket).await) };
    let (format, lease, mut last) = tokio::try_join!(format::read(bucket), lease, find_newest(bucket))?;
    let codec = codec_of(&format, key)?;
    if !format.parents.is_empty() && matches!(lease, Ok(None)) {
        cloning::finish(bucket, &format).await?;
        last = find_newest(bucket).await?;
    }
    let bucket = &with_parents(bucket, &format.parents).await?;
    let (last, found) = last.map(|(last, found)| (last.behind(bucket.parents()), found)).unzip();
    // Of a lease that is missing or damaged, taking it says so.
    let seen = lease.ok().flatten();
    let (epoch, later_than) =
        (last.map_or(0, |last| last.epoch), seen.as_ref().map_or(0, |seen| seen.info.engine_epoch));
    if later_than > epoch {
        let why = format!(
            "its newest manifest is of writer {epoch}, and the lease is of a later one than {later_than}"
        );
        return Err(older_metadata(bucket, &why));
    }
    let journal = match &options.journal {
        Some(journal) => {
            Some(Arc::new(MountJournal::open(journal, format.uuid, options.journal_lock.clone()).await?))
        }
        None => None,
    };
    let mark = options.journal.as_ref().zip(journal.as_ref()).map(|(options, journal)| {
        (options.directory.to_string_lossy().into_owned(), Nonce::from_bytes(journal.identity.id))
    });
    let request = Request {
        mountpoint: options.mountpoint.clone().into(),
        takeover: options.takeover,
        abandon: options.abandon.clone(),
        journal: mark,
        engine_epoch: epoch,
        resumed: resumed_of(options)?,
    };
    let is_given_up = options.abandon.as_ref() == Some(&host.name());
    let lasting = bucket.with_patience(Patience::UntilStopped);
    // Of a volume that is free the log is read meanwhile. One that its holder leaves is read when it
    // has been left, and one with a journal when that is in the bucket.
    let last_if_free =
        last.filter(|_| journal.is_none() && seen.as_ref().is_some_and(|seen| seen.info.holder.is_none()));
    let window = format.log_window.into();
    let log = async {
        let last = last_if_free?;
        // What cannot be read is read again, and its error is that of the mount.
        read_log(bucket, last, (&codec, window)).await.ok()
    };
    let tables = async {
        match &found {
            Some(found) => fetch_tables(&*bucket.raw().0, found).await,
            None => Vec::new(),
        }
    };
    let read = async { tokio::join!(log, tables) };
    let take = Lease::take_as_seen(bucket, &request, host, seen);
    let (held, (earlier, tables)) = match select(pin!(take), pin!(read)).await {
        // A holder has to answer others: the rest is read when it does.
        Either::Left((held, read)) => (held?, timeout(READ_MEANWHILE, read).await.unwrap_or_default()),
        Either::Right((read, take)) => (take.await?, read),
    };
    let held = Arc::new(held);
    let mount = MountOptions {
        nonce: held.nonce().to_bytes(),
        held: Some(Arc::clone(&held)),
        found,
        tables,
        earlier,
        disk_cache: options.disk_cache.clone().map(|dir| Arc::new(dir) as _),
        journal: journal.clone(),
        handed: options.handed.clone(),
        ..MountOptions::new(&format, codec)
    };
    let given_up = journal.as_ref().filter(|_| is_given_up);
    let opened = async {
        if let Some(journal) = given_up {
            journal.give_up().await?;
        }
        let mounted = Mounted::open(lasting.clone(), last, mount).await?;
        // A clone may have been made of a version that was read just before the first quota.
        if mounted.tree().quotas.are_on()
            && format.version < format::WITH_QUOTAS
            && let Err(error) = format::raise(&lasting, format::WITH_QUOTAS).await
        {
            tracing::warn!(%error, "programs that do not know quotas are not kept from the volume");
        }
        Ok(mounted)
    };
    match opened.await {
        Ok(mounted) => Ok(mounted),
        Err(error) => {
            // The lease is free for the next try; this error is the one that counts. One that was handed
            // over stays this process's: the program before tries next.
            let _released = match journal {
                _ if options.handed.is_some() => {
                    held.give_up();
                    Ok(())
                }
                Some(journal) if !journal.is_empty() => held.release_but_journal().await,
                _ => held.release().await,
            };
            // Nothing that was begun goes on.
            lasting.stop();
            Err(error)
        }
    }
}

/// Removes objects that nobody needs from a volume's bucket, or only counts them (`is_tried`). The
/// volume is held meanwhile; a mount does this by itself, but for what lost hosts have left.
///
/// # Errors
/// As [`open`]; `Unsupported`: the volume does not know what is garbage.
pub fn collect_garbage(url: &str, key_file: Option<&std::path::Path>, is_tried: bool) -> Result<Collected> {
    let url: Url = url.parse()?;
    let key = key_file.map(key_file::read).transpose()?;
    let bucket = open_shared(&url)?;
    let runtime = crate::runtime::handle()?;
    let collected = async {
        let options = OpenOptions { mountpoint: "garbage collection".to_owned(), ..OpenOptions::default() };
        let mounted = open_held(&bucket, key.as_ref(), &options).await?;
        let once = Timing { passes: 1, ..Timing::default() };
        let collected = match mounted.collector(once) {
            Some(mut collector) => collector.collect(is_tried).await,
            None => Err(Error::new(ErrorKind::ReadOnly, "collect garbage")),
        };
        mounted.close().await;
        collected
    };
    let collected = wait(&runtime, collected)?;
    Ok(Collected {
        url: url.to_string(),
        objects: collected.objects,
        bytes: collected.bytes,
        dry_run: is_tried,
        readers: collected.readers,
    })
}

/// The volume's bucket, for reading; a clone that was never mounted has nothing to be read yet.
pub(crate) async fn of_family(bucket: &Bucket, format: &Format) -> Result<Bucket> {
    if format.parents.is_empty() || newest_manifest(bucket).await?.is_none() {
        return Ok(bucket.clone());
    }
    with_parents(bucket, &format.parents).await
}

/// What is asked of a volume's quotas.
#[derive(Debug, Clone)]
pub enum QuotaCall {
    /// Sets the limits of a directory, by its path from the root.
    Set(PathBuf, QuotaLimits),
    /// The quota of a directory.
    Get(PathBuf),
    /// All of them.
    List,
    /// Deletes a directory's.
    Delete(PathBuf),
}

/// Answers a call about quotas of a volume that is not mounted, which is held meanwhile: with the
/// quota that it is about, or with all.
///
/// # Errors
/// As [`open`]; `NoAttribute`: the directory has no quota.
pub fn quotas(url: &str, key_file: Option<&std::path::Path>, call: &QuotaCall) -> Result<Vec<QuotaInfo>> {
    let url: Url = url.parse()?;
    let key = key_file.map(key_file::read).transpose()?;
    let runtime = crate::runtime::handle()?;
    let bucket = open_shared(&url)?;
    let answered = async {
        let options = OpenOptions { mountpoint: "quotas".to_owned(), ..OpenOptions::default() };
        let mounted = open_held(&bucket, key.as_ref(), &options).await?;
        let answered = answer(&mounted, call).await;
        mounted.close().await;
        answered
    };
    wait(&runtime, answered)
}

async fn answer(mounted: &Mounted, call: &QuotaCall) -> Result<Vec<QuotaInfo>> {
    let tree = mounted.tree();
    match call {
        QuotaCall::Set(path, limits) => {
            let dir = tree.directory_at(path).await?;
            mounted.set_quota(dir.ino, *limits).await?;
            Ok(vec![tree.quota(dir.ino).await?])
        }
        QuotaCall::Get(path) => Ok(vec![tree.quota(tree.directory_at(path).await?.ino).await?]),
        QuotaCall::List => Ok(tree.some_quotas(None, usize::MAX).await.0),
        QuotaCall::Delete(path) => {
            let dir = tree.directory_at(path).await?;
            tree.delete_quota(dir.ino).await.map(|()| Vec::new())
        }
    }
}

/// How the volume's data is encoded.
pub(crate) fn codec_of(format: &Format, key: Option<&UserKey>) -> Result<Codec> {
    let uuid = format.family().to_bytes();
    let key = match (&format.encryption, key) {
        (None, None) => None,
        (None, Some(_)) => {
            return Err(Error::with(
                ErrorKind::Invalid,
                "open",
                "the volume is not encrypted: it takes no key file",
            ));
        }
        (Some(_), None) => {
            let why = "the volume is encrypted: it needs -o encrypt-key-file=FILE; verbs other than `mount` take --encrypt-key-file FILE";
            return Err(Error::with(ErrorKind::AccessDenied, "open", why));
        }
        (Some(record), Some(user)) => Some(WrappedKey::from_json(record)?.unwrap(&uuid, user)?),
    };
    Ok(Codec::new(uuid, format.compression, key.as_ref()))
}

/// Makes a volume.
///
/// # Errors
/// `Exists`: there is one; `Unsupported`: the bucket does not keep conditional writes; and as
/// [`open`].
pub fn format(url: &str, options: &FormatOptions) -> Result<Formatted> {
    let url: Url = url.parse()?;
    let key = options.key_file.as_deref().map(key_file::read).transpose()?;
    let bucket = open_shared(&url)?;
    let runtime = crate::runtime::handle()?;
    let uuid = Uuid::random()?;
    let encryption = match &key {
        None => None,
        Some(user) => Some(WrappedKey::wrap(&uuid.to_bytes(), user, &DataKey::random()).to_json()?),
    };
    let made = async {
        let options = format::Options {
            uuid,
            compression: options.compression,
            encryption,
            size_max: options.size_max,
        };
        make(&bucket, options, key.as_ref()).await
    };
    let made = wait(&runtime, made)?;
    let probe = format!(
        "the bucket keeps conditional writes: of {} requests that raced for one object, one won",
        made.probe.racers
    );
    Ok(Formatted { uuid: made.uuid.to_string(), url: url.to_string(), probe })
}

/// Describes a volume without taking it.
///
/// # Errors
/// As [`open`], but for `Busy`.
pub fn info(url: &str, key_file: Option<&std::path::Path>) -> Result<Info> {
    let url: Url = url.parse()?;
    let key = key_file.map(key_file::read).transpose()?;
    let bucket = open_shared(&url)?;
    let runtime = crate::runtime::handle()?;
    let asked = async {
        let (format, lease, last) =
            tokio::try_join!(format::read(&bucket), Lease::read(&bucket), newest_manifest(&bucket))?;
        let bucket = of_family(&bucket, &format).await?;
        let snapshots = list(&bucket).await?;
        let is_readable = key.is_some() || format.encryption.is_none();
        let codec = if is_readable { Some(codec_of(&format, key.as_ref())?) } else { None };
        let (store, root) = bucket.raw();
        let totals = match (codec, last) {
            (Some(codec), Some(_)) => Some(totals_in_tables((store, &root), codec).await?),
            (Some(_), None) => Some(Totals::default()),
            (None, _) => None,
        };
        Ok::<_, Error>((format, lease, totals, snapshots))
    };
    let (format, lease, totals, snapshots) = wait(&runtime, asked)?;
    let journal = lease.as_ref().and_then(|lease| lease.journal.clone());
    let holder = lease.and_then(|lease| lease.holder.filter(|_| lease.state == State::Held));
    Ok(Info {
        url: url.to_string(),
        uuid: format.uuid.to_string(),
        version: format.version,
        created: in_utc(format.created),
        compression: format.compression,
        encrypted: format.encryption.is_some(),
        bytes: totals.map(|totals| totals.bytes.try_into().unwrap_or(0)),
        // The root has no name.
        files: totals.map(Totals::files),
        journal: journal.map(|of| LeftJournal { host: of.host, directory: of.directory }),
        holder: holder.map(|holder| Holder {
            host: holder.host,
            pid: holder.process.pid,
            mountpoint: holder.mountpoint,
            since: in_utc(holder.since),
            state: "held".to_owned(),
        }),
        snapshots: snapshots.into_iter().map(|snapshot| store::Snapshot::from(snapshot).into()).collect(),
    })
}

/// Opens the volume below `root` of any object store, without a lease: for tests of the store
/// itself.
///
/// # Errors
/// The bucket's.
pub fn open_unheld(objects: Arc<dyn object_store::ObjectStore>, root: &str) -> Result<Arc<dyn Store>> {
    let runtime = crate::runtime::handle()?;
    let bucket = Bucket::new(objects, root.into());
    let options = MountOptions::plain(8, [0; 16]);
    let open = async {
        let last = newest_manifest(&bucket).await?;
        Mounted::open(bucket.clone(), last, options).await
    };
    let mounted = runtime.block_on(open)?;
    Ok(BucketStore::new(format!("unheld:{root}"), mounted, runtime))
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
