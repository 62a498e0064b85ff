//! A limit: the cgroup that it is for, and how much a second.
//!
//! The syntax is that of cgroup v2's `io.max`: `rbps`, `wbps`, `riops` and `wiops`, each a number
//! or `max`. Numbers may end in `K`, `M` or `G` (powers of 1024).

use std::fmt;
use std::num::NonZeroU64;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Why the text of a limit was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// Not `key=value`.
    #[error("'{0}' is not a limit: write it as KEY=VALUE, as in wbps=1M")]
    NotAPair(String),
    /// An unknown key.
    #[error("'{0}' is not a limit: there are rbps, wbps, riops, wiops, dirty_max and sync_isolation")]
    UnknownKey(String),
    /// Not a number.
    #[error(
        "{key}={value}: write a number of 1 or more, which may end in K, M or G (powers of 1024), or 'max'"
    )]
    NotANumber {
        /// The limit's name.
        key: &'static str,
        /// The given value.
        value: String,
    },
    /// Neither on nor off.
    #[error("{key}={value}: write 0 or 1")]
    NotASwitch {
        /// The setting's name.
        key: &'static str,
        /// The given value.
        value: String,
    },
    /// Not a path in the tree of cgroups.
    #[error("'{0}' is not a cgroup's path: it begins with / and has no empty, '.' or '..' part")]
    NotAPath(String),
}

/// Where a cgroup is in the tree, as in `/proc/PID/cgroup`: `/` is the root. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(Arc<str>);

impl CgroupPath {
    /// The root.
    #[must_use]
    pub fn root() -> Self {
        Self("/".into())
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `other`, or somewhere below it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/') || &*other.0 == "/";
        self.0.strip_prefix(&*other.0).is_some_and(below)
    }
}

/// A path that is known to be a cgroup's. Parts that are not UTF-8 are replaced.
impl From<&Path> for CgroupPath {
    fn from(path: &Path) -> Self {
        Self(path.to_string_lossy().into())
    }
}

impl FromStr for CgroupPath {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let bad = || LimitError::NotAPath(text.to_owned());
        let rest = text.strip_prefix('/').ok_or_else(bad)?;
        let rest = rest.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(rest);
        let is_odd = |part: &str| matches!(part, "" | "." | "..");
        if !rest.is_empty() && rest.split('/').any(is_odd) {
            return Err(bad());
        }
        Ok(Self(format!("/{rest}").into()))
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the store.
    Read,
    /// To the store.
    Write,
}

/// The limits of one cgroup on one store, by the second. `None` is `max`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes read.
    pub rbps: Option<NonZeroU64>,
    /// Bytes written.
    pub wbps: Option<NonZeroU64>,
    /// Calls of the store that read.
    pub riops: Option<NonZeroU64>,
    /// Calls of the store that write.
    pub wiops: Option<NonZeroU64>,
}

impl Limits {
    /// Changes the limits that `text` names (`wbps=1M riops=max`, separated by blanks or commas),
    /// and leaves the rest.
    ///
    /// # Errors
    /// [`LimitError`]; nothing is changed then.
    pub fn change(&mut self, text: &str) -> Result<(), LimitError> {
        let mut changed = *self;
        for pair in text.split([' ', ',', '\n']).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| LimitError::NotAPair(pair.to_owned()))?;
            let (key, limit) = changed.by_key(key).ok_or_else(|| LimitError::UnknownKey(key.to_owned()))?;
            *limit = number(key, value)?;
        }
        *self = changed;
        Ok(())
    }

    /// Nothing is limited.
    #[must_use]
    pub fn is_max(&self) -> bool {
        *self == Self::default()
    }

    fn by_key(&mut self, key: &str) -> Option<(&'static str, &mut Option<NonZeroU64>)> {
        match key {
            "rbps" => Some(("rbps", &mut self.rbps)),
            "wbps" => Some(("wbps", &mut self.wbps)),
            "riops" => Some(("riops", &mut self.riops)),
            "wiops" => Some(("wiops", &mut self.wiops)),
            _ => None,
        }
    }

    /// Bytes and operations a second, one way.
    #[must_use]
    pub fn of(&self, direction: Direction) -> [Option<NonZeroU64>; 2] {
        match direction {
            Direction::Read => [self.rbps, self.riops],
            Direction::Write => [self.wbps, self.wiops],
        }
    }
}

impl FromStr for Limits {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let mut limits = Self::default();
        limits.change(text)?;
        Ok(limits)
    }
}

/// As the kernel's `io.max`: all four, in bytes and operations.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [("rbps", self.rbps), ("wbps", self.wbps), ("riops", self.riops), ("wiops", self.wiops)];
        for (at, (key, limit)) in all.into_iter().enumerate() {
            f.write_str(if at == 0 { "" } else { " " })?;
            match limit {
                Some(limit) => write!(f, "{key}={limit}")?,
                None => write!(f, "{key}=max")?,
            }
        }
        Ok(())
    }
}

/// A number as limits have it: `max` is none.
///
/// # Errors
/// [`LimitError::NotANumber`].
pub fn number(key: &'static str, value: &str) -> Result<Option<NonZeroU64>, LimitError> {
    if value == "max" {
        return Ok(None);
    }
    let shift = match value.as_bytes().last() {
        Some(b'K' | b'k') => 10,
        Some(b'M' | b'm') => 20,
        Some(b'G' | b'g') => 30,
        _ => 0,
    };
    let digits = if shift == 0 { value } else { &value[..value.len() - 1] };
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let number = digits.parse::<u64>().ok().filter(|_| is_number);
    let number = number.and_then(|number| number.checked_mul(1 << shift)).and_then(NonZeroU64::new);
    let not_a_number = || LimitError::NotANumber { key, value: value.to_owned() };
    number.map(Some).ok_or_else(not_a_number)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_printed_as_io_max() {
        let mut limits: Limits = "wbps=1M riops=max,wiops=12".parse().unwrap();
        assert_eq!(limits.to_string(), "rbps=max wbps=1048576 riops=max wiops=12");
        limits.change("wbps=max rbps=2K").unwrap();
        assert_eq!(limits.to_string(), "rbps=2048 wbps=max riops=max wiops=12");
        assert_eq!(limits.to_string().parse(), Ok(limits));
    }

    #[test]
    fn what_is_wrong_is_said_and_changes_nothing() {
        let mut limits = Limits::default();
        for bad in ["wbps", "wbps=", "wbps=0", "wbps=-1", "wbps=1.5M", "wbps=+1", "wbps=M", "bps=1"] {
            let error = limits.change(&format!("rbps=1 {bad}")).unwrap_err().to_string();
            assert!(error.contains(bad.split('=').next().unwrap()), "{error}");
            assert!(limits.is_max());
        }
        assert!(limits.change("wbps=18446744073709551615G").is_err());
    }

    #[test]
    fn paths_know_what_is_below_them() {
        let path = |text: &str| text.parse::<CgroupPath>().unwrap();
        assert!(path("/a/b").is_within(&path("/a")) && path("/a").is_within(&path("/a/")));
        assert!(path("/a").is_within(&CgroupPath::root()) && path("/").is_within(&CgroupPath::root()));
        assert!(!path("/ab").is_within(&path("/a")) && !path("/").is_within(&path("/a")));
        for bad in ["", "a", "//", "/a//b", "/a/../b", "/."] {
            assert!(bad.parse::<CgroupPath>().is_err(), "{bad:?}");
        }
    }
}
