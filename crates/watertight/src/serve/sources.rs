//! Checks of the stores of a file: of their names alone, whenever the file is read, and of the
//! directories themselves where the file is only checked.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use crate::host::checks;
use crate::object_volumes;
use crate::term::shown::{Show as _, Shown};

/// The stores of a file so far.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Their directories, and the line of each. Paths inside a directory come right after it: none
    /// of thousands is compared with all.
    directories: BTreeMap<PathBuf, usize>,
    /// The volumes on object storage by their canonical URLs, and the line of each.
    urls: HashMap<String, usize>,
}

impl Sources {
    /// Checks the store `source` in this line, whose volume is to be at `place`.
    pub(super) fn add(&mut self, source: &str, line: usize, place: &Path) -> Result<(), String> {
        let (directory, url) = match named(source)? {
            StoreName::Memory => return Ok(()),
            StoreName::Directory(directory) => (Some(directory), None),
            StoreName::Url(url) => (object_volumes::directory(&url), Some(url)),
        };
        if let Some(url) = url {
            if let Some(line) = self.urls.get(&url) {
                return Err(is_taken(url.shown(), *line));
            }
            self.urls.insert(url, line);
        }
        let Some(directory) = directory else { return Ok(()) };
        let directory: PathBuf = directory.components().collect();
        checks::apart(&directory, place).map_err(|problem| problem.to_string())?;
        self.check_alone(&directory)?;
        self.directories.insert(directory, line);
        Ok(())
    }

    /// Refuses a directory that another line has, or that is inside one of another line, or around
    /// one.
    fn check_alone(&self, directory: &Path) -> Result<(), String> {
        let shown = directory.shown();
        if let Some(line) = self.directories.get(directory) {
            return Err(is_taken(shown, *line));
        }
        let around = directory.ancestors().skip(1).find_map(|dir| self.directories.get_key_value(dir));
        let from = (Bound::Excluded(directory), Bound::Unbounded);
        let inside =
            || self.directories.range::<Path, _>(from).next().filter(|(dir, _)| dir.starts_with(directory));
        if let Some((other, line)) = around.or_else(inside) {
            let there = other.shown();
            return Err(format!(
                "the store {shown} and that of line {line}, {there}, lie one in the other: \
                 two caches over the same files would not see each other's data"
            ));
        }
        Ok(())
    }
}

/// Looks at the directories: each has to exist, and two names may lead to one. `stores` are the
/// sources and places with their lines. Returns the first mistake, with its line.
pub(super) fn look<'a>(
    stores: impl IntoIterator<Item = (usize, &'a str, &'a Path)>,
) -> Result<(), (usize, String)> {
    let mut sources = Sources::default();
    for (line, source, place) in stores {
        let wrong = |what: String| (line, what);
        let found = checks::source(source).map_err(|problem| wrong(problem.to_string()))?;
        // A mountpoint may be made later; where it is there, a link may lead into the store.
        let place = place.canonicalize().unwrap_or_else(|_| place.to_owned());
        sources.add(&found.spec, line, &place).map_err(wrong)?;
    }
    Ok(())
}

fn is_taken(store: Shown<'_>, line: usize) -> String {
    format!("the store {store} is that of line {line} already: a store has one volume")
}

/// The store that a source names.
enum StoreName {
    /// One of its own, whatever the name.
    Memory,
    Directory(PathBuf),
    /// Canonical.
    Url(String),
}

