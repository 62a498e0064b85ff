//! What is compared.

use std::path::Path;

use super::bucket::Server;
use super::subject::Subject;
use super::warm::DIRECTORY;

pub(super) const VARIANTS: [&str; 10] = [
    "default",
    "server",
    "journal",
    "disk",
    DIRECTORY,
    "accept",
    "recover",
    "rclone",
    "juicefs",
    "juicefs-writeback",
];
/// Those that no tree is put into.
const ALONE: [&str; 4] = ["server", "journal", "disk", DIRECTORY];

/// Whether a variant is a file system that is compared with all of ours.
pub(super) fn is_mounted(variant: &str) -> bool {
    !ALONE.contains(&variant)
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
