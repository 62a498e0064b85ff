//! Two trees compared bit for bit.
//!
//! Compared: names, kinds, permission bits, owners, sizes, contents, targets, device numbers,
//! modification times to the nanosecond, extended attributes with their values, which names share
//! an inode, and how much of a file is a hole.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, lgetxattr, llistxattr};

/// What to leave out of a comparison.
#[derive(Debug, Clone, Copy)]
pub struct Compare {
    /// Compare modification times of everything.
    pub times: bool,
    /// Compare owners.
    pub owners: bool,
    /// Compare which parts are holes, exactly; otherwise only that not much more is allocated.
    pub exact_holes: bool,
}

impl Default for Compare {
    fn default() -> Self {
        Self { times: true, owners: true, exact_holes: true }
    }
}

/// How much more a file may have allocated where holes are not compared exactly: a copier may find
/// a hole only in its own block size.
const HOLE_SLACK: u64 = 256 << 10;

/// Everything that differs between the trees at `left` and `right`, empty if they are equal.
///
/// # Panics
/// When one of them cannot be read.
#[must_use]
pub fn differences(left: &Path, right: &Path, how: Compare) -> Vec<String> {
    let (a, b) = (walk(left), walk(right));
    let mut found = Vec::new();
    let names: BTreeSet<&PathBuf> = a.keys().chain(b.keys()).collect();
    for name in names {
        match (a.get(name), b.get(name)) {
            (Some(a), Some(b)) => {
                compare(name, (&left.join(name), a), (&right.join(name), b), how, &mut found)
            }
            (Some(_), None) => found.push(format!("{name:?}: only in {}", left.display())),
            (None, _) => found.push(format!("{name:?}: only in {}", right.display())),
        }
    }
    let (a, b) = (groups(&a), groups(&b));
    for group in a.symmetric_difference(&b) {
        let side = if a.contains(group) { left } else { right };
        found.push(format!("{group:?}: one file only in {}", side.display()));
    }
    found
}

/// Fails with everything that differs.
///
/// # Panics
/// When something does.
pub fn assert_same(what: &str, left: &Path, right: &Path, how: Compare) {
    let found = differences(left, right, how);
    assert!(
        found.is_empty(),
        "{what}: {} and {} differ in {} points:\n{}",
        left.display(),
        right.display(),
        found.len(),
        found.join("\n")
    );
}

/// The attributes of everything below `root`, and of `root` itself under the empty name.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn walk(root: &Path) -> BTreeMap<PathBuf, Metadata> {
    let mut found = BTreeMap::new();
    let mut queue = vec![PathBuf::new()];
    while let Some(name) = queue.pop() {
        let path = at(root, &name);
        let meta =
            std::fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("lstat {}: {e}", path.display()));
        if meta.is_dir() {
            let entries =
                std::fs::read_dir(&path).unwrap_or_else(|e| panic!("readdir {}: {e}", path.display()));
            for entry in entries {
                let entry = entry.unwrap_or_else(|e| panic!("readdir {}: {e}", path.display()));
                queue.push(name.join(entry.file_name()));
            }
        }
        assert!(found.insert(name, meta).is_none(), "{}: listed twice", path.display());
    }
    found
}

/// A checksum over names, kinds, sizes and contents of everything below `root`.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn checksum(root: &Path) -> u64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hash = DefaultHasher::new();
    for (name, meta) in walk(root) {
        hash.write(name.as_os_str().as_bytes());
        hash.write_u32(meta.mode() & libc::S_IFMT);
        if meta.is_file() {
            let path = at(root, &name);
            let data = std::fs::read(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
            hash.write_usize(data.len());
            hash.write(&data);
        }
    }
    hash.finish()
}

/// All extended attributes of `path` itself, never of what a symbolic link points to.
///
/// # Panics
/// When they cannot be read.
#[must_use]
pub fn xattrs(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len = match llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(e) => panic!("listxattr {}: {e}", path.display()),
    };
    names.truncate(len);
    names
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let key = CString::new(name).expect("split at NUL");
            let mut value = vec![0; 64 << 10];
            let len = lgetxattr(path, &key, &mut value[..])
                .unwrap_or_else(|e| panic!("getxattr {key:?} of {}: {e}", path.display()));
            value.truncate(len);
            (OsStr::from_bytes(name).to_owned(), value)
        })
        .collect()
}

