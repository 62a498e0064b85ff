//! A volume in a bucket: what another host finds there at the moment an unmount returns.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::bucket::{Bucket, in_path};
use super::files::{Content, write_synced_files};
use super::say::{failed, heading, step};
use super::stage::{Demo, live, succeeded};
use super::table::Table;
use crate::term::problem::{Problem, Result};
use crate::term::units;

/// How long a mount of rclone's may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The exit code of rclone where a directory is not there: a bucket has none without objects.
const RCLONE_NOTHING_THERE: i32 = 3;
/// The pause between two looks whether it is there.
const LOOK: Duration = Duration::from_millis(20);

pub(super) fn show(demo: &Demo) -> Result<()> {
    let bucket = Bucket::start(demo)?;
    let url = bucket.url("volume");
    heading(&format!("A volume on object storage, in {}:", bucket.describe()));
    let mut format = demo.command("format");
    let (formatted, took) =
        live("watertight format", || format.arg(&url).envs(bucket.environment()).output());
    succeeded("format", &formatted.map_err(|error| failed("format", &error))?)?;
    step(&format!("`watertight format {url}` made it in {}", units::duration(took)));

    let here = demo.mount_url(&url, "here", "run", bucket.environment())?;
    step(&here.said);
    let (written, took) = write_synced_files(&here.mountpoint)?;
    step(&format!("wrote {} into it in {}, each file fsynced", written.describe(), units::duration(took)));
    let with = demo.timed(&["umount"], &here.mountpoint)?;
    // A host of its own: it knows nothing of the first.
    let there = demo.mount_url(&url, "there", "run-of-another-host", bucket.environment())?;
    let found = Content::of(&there.mountpoint)?;
    let missing = written.bytes_missing_from(&found);
    step(&format!(
        "`watertight umount` returned after {}; mounted elsewhere at once, the bucket has {}: {missing} bytes are missing",
        units::duration(with),
        found.describe()
    ));
    let mut umount = demo.command_of("run-of-another-host", "umount");
    let umounted = umount.arg(&there.mountpoint).output().map_err(|error| failed("umount", &error))?;
    succeeded("umount", &umounted)?;
    if found != written {
        return Err(Problem::failure(format!(
            "the bucket does not have what was written: {missing} bytes differ"
        )));
    }

    let mut table = Table::beside("rclone");
    match rclone(demo, &bucket, &written) {
        Ok(Some((without, missing))) => {
            step(&format!(
                "`umount` of `rclone mount --vfs-cache-mode writes` returned after {}: of the same files, {missing} bytes are missing in the bucket",
                units::duration(without)
            ));
            table.row("umount returns after", units::duration(without), units::duration(with));
            table.row("  bytes missing in the bucket then", missing.to_string(), "0");
            table.note("rclone: the kernel's umount of `rclone mount --vfs-cache-mode writes`, same files.");
        }
        not_shown => {
            table.row("umount returns after", "", units::duration(with));
            table.row("  bytes missing in the bucket then", "", "0");
            match not_shown {
                Err(why) => table.note(&format!("rclone cannot be shown beside it: {why}")),
                Ok(_) => table.note("rclone is not installed, beside which this could be shown."),
            }
        }
    }
    table.print();
    Ok(())
}

/// The same files by way of rclone: how long umount(2) took, and how many bytes the bucket has not
/// when it returns. `None`: it is not installed.
fn rclone(demo: &Demo, bucket: &Bucket, expected: &Content) -> Result<Option<(Duration, u64)>> {
    let Some(program) = in_path("rclone") else { return Ok(None) };
    let mountpoint = demo.path("mnt").join("rclone");
    fs::create_dir(&mountpoint).map_err(|error| failed("making a directory", &error))?;
    let rclone = |verb: &str| {
        let mut command = demo.program(&program);
        command.arg(verb).args(["--config", "/dev/null"]).envs(bucket.rclone_environment());
        command
    };
    let mut mount = rclone("mount");
    mount.arg(bucket.rclone_remote()).arg(&mountpoint).args(["--vfs-cache-mode", "writes", "--cache-dir"]);
    mount.arg(demo.path("rclone-cache"));
    let mut process = demo.start_quietly(mount, Some(&mountpoint), "rclone.log")?;
    let until = Instant::now() + PATIENCE;
    while !is_mounted(&mountpoint) {
        if Instant::now() > until || process.has_ended()? {
            return Err(failed("rclone", &process.log()));
        }
        // No event tells when another program has mounted.
        std::thread::sleep(LOOK);
    }
    let (written, _) = write_synced_files(&mountpoint)?;
    let begun = Instant::now();
    fuse::mount::unmount(&mountpoint, UnmountFlags::empty(), true)
        .map_err(|error| failed("umount", &error))?;
    let took = begun.elapsed();
    let copy = demo.path("rclone-found");
    fs::create_dir(&copy).map_err(|error| failed("making a directory", &error))?;
    let found = rclone("copy").args(["--retries", "1"]).arg(bucket.rclone_remote()).arg(&copy).output();
    let found = found.map_err(|error| failed("rclone copy", &error))?;
    if found.status.code() != Some(RCLONE_NOTHING_THERE) {
        succeeded("rclone copy", &found)?;
    }
    debug_assert!(written == *expected, "the same files");
    Ok(Some((took, written.bytes_missing_from(&Content::of(&copy)?))))
}

fn is_mounted(mountpoint: &Path) -> bool {
    crate::host::mountinfo::MountTable::read().at(mountpoint).is_some()
}
