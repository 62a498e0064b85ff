//! `fsck`: whether a volume on object storage is whole; with `--repair` it is mended.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use objects::{Checked, Finding, FsckOptions};
use sync::Mutex;

use crate::cli::FsckArgs;
use crate::control::progress::REDRAW;
use crate::object_volumes::{canonical, problem};
use crate::term::console::{Colour, console};
use crate::term::problem::Result;
use crate::term::shown::Show as _;
use crate::term::units;

/// Checks shorter than this show no progress.
const QUIET: Duration = Duration::from_secs(2);

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a URL or a key file that cannot be; 1 where there is no volume, the bucket cannot be
/// used, or another process holds a volume that is to be mended.
pub fn run(args: &FsckArgs) -> Result<ExitCode> {
    let url = canonical(&args.url)?;
    let options =
        FsckOptions { repair: args.repair, data: args.data, key_file: args.encrypt_key_file.clone() };
    let drawn = Mutex::new(Instant::now() + QUIET);
    let shown = url.clone();
    let progress = move |what: &'static str, count: u64| {
        let mut drawn = drawn.lock();
        if console().is_terminal() && Instant::now() >= *drawn {
            *drawn = Instant::now() + REDRAW;
            console().status(&format!("checking {}: {count} {what}", shown.shown()));
        }
    };
    let checked = objects::fsck(&url, &options, Arc::new(progress));
    console().clear_status();
    let checked = checked.map_err(|error| problem(&url, &error))?;
    if args.json {
        console().print_value(&checked)?;
    } else {
        checked.findings.iter().for_each(|finding| console().print(&line(finding)));
        console().print(&summary(&checked));
    }
    Ok(if checked.whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A line about what is wrong.
fn line(finding: &Finding) -> String {
    let place = match (&finding.path, finding.inode) {
        (Some(path), _) => format!("{}: ", path.shown()),
        (None, Some(inode)) => format!("inode {inode}: "),
        (None, None) => String::new(),
    };
    let word = if finding.mended {
        console().paint(Colour::Green, "mended")
    } else {
        console().paint(Colour::Red, "damaged")
    };
    format!("{word}  {place}{}", finding.detail.shown())
}

/// What is said in the end: what was looked at, and how it is.
fn summary(checked: &Checked) -> String {
    let mut lines = Vec::new();
    if checked.more > 0 {
        lines.push(format!("… and {} more", checked.more));
    }
    let url = checked.url.shown();
    if let Some(repair) = &checked.repair {
        lines.extend(repair.notes.iter().map(|note| format!("note     {}", note.shown())));
        lines.extend(repair.refused.iter().map(|why| format!("{url}: {}", why.shown())));
    }
    let read = match checked.bytes_read {
        Some(bytes) => format!("{} of data were read", units::bytes(bytes)),
        None => "data was not read (--data does)".to_owned(),
    };
    lines.push(format!(
        "{url}: {}, {} in {}, {}; {read}",
        units::count(checked.inodes, "inode", "inodes"),
        units::bytes(checked.bytes),
        units::count(checked.objects, "object", "objects"),
        units::count(checked.snapshots, "snapshot", "snapshots"),
    ));
    if let Some(unneeded) = checked.unneeded.filter(|unneeded| unneeded.objects > 0) {
        let objects = units::count(unneeded.objects, "object", "objects");
        let bytes = units::bytes(unneeded.bytes);
        let held = if checked.snapshots > 0 { ", as soon as no snapshot holds them" } else { "" };
        lines.push(format!(
            "{url}: nobody needs {objects} with {bytes}, which is no damage: `gc` removes them{held}"
        ));
    }
    if let Some(holder) = &checked.holder {
        lines.push(format!("{url}: it is held by {}: this is what that had committed", holder.shown()));
    }
    let left = checked.findings.iter().filter(|finding| !finding.mended).count() as u64;
    let mended = checked.repair.as_ref().map_or(0, |repair| repair.mended);
    lines.push(match (checked.whole, mended, &checked.repair) {
        (true, 0, _) => format!("{url}: it is whole"),
        (true, ..) => format!("{url}: {}; it is whole", mended_words(mended)),
        (false, _, None) => {
            let found = units::count(left + checked.more, "damage", "damages");
            format!("{url}: it is damaged: {found}; `watertight fsck --repair` mends what can be mended")
        }
        (false, 0, Some(_)) => format!("{url}: it is damaged, and nothing could be mended"),
        (false, _, Some(_)) => {
            let left = units::count(left, "damage is", "damages are");
            format!("{url}: {}; {left} left that cannot be mended", mended_words(mended))
        }
    });
    lines.join("\n")
}

fn mended_words(mended: u64) -> String {
    units::count(mended, "damage was mended", "damages were mended")
}

#[cfg(test)]
mod tests {
    use objects::{Repair, Unneeded};

    use super::*;

    fn finding(path: Option<&str>, mended: bool) -> Finding {
        Finding {
            what: "data".to_owned(),
            path: path.map(str::to_owned),
            inode: Some(7),
            object: None,
            detail: "lost\u{1b}[2J".to_owned(),
            mended,
        }
    }

    #[test]
    fn a_line_names_the_file_and_stays_one() {
        let text = line(&finding(Some("/a\nb"), false));
        assert!(text.lines().count() == 1 && !text.contains("[2J\u{1b}"), "{text:?}");
        assert!(text.contains("damaged") && !text.contains('\u{1b}'), "{text:?}");
        let text = line(&finding(None, true));
        assert!(text.contains("inode 7: ") && text.contains("mended"), "{text:?}");
    }

    #[test]
    fn the_last_line_says_how_it_is() {
        let last = |checked: &Checked| summary(checked).lines().last().unwrap().to_owned();
        let whole = Checked { url: "file:///v".to_owned(), whole: true, ..Checked::default() };
        assert_eq!(last(&whole), "file:///v: it is whole");
        let damaged =
            Checked { whole: false, findings: vec![finding(None, false)], more: 2, ..whole.clone() };
        assert!(last(&damaged).contains("3 damages; `watertight fsck --repair`"), "{}", last(&damaged));
        assert!(summary(&damaged).contains("… and 2 more"));
        let repair = Some(Repair { mended: 1, ..Repair::default() });
        let mended = Checked { repair: repair.clone(), ..whole.clone() };
        assert_eq!(last(&mended), "file:///v: 1 damage was mended; it is whole");
        let left = Checked { repair, findings: vec![finding(None, false)], whole: false, ..whole.clone() };
        assert!(last(&left).contains("1 damage is left that cannot be mended"), "{}", last(&left));
        let refused = Repair { refused: Some("why".to_owned()), ..Repair::default() };
        let refused = Checked { repair: Some(refused), ..damaged };
        assert!(summary(&refused).contains("file:///v: why") && last(&refused).contains("nothing could be"));
        let unneeded = Some(Unneeded { objects: 1, bytes: 2048 });
        assert!(summary(&Checked { unneeded, ..whole }).contains("nobody needs 1 object with 2.0 KiB"));
    }
}
