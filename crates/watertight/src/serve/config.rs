//! The configuration file.
//!
//! Nothing is guessed: an unknown key, an unknown option and a mountpoint that is used twice are
//! refused with their line and, where a word is near to a known one, with that.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use volume::{CgroupPath, LimitChange};

use super::sources::{self, Sources};
use crate::cli::opts::{self, MountOptions, VALID, of_object_storage, of_the_mountpoint};
use crate::cli::suggest::nearest;
use crate::control::api::Missing;
use crate::term::shown::{Name, Show as _, in_one_line};

/// The settings of a section `[[limit]]`.
const LIMITS: [&str; 6] = ["rbps", "wbps", "riops", "wiops", "dirty_max", "sync_isolation"];

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The volumes, in the file's order.
    pub volumes: Vec<VolumeConfig>,
    /// The lines of their sources.
    lines: Vec<usize>,
}

/// A volume of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The store, as `watertight mount` takes it.
    pub source: String,
    /// Where it is mounted; of one that is attached: the mountpoint that it is inside of.
    pub mountpoint: PathBuf,
    /// Where it is attached.
    pub attach: Option<PathBuf>,
    /// As for `mount -o`, the defaults first.
    pub options: String,
    /// Limits of cgroups on its store. Can be changed while it is mounted.
    pub limits: Vec<CgroupLimit>,
}

/// The limits of a cgroup on a volume's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLimit {
    /// Its path.
    pub cgroup: String,
    /// As `watertight limit` takes them, with blanks between them.
    pub limits: String,
}

impl VolumeConfig {
    /// Where it is seen.
    #[must_use]
    pub fn place(&self) -> &Path {
        self.attach.as_deref().unwrap_or(&self.mountpoint)
    }

    /// That it is not mounted.
    pub(super) fn missing(&self, why: &str) -> Missing {
        let mountpoint = Name::of(self.place());
        Missing { mountpoint, source: self.source.as_str().into(), why: why.into() }
    }

    /// Whether this is mounted as `other` is; limits may differ.
    #[must_use]
    pub fn mounts_like(&self, other: &Self) -> bool {
        (&self.source, &self.mountpoint, &self.options) == (&other.source, &other.mountpoint, &other.options)
    }

    /// The list for `mount -o`: the options, then the limits.
    #[must_use]
    pub fn mount_options(&self) -> String {
        let limits = self
            .limits
            .iter()
            .map(|limit| format!("limit={}:{}", limit.cgroup, limit.limits.replace(' ', ":")));
        let own = (!self.options.is_empty()).then(|| self.options.clone());
        own.into_iter().chain(limits).collect::<Vec<_>>().join(",")
    }

    /// A description for a message.
    #[must_use]
    pub fn describe(&self) -> String {
        let options = if self.options.is_empty() { "no options" } else { &self.options };
        format!("{} ({})", self.source.shown(), options.shown())
    }
}

/// A mistake, and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    line: usize,
    what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, in_one_line(&self.what))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    volume: Vec<Entry>,
    #[serde(default)]
    limit: Vec<LimitEntry>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Defaults {
    options: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    source: Spanned<String>,
    mountpoint: Option<Spanned<PathBuf>>,
    attach: Option<Spanned<PathBuf>>,
    options: Option<Spanned<String>>,
}

/// A mistake, and its place in the text.
type At = (Range<usize>, String);

