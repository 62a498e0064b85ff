//! What names a volume or a snapshot in a call. All of it may be hostile.

use std::path::{Component, Path, PathBuf};

use super::failure::{Failure, Result};
use crate::object_volumes;
use crate::term::shown::Show as _;

/// Bytes of a volume's id: a URL of a volume, whose prefix has 512 at most, fits.
const ID_BYTES_MAX: usize = 1024;
/// Bytes of a volume's name.
const NAME_BYTES_MAX: usize = 128;
/// Bytes of a snapshot's name.
const SNAPSHOT_BYTES_MAX: usize = 100;
/// Bytes of a path.
const PATH_BYTES_MAX: usize = 4095;
/// How the snapshots begin that a clone of a whole volume needs.
pub(super) const OF_A_CLONE: &str = "csi-clone-";

/// Checks the id of any volume, which may be the name of a static one.
///
/// # Errors
/// It is missing, too long, or no text for people.
pub(super) fn check_id(id: &str) -> Result<()> {
    if id.is_empty() {
        return Err(Failure::invalid("the volume's id is missing"));
    }
    if id.len() > ID_BYTES_MAX || id.chars().any(char::is_control) {
        return Err(Failure::invalid(format!(
            "the volume's id has more than {ID_BYTES_MAX} bytes or a control character"
        )));
    }
    Ok(())
}

/// The prefixes of URLs below which this driver has its volumes; none: anywhere but on the host.
#[derive(Debug, Clone, Default)]
pub(super) struct Prefixes(Vec<String>);

impl Prefixes {
    /// Checks them.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn parse(given: &[String]) -> std::result::Result<Self, String> {
        let one = |url: &String| canonical(url).map_err(|why| format!("--url-prefix {why}"));
        given.iter().map(one).collect::<std::result::Result<_, _>>().map(Self)
    }

    pub(super) fn all(&self) -> &[String] {
        &self.0
    }

    /// The URL of a volume by its id.
    ///
    /// # Errors
    /// It is none, or not below one of these prefixes.
    pub(super) fn volume(&self, id: &str) -> Result<String> {
        check_id(id)?;
        let url = canonical(id).map_err(Failure::not_found)?;
        self.check(&url, false).map(|()| url).map_err(Failure::not_found)
    }

    /// As [`volume`](Self::volume), for a deletion; none: the id names nothing of any bucket.
    ///
    /// # Errors
    /// `FailedPrecondition`: it is a URL that this driver has no volumes at.
    pub(super) fn to_delete(&self, id: &str) -> Result<Option<String>> {
        check_id(id)?;
        match self.volume(id) {
            Ok(url) => Ok(Some(url)),
            Err(failure) if object_volumes::looks_like(id) => Err(Failure::not_ready(failure.words())),
            Err(_) => Ok(None),
        }
    }

    /// The URLs above a volume's, below this driver's prefix: none of them may be a volume.
    pub(super) fn above(&self, url: &str) -> Vec<String> {
        let is_prefix =
            |prefix: &String| url.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('/'));
        let bucket = || {
            let path = url.find("://").map_or(0, |at| at + 3);
            url[path..].find('/').map_or(url.len(), |end| path + end)
        };
        let prefix =
            self.0.iter().filter(|prefix| is_prefix(prefix)).map(String::len).min().unwrap_or_else(bucket);
        let ends = url.match_indices('/').map(|(at, _)| at).filter(|&at| at > prefix);
        ends.map(|end| url[..end].to_owned()).collect()
    }

    /// The URL of the prefix that a class of volumes has, or this driver's only one.
    ///
    /// # Errors
    /// It is none, or not among these prefixes nor below one.
    pub(super) fn of_class(&self, given: Option<&str>) -> Result<String> {
        let url = match (given, self.0.as_slice()) {
            (Some(given), _) => canonical(given).map_err(|why| Failure::invalid(format!("url: {why}")))?,
            (None, [only]) => only.clone(),
            (None, _) => {
                return Err(Failure::invalid(
                    "the parameter url is missing: the prefix of the volumes, as s3://bucket/prefix",
                ));
            }
        };
        self.check(&url, true).map(|()| url).map_err(Failure::invalid)
    }

    /// Whether volumes may be there.
    fn check(&self, url: &str, may_be_one: bool) -> std::result::Result<(), String> {
        let is_below = |prefix: &String| {
            url.strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.starts_with('/') || rest.is_empty() && may_be_one)
        };
        if self.0.iter().any(is_below) {
            return Ok(());
        }
        if self.0.is_empty() && object_volumes::directory(url).is_none() {
            return Ok(());
        }
        Err(format!("{url}: it is not below a prefix that this driver was given by --url-prefix"))
    }
}

