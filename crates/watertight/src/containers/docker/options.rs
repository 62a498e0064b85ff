//! The options of a volume: `docker volume create -o KEY=VALUE`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cli::opts::{self, MountOptions};
use crate::host::checks;
use crate::object_volumes;
use crate::term::units::parse_bytes;

/// The options, for messages.
const VALID: &str = "source, o, size, compress, encrypt-key-file, read-bps, write-bps, read-iops, write-iops";
/// Limits of the whole volume, by the names that `docker run` has for devices.
const LIMITS: [(&str, &str, bool); 4] = [
    ("read-bps", "rbps", true),
    ("write-bps", "wbps", true),
    ("read-iops", "riops", false),
    ("write-iops", "wiops", false),
];

/// Checked options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeOptions {
    /// A directory, or the canonical URL of a volume on object storage.
    pub(super) source: String,
    pub(super) is_url: bool,
    /// For `mount -o`.
    pub(super) mount: String,
    /// The arguments of `format` beside the URL.
    pub(super) format: Vec<String>,
    /// The arguments of `info` beside the URL.
    pub(super) info: Vec<String>,
}

impl VolumeOptions {
    /// Checks the options. Nothing is looked up.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub(super) fn parse(given: &BTreeMap<String, String>) -> Result<Self, String> {
        let known = |key: &str| VALID.split(", ").any(|valid| valid == key);
        if let Some(key) = given.keys().find(|key| !known(key)) {
            return Err(format!("there is no option {key:?}; there are: {VALID}"));
        }
        let get = |key: &str| given.get(key).map(String::as_str);
        let source = get("source").unwrap_or_default();
        if source.is_empty() {
            return Err(
                "option source is missing: a directory of this host or the URL of a volume on object storage, \
                 as in `-o source=/srv/data` or `-o source=s3://bucket/prefix`"
                    .to_owned(),
            );
        }
        let is_url = object_volumes::looks_like(source);
        let source = if is_url {
            if object_volumes::is_memory(source) {
                return Err("option source: a volume in memory would be empty at each mount".to_owned());
            }
            object_volumes::canonical(source).map_err(|problem| problem.to_string())?
        } else if Path::new(source).is_absolute() {
            source.to_owned()
        } else {
            return Err(format!(
                "option source: {source:?} is neither an absolute path (it begins with /) nor a URL"
            ));
        };
        let mut mount: Vec<String> = get("o").into_iter().map(str::to_owned).collect();
        mount.extend(limit(given)?);
        let (mut format, mut info) = (Vec::new(), Vec::new());
        if let Some(size) = get("size") {
            parse_bytes(size).map_err(|wrong| format!("option size: {wrong}"))?;
            format.extend(["--size".to_owned(), size.to_owned()]);
        }
        if let Some(method) = get("compress") {
            if !["zstd", "lz4", "none"].contains(&method) {
                return Err(format!("option compress: {method:?}: give zstd, lz4 or none"));
            }
            format.extend(["--compress".to_owned(), method.to_owned()]);
        }
        if let Some(file) = get("encrypt-key-file") {
            if file.contains(',') {
                return Err("option encrypt-key-file: a path without a comma is needed".to_owned());
            }
            for all in [&mut format, &mut info] {
                all.extend(["--encrypt-key-file".to_owned(), file.to_owned()]);
            }
            mount.push(format!("encrypt-key-file={file}"));
        }
        if !is_url && !format.is_empty() {
            return Err(format!(
                "option {} is for volumes on object storage (s3://…), which {source} is not",
                format[0].trim_start_matches("--")
            ));
        }
        MountOptions::parse(&mount)
            .and_then(|_| opts::fit(&mount, if is_url { &source } else { "dir:" }))
            .map_err(|problem| problem.to_string())?;
        mount.retain(|list| !list.is_empty());
        Ok(Self { source, is_url, mount: mount.join(","), format, info })
    }

    /// Checks that a directory is there.
    ///
    /// # Errors
    /// Why it cannot be a volume.
    pub(super) fn check_directory(&self) -> Result<(), String> {
        checks::source(&format!("dir:{}", self.source)).map(drop).map_err(|problem| problem.to_string())
    }

    /// The store's name for `mount`.
    pub(super) fn spec(&self) -> String {
        if self.is_url { self.source.clone() } else { format!("dir:{}", self.source) }
    }
}

/// The limits as one option of `mount`: of the tree's root, so of all that use the volume together.
fn limit(given: &BTreeMap<String, String>) -> Result<Option<String>, String> {
    let mut all = String::new();
    for (key, name, is_bytes) in LIMITS {
        let Some(value) = given.get(key) else { continue };
        let number = if is_bytes {
            parse_bytes(value).map_err(|wrong| format!("option {key}: {wrong}"))?
        } else {
            value.parse::<u64>().map_err(|_| format!("option {key}: {value:?}: give a number"))?
        };
        if number == 0 {
            return Err(format!("option {key}: more than 0 is needed"));
        }
        all.push_str(&format!(":{name}={number}"));
    }
    Ok((!all.is_empty()).then(|| format!("limit=/{all}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)]) -> Result<VolumeOptions, String> {
        let given = given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        VolumeOptions::parse(&given)
    }

    #[test]
    fn options_become_those_of_mount() {
        let plain = parse(&[("source", "/srv/a")]).unwrap();
        assert_eq!((plain.spec().as_str(), plain.mount.as_str()), ("dir:/srv/a", ""));
        let options =
            parse(&[("source", "/srv/a"), ("o", "ro,cache=64M"), ("write-bps", "1M"), ("read-iops", "7")]);
        assert_eq!(options.unwrap().mount, "ro,cache=64M,limit=/:wbps=1048576:riops=7");
    }

    #[cfg(feature = "objects")]
    #[test]
    fn options_of_object_storage_become_those_of_format() {
        let options = parse(&[
            ("source", "s3://bucket//a/"),
            ("size", "1G"),
            ("compress", "lz4"),
            ("encrypt-key-file", "/etc/key"),
        ]);
        let options = options.unwrap();
        assert_eq!(options.spec(), "s3://bucket/a");
        assert_eq!(options.mount, "encrypt-key-file=/etc/key");
        assert_eq!(options.format, ["--size", "1G", "--compress", "lz4", "--encrypt-key-file", "/etc/key"]);
        assert_eq!(options.info, ["--encrypt-key-file", "/etc/key"]);
        for (given, word) in [
            (("source", "memory://a"), "empty at each mount"),
            (("source", "s3://user:secret@bucket/a"), "source"),
        ] {
            let wrong = parse(&[given]).unwrap_err();
            assert!(wrong.contains(word) && !wrong.contains("secret"), "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (given, word) in [
            (&[][..], "option source is missing"),
            (&[("source", "srv/a")], "absolute path"),
            (&[("source", "mem:")], "absolute path"),
            (&[("source", "/srv/a"), ("sise", "1G")], "no option \"sise\"; there are: source"),
            (&[("source", "/srv/a"), ("size", "1G")], "size is for volumes on object storage"),
            (&[("source", "/srv/a"), ("encrypt-key-file", "/k")], "is for volumes on object storage"),
            (&[("source", "/srv/a"), ("o", "frob")], "no mount option frob"),
            (&[("source", "/srv/a"), ("write-bps", "1M:riops=1")], "option write-bps"),
            (&[("source", "/srv/a"), ("write-iops", "0")], "more than 0"),
            (&[("source", "/srv/a"), ("read-iops", "1M")], "give a number"),
        ] {
            let wrong = parse(given).unwrap_err();
            assert!(wrong.contains(word), "{given:?}: {wrong}");
        }
    }
}
