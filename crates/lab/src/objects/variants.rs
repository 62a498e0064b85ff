//! What is compared.

use std::path::Path;

use super::bucket::Server;
use super::peers::version;
use super::subject::Subject;
use super::warm::DIRECTORY;

/// The default first. The peers are those behind `recover`.
pub(super) const VARIANTS: [&str; 12] = [
    "default",
    "server",
    "journal",
    "disk",
    DIRECTORY,
    "accept",
    "recover",
    "rclone",
    "s3fs",
    "gcsfuse",
    "juicefs",
    "juicefs-writeback",
];
/// Those that are no file system that is compared with all of ours.
const NOT_MOUNTED: [&str; 3] = ["server", "disk", DIRECTORY];

/// Whether a variant is a file system that is compared with all of ours.
pub(super) fn is_mounted(variant: &str) -> bool {
    !NOT_MOUNTED.contains(&variant)
}

/// What is said of each peer: its version, and when an fsync has returned.
pub(super) fn notes(variants: &[&str]) -> Vec<String> {
    let said = |variant: &&str| {
        let acknowledges = match *variant {
            "rclone" => "an fsync is on this host; --vfs-cache-mode writes",
            "s3fs" => "an fsync is in the bucket",
            "gcsfuse" => "an fsync is in the bucket, on a server of its own in memory: fake-gcs-server",
            "juicefs" => "an fsync is in the bucket, its metadata in a database on this host",
            "juicefs-writeback" => "an fsync is on this host, as its metadata are",
            _ => return None,
        };
        Some(format!("{variant}: {}; {acknowledges}", version(variant)?))
    };
    variants.iter().filter_map(said).collect()
}

/// A new volume of ours, or of a peer's.
///
/// # Errors
/// If it cannot be made, or the peer is not installed.
pub(super) fn mount_of(
    variant: &str,
    (program, server, scratch): (&Path, &Server, &Path),
    name: &str,
) -> anyhow::Result<Subject> {
    match variant {
        "accept" => Subject::ours_with_journal(program, server, scratch, name, "accept_to=host,uring=off"),
        "recover" => Subject::ours_with_journal(program, server, scratch, name, "recover=on"),
        "journal" => Subject::ours_with_journal(program, server, scratch, name, "fsync_to=host"),
        "rclone" => Subject::rclone(server, scratch, name),
        "s3fs" => Subject::s3fs(server, scratch, name),
        "gcsfuse" => Subject::gcsfuse(server, scratch, name),
        "juicefs" => Subject::juicefs(server, scratch, name, false),
        "juicefs-writeback" => Subject::juicefs(server, scratch, name, true),
        _ => Subject::ours(program, server, scratch, name),
    }
}