/// The data segments of a file, as `(start, end)`.
///
/// # Panics
/// When lseek(2) fails in another way than finding nothing.
#[must_use]
pub fn segments(file: &File) -> Vec<(u64, u64)> {
    let seek = |how| match rustix::fs::seek(file, how) {
        Ok(at) => Some(at),
        Err(rustix::io::Errno::NXIO) => None,
        Err(e) => panic!("lseek {how:?}: {e}"),
    };
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = seek(SeekFrom::Data(from)) {
        let Some(end) = seek(SeekFrom::Hole(start)) else { break };
        assert!(end > start, "lseek found a hole at {end} in the data that begins at {start}");
        found.push((start, end));
        from = end;
    }
    found
}

fn at(root: &Path, name: &Path) -> PathBuf {
    // join with an empty name would add a slash, which follows a symbolic link.
    if name.as_os_str().is_empty() { root.to_owned() } else { root.join(name) }
}

fn compare(
    name: &Path,
    (a_path, a): (&Path, &Metadata),
    (b_path, b): (&Path, &Metadata),
    how: Compare,
    found: &mut Vec<String>,
) {
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{name:?}: {what}: {a} and {b}"));
        }
    };
    differ("mode", format!("{:o}", a.mode()), format!("{:o}", b.mode()));
    if how.owners {
        differ("owner", format!("{}:{}", a.uid(), a.gid()), format!("{}:{}", b.uid(), b.gid()));
    }
    if how.times {
        let time = |m: &Metadata| format!("{}.{:09}", m.mtime(), m.mtime_nsec());
        differ("mtime", time(a), time(b));
    }
    differ("xattrs", format!("{:?}", xattrs(a_path)), format!("{:?}", xattrs(b_path)));
    if a.mode() & libc::S_IFMT != b.mode() & libc::S_IFMT {
        return;
    }
    let kind = a.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        differ("device", a.rdev().to_string(), b.rdev().to_string());
    }
    if kind.is_symlink() {
        let target = |p: &Path| format!("{:?}", std::fs::read_link(p).expect("readlink"));
        differ("target", target(a_path), target(b_path));
    }
    if kind.is_file() {
        differ("size", a.len().to_string(), b.len().to_string());
        differ("links", a.nlink().to_string(), b.nlink().to_string());
        compare_files(name, (a_path, a), (b_path, b), how, found);
    }
}

fn compare_files(
    name: &Path,
    (a_path, a): (&Path, &Metadata),
    (b_path, b): (&Path, &Metadata),
    how: Compare,
    found: &mut Vec<String>,
) {
    let open = |path: &Path| File::open(path).unwrap_or_else(|e| panic!("open {}: {e}", path.display()));
    let (a_file, b_file) = (open(a_path), open(b_path));
    if how.exact_holes {
        let (a_data, b_data) = (segments(&a_file), segments(&b_file));
        if a_data != b_data {
            found.push(format!("{name:?}: data at {a_data:?} and {b_data:?}"));
        }
    }
    if b.blocks() * 512 > a.blocks() * 512 + HOLE_SLACK {
        found.push(format!("{name:?}: {} blocks and {}", a.blocks(), b.blocks()));
    }
    let (mut a_part, mut b_part) = (vec![0; 256 << 10], vec![0; 256 << 10]);
    let mut offset = 0;
    loop {
        let read = |file: &File, path: &Path, part: &mut [u8]| {
            let mut have = 0;
            while have < part.len() {
                match file.read_at(&mut part[have..], offset + have as u64) {
                    Ok(0) => break,
                    Ok(n) => have += n,
                    Err(e) => panic!("read {}: {e}", path.display()),
                }
            }
            have
        };
        let n = read(&a_file, a_path, &mut a_part);
        let m = read(&b_file, b_path, &mut b_part);
        if a_part[..n] != b_part[..m] {
            let bad = (0..n.min(m)).find(|i| a_part[*i] != b_part[*i]).unwrap_or(n.min(m));
            found.push(format!("{name:?}: contents differ from byte {} on", offset + bad as u64));
            return;
        }
        if n == 0 {
            return;
        }
        offset += n as u64;
    }
}

/// The sets of names that share one inode.
fn groups(tree: &BTreeMap<PathBuf, Metadata>) -> BTreeSet<Vec<PathBuf>> {
    let mut by_inode: BTreeMap<(u64, u64), Vec<PathBuf>> = BTreeMap::new();
    for (name, meta) in tree {
        if !meta.is_dir() {
            by_inode.entry((meta.dev(), meta.ino())).or_default().push(name.clone());
        }
    }
    by_inode.into_values().filter(|names| names.len() > 1).collect()
}
