//! A store that does not answer, and its neighbours.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::say::{failed, heading, step};
use super::stage::{Demo, Volume, live};
use super::table::Table;
use crate::term::problem::Result;
use crate::term::units;

/// The bytes that are written to each volume.
const BYTES: usize = 4 << 20;
/// Nothing here takes longer, or something is wrong.
const LONG: Duration = Duration::from_secs(20);

pub(super) fn show(demo: &Demo, table: &mut Table) -> Result<()> {
    heading("A store that stops answering:");
    let alone = beside(demo)?;
    let stalled = demo.mount("stalled", Some("write:hang"), "stall_after=300ms,dirty_after=1h")?;
    write(&stalled)?;
    let mut events = demo.command("events");
    events.arg("--json").arg(&stalled.mountpoint);
    let heard = heard(demo.start(events)?);
    let begun = Instant::now();
    let mut sync = demo.command("sync");
    sync.arg(&stalled.mountpoint).stderr(Stdio::null());
    let answered = answered(demo.start(sync)?);
    let (told, _) = live("waiting for the stall", || heard.recv_timeout(LONG));
    let with =
        told.map_err(|_| failed("events", &"no event reported the stall"))?.saturating_duration_since(begun);
    step(&format!("`watertight events` reports it {} after a sync began", units::duration(with)));

    let together = beside(demo)?;
    let (alone, together) = (units::duration(alone), units::duration(together));
    step(&format!("a volume beside it is synced and unmounted in {together}; alone it was {alone}"));
    table.row("sync and umount, all stores answering", "", alone);
    table.row("sync and umount beside a stalled one", "", together);

    let (out, took) =
        live("watertight umount --force", || demo.run(&["umount", "--force"], &stalled.mountpoint));
    let out = out?;
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() || !said.contains(&BYTES.to_string()) {
        return Err(failed(
            "umount --force",
            &format!("it should say that {BYTES} bytes are lost: {}", said.trim()),
        ));
    }
    step(&format!(
        "`watertight umount --force` gives it up after {} and says what is lost",
        units::duration(took)
    ));
    let without =
        answered.recv_timeout(LONG).map_err(|_| failed("sync", &"it goes on for a volume that is gone"))?;
    let without = without.saturating_duration_since(begun);
    step(&format!(
        "only then did that sync end, after {}: a caller that only waits for it learns nothing",
        units::duration(without)
    ));
    // How long it would have gone on is not measured: it was ended.
    let without = format!("not in {}", units::duration(without));
    table.row("stalled store reported after", without, units::duration(with));
    table.note("Stall, without: the sync itself, which had not returned when it was ended.");
    table.row("umount --force of the stalled one", "", units::duration(took));
    Ok(())
}

/// How long a healthy volume's sync and unmount take.
fn beside(demo: &Demo) -> Result<Duration> {
    let volume = demo.mount("healthy", None, "noatime")?;
    write(&volume)?;
    let synced = demo.timed(&["sync"], &volume.mountpoint)?;
    Ok(synced + demo.timed(&["umount"], &volume.mountpoint)?)
}

fn write(volume: &Volume) -> Result<()> {
    fs::write(volume.mountpoint.join("file"), vec![7; BYTES])
        .map_err(|error| failed("writing a file", &error))
}

/// When the beginning of a stall was read.
fn heard(events: ChildStdout) -> Receiver<Instant> {
    let (tell, heard) = channel();
    thread::spawn(move || {
        for line in BufReader::new(events).lines().map_while(std::io::Result::ok) {
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            if event["kind"] == "stall" && event["edge"] == "begins" {
                let _over = tell.send(Instant::now());
            }
        }
    });
    heard
}

/// The time when a program ended: no process writes to its output any more.
fn answered(mut out: ChildStdout) -> Receiver<Instant> {
    let (tell, answered) = channel();
    thread::spawn(move || {
        let _all = std::io::copy(&mut out, &mut std::io::sink());
        let _over = tell.send(Instant::now());
    });
    answered
}
