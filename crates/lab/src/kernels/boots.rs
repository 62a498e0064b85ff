//! The host's side: makes the image, boots one kernel after the other, and collects the results of
//! each.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;

use super::document::{Boot, Collected};
use super::{INSIDE, Part};
use crate::experiment::{Settings, Stop};
use crate::progress::Progress;
use crate::report::{Choice, Document, Figure};
use crate::volumes::ours::program;
use crate::{child, cli, machine};

/// The name of the command.
pub(crate) const COMMAND: &str = "kernels";
/// How often a kernel is booted until a part is through.
const TRIES: usize = 3;
/// The time of one part on one kernel without hardware support, about.
const PART: Duration = Duration::from_secs(120);
/// Between two reads of a kernel's output.
const LOOK: Duration = Duration::from_millis(250);
/// The file that a kernel leaves in its report.
const RESULT: &str = "kernels.json";

/// Boots kernels, and measures their own mechanisms beside Watertight's in each.
#[derive(Debug, Parser)]
#[command(name = "lab kernels")]
struct Arguments {
    /// The kernels, by their names in tests/kernels/kernels
    #[arg(long, value_name = "A,B", value_delimiter = ',', default_value = "6.1,6.12,6.12-rt,7.2,7.2-rt,rc")]
    kernels: Vec<String>,
    /// Only these parts: s1 (the drain of an unmount), s2 (idle unmounts), s3 (sync beside limits),
    /// s4 (epoll)
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    only: Vec<String>,
    /// Samples of each short row, instead of 40
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Write the rows as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep what FILE has of other kernels and parts
    #[arg(long, requires = "json")]
    add: bool,
    /// The program under test [default: built by cargo, or beside this executable]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Runs the command line of this process, whose first argument is [`COMMAND`].
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse_from(std::env::args_os().skip(1));
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: kernels: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let stop = Stop::at_signals().context("cannot install signal handlers")?;
    let settings = Settings { program: arguments.program.clone(), stop, ..Settings::default() };
    let harness = Harness::find()?;
    let parts = Part::chosen(&arguments.only)?;
    let mut collected = Collected::default();
    if let Some(file) = arguments.json.as_ref().filter(|file| arguments.add && file.exists()) {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        collected = Collected::of(Document::from_json(&text)?);
    }
    let progress = Progress::new();
    progress.expect(COMMAND, PART * u32::try_from(parts.len() * arguments.kernels.len()).unwrap_or(1));
    progress.step("the image");
    let inside = Inside::new(&harness, &settings, arguments.runs)?;
    for part in parts {
        for kernel in &arguments.kernels {
            let begun = Instant::now();
            match inside.measure(kernel, part, &settings, &progress) {
                Ok(document) => {
                    let (took, commit) = (begun.elapsed(), machine::commit(&harness.0));
                    collected.add(&Boot { kernel, part: part.name(), took, commit }, document);
                }
                // The others are still worth their time.
                Err(error) => progress.say(&format!("{kernel}, {}: {error:#}", part.name())),
            }
            progress.done(PART);
            if settings.stop.is_set() {
                break;
            }
            // After each boot: results are not lost with the next one.
            if let Some(file) = arguments.json.as_ref().filter(|_| !collected.is_empty()) {
                let document = collected.document(command(), machine::commit(&harness.0), now());
                fs::write(file, document.json()?)
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
    }
    drop(progress);
    ensure!(!collected.is_empty(), "no kernel left a result");
    let choice = Choice { figures: Figure::ALL[..5].to_vec(), ..Choice::default() };
    let document = collected.document(command(), machine::commit(&harness.0), now());
    let tables = document.tables(&super::document::baseline(), &choice);
    let mut out = std::io::stdout().lock();
    writeln!(out, "## kernels\n\n{}\n{tables}", document.origin())?;
    Ok(())
}

fn now() -> String {
    machine::rfc3339(SystemTime::now())
}

/// The command that repeats this; it repeats earlier measurements too.
fn command() -> String {
    cli::command(std::iter::once(COMMAND.to_owned()))
}

/// The directory with the scripts that boot kernels.
#[derive(Debug)]
struct Harness(PathBuf);

impl Harness {
    fn find() -> anyhow::Result<Self> {
        let tree = cli::source_tree().canonicalize().context("cannot find the source tree")?;
        let scripts = tree.ancestors().map(|directory| directory.join("tests/kernels"));
        let found = scripts.into_iter().find(|scripts| scripts.join("boot").is_file());
        found.map(Self).with_context(|| format!("there is no tests/kernels above {}", tree.display()))
    }

    fn script(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join(name));
        command.stdin(Stdio::null());
        command
    }
}

/// The environment that every kernel boots into.
struct Inside<'a> {
    harness: &'a Harness,
    image: PathBuf,
    directory: tempfile::TempDir,
}

