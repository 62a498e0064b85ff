//! The configuration file.
//!
//! Nothing is guessed: a key that does not exist, an option that does not exist and a mountpoint that is used twice are
//! refused with their line and, where a word is near to one that exists, with that.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::opts::MountOptions;
use crate::suggest::nearest;

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The volumes, in the file's order.
    pub volumes: Vec<VolumeConfig>,
}

/// A volume of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The store, as `watertight mount` takes it.
    pub source: String,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// As for `mount -o`, the defaults first.
    pub options: String,
}

impl VolumeConfig {
    /// What it is, for a message.
    #[must_use]
    pub fn describe(&self) -> String {
        let options = if self.options.is_empty() { "no options" } else { &self.options };
        format!("{} ({options})", self.source)
    }
}

/// What is wrong, and in which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    line: usize,
    what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    volume: Vec<Entry>,
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
    mountpoint: Spanned<PathBuf>,
    options: Option<Spanned<String>>,
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
        for entry in &file.volume {
            let (source, mountpoint) = (entry.source.get_ref(), entry.mountpoint.get_ref());
            if source.is_empty() {
                return Err(at(
                    entry.source.span(),
                    "the source is empty; give a directory, or mem:".to_owned(),
                ));
            }
            if !mountpoint.is_absolute() {
                let what = format!(
                    "mountpoint {} is no absolute path: it has to begin with /",
                    mountpoint.display()
                );
                return Err(at(entry.mountpoint.span(), what));
            }
            if let Some(other) = volumes.iter().find(|other| same(&other.mountpoint, mountpoint)) {
                let what =
                    format!("mountpoint {} has a volume already, {}", mountpoint.display(), other.source);
                return Err(at(entry.mountpoint.span(), what));
            }
            let own = check(text, entry.options.as_ref())?;
            let options: Vec<&str> = [defaults, own].into_iter().filter(|list| !list.is_empty()).collect();
            volumes.push(VolumeConfig {
                source: source.clone(),
                mountpoint: mountpoint.components().collect(),
                options: options.join(","),
            });
        }
        Ok(Self { volumes })
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

fn same(one: &Path, other: &Path) -> bool {
    one.components().eq(other.components())
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
                None => message.to_owned(),
            }
        }
        _ => message.to_owned(),
    }
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

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_was_meant() {
        for (text, line, said) in [
            ("[[volume]]\nsorce = \"mem:\"\nmountpoint = \"/a\"\n", 2, "did you mean `source`?"),
            ("[[volumes]]\nsource = \"mem:\"\n", 1, "did you mean `volume`?"),
            ("[[volume]]\nsource = \"mem:\"\n", 1, "missing field `mountpoint`"),
            ("[[volume]]\nsource = \"mem:\"\nmountpoint = \"a\"\n", 3, "has to begin with /"),
            ("[[volume]]\nsource = \"\"\nmountpoint = \"/a\"\n", 2, "the source is empty"),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\noptions = \"cahce=1G\"\n",
                4,
                "did you mean cache",
            ),
            ("\n[defaults]\noptions = \"cache=lots\"\n", 3, "`lots` is no size"),
            ("[[volume]]\nsource = 3\nmountpoint = \"/a\"\n", 2, "invalid type: integer"),
            (
                "[[volume]]\nsource = \"mem:\"\nmountpoint = \"/a\"\n[[volume]]\nsource = \"x\"\nmountpoint = \"/a/\"\n",
                6,
                "has a volume already, mem:",
            ),
            ("[[volume]\n", 1, ""),
        ] {
            let wrong = Config::parse(text).unwrap_err();
            assert_eq!(wrong.line, line, "{wrong} in {text}");
            assert!(wrong.what.contains(said), "no {said:?} in {wrong}");
        }
    }
}
