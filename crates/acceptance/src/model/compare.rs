//! The model's tree and a real one.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use super::tree::ROOT;
use super::{Id, Kind, Model, Node};
use crate::tree::xattrs;

/// Everything below `root` that is not as in the model, or the reverse.
#[must_use]
pub fn differences(model: &Model, root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut inodes = BTreeMap::new();
    directory(model, ROOT, root, root, &mut inodes, &mut found);
    found
}

fn directory(
    model: &Model,
    id: Id,
    at: &Path,
    root: &Path,
    inodes: &mut BTreeMap<Id, u64>,
    found: &mut Vec<String>,
) {
    let shown = at.strip_prefix(root).unwrap_or(at);
    let Kind::Dir(entries) = &model.node(id).kind else { unreachable!("only directories are listed") };
    let listed = match list(at) {
        Ok(listed) => listed,
        Err(e) => {
            found.push(format!("{shown:?}: cannot be listed: {e}"));
            return;
        }
    };
    for name in listed.iter().filter(|name| !entries.contains_key(*name)) {
        found.push(format!("{:?}: is not in the model", shown.join(std::ffi::OsStr::from_bytes(name))));
    }
    for (name, child) in entries {
        let path = at.join(std::ffi::OsStr::from_bytes(name));
        let shown = shown.join(std::ffi::OsStr::from_bytes(name));
        if !listed.contains(name) {
            found.push(format!("{shown:?}: is not listed"));
        }
        let meta = match std::fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(e) => {
                found.push(format!("{shown:?}: {e}"));
                continue;
            }
        };
        let node = model.node(*child);
        for wrong in attributes(node, &meta) {
            found.push(format!("{shown:?}: {wrong}"));
        }
        if *inodes.entry(*child).or_insert(meta.ino()) != meta.ino() {
            found.push(format!("{shown:?}: another inode than its other name"));
        }
        for wrong in content(node, &path) {
            found.push(format!("{shown:?}: {wrong}"));
        }
        if matches!(node.kind, Kind::Dir(_)) && meta.is_dir() {
            directory(model, *child, &path, root, inodes, found);
        }
    }
}

/// What of `meta` is not as in `node`.
pub(super) fn attributes(node: &Node, meta: &Metadata) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, model: String, real: String| {
        if model != real {
            found.push(format!("{what} is {real}, not {model}"));
        }
    };
    let kind = meta.file_type();
    let (expected, is) = match &node.kind {
        Kind::File(_) => ("a file", kind.is_file()),
        Kind::Dir(_) => ("a directory", kind.is_dir()),
        Kind::Symlink(_) => ("a symbolic link", kind.is_symlink()),
        Kind::Fifo => ("a fifo", kind.is_fifo()),
    };
    differ("kind", expected.to_owned(), if is { expected.to_owned() } else { format!("{kind:?}") });
    differ("mode", format!("{:o}", node.perm), format!("{:o}", meta.mode() & 0o7777));
    differ("owner", format!("{}:{}", node.uid, node.gid), format!("{}:{}", meta.uid(), meta.gid()));
    if let Kind::File(data) = &node.kind {
        differ("size", data.len().to_string(), meta.len().to_string());
    }
    if !matches!(node.kind, Kind::Dir(_)) {
        differ("link count", node.nlink.to_string(), meta.nlink().to_string());
    }
    if let Some((secs, nanos)) = node.mtime {
        differ("mtime", format!("{secs}.{nanos:09}"), format!("{}.{:09}", meta.mtime(), meta.mtime_nsec()));
    }
    found
}

fn content(node: &Node, path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    match &node.kind {
        Kind::File(data) => match std::fs::read(path) {
            Ok(real) => found.extend(bytes(data, &real)),
            Err(e) => found.push(format!("cannot be read: {e}")),
        },
        Kind::Symlink(target) => match std::fs::read_link(path) {
            Ok(real) if real == Path::new(target) => {}
            real => found.push(format!("leads to {real:?}, not {target:?}")),
        },
        Kind::Dir(_) | Kind::Fifo => {}
    }
    let expected: BTreeMap<_, _> = node.xattrs.iter().map(|(k, v)| (k.clone().into(), v.clone())).collect();
    let mut real = xattrs(path);
    // Others may belong to the host: SELinux labels, for one.
    real.retain(|name, _| name.as_bytes().starts_with(b"user."));
    if real != expected {
        found.push(format!("xattrs are {real:?}, not {expected:?}"));
    }
    found
}

/// Where `real` is not `model`.
pub(super) fn bytes(model: &[u8], real: &[u8]) -> Option<String> {
    if model == real {
        return None;
    }
    let at = model.iter().zip(real).position(|(m, r)| m != r).unwrap_or(model.len().min(real.len()));
    let end = model.iter().zip(real).rposition(|(m, r)| m != r).map_or(at, |end| end + 1);
    Some(format!(
        "bytes {at}..{end} differ, first {:?}, not {:?}; {} bytes, not {}",
        real.get(at),
        model.get(at),
        real.len(),
        model.len()
    ))
}

fn list(dir: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().as_bytes().to_vec())).collect()
}
