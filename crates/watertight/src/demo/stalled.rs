//! A store that does not answer, and those beside it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::stage::{Demo, Volume, live};
use super::table::Table;
use super::{failed, heading, step};
use crate::control::api::now_ms;
use crate::problem::Result;
use crate::units;

/// What is written to each volume.
const BYTES: usize = 4 << 20;
/// How often a monitor looks that is not told.
const POLL: Duration = Duration::from_secs(1);
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
    let mut sync = demo.command("sync");
    sync.arg(&stalled.mountpoint).stderr(Stdio::null());
    demo.start(sync)?;
    let (polled, told) = live("waiting for the stall", || {
        thread::scope(|scope| {
            let poller = scope.spawn(|| polled(demo, &stalled));
            let told = heard.recv_timeout(LONG).map_err(|_| failed("events", &"no stall was told"));
            (poller.join().unwrap_or_else(|_| Err(failed("status", &"the thread that looks panicked"))), told)
        })
    })
    .0;
    let (told_at, begun) = told?;
    let after = |at: u64| units::duration(Duration::from_millis(at.saturating_sub(begun)));
    let (with, without) = (after(told_at), after(polled?));
    step(&format!(
        "`watertight events` says so {with} after it was noticed; who looks each second sees it after {without}"
    ));
    table.row("hear of a stalled store after", without, with);
    table.note("Without: who looks each second hears of it up to a second later, as it happens.");

    let together = beside(demo)?;
    let (alone, together) = (units::duration(alone), units::duration(together));
    step(&format!("a volume beside it is synced and unmounted in {together}; alone it was {alone}"));
    table.row("sync, umount beside it (left: alone)", alone, together);

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

/// When the beginning of a stall was read, and when it was noticed, in milliseconds.
fn heard(events: ChildStdout) -> Receiver<(u64, u64)> {
    let (tell, heard) = channel();
    thread::spawn(move || {
        for line in BufReader::new(events).lines().map_while(Result::ok) {
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            if event["kind"] == "stall" && event["edge"] == "begins" {
                let _over = tell.send((now_ms(), event["time_ms"].as_u64().unwrap_or(0)));
            }
        }
    });
    heard
}

/// When somebody who looks now and then sees it.
fn polled(demo: &Demo, volume: &Volume) -> Result<u64> {
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        thread::sleep(POLL);
        let out = demo.run(&["status", "--json"], &volume.mountpoint)?;
        let status: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        if status["volumes"][0]["state"] == "stalled" {
            return Ok(now_ms());
        }
    }
    Err(failed("status", &"no stall was shown"))
}
