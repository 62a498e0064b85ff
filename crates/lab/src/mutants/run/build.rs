//! The test programs of a campaign, as cargo builds them.

use crate::source::Target;
use crate::source::checker::Checker;
use anyhow::Context as _;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where each test program is, as far as it could be built.
#[derive(Debug)]
pub(super) struct Programs(BTreeMap<(Target, Checker), PathBuf>);

/// Targets by what builds them: the checker, and whether they have unit tests.
type Groups<'t> = BTreeMap<(Checker, bool), BTreeSet<&'t Target>>;

fn grouped<'t>(targets: impl Iterator<Item = (&'t Target, Checker)>) -> Groups<'t> {
    let mut groups = Groups::new();
    for (target, checker) in targets {
        groups.entry((checker, target.has_unit_tests())).or_default().insert(target);
    }
    groups
}

/// The part of cargo's messages that is checked.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Built>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Built {
    kind: Vec<String>,
    name: String,
}

impl Programs {
    /// Builds the programs that are needed, with one command for each checker and kind of target.
    ///
    /// A command names the packages of all programs of its kind, those of `all`: with fewer, what
    /// they depend on would have other features, and be built once more.
    ///
    /// # Errors
    /// If cargo cannot be run, or there is no workspace.
    pub(super) fn build<'t>(
        root: &Path,
        needed: impl Iterator<Item = (&'t Target, Checker)>,
        all: impl Iterator<Item = (&'t Target, Checker)>,
    ) -> anyhow::Result<Self> {
        let root = root.canonicalize().with_context(|| format!("cannot find {}", root.display()))?;
        let (groups, all) = (grouped(needed), grouped(all));
        let mut programs = BTreeMap::new();
        for (kind, targets) in groups {
            let (checker, _) = kind;
            let beside = all.get(&kind).unwrap_or(&targets);
            let packages = beside.iter().map(|target| target.package.as_str()).collect();
            for message in cargo(&root, checker, &packages, &targets)? {
                let target = targets.iter().find(|target| message.is_of(target, &root));
                if let (Some(target), Some(executable)) = (target, message.executable) {
                    programs.insert(((*target).clone(), checker), executable);
                }
            }
        }
        Ok(Self(programs))
    }

    /// The program of a target.
    pub(super) fn get(&self, target: &Target, checker: Checker) -> Option<&Path> {
        self.0.get(&(target.clone(), checker)).map(PathBuf::as_path)
    }
}

impl Message {
    fn is_of(&self, target: &Target, root: &Path) -> bool {
        let manifest = root.join(&target.directory).join("Cargo.toml");
        let is_kind = |built: &Built| match target.option().strip_prefix("--test ") {
            Some(name) => built.kind.iter().any(|kind| kind == "test") && built.name == name,
            None => {
                let kind = if target.option() == "--lib" { "lib" } else { "bin" };
                built.kind.iter().any(|other| other == kind)
            }
        };
        self.manifest_path.as_ref() == Some(&manifest) && self.target.as_ref().is_some_and(is_kind)
    }
}

/// Runs one command and returns what it says of each program. Its own messages are for the person
/// who waits.
fn cargo(
    root: &Path,
    checker: Checker,
    packages: &BTreeSet<&str>,
    targets: &BTreeSet<&Target>,
) -> anyhow::Result<Vec<Message>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    for package in packages {
        command.args(["-p", package]);
    }
    for option in targets.iter().map(|target| target.option()).collect::<BTreeSet<_>>() {
        command.args(option.split(' '));
    }
    command.args(checker.profile());
    let below = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let below = checker.directory().map_or_else(|| below.clone().into(), |name| Path::new(&below).join(name));
    command.arg("--target-dir").arg(below);
    command.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove(super::MUTANT);
    command.envs(checker.variable());
    eprintln!("lab: mutants: builds the tests for {checker}");
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    let lines = output.stdout.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}
