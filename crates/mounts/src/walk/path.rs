//! A path that is walked, with the symbolic links on its way.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::mount::{PathRef, VfsPath};

/// Symbolic links on the way of one walk.
const LINKS_MAX: usize = 40;

/// Where a walk begins.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// At the namespace's root.
    Root,
    /// At a pinned path. The mount may have left the namespace.
    Ref(&'a PathRef),
    /// At a path that was found before.
    Path(VfsPath),
}

impl<'a> From<&'a PathRef> for Base<'a> {
    fn from(pin: &'a PathRef) -> Self {
        Self::Ref(pin)
    }
}

impl From<VfsPath> for Base<'_> {
    fn from(place: VfsPath) -> Self {
        Self::Path(place)
    }
}

/// What to do with a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FinalSymlink {
    /// Go where it leads.
    #[default]
    Follow,
    /// End on it.
    Keep,
}

/// The rest of a path, with the targets of links that lie on it.
#[derive(Debug)]
pub(super) struct PathCursor<'p> {
    /// The text that is being walked; `at` is how far.
    text: Cow<'p, [u8]>,
    at: usize,
    /// The text that follows after it.
    outer: Vec<(Cow<'p, [u8]>, usize)>,
    links: usize,
}

/// The next name, in [`PathCursor::text`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Component {
    start: usize,
    end: usize,
}

impl<'p> PathCursor<'p> {
    pub(super) fn new(path: &'p Path) -> Self {
        Self { text: Cow::Borrowed(path.as_os_str().as_bytes()), at: 0, outer: Vec::new(), links: 0 }
    }

    /// The next name; nothing is taken.
    pub(super) fn peek(&mut self) -> Option<Component> {
        loop {
            while self.text.get(self.at) == Some(&b'/') {
                self.at += 1;
            }
            if self.at < self.text.len() {
                let len = self.text[self.at..].iter().position(|&byte| byte == b'/');
                let end = len.map_or(self.text.len(), |len| self.at + len);
                if &self.text[self.at..end] != b"." {
                    return Some(Component { start: self.at, end });
                }
                self.at = end;
                continue;
            }
            (self.text, self.at) = self.outer.pop()?;
        }
    }

    pub(super) fn name(&self, component: Component) -> &OsStr {
        OsStr::from_bytes(&self.text[component.start..component.end])
    }

    pub(super) fn advance(&mut self, component: Component) {
        self.at = component.end;
    }

    /// Whether the last name has to be a directory: something follows, if only a slash.
    pub(super) fn has_more(&self) -> bool {
        self.has_more_after(Component { start: self.at, end: self.at })
    }

    /// The question of [`has_more`](Self::has_more) for a name that was not taken yet.
    pub(super) fn has_more_after(&self, component: Component) -> bool {
        let follows = |(path, at): &(Cow<'_, [u8]>, usize)| *at < path.len();
        component.end < self.text.len() || self.outer.iter().any(follows)
    }

    /// Goes through a link's target first. Returns whether it begins at the root.
    pub(super) fn push_link(&mut self, target: PathBuf) -> Result<bool> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Error::TooManyLinks { max: LINKS_MAX });
        }
        let target = target.into_os_string().into_vec();
        let is_absolute = target.first() == Some(&b'/');
        let outer = std::mem::replace(&mut self.text, Cow::Owned(target));
        self.outer.push((outer, self.at));
        self.at = 0;
        Ok(is_absolute)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn components(path: &str) -> Vec<String> {
        let mut rest = PathCursor::new(Path::new(path));
        let mut components = Vec::new();
        while let Some(component) = rest.peek() {
            components.push(rest.name(component).to_string_lossy().into_owned());
            rest.advance(component);
        }
        components
    }

    #[test]
    fn slashes_and_dots_are_nothing() {
        assert_eq!(components("/a//b/./c/"), ["a", "b", "c"]);
        assert_eq!(components("."), [""; 0]);
        assert_eq!(components("//"), [""; 0]);
        assert_eq!(components(".a/..b/..."), [".a", "..b", "..."]);
    }

    #[test]
    fn a_link_comes_before_what_follows_it() {
        let mut rest = PathCursor::new(Path::new("a/b"));
        let a = rest.peek().unwrap();
        rest.advance(a);
        assert!(rest.has_more());
        assert_eq!(rest.push_link(PathBuf::from("/x/y")), Ok(true));
        let mut seen = Vec::new();
        while let Some(component) = rest.peek() {
            seen.push(rest.name(component).to_owned());
            rest.advance(component);
        }
        assert_eq!(seen, ["x", "y", "b"]);
        assert!(!rest.has_more());
    }

    #[test]
    fn links_are_counted() {
        let mut rest = PathCursor::new(Path::new("a"));
        assert!((0..LINKS_MAX).all(|_| rest.push_link(PathBuf::from("a")).is_ok()));
        assert_eq!(rest.push_link(PathBuf::from("a")), Err(Error::TooManyLinks { max: LINKS_MAX }));
    }
}
