//! `bench`: the throughput of a volume on this host, beside that of its store without it.
//!
//! Both sides take turns, slice by slice, so that other load of the host affects them alike.
//! Everything happens in a directory of its own on either side, which is removed at the end, also
//! after Ctrl-C.
//!
//! It is bounded in time as long as the store answers: files are as large as a part of a slice
//! makes durable, and not more of them is dirty at any time, so that a slow or limited side is
//! measured with less data and not for longer. A side that does not answer is given up (module
//! `bounded`), and the other one goes on.

mod bounded;
mod samples;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sync::Mutex;
use tempfile::TempDir;

use self::bounded::within;
use self::samples::{Figures, Samples};
use self::work::{FILE_BYTES, Side, WORKS, Work};
use crate::cli::BenchArgs;
use crate::control::api::millis;
use crate::host::{checks, signals};
use crate::term::console::{Colour, console};
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Name, Show as _};
use crate::term::units;
use crate::verbs::sync::find;

/// How often each side has its turn at each work.
const ROUNDS: usize = 2;
/// Shorter ones say nothing.
const SLICE_MIN: Duration = Duration::from_millis(10);
/// Longer ones are no bench of a minute or so.
const SLICE_MAX: Duration = Duration::from_secs(60);

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    volume: Name,
    source: Name,
    /// Why the store alone was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_store: Option<String>,
    slice_ms: u64,
    /// How large the file on either side is.
    file_bytes: usize,
    /// The size of one sequential read or write.
    piece_bytes: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    work: &'static str,
    /// The unit of `per_second`.
    unit: &'static str,
    /// None: the side did not answer in this row, or in one before. A side that did not answer
    /// while the files were made has a row of its own, the first.
    volume: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Figures>,
    /// The sides that were given up here: `volume`, `store`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    given_up: Vec<&'static str>,
}

impl Row {
    /// The row of the files that the other rows use; none if no side was given up there.
    fn of_who_hung_before(given_up: Vec<&'static str>) -> Option<Self> {
        let row = Self { work: FILES, unit: "files", volume: None, store: None, given_up };
        (!row.given_up.is_empty()).then_some(row)
    }
}

/// The work before anything is measured.
const FILES: &str = "the files before";
/// The sides' names, in their order.
const NAMES: [&str; 2] = ["volume", "store"];
/// The longest time that the program waits for one side.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// Runs the verb.
///
/// # Errors
/// Exit 2 when the path lies in no volume of ours, 1 when one of its files cannot be written, or a
/// side does not answer.
pub fn run(args: &BenchArgs) -> Result<()> {
    if args.slice < SLICE_MIN || args.slice > SLICE_MAX {
        return Err(Problem::usage("--slice takes from 10ms to 1m"));
    }
    if args.patience.is_zero() || args.patience > PATIENCE_MAX {
        return Err(Problem::usage("--patience takes up to 1h"));
    }
    let places = Arc::new(Mutex::new(Some(Vec::new())));
    signals::clean_up(Arc::clone(&places), "stopped; its files are gone")
        .map_err(|error| Problem::failure(format!("bench: taking signals: {error}")))?;
    let done = bench(args, &places);
    let Some(made) = places.lock().take() else { return done };
    let paths: Vec<String> = made.iter().map(|place| place.path().shown().to_string()).collect();
    // A side that hangs may keep the directory's lock in the kernel.
    if within(args.patience, move || drop(made))?.is_none() {
        console().say(&format!("not removed, for want of an answer: {}", paths.join(", ")));
    }
    done
}

fn bench(args: &BenchArgs, places: &Arc<Places>) -> Result<()> {
    let (slice, patience) = (args.slice, args.patience);
    let (volume, _) = find(args.path.as_os_str())?;
    let (mountpoint, source) = (volume.record().mountpoint.clone(), volume.record().source.clone());
    console().status("bench: its files are being written");
    // The size that becomes durable in time is found in steps, which together take as long as a
    // slice or two.
    let limit = patience + 2 * slice;
    // None: it was given up.
    let started = |at: &Path, most: usize| -> Result<Option<Side>> {
        let (places, at) = (Arc::clone(places), at.to_owned());
        within(limit, move || Side::new(&directory(&places, &at)?, most, slice))?.transpose()
    };
    let on_volume = started(Path::new(&mountpoint), FILE_BYTES)
        .map_err(|why| Problem::failure(format!("bench: {mountpoint}: {why}")))?;
    // Both sides do the same work, or they could not be compared.
    let most = on_volume.as_ref().map_or(FILE_BYTES, Side::file_bytes);
    let (on_store, no_store) = match checks::plain_directory_of(source.as_str()) {
        Some(store) => match started(Path::new(store), most) {
            Ok(side) => (Some(side), None),
            Err(why) => (None, Some(why.to_string())),
        },
        None => (None, Some(format!("{source} is no plain directory"))),
    };
    let mut sides: Vec<Option<Side>> = [Some(on_volume), on_store].into_iter().flatten().collect();
    let file_bytes = sides.iter().flatten().map(Side::file_bytes).min().unwrap_or(FILE_BYTES);
    for (place, name) in sides.iter_mut().zip(NAMES) {
        let Some(mut side) = place.take() else { continue };
        let prepared = within(limit, move || side.prepare(file_bytes, slice).map(|()| side))?.transpose();
        *place = prepared.map_err(|error| Problem::failure(format!("bench: {name}: its file: {error}")))?;
    }
    let piece_bytes = sides.iter().flatten().map(Side::piece).min().unwrap_or_default();
    let hung = sides.iter().zip(NAMES).filter(|(side, _)| side.is_none()).map(|(_, name)| name);
    let before = Row::of_who_hung_before(hung.collect());

    let mut rows = measure(&mut sides, slice, patience, piece_bytes)?;
    rows.splice(0..0, before);
    let report = Report {
        volume: mountpoint,
        source,
        no_store,
        slice_ms: millis(slice),
        file_bytes,
        piece_bytes,
        rows,
    };
    if args.json {
        console().print_value(&report)?;
    } else {
        print(&report);
    }
    let given_up =
        report.rows.iter().flat_map(|row| row.given_up.iter().map(|name| (row.work.trim(), *name)));
    let given_up: Vec<String> = given_up.map(|(work, name)| format!("the {name} in `{work}`")).collect();
    if given_up.is_empty() {
        return Ok(());
    }
    let patience = units::duration(patience);
    Err(Problem::failure(format!(
        "bench: no answer for {patience}: {}\n\
         a thread that waits in the kernel for a call that cannot be interrupted keeps this process until the store answers; \
         `watertight umount --force {}` gives the volume up",
        given_up.join(", "),
        report.volume
    )))
}

