//! Where the program and other people's tools are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::command::Cmd;

/// The program under test: `WATERTIGHT_BIN`, or built here with cargo, once.
///
/// # Panics
/// When it cannot be built.
pub fn watertight() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("WATERTIGHT_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

/// Whether the program has a verb `mount`.
#[must_use]
pub fn can_mount() -> bool {
    let said = Cmd::new(watertight()).args(["mount", "--help"]).run();
    said.status.success() && !said.stdout.is_empty()
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cmd = Cmd::new(cargo)
        .args(["build", "--quiet", "--package", "watertight", "--bin", "watertight"])
        .arg("--message-format=json-render-diagnostics")
        .dir(env!("CARGO_MANIFEST_DIR"))
        .limit(Duration::from_secs(1200));
    if !cfg!(debug_assertions) {
        cmd = cmd.arg("--release");
    }
    let output = cmd.ok();
    output
        .out()
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "watertight")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo named no executable `watertight`")
}

/// Looks for `tool` in `PATH`, `WATERTIGHT_TOOLS` and cargo's directory.
#[must_use]
pub fn find(tool: &str) -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = Vec::new();
    for variable in ["WATERTIGHT_TOOLS", "PATH"] {
        if let Some(value) = std::env::var_os(variable) {
            places.extend(std::env::split_paths(&value));
        }
    }
    if let Some(home) = std::env::var_os("HOME") {
        places.push(Path::new(&home).join(".cargo/bin"));
    }
    // Users' paths often lack these, and losetup, mkfs and umount may be there.
    places.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.into_iter().map(|dir| dir.join(tool)).find(|path| path.is_file())
}

/// Looks for all of `tools`; says that `test` is skipped when one is missing.
#[must_use]
pub fn have(test: &str, tools: &[&str]) -> bool {
    let missing: Vec<&str> = tools.iter().copied().filter(|tool| find(tool).is_none()).collect();
    if !missing.is_empty() {
        crate::skip(test, &format!("not installed: {}", missing.join(", ")));
    }
    missing.is_empty()
}
