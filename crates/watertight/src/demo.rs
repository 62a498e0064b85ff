//! `demo`: what an unmount that tells the truth is worth, in some seconds.
//!
//! Everything goes through the program itself, started as a person would start it, with a runtime
//! directory of its own. Nothing is left behind, also after Ctrl-C.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use sync::Mutex;
use tempfile::TempDir;

use crate::background::READY;
use crate::cli::DemoArgs;
use crate::console::{Colour, console};
use crate::problem::{Problem, Result};
use crate::registry::DIR_VARIABLE;
use crate::{signals, units};

/// What each write to the store takes.
const DELAY: Duration = Duration::from_millis(250);
/// How many files are written.
const FILES: usize = 48;
/// How large each is, in bytes.
const FILE_BYTES: usize = 512 << 10;

/// Runs the verb.
///
/// # Errors
/// When this user cannot mount, or when what the demo shows is not so.
pub fn run(args: &DemoArgs) -> Result<()> {
    let stage = Arc::new(Mutex::new(Some(Stage::build()?)));
    let on_signal = Arc::clone(&stage);
    signals::watch(move |_| {
        // Takes down what there is; the main thread's next step fails for want of it.
        drop(on_signal.lock().take());
        console().say("stopped; nothing is left behind");
        std::process::exit(1)
    })
    .map_err(|error| failed("taking signals", &error))?;
    let mounted = match stage.lock().as_mut() {
        Some(stage) => stage.mount(&args.mount_type).map(|()| stage.paths.clone()),
        None => Err(failed("mounting", &"stopped")),
    };
    let outcome = mounted.and_then(|paths| show(&paths));
    // The thread that takes signals holds the stage as well: it goes here, however the demo went.
    drop(stage.lock().take());
    outcome
}

/// What the demo shows, step by step.
fn show(paths: &Paths) -> Result<()> {
    let (written, took) = write_files(&paths.mountpoint)?;
    step(&format!("wrote {} into it in {}", written.describe(), units::duration(took)));

    let held =
        File::open(paths.mountpoint.join("file-00")).map_err(|error| failed("opening a file", &error))?;
    let refused = paths.watertight("umount")?;
    drop(held);
    let said = String::from_utf8_lossy(&refused.stderr);
    let holder = said.lines().nth(1).unwrap_or("").trim();
    if refused.status.success() {
        return Err(Problem::failure("the unmount should have been refused: a file was open"));
    }
    step(&format!("while a file is open, `watertight umount` refuses and says by whom:\n     {holder}"));

    let before = Content::of(&paths.store)?;
    let missing = written.missing_from(&before);
    step(&format!(
        "at this moment {} of {FILES} files are not whole on the store: an unmount that returned now,\n     \
         as that of a FUSE file system commonly does, would claim what is not so",
        missing
    ));

    let begun = Instant::now();
    let unmounted = paths.watertight("umount")?;
    let took = begun.elapsed();
    if !unmounted.status.success() {
        return Err(failed("unmounting", &String::from_utf8_lossy(&unmounted.stderr).trim()));
    }
    let after = Content::of(&paths.store)?;
    let (is, should) = (after.checksum(), written.checksum());
    step(&format!("`watertight umount` returned after {}", units::duration(took)));
    if after != written {
        let missing = written.missing_from(&after);
        return Err(Problem::failure(format!(
            "the store does not hold what was written: {missing} of {FILES} files differ ({is:016x}, not {should:016x})"
        )));
    }
    step(&format!("the store holds {}, checksum {is:016x} = {should:016x}", after.describe()));
    let verdict = if missing > 0 {
        "the unmount returned when, and only when, the data was on the store"
    } else {
        "the data was on the store; this machine was too slow to show the difference"
    };
    console().print(&console().paint(Colour::Green, verdict));
    Ok(())
}

fn step(text: &str) {
    console().print(&format!("{} {text}", console().paint(Colour::Bold, "  -")));
}

fn failed(what: &str, why: &dyn std::fmt::Display) -> Problem {
    Problem::failure(format!("demo: {what}: {why}"))
}

/// Where things are.
#[derive(Debug, Clone)]
struct Paths {
    program: PathBuf,
    store: PathBuf,
    mountpoint: PathBuf,
    runtime: PathBuf,
}