impl<'a> Inside<'a> {
    fn new(harness: &'a Harness, settings: &Settings, runs: Option<u16>) -> anyhow::Result<Self> {
        let program = program(settings).map_err(anyhow::Error::msg)?;
        let lab = std::env::current_exe().context("cannot find this executable")?;
        let output = harness.script("image").arg(&lab).arg(&program).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "tests/kernels/image failed");
        let image = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
        let runs = runs.map(|runs| format!(" --runs {runs}")).unwrap_or_default();
        for (name, _) in Part::ALL {
            // The first cgroup has the kernel change its own code, which the emulator takes ill of
            // processors that are busy.
            let job = format!(
                "mkdir /sys/fs/cgroup/first && rmdir /sys/fs/cgroup/first\n\
                 exec '{}' {INSIDE} --only {name} --program '{}' --json /report/{RESULT}{runs}\n",
                lab.display(),
                program.display()
            );
            fs::create_dir(directory.path().join(name))?;
            fs::write(directory.path().join(name).join("job"), job)?;
        }
        Ok(Self { harness, image, directory })
    }

    /// Has one kernel do one part. Under emulation a kernel may fall over its own code's changes;
    /// then it has another try.
    fn measure(
        &self,
        kernel: &str,
        part: Part,
        settings: &Settings,
        progress: &Progress,
    ) -> anyhow::Result<Document> {
        let report = self.directory.path().join("report");
        let mut tries = 1;
        loop {
            match self.boot(kernel, part, &report, settings, progress) {
                Err(error) if tries < TRIES && !settings.stop.is_set() => {
                    progress.say(&format!("{kernel}, {}, once more: {error:#}", part.name()));
                    tries += 1;
                }
                booted => return booted,
            }
        }
    }

    fn boot(
        &self,
        kernel: &str,
        part: Part,
        report: &Path,
        settings: &Settings,
        progress: &Progress,
    ) -> anyhow::Result<Document> {
        // An earlier kernel's results are not this one's.
        if report.exists() {
            fs::remove_dir_all(report)?;
        }
        let mut command = self.harness.script("boot");
        command.arg(kernel).arg(&self.image).arg(self.directory.path().join(part.name())).arg(report);
        // A file, not a pipe: no process reads before the end.
        let said = self.directory.path().join("boot");
        command.stdout(Stdio::null()).stderr(fs::File::create(&said)?);
        child::ends_with_the_lab(&mut command);
        progress.step(&format!("{kernel}, {}: boots", part.name()));
        let mut boot = command.spawn().context("cannot start tests/kernels/boot")?;
        follow(&mut boot, kernel, &report.join("console"), settings, progress)?;
        let status = boot.wait()?;
        let Ok(text) = fs::read_to_string(report.join(RESULT)) else {
            bail!("the guest left no result: {}", fs::read_to_string(&said).unwrap_or_default().trim());
        };
        if !status.success() {
            progress.say(&format!("{kernel}: the guest failed: {}", last_words(report)));
        }
        Document::from_json(&text).with_context(|| format!("{kernel}: its report"))
    }
}

/// Passes on the guest's output while it runs.
fn follow(
    boot: &mut Child,
    kernel: &str,
    console: &Path,
    settings: &Settings,
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut said = 0;
    while boot.try_wait()?.is_none() {
        if settings.stop.is_set() {
            let _ended_already =
                rustix::process::kill_process_group(child::pid(boot)?, rustix::process::Signal::TERM);
            bail!("stopped by a signal");
        }
        // No event reports that a file has grown; the console is a file because a guest must not
        // wait for its reader.
        std::thread::sleep(LOOK);
        let text = String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("lab: ")).collect();
        for line in &lines[said.min(lines.len())..] {
            progress.step(&format!("{kernel}: {line}"));
        }
        said = lines.len();
    }
    Ok(())
}

fn last_words(report: &Path) -> String {
    let output = fs::read_to_string(report.join("output")).unwrap_or_default();
    output.lines().next_back().unwrap_or("it says nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_scripts_are_found() {
        assert!(Harness::find().unwrap().0.join("image").is_file());
    }
}
