//! Others that mount a bucket, each as its users run it.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::gcs::{self, GcsServer};
use crate::volumes::peers::find;

/// A peer, and what it is given. What it keeps on this host is in the cache directory of its
/// subject.
pub(super) enum Peer {
    /// It keeps what is written, and uploads it seconds after a close.
    Rclone { remote: String, flags: Vec<String> },
    /// Its metadata are in a database on this host. With `writeback` it keeps what is written, and
    /// uploads it later.
    Juicefs { metadata: String, writeback: bool },
    /// A file is an object, which is uploaded at fsync(2) and close(2).
    S3fs { directory: String, endpoint: String },
    /// A file is an object of Google's protocol, which is uploaded at fsync(2) and close(2).
    Gcsfuse { server: GcsServer, endpoint: String },
}

impl Peer {
    /// Completes the command that serves its mount.
    pub(super) fn mount(&self, command: &mut Command, cache: &Path, at: &Path) {
        match self {
            Self::Rclone { remote, flags } => {
                command.arg("mount").arg(remote).arg(at).args(flags);
                command.args(["--vfs-cache-mode", "writes", "--cache-dir"]).arg(cache);
            }
            Self::Juicefs { metadata, writeback } => {
                command.args(["mount", "--no-usage-report", "--cache-dir"]).arg(cache);
                command.args(writeback.then_some("--writeback")).arg(metadata).arg(at);
            }
            Self::S3fs { directory, endpoint } => {
                command.arg(directory).arg(at).args(["-f", "-o"]);
                command.arg(format!("url={endpoint},use_path_request_style,endpoint=us-east-1"));
            }
            Self::Gcsfuse { endpoint, .. } => {
                command.args(["--foreground", "--implicit-dirs", "--anonymous-access", "--enable-hns=false"]);
                command.arg(format!("--custom-endpoint={endpoint}/storage/v1/")).arg(gcs::BUCKET).arg(at);
            }
        }
    }

    /// Whether it still has something on this host to be uploaded, which the next mount does.
    ///
    /// # Errors
    /// If its cache directory cannot be read.
    pub(super) fn has_something_to_upload(&self, cache: &Path) -> std::io::Result<bool> {
        match self {
            // `"Dirty":true` in the description of a file.
            Self::Rclone { .. } => any_file(&cache.join("vfsMeta"), &|path| {
                Ok(fs::read_to_string(path)?.replace(char::is_whitespace, "").contains("\"Dirty\":true"))
            }),
            Self::Juicefs { writeback: true, .. } => {
                any_file(cache, &|path| Ok(path.iter().any(|part| part == "rawstaging")))
            }
            Self::Juicefs { .. } | Self::S3fs { .. } | Self::Gcsfuse { .. } => Ok(false),
        }
    }
}

/// Whether one of the files below a directory, which need not be there, is of this kind.
fn any_file(directory: &Path, is_one: &dyn Fn(&Path) -> std::io::Result<bool>) -> std::io::Result<bool> {
    let gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let entries = match fs::read_dir(directory) {
        Err(error) if gone(&error) => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let found = if path.is_dir() { any_file(&path, is_one) } else { is_one(&path) };
        // The peer may remove a file meanwhile.
        match found {
            Ok(false) => {}
            Err(error) if gone(&error) => {}
            found => return found,
        }
    }
    Ok(false)
}

/// What it says of its version, in a line.
pub(super) fn version(peer: &str) -> Option<String> {
    let program = program(peer)?;
    let output = Command::new(find(program).ok()?).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned();
    Some(said).filter(|said| !said.is_empty())
}

fn program(peer: &str) -> Option<&'static str> {
    ["rclone", "juicefs", "s3fs", "gcsfuse"]
        .into_iter()
        .find(|program| peer.split('-').next() == Some(program))
}
