//! The program under test, in its modes.

use super::dirs::RunDirs;
use super::target::{Start, Target};
use crate::experiment::Settings;
use anyhow::{Context as _, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The name of the package and of its program.
const PROGRAM: &str = "watertight";
/// The bound of its cache: more than a client's file, so that not only the store's speed is
/// measured; less than the data written in a run.
const CACHE: &str = "cache=1G";
/// The kernel's switch for FUSE over io_uring; kernels without it have none.
const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Finds the program, or fails with the reason. Under cargo it is built first, so that it is never
/// an older one than this lab.
pub(crate) fn program(settings: &Settings) -> Result<PathBuf, String> {
    let found = match (&settings.program, std::env::var_os("CARGO")) {
        (Some(given), _) => given.canonicalize().with_context(|| format!("--program {}", given.display())),
        (None, Some(cargo)) => build(Path::new(&cargo)),
        (None, None) => beside(),
    };
    found.map_err(|error| format!("not built: {error:#}"))
}

fn build(cargo: &Path) -> anyhow::Result<PathBuf> {
    let output = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--message-format=json-render-diagnostics", "-p", PROGRAM])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "`cargo build --release -p {PROGRAM}` failed");
    executable(&String::from_utf8_lossy(&output.stdout)).context("cargo built no executable")
}

/// The executable that cargo's messages speak of.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_program = message["target"]["name"] == PROGRAM;
        Some(PathBuf::from(message["executable"].as_str().filter(|_| is_program)?))
    })
}

fn beside() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find this executable")?;
    let path = this.with_file_name(PROGRAM);
    ensure!(path.is_file(), "no {}", path.display());
    Ok(path)
}

/// One variant on a directory store and on a memory store.
pub(crate) fn targets(
    variant: &'static str,
    program: &Result<PathBuf, String>,
    dirs: &RunDirs,
) -> [Target; 2] {
    let uring = if Path::new(URING_SWITCH).exists() { ",uring=on" } else { "" };
    let (options, note) = match variant {
        "writethrough" => {
            (format!("{CACHE},mode=write-through,uring=off"), "write-through, plain readers: no io_uring")
        }
        "recover" => (
            format!("{CACHE},recover=on"),
            "another server follows: a write is the store's at once, no io_uring",
        ),
        "noidle" => (format!("{CACHE},idle_sched=off{uring}"), "write-through, threads keep their class"),
        "writeback" => (format!("{CACHE},mode=kernel-writeback{uring}"), "kernel write-back"),
        _ => (format!("{CACHE}{uring}"), ""),
    };
    [false, true].map(|in_memory| {
        let store = if in_memory { "store=mem" } else { "store=dir" };
        let note = if note.is_empty() { store.to_owned() } else { format!("{note}, {store}") };
        let start = match program {
            Ok(program) => start(variant, program, &options, in_memory, dirs)
                .unwrap_or_else(|error| Start::Impossible(format!("cannot mount: {error:#}"))),
            Err(why) => Start::Impossible(why.clone()),
        };
        Target { in_memory, ..Target::new(variant, start, &note) }
    })
}

fn start(
    variant: &str,
    program: &Path,
    options: &str,
    in_memory: bool,
    dirs: &RunDirs,
) -> anyhow::Result<Start> {
    let name = format!("{variant}-{}", if in_memory { "mem" } else { "dir" });
    let root = dirs.mountpoint(&name)?;
    let mut command = Command::new(program);
    command.arg("mount");
    if in_memory {
        command.arg("mem:");
    } else {
        command.arg(dirs.store(&name)?);
    }
    command.arg(&root).args(["-o", options]);
    Ok(Start::Server { command, root, log: dirs.scratch().join(format!("{name}.log")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_in_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"watertight"},"executable":"/t/watertight"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"watertight"},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"build-finished","success":true}"#
        );
        assert_eq!(executable(messages), Some(PathBuf::from("/t/watertight")));
        assert_eq!(executable(""), None);
    }

    #[test]
    fn without_a_program_both_stores_say_why() {
        let dirs = RunDirs::new(None).unwrap();
        for target in targets("default", &Err("not built: no compiler".to_owned()), &dirs) {
            assert!(matches!(&target.start, Start::Impossible(why) if why == "not built: no compiler"));
        }
    }
}
