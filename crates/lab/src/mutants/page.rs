//! docs/PROOFS.md: the claims, and the mutants that show of each that its test can fail.

use super::proofs::{self, Catch, Mutant, Proofs};
use crate::source::Target;
use crate::source::checker::Checker;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Columns of a line.
const WIDTH: usize = 100;

/// Mutants, each with one of the tests that catch it.
type Caught<'p> = Vec<(&'p Mutant, &'p Catch)>;

const HEAD: &str = "\
# Proofs

<!-- Made by `cargo run -p lab -- mutants --write` from the sources: do not edit. -->

What is claimed about threads here is checked by a test under a *model checker*, and each of these
tests is checked in turn: a *mutant* leaves one step of the protocol out, or puts it later, and the
same test must object. [ARCHITECTURE](ARCHITECTURE.md#what-is-model-checked) says what the checkers
are and what they do not cover.

This page is read from the sources. A claim is the comment of its test; below it are the mutants
that this test catches, each with the file in which `is_on` asks for it. `lab mutants` names the
lines as well, and says which test runs another one with the mutant.

";

const AFTERWARDS: &str = "\
Every test with every mutant, each in a process of its own, with a verdict on each; or the mutants
whose names begin with a word, or some of them, evenly chosen:

```sh
cargo run -p lab -- mutants --run
cargo run -p lab -- mutants --run budget- drain-no-wake
cargo run -p lab -- mutants --run --sample 10
```

One test with one mutant, to see what the checker says:

```sh
export WATERTIGHT_MUTANT=NAME WATERTIGHT_SCHEDULES=50000
```

and then the command of its checker below, with `-- --exact TEST` as its end. All tests of a
checker, with all mutants; `.ci/run` runs them, but for those of `watertight-objects`, whose
dependencies take minutes to build:
";

/// The page.
pub(super) fn text(proofs: &Proofs) -> String {
    let all: Caught<'_> = proofs
        .mutants
        .iter()
        .flat_map(|mutant| mutant.catches.iter().map(move |catch| (mutant, catch)))
        .collect();
    let claims: BTreeSet<_> = all.iter().map(|(_, catch)| (&catch.target, &catch.test)).collect();
    let mut page = HEAD.to_owned();
    let _ = writeln!(page, "There are {} mutants, and {} claims.\n", proofs.mutants.len(), claims.len());
    page.push_str("## How to run them\n\n");
    page.push_str(AFTERWARDS);
    page.push_str(&commands(&all));
    let mut targets: BTreeMap<&Target, Caught<'_>> = BTreeMap::new();
    for (mutant, catch) in all {
        targets.entry(&*catch.target).or_default().push((mutant, catch));
    }
    let mut package = "";
    for (target, catches) in targets {
        if target.package != package {
            let _ = write!(page, "\n## {}\n", target.package);
            package = &target.package;
        }
        page.push_str(&section(catches));
    }
    page
}

/// The claims of one test program.
fn section(catches: Caught<'_>) -> String {
    let mut tests: BTreeMap<(Checker, &Path, usize), Caught<'_>> = BTreeMap::new();
    for (mutant, catch) in catches {
        tests.entry((catch.checker, &catch.file, catch.line)).or_default().push((mutant, catch));
    }
    let (mut text, mut heading) = (String::new(), String::new());
    for ((checker, file, _), mut mutants) in tests {
        mutants.sort_by_key(|(_, catch)| catch.number);
        mutants.dedup_by_key(|(mutant, _)| &mutant.name);
        let Some((_, catch)) = mutants.first() else { continue };
        let under = if checker == Checker::Plain { "without a checker" } else { checker.name() };
        let wanted = format!("\n### `{}`, {under}\n\n", file.display());
        if heading != wanted {
            text.push_str(&wanted);
            heading = wanted;
        }
        text.push_str(&wrap(&format!("{} `{}`", catch.claim, catch.test), "- ", "  "));
        for (mutant, _) in mutants {
            let files: Vec<String> =
                mutant.files().iter().map(|file| format!("`{}`", file.display())).collect();
            text.push_str(&wrap(&format!("`{}`: {}", mutant.name, files.join(", ")), "  - ", "    "));
        }
    }
    text
}

/// What runs the tests of each checker.
fn commands(all: &[(&Mutant, &Catch)]) -> String {
    let mut runs: BTreeMap<(Checker, bool), BTreeSet<&Target>> = BTreeMap::new();
    for (_, catch) in all {
        let kind = (catch.checker, catch.target.has_unit_tests());
        runs.entry(kind).or_default().insert(&catch.target);
    }
    let mut text = "\n```sh\n".to_owned();
    for ((checker, are_unit_tests), targets) in runs {
        let mut words = Vec::new();
        words.extend(checker.variable().map(|(name, value)| {
            if value.contains(' ') { format!("{name}=\"{value}\"") } else { format!("{name}={value}") }
        }));
        words.push("cargo test".to_owned());
        let packages: BTreeSet<&str> = targets.iter().map(|target| target.package.as_str()).collect();
        words.extend(packages.iter().map(|package| format!("-p {package}")));
        words.extend(checker.profile().map(str::to_owned));
        words.extend(targets.iter().map(|target| target.option()).collect::<BTreeSet<_>>());
        words.extend(checker.directory().map(|directory| format!("--target-dir target/{directory}")));
        let is_part = are_unit_tests && checker != Checker::Plain;
        words.extend(is_part.then(|| format!("-- {}", proofs::MODULE)));
        text.push_str(&shell(&words));
    }
    text + "```\n"
}

/// A command in lines that a shell takes for one.
fn shell(words: &[String]) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in words {
        if column > 0 && column + 1 + word.len() + 2 > WIDTH {
            text.push_str(" \\\n    ");
            column = 4;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.len();
    }
    text + "\n"
}

/// A paragraph in lines of at most [`WIDTH`] columns, if its words are short enough.
pub(super) fn wrap(paragraph: &str, first: &str, next: &str) -> String {
    let (mut text, mut column) = (first.to_owned(), first.len());
    let mut is_begun = false;
    for word in paragraph.split_whitespace() {
        let width = word.chars().count();
        if is_begun && column + 1 + width > WIDTH {
            let _ = write!(text, "\n{next}");
            column = next.len();
        } else if is_begun {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
        is_begun = true;
    }
    text + "\n"
}

/// Where the page that is there parts from the one that is wanted.
pub(super) fn difference(there: &str, wanted: &str) -> Option<String> {
    if there == wanted {
        return None;
    }
    let mut lines = there.lines().zip(wanted.lines()).enumerate();
    Some(match lines.find(|(_, (there, wanted))| there != wanted) {
        Some((number, (there, wanted))) => {
            format!(":{}: differs from the sources\n  there:   {there}\n  sources: {wanted}", number + 1)
        }
        None => ": is longer or shorter than what the sources give".to_owned(),
    })
}
