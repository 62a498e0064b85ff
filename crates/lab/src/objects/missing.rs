//! What another client finds in the bucket.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::bucket::Server;
use super::peers::Peer;
use super::subject::{Kind, Subject, said};
use crate::report::Metric;

pub(super) const MISSING: Metric = Metric::new("bytes_missing", "B");

/// What a work leaves behind, by the names of the files and their sizes.
pub(super) struct Expected {
    files: Vec<(String, u64)>,
    /// Where their contents are, if every volume has the same.
    contents: Option<PathBuf>,
}

/// The bytes of the expected files, and how many of them another client does not find.
pub(super) struct Found {
    pub(super) all: u64,
    pub(super) missing: u64,
}

impl Expected {
    /// The files of a tree, with their contents.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(super) fn tree(tree: &Path) -> anyhow::Result<Self> {
        Ok(Self { files: files(tree)?, contents: Some(tree.to_owned()) })
    }

    /// The files of a tree below a directory of this name, by their sizes alone.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(super) fn below(directory: &str, tree: &Path) -> anyhow::Result<Self> {
        let files = files(tree)?.into_iter().map(|(name, len)| (format!("{directory}/{name}"), len));
        Ok(Self { files: files.collect(), contents: None })
    }

    /// The files of a tree but some, by their sizes alone.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(super) fn sizes(tree: &Path, but: &[&str]) -> anyhow::Result<Self> {
        let mut files = files(tree)?;
        files.retain(|(name, _)| !but.contains(&name.as_str()));
        Ok(Self { files, contents: None })
    }
}

impl Subject {
    /// What another client finds of the expected files at this moment.
    ///
    /// # Errors
    /// If it cannot look.
    pub(super) fn find(&self, expected: &Expected, (server, name): (&Server, &str)) -> anyhow::Result<Found> {
        let missing = self.bytes_missing(expected, (server, name))?;
        Ok(Found { all: expected.files.iter().map(|(_, len)| len).sum(), missing })
    }

    fn bytes_missing(&self, expected: &Expected, (server, name): (&Server, &str)) -> anyhow::Result<u64> {
        match &self.kind {
            Kind::Ours { .. } => {
                let mounted = self.of_another_host(server)?.mount_elsewhere()?;
                let missing = missing_in(mounted.path(), expected);
                mounted.unmount()?;
                missing
            }
            Kind::Peer(Peer::Rclone { .. } | Peer::S3fs { .. }) => {
                Ok(missing_of(expected, server.objects(name)?))
            }
            Kind::Peer(Peer::Gcsfuse { server, .. }) => Ok(missing_of(expected, server.objects()?)),
            Kind::Peer(Peer::Juicefs { metadata, .. }) => {
                let output = Command::new(&self.program).args(["fsck", metadata]).output()?;
                if output.status.success() {
                    return Ok(0);
                }
                // `3 objects are lost (9000000 bytes), 3 broken files:`
                let said = said(&output);
                let lost =
                    said.split_once(" objects are lost (").and_then(|(_, rest)| rest.split_once(" bytes"));
                lost.and_then(|(bytes, _)| bytes.parse().ok())
                    .with_context(|| format!("juicefs fsck: {said}"))
            }
        }
    }
}

fn missing_of(expected: &Expected, found: Vec<(String, u64)>) -> u64 {
    let found: HashSet<_> = found.into_iter().collect();
    expected.files.iter().filter(|file| !found.contains(*file)).map(|(_, len)| len).sum()
}

fn missing_in(mounted: &Path, expected: &Expected) -> anyhow::Result<u64> {
    expected.files.iter().try_fold(0, |missing, (name, len)| {
        let found = mounted.join(name);
        let is_there = match &expected.contents {
            Some(tree) => fs::read(found).ok() == Some(fs::read(tree.join(name))?),
            None => found.metadata().is_ok_and(|found| found.len() == *len),
        };
        Ok(missing + if is_there { 0 } else { *len })
    })
}

/// The files of a tree, by their names in it, and their sizes.
fn files(tree: &Path) -> anyhow::Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(tree)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            files.extend(
                self::files(&entry.path())?.into_iter().map(|(below, len)| (format!("{name}/{below}"), len)),
            );
        } else {
            files.push((name, entry.metadata()?.len()));
        }
    }
    Ok(files)
}
