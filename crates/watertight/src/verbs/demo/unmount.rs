//! An unmount that tells the truth, beside one that does not.

use std::fs::File;
use std::time::Instant;

use rustix::mount::UnmountFlags;

use super::files::{Content, FILES, write_files};
use super::say::{failed, heading, step};
use super::stage::{Demo, Volume, live, succeeded};
use super::table::Table;
use crate::term::problem::{Problem, Result};
use crate::term::units;

/// The time of each write to the store, in milliseconds.
const DELAY_MS: u64 = 250;

pub(super) fn show(demo: &Demo, table: &mut Table) -> Result<()> {
    let delay = format!("write:delay={DELAY_MS}ms");
    // A user that may not mount gets that error before anything is promised.
    let plain = demo.mount_as("fuse", "plain", Some(&delay), "noatime")?;
    heading(&format!("Unmounting a store whose every write takes {DELAY_MS} ms, as over a slow network:"));
    let (written, _) = write_files(&plain.mountpoint)?;
    let begun = Instant::now();
    fuse::mount::unmount(&plain.mountpoint, UnmountFlags::empty(), true)
        .map_err(|error| failed("umount", &error))?;
    let without = begun.elapsed();
    let left = written.missing_from(&Content::of(&plain.store)?);
    step(&format!(
        "the kernel's unmount of a plain FUSE mount returned after {}: {left} of {FILES} files are not whole on the store",
        units::duration(without)
    ));
    let (waited, _) = live("watertight wait", || demo.run(&["wait"], &plain.mountpoint));
    succeeded("wait", &waited?)?;

    let volume = demo.mount("true", Some(&delay), "noatime")?;
    step(&volume.said);
    let (written, took) = write_files(&volume.mountpoint)?;
    step(&format!("wrote {} into it in {}", written.describe(), units::duration(took)));
    refused_while_open(demo, &volume)?;
    let with = demo.timed(&["umount"], &volume.mountpoint)?;
    let after = Content::of(&volume.store)?;
    let (is, should) = (after.checksum(), written.checksum());
    if after != written {
        let missing = written.missing_from(&after);
        return Err(Problem::failure(format!(
            "the store does not hold what was written: {missing} of {FILES} files differ ({is:016x}, not {should:016x})"
        )));
    }
    step(&format!(
        "`watertight umount` returned after {}: the store holds {}, checksum {is:016x} = {should:016x}",
        units::duration(with),
        after.describe()
    ));
    table.row("umount returns after", units::duration(without), units::duration(with));
    table.row("  files not on the store then", format!("{left} of {FILES}"), format!("0 of {FILES}"));
    table.note("Unmount, without: the kernel's own, of a plain FUSE mount.");
    Ok(())
}

fn refused_while_open(demo: &Demo, volume: &Volume) -> Result<()> {
    let held =
        File::open(volume.mountpoint.join("file-00")).map_err(|error| failed("opening a file", &error))?;
    let refused = demo.run(&["umount"], &volume.mountpoint)?;
    drop(held);
    if refused.status.success() {
        return Err(Problem::failure("the unmount should have been refused: a file was open"));
    }
    let said = String::from_utf8_lossy(&refused.stderr);
    let holder = said.lines().nth(1).unwrap_or("").trim();
    step(&format!("while a file is open, `watertight umount` refuses and names the holder:\n     {holder}"));
    Ok(())
}
