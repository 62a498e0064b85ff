//! A path that is walked, with the symbolic links on its way.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Symbolic links on the way of one walk.
const LINKS_MAX: usize = 40;

/// The rest of a path.
#[derive(Debug)]
pub(super) struct Rest<'p> {
    /// The text that is being walked; `at` is how far.
    now: Cow<'p, [u8]>,
    at: usize,
    /// The text that follows after it.
    outer: Vec<(Cow<'p, [u8]>, usize)>,
    links: usize,
}

/// The next name, in [`Rest::now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    start: usize,
    end: usize,
}

impl<'p> Rest<'p> {
    pub(super) fn new(path: &'p Path) -> Self {
        Self { now: Cow::Borrowed(path.as_os_str().as_bytes()), at: 0, outer: Vec::new(), links: 0 }
    }

    /// The next name; nothing is taken.
    pub(super) fn peek(&mut self) -> Option<Part> {
        loop {
            while self.now.get(self.at) == Some(&b'/') {
                self.at += 1;
            }
            if self.at < self.now.len() {
                let len = self.now[self.at..].iter().position(|&byte| byte == b'/');
                let end = len.map_or(self.now.len(), |len| self.at + len);
                if &self.now[self.at..end] != b"." {
                    return Some(Part { start: self.at, end });
                }
                self.at = end;
                continue;
            }
            (self.now, self.at) = self.outer.pop()?;
        }
    }

    pub(super) fn name(&self, part: Part) -> &OsStr {
        OsStr::from_bytes(&self.now[part.start..part.end])
    }

    pub(super) fn take(&mut self, part: Part) {
        self.at = part.end;
    }

    /// Whether the last name has to be a directory: something follows, if only a slash.
    pub(super) fn goes_on(&self) -> bool {
        self.goes_on_after(Part { start: self.at, end: self.at })
    }

    /// The question of [`goes_on`](Self::goes_on) for a name that was not taken yet.
    pub(super) fn goes_on_after(&self, part: Part) -> bool {
        let follows = |(path, at): &(Cow<'_, [u8]>, usize)| *at < path.len();
        part.end < self.now.len() || self.outer.iter().any(follows)
    }

    /// Goes through a link's target first. Returns whether it begins at the root.
    pub(super) fn follow(&mut self, target: PathBuf) -> Result<bool> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Error::TooManyLinks { max: LINKS_MAX });
        }
        let target = target.into_os_string().into_vec();
        let is_absolute = target.first() == Some(&b'/');
        let outer = std::mem::replace(&mut self.now, Cow::Owned(target));
        self.outer.push((outer, self.at));
        self.at = 0;
        Ok(is_absolute)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn parts(path: &str) -> Vec<String> {
        let mut rest = Rest::new(Path::new(path));
        let mut parts = Vec::new();
        while let Some(part) = rest.peek() {
            parts.push(rest.name(part).to_string_lossy().into_owned());
            rest.take(part);
        }
        parts
    }

    #[test]
    fn slashes_and_dots_are_nothing() {
        assert_eq!(parts("/a//b/./c/"), ["a", "b", "c"]);
        assert_eq!(parts("."), [""; 0]);
        assert_eq!(parts("//"), [""; 0]);
        assert_eq!(parts(".a/..b/..."), [".a", "..b", "..."]);
    }

    #[test]
    fn a_link_comes_before_what_follows_it() {
        let mut rest = Rest::new(Path::new("a/b"));
        let a = rest.peek().unwrap();
        rest.take(a);
        assert!(rest.goes_on());
        assert_eq!(rest.follow(PathBuf::from("/x/y")), Ok(true));
        let mut seen = Vec::new();
        while let Some(part) = rest.peek() {
            seen.push(rest.name(part).to_owned());
            rest.take(part);
        }
        assert_eq!(seen, ["x", "y", "b"]);
        assert!(!rest.goes_on());
    }

    #[test]
    fn links_are_counted() {
        let mut rest = Rest::new(Path::new("a"));
        assert!((0..LINKS_MAX).all(|_| rest.follow(PathBuf::from("a")).is_ok()));
        assert_eq!(rest.follow(PathBuf::from("a")), Err(Error::TooManyLinks { max: LINKS_MAX }));
    }
}