impl Entry {
    /// The path where it is to be, and whether it is attached there.
    fn place(&self) -> Result<(&Spanned<PathBuf>, bool), At> {
        let (place, is_attached, key) = match (&self.mountpoint, &self.attach) {
            (Some(place), None) => (place, false, "mountpoint"),
            (None, Some(place)) => (place, true, "attach"),
            (Some(_), Some(both)) => {
                let what = "give `mountpoint`, or `attach`, and not both: a volume is mounted, or shown inside a mountpoint";
                return Err((both.span(), what.to_owned()));
            }
            (None, None) => {
                let what = "missing field `mountpoint`, or `attach` for a directory inside a mountpoint of this file";
                return Err((self.source.span(), what.to_owned()));
            }
        };
        let path = place.get_ref();
        if path.is_absolute() {
            return Ok((place, is_attached));
        }
        Err((place.span(), format!("{key} {} is not an absolute path: it has to begin with /", path.shown())))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitEntry {
    cgroup: Spanned<String>,
    volume: Option<Spanned<String>>,
    rbps: Option<Amount>,
    wbps: Option<Amount>,
    riops: Option<Amount>,
    wiops: Option<Amount>,
    dirty_max: Option<Amount>,
    sync_isolation: Option<bool>,
}

/// `1048576`, or `"1M"`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number, or text such as \"1M\" or \"max\"")]
enum Amount {
    Number(u64),
    Text(String),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl LimitEntry {
    /// As `watertight limit` takes them.
    fn limits(&self) -> String {
        let amounts = [
            ("rbps", &self.rbps),
            ("wbps", &self.wbps),
            ("riops", &self.riops),
            ("wiops", &self.wiops),
            ("dirty_max", &self.dirty_max),
        ];
        let pairs =
            amounts.into_iter().filter_map(|(key, amount)| Some(format!("{key}={}", amount.as_ref()?)));
        let isolation = self.sync_isolation.map(|is_on| format!("sync_isolation={}", u8::from(is_on)));
        pairs.chain(isolation).collect::<Vec<_>>().join(" ")
    }

    /// Adds it to the volumes that it is for.
    fn add_to(&self, text: &str, volumes: &mut [VolumeConfig]) -> Result<(), Wrong> {
        let at_cgroup = |what: String| wrong(text, self.cgroup.span(), what);
        let cgroup: CgroupPath = self
            .cgroup
            .get_ref()
            .parse()
            .map_err(|error: volume::LimitError| at_cgroup(error.to_string()))?;
        if cgroup.as_str().contains(',') {
            return Err(at_cgroup(format!("'{cgroup}' has a comma; limit a cgroup above it")));
        }
        let limits = self.limits();
        let refused = |error: volume::LimitError| at_cgroup(format!("limits of '{cgroup}': {error}"));
        limits.parse::<LimitChange>().map_err(refused)?;
        if limits.is_empty() {
            return Err(at_cgroup(format!("nothing is set for '{cgroup}': give wbps = \"1M\", for example")));
        }
        let mut is_used = false;
        for volume in volumes {
            let is_meant = |name: &str| {
                volume.source == name || volume.place().components().eq(Path::new(name).components())
            };
            if !self.volume.as_ref().is_none_or(|name| is_meant(name.get_ref())) {
                continue;
            }
            is_used = true;
            if volume.limits.iter().any(|known| known.cgroup == cgroup.as_str()) {
                let shown = volume.place().shown();
                return Err(at_cgroup(format!(
                    "'{cgroup}' has limits on {shown} already: give them together"
                )));
            }
            volume.limits.push(CgroupLimit { cgroup: cgroup.to_string(), limits: limits.clone() });
        }
        match &self.volume {
            Some(name) if !is_used => {
                let what = format!(
                    "there is no volume {} in this file; give its mountpoint or its source",
                    name.get_ref()
                );
                Err(wrong(text, name.span(), what))
            }
            _ => Ok(()),
        }
    }
}

impl Config {
    /// Reads the file's text.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let at = |span: Range<usize>, what: String| wrong(text, span, what);
        let file: File = toml::from_str(text)
            .map_err(|error| at(error.span().unwrap_or(0..0), explain(error.message())))?;
        let defaults = check(text, file.defaults.options.as_ref())?;
        let mut volumes: Vec<VolumeConfig> = Vec::new();
        let (mut places, mut mountpoints, mut attached) = (HashMap::new(), HashSet::new(), Vec::new());
        let (mut sources, mut lines) = (Sources::default(), Vec::new());
        for entry in &file.volume {
            let source = entry.source.get_ref();
            let (place, is_attached) = entry.place().map_err(|(span, what)| at(span, what))?;
            let path: PathBuf = place.get_ref().components().collect();
            if source.is_empty() {
                return Err(at(
                    entry.source.span(),
                    "the source is empty; give a directory, or mem:".to_owned(),
                ));
            }
            if let Some(other) = places.insert(path.clone(), source) {
                let what = format!("{} has a volume already, {other}", path.shown());
                return Err(at(place.span(), what));
            }
            let line = line_of(text, entry.source.span().start);
            sources.add(source, line, &path).map_err(|what| Wrong { line, what })?;
            lines.push(line);
            let own = check(text, entry.options.as_ref())?;
            let in_own = |what: String| at(entry.options.as_ref().map_or(place.span(), Spanned::span), what);
            if is_attached && let Some(option) = of_the_mountpoint(own) {
                let what =
                    format!("option {option} is the mountpoint's, not that of a volume that is attached");
                return Err(in_own(what));
            }
            opts::fit(&[own.to_owned()], source).map_err(|problem| in_own(problem.to_string()))?;
            // What other volumes of the file may need and this one cannot have is left out.
            let is_meant = |option: &&str| {
                let is_the_mountpoints = of_the_mountpoint(option).is_some();
                let is_unfit = of_object_storage(option).is_some()
                    && opts::fit(&[(*option).to_owned()], source).is_err();
                !(option.is_empty() || is_attached && is_the_mountpoints || is_unfit)
            };
            let defaults = defaults.split(',').filter(is_meant);
            let options: Vec<&str> = defaults.chain([own]).filter(|list| !list.is_empty()).collect();
            let options = options.join(",");
            let source = source.clone();
            if is_attached {
                attached.push(place.span());
                volumes.push(VolumeConfig {
                    source,
                    mountpoint: PathBuf::new(),
                    attach: Some(path),
                    options,
                    limits: Vec::new(),
                });
            } else {
                mountpoints.insert(path.clone());
                volumes.push(VolumeConfig {
                    source,
                    mountpoint: path,
                    attach: None,
                    options,
                    limits: Vec::new(),
                });
            }
        }
        let inside =
            volumes.iter_mut().filter_map(|volume| Some((volume.attach.as_ref()?, &mut volume.mountpoint)));
        for ((path, mountpoint), span) in inside.zip(attached) {
            let Some(around) = path.ancestors().skip(1).find(|dir| mountpoints.contains(*dir)) else {
                let what = format!(
                    "attach {} is inside no mountpoint of this file; add the volume that is mounted around it, with `mountpoint`",
                    path.shown()
                );
                return Err(at(span, what));
            };
            *mountpoint = around.to_owned();
        }
        for limit in &file.limit {
            limit.add_to(text, &mut volumes)?;
        }
        if volumes.is_empty() {
            let what = "there is no [[volume]] in it: a reload would unmount every volume; \
                        `watertight serve --example` shows one";
            return Err(at(0..0, what.to_owned()));
        }
        Ok(Self { volumes, lines })
    }

    /// Looks at the stores themselves, which have to be there when their volumes are mounted.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn look(&self) -> Result<(), Wrong> {
        let named = self.lines.iter().zip(&self.volumes);
        let stores = named.map(|(line, volume)| (*line, volume.source.as_str(), volume.place()));
        sources::look(stores).map_err(|(line, what)| Wrong { line, what })
    }
}

/// A list of options that `mount -o` would take; empty where there is none.
fn check<'a>(text: &str, options: Option<&'a Spanned<String>>) -> Result<&'a str, Wrong> {
    let Some(options) = options else { return Ok("") };
    MountOptions::parse(&[options.get_ref().clone()])
        .map(|_| options.get_ref().as_str())
        .map_err(|problem| wrong(text, options.span(), problem.to_string()))
}