impl Paths {
    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(verb).env(DIR_VARIABLE, &self.runtime).stdin(Stdio::null());
        command
    }

    /// Runs `watertight VERB MOUNTPOINT`.
    fn watertight(&self, verb: &str) -> Result<Output> {
        self.command(verb).arg(&self.mountpoint).output().map_err(|error| failed(verb, &error))
    }
}

/// The demo's directory and its mount process; taken down when dropped.
#[derive(Debug)]
struct Stage {
    paths: Paths,
    process: Option<Child>,
    /// Last: the directory goes when nothing is mounted in it any more.
    _dir: TempDir,
}

impl Stage {
    fn build() -> Result<Self> {
        let build = || {
            let dir = tempfile::Builder::new()
                .prefix("watertight-demo.")
                .permissions(Permissions::from_mode(0o700))
                .tempdir()?;
            let root = fs::canonicalize(dir.path())?;
            let paths = Paths {
                program: std::env::current_exe()?,
                store: root.join("store"),
                mountpoint: root.join("mnt"),
                runtime: root.join("run"),
            };
            fs::create_dir(&paths.store)?;
            fs::create_dir(&paths.mountpoint)?;
            Ok(Self { paths, process: None, _dir: dir })
        };
        build().map_err(|error: std::io::Error| failed("making its directory", &error))
    }

    fn mount(&mut self, mount_type: &str) -> Result<()> {
        let paths = &self.paths;
        let source = format!("fault:write:delay={}ms,dir:{}", DELAY.as_millis(), paths.store.display());
        let mut child = paths
            .command("mount")
            .arg(source)
            .arg(&paths.mountpoint)
            .args(["-o", &format!("type={mount_type}")])
            .env("RUST_LOG", "warn")
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed("starting the mount", &error))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(|error| failed("mounting", &error))?;
        }
        self.process = Some(child);
        if !line.starts_with(READY) {
            return Err(failed("mounting", &"the mount process ended; its reason stands above"));
        }
        console().print(&format!(
            "A directory store whose every write takes {} ms, as over a slow network, mounted with `watertight mount`:",
            DELAY.as_millis()
        ));
        step(line.trim_start_matches(READY).trim_start_matches(':').trim());
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // After a demo that went well it has left by itself.
        if !matches!(process.try_wait(), Ok(Some(_))) {
            let _gone_already = process.kill();
            let _reaped = process.wait();
        }
        let _not_mounted = fuse::mount::unmount(&self.paths.mountpoint, UnmountFlags::DETACH, true);
    }
}

/// Files by name, as a checksum and a length of each.
#[derive(Debug, Default, PartialEq, Eq)]
struct Content(BTreeMap<PathBuf, (u64, usize)>);

impl Content {
    fn of(dir: &Path) -> Result<Self> {
        let read = || {
            let mut content = Self::default();
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                let mut bytes = Vec::new();
                File::open(&path)?.read_to_end(&mut bytes)?;
                content.add(path.file_name().unwrap_or_default().into(), &bytes);
            }
            Ok(content)
        };
        read().map_err(|error: std::io::Error| failed("reading the store", &error))
    }

    fn add(&mut self, name: PathBuf, bytes: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        self.0.insert(name, (hasher.finish(), bytes.len()));
    }

    fn missing_from(&self, other: &Self) -> usize {
        self.0.iter().filter(|(name, file)| other.0.get(*name) != Some(file)).count()
    }

    fn checksum(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, (checksum, len)) in &self.0 {
            hasher.write(name.as_os_str().as_encoded_bytes());
            hasher.write_u64(*checksum);
            hasher.write_usize(*len);
        }
        hasher.finish()
    }

    fn describe(&self) -> String {
        let bytes: usize = self.0.values().map(|(_, len)| len).sum();
        format!("{} files, {}", self.0.len(), units::bytes(bytes as u64))
    }
}

/// Writes the demo's files and says what they hold.
fn write_files(dir: &Path) -> Result<(Content, Duration)> {
    let mut content = Content::default();
    let mut bytes = vec![0; FILE_BYTES];
    let begun = Instant::now();
    for index in 0..FILES {
        let name = PathBuf::from(format!("file-{index:02}"));
        let mut state = index as u64 + 1;
        for chunk in bytes.chunks_mut(8) {
            // xorshift: different bytes in each file, the same in each run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        let write = || File::create(dir.join(&name))?.write_all(&bytes);
        write().map_err(|error: std::io::Error| failed("writing a file", &error))?;
        content.add(name, &bytes);
    }
    Ok((content, begun.elapsed()))
}
