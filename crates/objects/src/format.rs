//! The object `format`: what a volume is, written when it is made, and again with another key.
//!
//! It is JSON, so that a person can read it in the bucket, and it is as hostile as the rest of the
//! bucket: bounded, parsed into types, and refused where a later version of this program would know
//! more of it.

use std::time::SystemTime;

use object_store::PutPayload;
use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind, Result};

use crate::Compression;
use crate::bucket::{Bucket, Condition, Tag};
use crate::parents::{self, Parent};
use crate::probe::{Probed, probe};
pub use crate::uuid::Uuid;

/// The object's name.
pub(crate) const NAME: &str = "format";
/// What the first field says.
const MAGIC: &str = "a Watertight volume";
/// The version of a new volume.
const VERSION: u32 = 1;
/// The version of a volume with quotas: a program that does not know them would not count for them.
pub(crate) const WITH_QUOTAS: u32 = 2;
/// The newest version that this program reads.
const NEWEST: u32 = WITH_QUOTAS;
/// The largest such object.
const MAX_BYTES: u64 = 64 << 10;
/// As many names are looked at, to find one that is not the probe's.
const LOOKED_AT: usize = 1_000;

/// What the user decides of a new volume.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The volume's identity.
    pub uuid: Uuid,
    /// How extents are compressed.
    pub compression: Compression,
    /// The record of the volume's key, which the codec made; none: it is not encrypted.
    pub encryption: Option<serde_json::Value>,
    /// The most bytes of data that it takes.
    pub size_max: Option<u64>,
}

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// Says what this is.
    magic: String,
    /// The version of the volume's format.
    pub version: u32,
    /// The volume's identity.
    pub uuid: Uuid,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// How extents are compressed.
    pub compression: Compression,
    /// The record of the volume's key; none: it is not encrypted.
    pub encryption: Option<serde_json::Value>,
    /// The most bytes of data that it takes.
    pub size_max: Option<u64>,
    /// The unit in which data is cached and changed.
    pub chunk_bytes: u32,
    /// The largest extent.
    pub extent_bytes_max: u32,
    /// Log objects on their way at a time: as many behind the first gap may exist.
    pub log_window: u32,
    /// What the probe found.
    pub probe: Probed,
    /// The volumes that this one was cloned from, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<Parent>,
}

fn refused(kind: ErrorKind, bucket: &Bucket, why: &str) -> Error {
    Error::with(kind, "format", format!("{}: {why}", bucket.url()))
}