fn named(source: &str) -> Result<StoreName, String> {
    if object_volumes::looks_like(source) {
        let url = object_volumes::canonical(source).map_err(|problem| problem.to_string())?;
        return Ok(if checks::identity_of(&url).is_some() { StoreName::Url(url) } else { StoreName::Memory });
    }
    let path = match source.split_once(':') {
        Some(("mem", _)) => return Ok(StoreName::Memory),
        Some(("dir", path)) => path,
        Some(("fault", rest)) => {
            let inner = rest.split_once(',').ok_or("a store with faults is fault:RULES,SOURCE")?.1;
            return named(inner);
        }
        Some((scheme, _)) if !scheme.contains('/') => {
            return Err(format!(
                "there is no kind of store {}:; give a directory, dir:DIRECTORY, mem:, mem:size=1G or s3://BUCKET/PREFIX",
                scheme.shown()
            ));
        }
        _ => source,
    };
    if Path::new(path).is_absolute() {
        return Ok(StoreName::Directory(PathBuf::from(path)));
    }
    Err(format!("source {} is not an absolute path: it has to begin with /", path.shown()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each in turn is compared with the earlier ones, in every order; a name that another one
    /// begins with is a parent of that only where a `/` follows.
    #[test]
    fn those_that_are_in_one_another_are_found_in_every_order() {
        const NAMES: [&str; 7] = ["/s", "/s-b", "/s/in", "/s/in/deep", "/s/in-b", "/s.d/x", "/t"];
        let lies_in = |one: &str, other: &str| one.starts_with(&format!("{other}/"));
        let is_in = |one: &str, other: &str| one == other || lies_in(one, other) || lies_in(other, one);
        for start in 0..NAMES.len() {
            for step in 1..NAMES.len() {
                let names = (0..2 * NAMES.len()).map(|n| NAMES[(start + n * step) % NAMES.len()]);
                let (mut sources, mut taken) = (Sources::default(), Vec::new());
                for (line, name) in names.enumerate() {
                    let added = sources.add(name, line, Path::new("/mnt"));
                    let is_alone = !taken.iter().any(|&(_, other)| is_in(name, other));
                    assert_eq!(added.is_ok(), is_alone, "{name} after {taken:?}: {added:?}");
                    match added {
                        Ok(()) => taken.push((line, name)),
                        // The line that is named is one of those.
                        Err(said) => assert!(
                            taken.iter().any(|(line, other)| is_in(name, other)
                                && said.contains(&format!("of line {line}"))),
                            "{name} after {taken:?}: {said}"
                        ),
                    }
                }
            }
        }
    }

    #[cfg(feature = "objects")]
    #[test]
    fn two_urls_of_one_volume_are_found_and_memory_is_always_another() {
        let mut sources = Sources::default();
        let mut add = |source: &str, line: usize| sources.add(source, line, Path::new("/mnt"));
        add("s3://bucket/a", 1).unwrap();
        add("s3://bucket/b", 2).unwrap();
        add("gs://bucket/a", 3).unwrap();
        add("memory://x", 4).unwrap();
        add("memory://x", 5).unwrap();
        add("file:///srv/a", 6).unwrap();
        for (source, said) in [
            ("s3://bucket//a/", "is that of line 1 already"),
            ("fault:write:hang,s3://bucket/b", "is that of line 2 already"),
            ("file:///srv//a/", "is that of line 6 already"),
            ("/srv/a/b", "lie one in the other"),
            ("file:///mnt", "are the same directory"),
            ("s3://", "bucket"),
        ] {
            let what = add(source, 9).unwrap_err();
            assert!(what.contains(said), "{source}: {what}");
        }
    }

    #[test]
    fn two_names_of_one_directory_and_one_that_is_not_there_are_found_by_looking() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let [real, link] = [real, link].map(|path| path.to_str().unwrap().to_owned());
        let place = |n: usize| PathBuf::from(format!("/mnt/{n}"));
        let places = [place(1), place(2)];
        let both = [(1, real.as_str(), places[0].as_path()), (5, link.as_str(), places[1].as_path())];
        assert!(look(both[..1].iter().copied()).is_ok() && look(both[1..].iter().copied()).is_ok());
        let (line, what) = look(both).unwrap_err();
        assert!(line == 5 && what.contains("is that of line 1 already"), "{line}: {what}");
        let gone = format!("{real}/none");
        let (line, what) = look([(7, gone.as_str(), places[0].as_path())]).unwrap_err();
        assert!(line == 7 && what.contains("does not exist"), "{line}: {what}");
        // By the link the mountpoint is inside the store.
        let inside = format!("{link}/in");
        std::fs::create_dir(&inside).unwrap();
        let (_, what) = look([(3, real.as_str(), Path::new(&inside))]).unwrap_err();
        assert!(what.contains("lies inside the source"), "{what}");
    }
}
