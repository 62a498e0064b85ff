//! What is compared.

use std::path::Path;

use super::bucket::Server;
use super::subject::Subject;

pub(super) const VARIANTS: [&str; 9] =
    ["default", "server", "journal", "disk", "accept", "recover", "rclone", "juicefs", "juicefs-writeback"];
/// Those that an fsync alone is measured of.
const FSYNC_ALONE: [&str; 3] = ["server", "journal", "disk"];

/// Whether a variant is a file system.
pub(super) fn is_mounted(variant: &str) -> bool {
    !FSYNC_ALONE.contains(&variant)
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
        "rclone" => Subject::rclone(server, scratch, name),
        "juicefs" => Subject::juicefs(server, scratch, name, false),
        "juicefs-writeback" => Subject::juicefs(server, scratch, name, true),
        _ => Subject::ours(program, server, scratch, name),
    }
}