/// Makes a volume, where nothing is.
///
/// # Errors
/// [`ErrorKind::Exists`]: there is a volume; [`ErrorKind::NotEmpty`]: something else is there;
/// [`ErrorKind::Unsupported`]: the bucket does not keep conditional writes.
pub async fn create(bucket: &Bucket, options: Options) -> Result<Format> {
    let there = |uuid: Uuid| {
        let why =
            format!("there is a volume already ({uuid}); write another prefix, or delete its objects first");
        refused(ErrorKind::Exists, bucket, &why)
    };
    match read(bucket).await {
        Ok(format) => return Err(there(format.uuid)),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let others = bucket.some_names("", LOOKED_AT).await?;
    if let Some(other) = others.iter().find(|name| !name.starts_with("probe/")) {
        let shown: String = other.chars().filter(|c| !c.is_control()).take(80).collect();
        let why = format!("other objects are here ({shown}, …); write a prefix that is empty");
        return Err(refused(ErrorKind::NotEmpty, bucket, &why));
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let format = Format {
        magic: MAGIC.to_owned(),
        version: VERSION,
        uuid: options.uuid,
        created: since.as_secs(),
        compression: options.compression,
        encryption: options.encryption,
        size_max: options.size_max,
        chunk_bytes: 64 << 10,
        extent_bytes_max: 8 << 20,
        log_window: 8,
        probe: probe(bucket).await?,
        parents: Vec::new(),
    };
    let json = format.to_json(bucket)?;
    match bucket.create(NAME, PutPayload::from(json)).await? {
        Condition::Met(_) => Ok(format),
        Condition::Failed { .. } => {
            // An answer may have been lost: then this is our own.
            let found = read(bucket).await?;
            if found == format { Ok(format) } else { Err(there(found.uuid)) }
        }
    }
}

/// Reads what the volume is.
///
/// # Errors
/// [`ErrorKind::NotFound`]: there is none; [`ErrorKind::Unsupported`]: a later version of this program
/// made it; [`ErrorKind::Io`]: it is something else.
pub async fn read(bucket: &Bucket) -> Result<Format> {
    read_with_tag(bucket).await.map(|(format, _)| format)
}

/// Reads what the volume is, and which version of the object says so.
pub(crate) async fn read_with_tag(bucket: &Bucket) -> Result<(Format, Tag)> {
    let Some((bytes, tag)) = bucket.get_at_most(NAME, MAX_BYTES).await? else {
        let why = format!("there is no volume; `watertight format {}` makes one", bucket.url());
        return Err(refused(ErrorKind::NotFound, bucket, &why));
    };
    let format = parse(&bytes).map_err(|(kind, why)| refused(kind, bucket, &why))?;
    Ok((format, tag))
}

/// Raises a volume's version, so that programs which know only earlier ones refuse it.
///
/// # Errors
/// The bucket's; `Busy`: the object changes without end.
pub(crate) async fn raise(bucket: &Bucket, version: u32) -> Result<()> {
    for _ in 0..16 {
        let (mut format, tag) = read_with_tag(bucket).await?;
        if format.version >= version {
            return Ok(());
        }
        format.version = version;
        let json = PutPayload::from(format.to_json(bucket)?);
        if let Condition::Met(_) = bucket.replace(NAME, json, &tag).await? {
            return Ok(());
        }
        // Where an answer was lost, the next look finds it.
    }
    Err(refused(ErrorKind::Busy, bucket, "the object `format` changes without end: try again"))
}

fn parse(bytes: &[u8]) -> Result<Format, (ErrorKind, String)> {
    let no_volume = || {
        let why = "the object `format` is not that of a volume; is the prefix right? If a volume was here, \
                   put the object back";
        (ErrorKind::Io, why.to_owned())
    };
    let json: serde_json::Value = serde_json::from_slice(bytes).map_err(|_| no_volume())?;
    if json.get("magic").and_then(serde_json::Value::as_str) != Some(MAGIC) {
        return Err(no_volume());
    }
    // The version first: a later one may have other fields.
    let version = json.get("version").and_then(serde_json::Value::as_u64).ok_or_else(no_volume)?;
    if version > u64::from(NEWEST) {
        let why =
            format!("the volume has version {version}, this program knows {NEWEST}: it takes a later one");
        return Err((ErrorKind::Unsupported, why));
    }
    let wrong =
        |why: &str| (ErrorKind::Io, format!("the object `format` is damaged ({why}): put it back as it was"));
    let format: Format = serde_json::from_value(json).map_err(|error| wrong(&error.to_string()))?;
    format.check().map_err(wrong)?;
    Ok(format)
}

impl Format {
    /// What its data and its key are bound to: the identity of the first volume of its family,
    /// whose data it may have.
    #[must_use]
    pub fn family(&self) -> Uuid {
        self.parents.last().map_or(self.uuid, |first| first.uuid)
    }

    /// That of a clone of it.
    pub(crate) fn cloned(&self, uuid: Uuid, of: Parent) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let parents = std::iter::once(of).chain(self.parents.iter().cloned()).collect();
        Self { uuid, created: since.as_secs(), parents, ..self.clone() }
    }

    /// The object's bytes, held to their bounds.
    pub(crate) fn to_json(&self, bucket: &Bucket) -> Result<Vec<u8>> {
        self.check().map_err(|why| refused(ErrorKind::Invalid, bucket, why))?;
        let json = serde_json::to_vec_pretty(self)
            .map_err(|error| refused(ErrorKind::Invalid, bucket, &error.to_string()))?;
        if json.len() as u64 > MAX_BYTES {
            return Err(refused(ErrorKind::TooBig, bucket, "the record of the key is too large"));
        }
        Ok(json)
    }

    /// The bounds that the rest of the program relies on.
    fn check(&self) -> Result<(), &'static str> {
        if self.version == 0 {
            return Err("no version 0");
        }
        if !(self.chunk_bytes.is_power_of_two() && (4 << 10..=1 << 20).contains(&self.chunk_bytes)) {
            return Err("chunk_bytes is no power of two from 4 KiB to 1 MiB");
        }
        let is_multiple = self.extent_bytes_max.is_multiple_of(self.chunk_bytes);
        if !(is_multiple && (self.chunk_bytes..=64 << 20).contains(&self.extent_bytes_max)) {
            return Err("extent_bytes_max is no multiple of chunk_bytes up to 64 MiB");
        }
        if !(1..=64).contains(&self.log_window) {
            return Err("log_window is not in 1 to 64");
        }
        parents::check(&self.parents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::open_bucket;
    use crate::scripted::{Fault, Scripted};

    fn bucket(name: &str) -> Bucket {
        open_bucket(&format!("memory://format-{name}/v").parse().unwrap()).unwrap()
    }

    async fn refusal(bucket: &Bucket) -> (ErrorKind, String) {
        let error = create(bucket, Options::default()).await.unwrap_err();
        (error.kind(), error.detail().unwrap().to_owned())
    }

    #[tokio::test]
    async fn what_was_made_is_read() {
        let parent = tempfile::tempdir().unwrap();
        let file = format!("file://{}/volume", parent.path().display());
        for bucket in [bucket("read"), open_bucket(&file.parse().unwrap()).unwrap()] {
            let error = read(&bucket).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(
                error.detail().unwrap().contains(&format!("watertight format {}", bucket.url())),
                "{error}"
            );
            let options =
                Options { compression: Compression::Lz4, size_max: Some(1 << 40), ..Options::default() };
            let made = create(&bucket, options).await.unwrap();
            assert_eq!(read(&bucket).await.unwrap(), made);
            assert_eq!((made.version, made.compression, made.size_max), (1, Compression::Lz4, Some(1 << 40)));
            assert_eq!(bucket.list("", None).await.unwrap(), ["format"]);
            let (kind, why) = refusal(&bucket).await;
            assert!(kind == ErrorKind::Exists && why.contains(&made.uuid.to_string()), "{why}");
        }
    }

    #[tokio::test]
    async fn where_other_objects_are_nothing_is_made_but_a_probe_s_rest_is_no_object() {
        let bucket = bucket("other");
        let _ = bucket.create("probe/x/once", PutPayload::from_static(b"x")).await.unwrap();
        let _ = bucket.create("photos/1.jpg", PutPayload::from_static(b"x")).await.unwrap();
        let (kind, why) = refusal(&bucket).await;
        assert!(kind == ErrorKind::NotEmpty && why.contains("photos/1.jpg"), "{why}");
        bucket.delete("photos/1.jpg").await.unwrap();
        assert!(create(&bucket, Options::default()).await.is_ok());
    }

    #[tokio::test]
    async fn of_formats_at_once_one_makes_the_volume() {
        let bucket = bucket("race");
        let racers = (0..8).map(|_| create(&bucket, Options::default()));
        let ended = futures_util::future::join_all(racers).await;
        let made: Vec<_> = ended.iter().filter_map(|ended| ended.as_ref().ok()).collect();
        assert_eq!(made.len(), 1);
        assert_eq!(read(&bucket).await.unwrap(), *made[0]);
        let losers = ended.iter().filter_map(|ended| ended.as_ref().err());
        assert!(losers.into_iter().all(|error| error.kind() == ErrorKind::Exists));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_makes_a_volume_all_the_same() {
        for seed in 0..50 {
            let bucket = Scripted::new(seed).with(Fault::LostAnswer, 20).with(Fault::SlowDown, 20).bucket();
            let bucket = bucket.with_patience(crate::bucket::Patience::UntilStopped);
            let made = create(&bucket, Options::default()).await;
            assert_eq!(read(&bucket).await.unwrap(), made.unwrap(), "seed {seed}");
        }
    }

    #[tokio::test]
    async fn what_is_no_format_or_a_later_one_is_refused() {
        let made = create(&bucket("parse"), Options::default()).await.unwrap();
        let json = serde_json::to_value(&made).unwrap();
        let with = |field: &str, value: serde_json::Value| {
            let mut json = json.clone();
            json[field] = value;
            parse(&serde_json::to_vec(&json).unwrap())
        };
        for (field, value) in [
            ("magic", "other".into()),
            ("version", serde_json::Value::from(0)),
            ("version", (-1).into()),
            ("version", "1".into()),
            ("uuid", "0".into()),
            ("uuid", "+".repeat(32).into()),
            ("chunk_bytes", 0.into()),
            ("chunk_bytes", 65_537.into()),
            ("extent_bytes_max", u32::MAX.into()),
            ("log_window", 0.into()),
            ("log_window", 65.into()),
            ("compression", "rot13".into()),
            ("what", 1.into()),
        ] {
            let (kind, why) = with(field, value.clone()).unwrap_err();
            assert_eq!(kind, ErrorKind::Io, "{field} {value}: {why}");
        }
        let (kind, why) = with("version", 3.into()).unwrap_err();
        assert!(kind == ErrorKind::Unsupported && why.contains("version 3"), "{why}");
        for garbage in [&b""[..], b"{}", b"[1]", b"null", b"\xff\xfe", &[b'['; 5000]] {
            assert_eq!(parse(garbage).unwrap_err().0, ErrorKind::Io);
        }
    }

    #[tokio::test]
    async fn an_object_that_is_too_large_is_not_read() {
        let bucket = bucket("large");
        let large = vec![b' '; usize::try_from(MAX_BYTES).unwrap() + 1];
        let _ = bucket.create(NAME, PutPayload::from(large)).await.unwrap();
        let error = read(&bucket).await.unwrap_err();
        assert!(error.detail().unwrap().contains("larger than 65536"), "{error}");
        assert_eq!(refusal(&bucket).await.0, ErrorKind::Io);
    }
}
