//! `bench`: what a volume gives on this host, beside its store without it.
//!
//! Both sides take turns, slice by slice, so that what else the host does meets them alike. Everything happens in a
//! directory of its own on either side, which is removed at the end, also after Ctrl-C.
//!
//! It is bounded in time as long as the store answers: files are as large as a part of a slice makes durable, and not more of
//! them is dirty at any time, so that a slow or limited side is measured with less data and not for longer.

mod samples;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sync::Mutex;
use tempfile::TempDir;

use self::samples::{Figures, Samples};
use self::work::{FILE_BYTES, Side, WORKS, Work};
use crate::cli::BenchArgs;
use crate::console::{Colour, console};
use crate::problem::{Problem, Result};
use crate::{checks, signals, sync_cmd, units};

/// How often each side has its turn at each work.
const ROUNDS: usize = 2;
/// Shorter ones say nothing.
const SLICE_MIN: Duration = Duration::from_millis(10);
/// Longer ones are no bench of a minute or so.
const SLICE_MAX: Duration = Duration::from_secs(60);

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    volume: String,
    source: String,
    /// Why the store alone was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_store: Option<String>,
    slice_ms: u64,
    /// How large the file on either side is.
    file_bytes: usize,
    /// What is read and written in order at a time.
    piece_bytes: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    work: &'static str,
    /// What `per_second` counts.
    unit: &'static str,
    volume: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Figures>,
}

/// Runs the verb.
///
/// # Errors
/// Exit 2 when the path lies in no volume of ours, 1 when one of its files cannot be written.
pub fn run(args: &BenchArgs) -> Result<()> {
    if args.slice < SLICE_MIN || args.slice > SLICE_MAX {
        return Err(Problem::usage("--slice takes from 10ms to 1m"));
    }
    let places = Arc::new(Mutex::new(Some(Vec::new())));
    signals::clean_up(Arc::clone(&places), "stopped; its files are gone")
        .map_err(|error| Problem::failure(format!("bench: taking signals: {error}")))?;
    let (volume, _) = sync_cmd::find(args.path.as_os_str())?;
    let (mountpoint, source) = (volume.record().mountpoint.clone(), volume.record().source.clone());
    let on_volume = directory(&places, Path::new(&mountpoint))?;
    let (on_store, no_store) = match checks::directory_of(&source) {
        Some(store) => match directory(&places, Path::new(store)) {
            Ok(made) => (Some(made), None),
            Err(why) => (None, Some(why.to_string())),
        },
        None => (None, Some(format!("{source} is no plain directory"))),
    };
    console().status("bench: its files are being written");
    let mut sides = vec![Side::new(&on_volume, FILE_BYTES, args.slice)?];
    if let Some(made) = &on_store {
        // Both do the same, or they could not be compared.
        sides.push(Side::new(made, sides[0].file_bytes(), args.slice)?);
    }
    let file_bytes = sides.iter().map(Side::file_bytes).min().unwrap_or(FILE_BYTES);
    for side in &mut sides {
        let prepared = side.prepare(file_bytes, args.slice);
        prepared.map_err(|error| Problem::failure(format!("bench: its file: {error}")))?;
    }
    let piece_bytes = sides[0].piece();

    let measured = measure(&mut sides, args.slice);
    drop(sides);
    drop(places.lock().take());
    let report = Report {
        volume: mountpoint,
        source,
        no_store,
        slice_ms: u64::try_from(args.slice.as_millis()).unwrap_or(u64::MAX),
        file_bytes,
        piece_bytes,
        rows: measured?,
    };
    if args.json {
        let text = serde_json::to_string_pretty(&report);
        console().print(&text.map_err(|error| Problem::failure(error.to_string()))?);
    } else {
        print(&report);
    }
    Ok(())
}

/// The directories to be removed at the end; none once a signal has ended it.
type Places = Mutex<Option<Vec<TempDir>>>;

/// Makes a directory in `inside`, which is removed with `places`.
fn directory(places: &Places, inside: &Path) -> Result<PathBuf> {
    let mut places = places.lock();
    let made = tempfile::Builder::new()
        .prefix(".watertight-bench.")
        .tempdir_in(inside)
        .map_err(|error| Problem::failure(format!("{}: {error}", inside.display())))?;
    let path = made.path().to_owned();
    places.get_or_insert_default().push(made);
    Ok(path)
}

fn measure(sides: &mut [Side], slice: Duration) -> Result<Vec<Row>> {
    let mut samples: Vec<Vec<Samples>> =
        WORKS.iter().map(|_| sides.iter().map(|_| Samples::default()).collect()).collect();
    let slices = ROUNDS * WORKS.len() * sides.len();
    let mut done = 0;
    for _ in 0..ROUNDS {
        for (work, samples) in WORKS.iter().zip(&mut samples) {
            for (side, samples) in sides.iter_mut().zip(samples) {
                console().status(&format!("{}: {done} of {slices} slices", work.name));
                side.run(work, slice, samples)
                    .map_err(|error| Problem::failure(format!("bench: {}: {error}", work.name)))?;
                done += 1;
            }
        }
    }
    console().clear_status();
    let piece = sides[0].piece();
    let row = |(work, samples): (&Work, &Vec<Samples>)| Row {
        work: work.name,
        unit: if work.in_order { "MB" } else { "operations" },
        volume: samples[0].figures(if work.in_order { piece } else { 0 }),
        store: samples.get(1).map(|samples| samples.figures(if work.in_order { piece } else { 0 })),
    };
    Ok(WORKS.iter().zip(&samples).map(row).collect())
}

fn print(report: &Report) {
    let console = console();
    let [file, piece] = [report.file_bytes, report.piece_bytes].map(|bytes| units::bytes(bytes as u64));
    console.print(&format!("{} over {}", report.volume, report.source));
    console
        .print(&format!("each slice {} ms; a file of {file}, in order {piece} at a time", report.slice_ms));
    console.print(&console.paint(
        Colour::Bold,
        &format!(
            "{:<22} {:>12} {:>12} {:>6}  {:>10} {:>10}",
            "", "volume", "store", "ratio", "p99", "store p99"
        ),
    ));
    for row in &report.rows {
        let rate = |figures: &Figures| match row.unit {
            "MB" if figures.per_second < 10.0 => format!("{:.2} MB/s", figures.per_second),
            "MB" => format!("{:.0} MB/s", figures.per_second),
            _ if figures.per_second < 10.0 => format!("{:.2}/s", figures.per_second),
            _ => format!("{:.0}/s", figures.per_second),
        };
        let late = |figures: &Figures| microseconds(figures.p99_us);
        let (store, ratio, store_p99) = match &row.store {
            Some(store) => {
                (rate(store), format!("{:.2}", row.volume.per_second / store.per_second), late(store))
            }
            None => Default::default(),
        };
        let (volume, p99) = (rate(&row.volume), late(&row.volume));
        console.print(&format!(
            "{:<22} {volume:>12} {store:>12} {ratio:>6}  {p99:>10} {store_p99:>10}",
            row.work
        ));
    }
    if report.file_bytes < FILE_BYTES {
        let text = format!(
            "Less data than the usual {}: more is not durable within a part of a slice",
            units::bytes(FILE_BYTES as u64)
        );
        console.print(&console.paint(Colour::Dim, &text));
    }
    if let Some(why) = &report.no_store {
        console.print(&console.paint(Colour::Dim, &format!("The store alone was not measured: {why}")));
    }
}

fn microseconds(us: f64) -> String {
    if us < 1000.0 { format!("{us:.1} us") } else { units::duration(Duration::from_secs_f64(us / 1e6)) }
}