/// The one name of a URL, one that may be a volume's id.
fn canonical(url: &str) -> std::result::Result<String, String> {
    let shown = |why: &str| format!("{url:?}: {why}");
    if !object_volumes::looks_like(url) {
        return Err(shown("it is no URL of a volume (s3://bucket/prefix)"));
    }
    if object_volumes::is_memory(url) {
        return Err(shown("a volume in memory would be empty at each mount"));
    }
    if url.len() > ID_BYTES_MAX || url.chars().any(char::is_control) {
        return Err(shown("it is too long, or has a control character"));
    }
    let url = object_volumes::canonical(url).map_err(|problem| problem.to_string())?;
    let path = url.split_once("://").map_or("", |(_, path)| path);
    if path.split('/').any(|part| matches!(part, "." | ".." | "%2E" | "%2E%2E")) {
        return Err(format!("{url:?}: it has a part `.` or `..`"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// The URL of a new volume.
///
/// # Errors
/// The name cannot be a part of it.
pub(super) fn new_volume(prefix: &str, name: &str) -> Result<String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if name.is_empty() {
        return Err(Failure::invalid("the volume's name is missing"));
    }
    if name.len() > NAME_BYTES_MAX
        || !name.starts_with(|first: char| first.is_ascii_alphanumeric())
        || !name.bytes().all(is_part)
    {
        return Err(Failure::invalid(format!(
            "{name:?} cannot be a volume's name: it begins with a letter or digit, and has at most {NAME_BYTES_MAX} \
             letters, digits, `_`, `.` and `-`"
        )));
    }
    Ok(format!("{prefix}/{name}"))
}

/// A snapshot of a volume: its id is `URL@NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SnapshotId {
    pub(super) volume: String,
    pub(super) name: String,
}

impl SnapshotId {
    /// The name that a snapshot gets in its volume, for the one that a caller gives: the same, unless
    /// that is longer than a snapshot's can be.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn new_name(given: &str) -> Result<String> {
        if given.len() <= SNAPSHOT_BYTES_MAX || given.len() > NAME_BYTES_MAX {
            return Self::check_name(given).map(|()| given.to_owned());
        }
        let name = shortened(given);
        Self::check_name(&name).map(|()| name)
    }

    /// Checks a snapshot's name.
    fn check_name(name: &str) -> Result<()> {
        if name.is_empty() {
            return Err(Failure::invalid("the snapshot's name is missing"));
        }
        let is_bad = |c: char| c.is_control() || matches!(c, '/' | ',' | '@');
        if name.len() > SNAPSHOT_BYTES_MAX
            || name.chars().any(is_bad)
            || name.trim() != name
            || name.starts_with(OF_A_CLONE)
        {
            return Err(Failure::invalid(format!(
                "{name:?} cannot be a snapshot's name: it has at most {SNAPSHOT_BYTES_MAX} bytes, no slash, comma, @, control \
                 character or space at its ends, and does not begin with {OF_A_CLONE}"
            )));
        }
        Ok(())
    }

    /// Why there is nothing by this id.
    pub(super) fn missing(id: &str) -> Failure {
        Failure::not_found(format!("there is no snapshot {id:?}: its id is URL@NAME"))
    }

    /// As [`parse`](Self::parse), for a deletion; none: the id names nothing of any bucket.
    ///
    /// # Errors
    /// `FailedPrecondition`: it names a snapshot that is not this driver's to delete.
    pub(super) fn to_delete(id: &str, prefixes: &Prefixes) -> Result<Option<Self>> {
        if id.len() > ID_BYTES_MAX + SNAPSHOT_BYTES_MAX || id.chars().any(char::is_control) {
            return Err(Failure::invalid("the snapshot's id is too long, or has a control character"));
        }
        let Some((volume, name)) = id.rsplit_once('@') else {
            return if object_volumes::looks_like(id) { Err(Self::refused(id)) } else { Ok(None) };
        };
        match prefixes.to_delete(volume)? {
            None => Ok(None),
            Some(volume) if Self::check_name(name).is_ok() => {
                Ok(Some(Self { volume, name: name.to_owned() }))
            }
            Some(_) => Err(Self::refused(id)),
        }
    }

    fn refused(id: &str) -> Failure {
        Failure::not_ready(format!("{id:?}: it is no snapshot that this driver has made: its id is URL@NAME"))
    }

    /// Parses an id; none: it names nothing that this driver has made.
    pub(super) fn parse(id: &str, prefixes: &Prefixes) -> Option<Self> {
        let (volume, name) = id.rsplit_once('@')?;
        let volume = prefixes.volume(volume).ok()?;
        Self::check_name(name).ok()?;
        Some(Self { volume, name: name.to_owned() })
    }
}

impl std::fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.volume, self.name)
    }
}