/// The directories to be removed at the end; none once a signal has ended it.
type Places = Mutex<Option<Vec<TempDir>>>;

/// Makes a directory in `inside`, which is removed with `places`.
fn directory(places: &Places, inside: &Path) -> Result<PathBuf> {
    // Without the lock: this may take for ever.
    let made = tempfile::Builder::new()
        .prefix(".watertight-bench.")
        .tempdir_in(inside)
        .map_err(|error| Problem::failure(format!("{}: {error}", inside.shown())))?;
    let path = made.path().to_owned();
    places.lock().get_or_insert_default().push(made);
    Ok(path)
}

/// A side that is given up is none from then on.
fn measure(
    sides: &mut [Option<Side>],
    slice: Duration,
    patience: Duration,
    piece: usize,
) -> Result<Vec<Row>> {
    let mut samples: Vec<Vec<Samples>> =
        WORKS.iter().map(|_| sides.iter().map(|_| Samples::default()).collect()).collect();
    let mut given_up: Vec<Vec<&'static str>> = vec![Vec::new(); WORKS.len()];
    let slices = ROUNDS * WORKS.len() * sides.len();
    let mut done = 0;
    for _ in 0..ROUNDS {
        for ((work, samples), given_up) in WORKS.iter().zip(&mut samples).zip(&mut given_up) {
            for ((place, samples), name) in sides.iter_mut().zip(samples).zip(NAMES) {
                console().status(&format!("{}: {done} of {slices} slices", work.name));
                done += 1;
                let Some(mut side) = place.take() else { continue };
                let mut taken = std::mem::take(samples);
                let ran = within(slice + patience, move || {
                    let result = side.run(work, slice, &mut taken);
                    (side, taken, result)
                })?;
                let Some((side, taken, result)) = ran else {
                    given_up.push(name);
                    continue;
                };
                result.map_err(|error| Problem::failure(format!("bench: {}: {error}", work.name)))?;
                *samples = taken;
                *place = Some(side);
            }
        }
    }
    console().clear_status();
    let row = |((work, samples), given_up): ((&Work, &Vec<Samples>), Vec<&'static str>)| {
        let piece = if work.in_order { piece } else { 0 };
        let figures = |samples: &Samples| (!samples.is_empty()).then(|| samples.figures(piece));
        Row {
            work: work.name,
            unit: if work.in_order { "MB" } else { "operations" },
            volume: samples.first().and_then(figures),
            store: samples.get(1).and_then(figures),
            given_up,
        }
    };
    Ok(WORKS.iter().zip(&samples).zip(given_up).map(row).collect())
}

fn print(report: &Report) {
    let console = console();
    let [file, piece] = [report.file_bytes, report.piece_bytes].map(|bytes| units::bytes(bytes as u64));
    console.print(&format!("{} over {}", report.volume, report.source));
    console.print(&format!(
        "each slice {} ms, at its end what it wrote is durable; a file of {file}, in order {piece} at a time",
        report.slice_ms
    ));
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
        let shown = |figures: Option<&Figures>, name| match figures {
            Some(figures) => (rate(figures), microseconds(figures.p99_us)),
            None if row.given_up.contains(&name) => ("no answer".to_owned(), String::new()),
            None => Default::default(),
        };
        let (volume, p99) = shown(row.volume.as_ref(), NAMES[0]);
        let (store, store_p99) = shown(row.store.as_ref(), NAMES[1]);
        let both = row.volume.as_ref().zip(row.store.as_ref());
        let ratio = both.map_or_else(String::new, |(volume, store)| {
            format!("{:.2}", volume.per_second / store.per_second)
        });
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