fn wrong(text: &str, span: Range<usize>, what: String) -> Wrong {
    Wrong { line: line_of(text, span.start), what }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// The parser's message, with the word that was probably meant.
fn explain(message: &str) -> String {
    let message = message.trim();
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match words.split_first() {
        Some((unknown, known)) if message.starts_with("unknown field") => {
            match nearest(unknown, known.iter().copied()) {
                Some(meant) => format!("{message}; did you mean `{meant}`?"),
                None => format!("{message}{}", belongs(unknown, known)),
            }
        }
        _ => message.to_owned(),
    }
}

/// Where a word belongs that is right in another place.
fn belongs(word: &str, known: &[&str]) -> String {
    let name = |shown: &'static str| shown.split(['=', ',']).next().unwrap_or(shown);
    let option = |word: &str| VALID.iter().map(|(shown, _)| *shown).find(|shown| name(shown) == word);
    if let Some(shown) = option(word) {
        return format!("; `{word}` is a mount option: options = \"{shown}\"");
    }
    if LIMITS.contains(&word) && !known.contains(&"cgroup") {
        return format!("; `{word}` is a limit of a cgroup: it belongs in a section [[limit]]");
    }
    let meant = nearest(word, VALID.iter().map(|(shown, _)| name(shown))).and_then(option);
    meant.map_or_else(String::new, |shown| format!("; did you mean the mount option: options = \"{shown}\"?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_right() {
        let config = Config::parse(super::super::EXAMPLE).unwrap();
        assert!(!config.volumes.is_empty());
    }

    #[test]
    fn defaults_come_before_a_volumes_own_options() {
        let config = Config::parse(
            "[defaults]\noptions = \"cache=64M\"\n[[volume]]\nsource = \"mem:\"\nmountpoint = \"/mnt/a/\"\n\
             options = \"cache=1G,ro\"\n[[volume]]\nsource = \"mem:\"\nmountpoint = \"/mnt/b\"\n",
        )
        .unwrap();
        assert_eq!(config.volumes[0].options, "cache=64M,cache=1G,ro");
        assert_eq!(config.volumes[1].options, "cache=64M");
    }

    #[cfg(feature = "objects")]
    #[test]
    fn of_the_defaults_a_directory_has_none_of_object_storage() {
        let config = Config::parse(
            "[defaults]\noptions = \"cache=64M,encrypt-key-file=/key\"\n[[volume]]\nsource = \"s3://bucket/a\"\nmountpoint = \"/mnt/a\"\n\
             options = \"takeover\"\n[[volume]]\nsource = \"/srv\"\nmountpoint = \"/mnt/b\"\n",
        )
        .unwrap();
        assert_eq!(config.volumes[0].options, "cache=64M,encrypt-key-file=/key,takeover");
        assert_eq!(config.volumes[1].options, "cache=64M");
    }

    #[test]
    fn a_limit_is_for_one_volume_or_for_all() {
        let text = "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/mnt/a\"\n[[volume]]\nsource = \"/b\"\nmountpoint = \"/mnt/b\"\n\
                    options = \"ro\"\n[[limit]]\ncgroup = \"/t/x:y/\"\nvolume = \"/mnt/b/\"\nwbps = \"1M\"\nwiops = 7\n\
                    sync_isolation = true\n[[limit]]\ncgroup = \"/u\"\ndirty_max = \"64M\"\n";
        let config = Config::parse(text).unwrap();
        let limit = |cgroup: &str, limits: &str| CgroupLimit { cgroup: cgroup.into(), limits: limits.into() };
        let all = limit("/u", "dirty_max=64M");
        assert_eq!(config.volumes[0].limits, std::slice::from_ref(&all));
        assert_eq!(config.volumes[1].limits, [limit("/t/x:y", "wbps=1M wiops=7 sync_isolation=1"), all]);
        // The options that a process is started with are equivalent.
        let options = config.volumes[1].mount_options();
        assert_eq!(options, "ro,limit=/t/x:y:wbps=1M:wiops=7:sync_isolation=1,limit=/u:dirty_max=64M");
        let options = MountOptions::parse(&[options]).unwrap();
        let paths: Vec<&str> = options.limits.iter().map(|(cgroup, _)| cgroup.as_str()).collect();
        assert_eq!(paths, ["/t/x:y", "/u"]);
        let other = Config::parse(&text.replace("1M", "2M")).unwrap();
        assert!(config.volumes[1] != other.volumes[1] && config.volumes[1].mounts_like(&other.volumes[1]));
    }

    #[test]
    fn what_is_attached_is_inside_the_nearest_mountpoint_whatever_the_order() {
        let config = Config::parse(
            "[defaults]\noptions = \"uring=off,cache=64M\"\n[[volume]]\nsource = \"mem:\"\nattach = \"/mnt/a/b/c/\"\n\
             options = \"ro\"\n[[volume]]\nsource = \"mem:\"\nmountpoint = \"/mnt\"\n\
             [[volume]]\nsource = \"mem:\"\nmountpoint = \"/mnt/a\"\n",
        )
        .unwrap();
        let volume = &config.volumes[0];
        assert_eq!(volume.attach.as_deref(), Some(std::path::Path::new("/mnt/a/b/c")));
        assert_eq!(volume.mountpoint, std::path::Path::new("/mnt/a"));
        assert_eq!(volume.options, "cache=64M,ro", "of the defaults, what is a volume's");
        assert_eq!(config.volumes[1].options, "uring=off,cache=64M");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_was_meant() {
        for (text, line, said) in [
            ("[[volume]]\nsorce = \"mem:\"\nmountpoint = \"/a\"\n", 2, "did you mean `source`?"),
            ("[[volumes]]\nsource = \"mem:\"\n", 1, "did you mean `volume`?"),
            ("[[volume]]\nsource = \"mem:\"\n", 2, "missing field `mountpoint`, or `attach`"),
            ("[[volume]]\nsource = \"mem:\"\nmountpoint = \"a\"\n", 3, "has to begin with /"),
            ("[[volume]]\nsource = \"\"\nmountpoint = \"/a\"\n", 2, "the source is empty"),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\noptions = \"cahce=1G\"\n",
                4,
                "did you mean cache",
            ),
            ("\n[defaults]\noptions = \"cache=lots\"\n", 3, "`lots` is not a size"),
            ("[[volume]]\nsource = 3\nmountpoint = \"/a\"\n", 2, "invalid type: integer"),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\n[[volume]]\nsource = \"x\"\nmountpoint = \"/a/\"\n",
                6,
                "has a volume already, mem:",
            ),
            ("[[limit]]\ncgroup = \"a\"\nwbps = 1\n", 2, "is not a cgroup's path"),
            ("[[limit]]\ncgroup = \"/a,b\"\nwbps = 1\n", 2, "has a comma"),
            ("[[limit]]\ncgroup = \"/a\"\n", 2, "nothing is set"),
            ("[[limit]]\ncgroup = \"/a\"\nwbps = \"fast\"\n", 2, "wbps=fast"),
            ("[[limit]]\ncgroup = \"/a\"\nwbps = 1.5\n", 3, "a number, or text"),
            ("[[limit]]\ncgroup = \"/a\"\nwpbs = 1\n", 3, "did you mean `wbps`?"),
            ("[[limit]]\ncgroup = \"/a\"\nvolume = \"/x\"\nwbps = 1\n", 3, "there is no volume /x"),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\n[[limit]]\ncgroup = \"/a\"\nwbps = 1\n[[limit]]\n\
                 cgroup = \"/a/\"\nvolume = \"mem:\"\nwiops = 1\n",
                8,
                "has limits on /a already",
            ),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\nattach = \"/b\"\n",
                4,
                "`mountpoint`, or `attach`, and not both",
            ),
            ("[[volume]]\nsource = \"mem:\"\nattach = \"/a/b\"\n", 3, "is inside no mountpoint of this file"),
            ("[[volume]]\nsource = \"mem:\"\natach = \"/a/b\"\n", 3, "did you mean `attach`?"),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\ncahce = \"1G\"\n",
                4,
                "did you mean the mount option: options = \"cache=SIZE\"?",
            ),
            (
                "[[volume]]\nsource = \"mem:\"\nattach = \"/a/b\"\noptions = \"uring=off\"\n",
                4,
                "option uring=off is the mountpoint's",
            ),
            (
                "[[volume]]\nsource = \"/s\"\nmountpoint = \"/a\"\noptions = \"takeover\"\n",
                4,
                "is for volumes on object storage",
            ),
            ("[[volume]\n", 1, ""),
            ("", 1, "there is no [[volume]]"),
            ("[defaults]\noptions = \"ro\"\n", 1, "there is no [[volume]]"),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\ncache = \"1G\"\n",
                4,
                "options = \"cache=SIZE\"",
            ),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\nwbps = \"1M\"\n",
                4,
                "in a section [[limit]]",
            ),
            (
                "[[volume]]\nsource = \"ftp://host/x\"\nmountpoint = \"/a\"\n",
                2,
                if cfg!(feature = "objects") { "unknown scheme" } else { "is built without" },
            ),
            (
                "[[volume]]\nsource = \"data\"\nmountpoint = \"/a\"\n",
                2,
                "source data is not an absolute path",
            ),
            (
                "[[volume]]\nsource = \"fault:x,dir:d\"\nmountpoint = \"/a\"\n",
                2,
                "source d is not an absolute path",
            ),
            ("[[volume]]\nsource = \"/a\"\nmountpoint = \"/a/\"\n", 2, "are the same directory"),
            ("[[volume]]\nsource = \"/a\"\nmountpoint = \"/a/b\"\n", 2, "lies inside the source"),
            ("[[volume]]\nsource = \"dir:/a/b\"\nmountpoint = \"/a\"\n", 2, "lies inside the mountpoint"),
            (
                "[[volume]]\nsource = \"/s\"\nmountpoint = \"/a\"\n[[volume]]\nmountpoint = \"/b\"\nsource = \"dir:/s/\"\n",
                6,
                "is that of line 2 already",
            ),
            (
                "[[volume]]\nsource = \"/s/in\"\nmountpoint = \"/a\"\n[[volume]]\nsource = \"/s\"\nmountpoint = \"/b\"\n",
                5,
                "lie one in the other",
            ),
        ] {
            let wrong = Config::parse(text).unwrap_err();
            assert_eq!(wrong.line, line, "{wrong} in {text}");
            assert!(wrong.what.contains(said), "no {said:?} in {wrong}");
        }
    }
}