/// The snapshot that the clone at `url` is made of.
pub(super) fn of_clone(url: &str) -> String {
    let name = url.rsplit('/').next().unwrap_or_default();
    if OF_A_CLONE.len() + name.len() <= SNAPSHOT_BYTES_MAX {
        return format!("{OF_A_CLONE}{name}");
    }
    format!("{OF_A_CLONE}{}", shortened(name))
}

/// The start of a name that is too long, and a number for all of it.
fn shortened(name: &str) -> String {
    let start: String = name.chars().take(SNAPSHOT_BYTES_MAX / 5).collect();
    format!("{start}-{:016x}", digest(name.as_bytes()))
}

/// A number for some bytes, always the same (FNV-1a): others may have it, too.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |digest, &byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The canonical URL that an id is, wherever the volume lies; none: it is no URL.
///
/// # Errors
/// It has the form of a URL, and can be none of a volume.
pub(super) fn url_of(id: &str) -> Result<Option<String>> {
    object_volumes::looks_like(id).then(|| canonical(id).map_err(Failure::not_ready)).transpose()
}

/// A path of the host that a call names.
///
/// # Errors
/// It is missing, not absolute, has `..`, or does not lie below `root`.
pub(super) fn host_path(what: &str, path: &str, root: &Path) -> Result<PathBuf> {
    if path.is_empty() {
        return Err(Failure::invalid(format!("{what} is missing")));
    }
    let wrong = |why: &str| Err(Failure::invalid(format!("{what} {path:?}: {why}")));
    if path.len() > PATH_BYTES_MAX || path.chars().any(char::is_control) {
        return wrong("it is too long, or has a control character");
    }
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let parts = Path::new(path).components();
    if !path.starts_with('/') || !parts.clone().all(is_plain) || path.split('/').any(|part| part == ".") {
        return wrong("an absolute path without `.` and `..` is needed");
    }
    let path: PathBuf = parts.collect();
    if path == root || !path.starts_with(root) {
        return wrong(&format!("it does not lie below {}", root.shown()));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use csi_proto::tonic::Code;

    use super::*;

    fn prefixes(given: &[&str]) -> Prefixes {
        Prefixes::parse(&given.iter().map(|&url| url.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn an_id_is_the_url_of_a_volume_below_a_prefix() {
        let some = prefixes(&["s3://bucket/k8s/", "file:///srv/volumes"]);
        for id in ["s3://bucket/k8s/a", "s3://bucket/k8s/a/b", "file:///srv/volumes/a"] {
            assert_eq!(some.volume(id).unwrap(), id);
        }
        for id in [
            "s3://bucket/k8s",
            "s3://bucket/k8sx/a",
            "s3://other/k8s/a",
            "s3://bucket/k8s/../b",
            "file:///srv/volumes/../../etc",
            "file:///srv/volumes/%2e%2e/etc",
            "file:///etc",
            "memory://a/b",
            "dir:/etc",
            "vol-1",
            "s3://u:hidden@bucket/k8s/a",
        ] {
            let wrong = some.volume(id).unwrap_err();
            assert_eq!(wrong.code, Code::NotFound, "{id}");
        }
        for id in ["", "a\nb", &"a".repeat(2000)] {
            assert_eq!(some.volume(id).unwrap_err().code, Code::InvalidArgument, "{id}");
        }
        // Without a prefix, a driver has volumes in any bucket, and none in a directory of the host.
        let none = prefixes(&[]);
        assert!(none.volume("gs://any/where").is_ok() && none.volume("file:///srv/a").is_err());
        assert!(none.of_class(None).is_err() && prefixes(&["s3://b/p"]).of_class(None).is_ok());
        assert!(
            some.of_class(Some("s3://bucket/k8s")).is_ok() && some.of_class(Some("s3://bucket")).is_err()
        );
    }

    #[test]
    fn what_lies_above_a_new_volume_is_known() {
        let some = prefixes(&["s3://b/k8s"]);
        assert_eq!(some.above("s3://b/k8s/a"), [""; 0]);
        assert_eq!(some.above("s3://b/k8s/a/b/c"), ["s3://b/k8s/a", "s3://b/k8s/a/b"]);
        assert_eq!(prefixes(&[]).above("gs://b/a/b"), ["gs://b/a"]);
    }

    #[test]
    fn clones_of_long_names_have_snapshots_of_their_own() {
        assert_eq!(of_clone("s3://b/p/pvc-1"), "csi-clone-pvc-1");
        let long = |end: &str| of_clone(&format!("s3://b/{}{end}", "a".repeat(100)));
        assert!(long("a").len() <= SNAPSHOT_BYTES_MAX && long("a") != long("b"), "{}", long("a"));
    }

    #[test]
    fn a_name_becomes_one_part_of_a_url() {
        assert_eq!(new_volume("s3://b/p", "pvc-1").unwrap(), "s3://b/p/pvc-1");
        for name in ["", "..", "a/b", "-a", "a b", "ä", "a%2e", &"a".repeat(129)] {
            assert_eq!(new_volume("s3://b", name).unwrap_err().code, Code::InvalidArgument, "{name}");
        }
    }

    #[test]
    fn a_snapshot_is_named_with_its_volume() {
        let all = prefixes(&[]);
        let id = SnapshotId::parse("s3://b/p/a@snapshot-1", &all).unwrap();
        assert_eq!((id.volume.as_str(), id.name.as_str()), ("s3://b/p/a", "snapshot-1"));
        assert_eq!(id.to_string(), "s3://b/p/a@snapshot-1");
        let long = SnapshotId::new_name(&"a".repeat(128)).unwrap();
        assert!(long.len() <= 100 && long != SnapshotId::new_name(&"a".repeat(127)).unwrap(), "{long}");
        assert_eq!(SnapshotId::new_name("snapshot-1").unwrap(), "snapshot-1");
        for name in ["", "a@b", "a/b", "csi-clone-a", " a", &"a".repeat(129), &"a/".repeat(60)] {
            assert!(SnapshotId::new_name(name).is_err(), "{name}");
        }
        for id in ["", "@", "none", "s3://b/a", "s3://b/a@", "s3://b/a@x/y", "s3://b/a@csi-clone-1"] {
            assert_eq!(SnapshotId::parse(id, &all), None, "{id}");
        }
    }

    #[test]
    fn a_path_lies_below_its_root() {
        let root = Path::new("/var/lib/kubelet");
        let at = |path: &str| host_path("target_path", path, root);
        assert_eq!(at("/var/lib/kubelet//pods/a/").unwrap(), Path::new("/var/lib/kubelet/pods/a"));
        for path in [
            "",
            "pods/a",
            "/var/lib/kubelet",
            "/var/lib/kubelet2/a",
            "/var/lib/kubelet/../../etc",
            "/var/lib/kubelet/./a",
            "/var/lib/kubelet/a\nb",
            "/etc",
            &format!("/var/lib/kubelet/{}", "a/".repeat(3000)),
        ] {
            assert_eq!(at(path).unwrap_err().code, Code::InvalidArgument, "{path}");
        }
    }
}
