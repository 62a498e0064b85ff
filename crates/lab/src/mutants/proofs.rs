//! Mutants, joined with the tests that catch them; and what is missing on either side.

use super::asserts::{self, Assert};
use super::functions::{self, Test};
use super::places::{self, Place};
use crate::source::checker::Checker;
use crate::source::{self, Module, Target};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// All that the sources say.
#[derive(Debug)]
pub(super) struct Proofs {
    /// By name.
    pub(super) mutants: Vec<Mutant>,
    /// What is wrong, in sentences.
    pub(super) faults: Vec<String>,
}

/// A mutant.
#[derive(Debug)]
pub(super) struct Mutant {
    pub(super) name: String,
    /// Where a step is left out.
    pub(super) places: Vec<Place>,
    /// What catches it.
    pub(super) catches: Vec<Catch>,
}

/// A test that catches a mutant.
#[derive(Clone, Debug)]
pub(super) struct Catch {
    pub(super) target: Rc<Target>,
    pub(super) checker: Checker,
    /// The test, as its program names it.
    pub(super) test: String,
    pub(super) claim: String,
    pub(super) file: PathBuf,
    pub(super) line: usize,
    /// The test that runs it with the mutant.
    pub(super) by: String,
    /// Its place among all assertions.
    pub(super) number: usize,
}

/// Unit tests under a checker are in modules of this name: the others would not run there.
pub(super) const MODULE: &str = "schedules";

impl Mutant {
    /// Its files, each once.
    pub(super) fn files(&self) -> Vec<&Path> {
        let mut files: Vec<&Path> = self.places.iter().map(|place| place.file.as_path()).collect();
        files.dedup();
        files
    }
}

impl Proofs {
    /// Reads the workspace in `root`.
    ///
    /// # Errors
    /// If a file cannot be read, or is not Rust.
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        Ok(Self::of(&source::all(root)?))
    }

    fn of(modules: &[Module]) -> Self {
        let (places, unread_places) = places::all(modules);
        let (asserts, unread_asserts) = asserts::all(modules);
        let tests = functions::all(modules);
        let mut faults: Vec<String> = unread_places.into_iter().chain(unread_asserts).collect();
        let mut mutants = BTreeMap::<String, Mutant>::new();
        for place in places {
            let Place { name, .. } = &place;
            mutants.entry(name.clone()).or_insert_with(|| Mutant::new(name)).places.push(place);
        }
        for (number, assert) in asserts.iter().enumerate() {
            let Some(mutant) = mutants.get_mut(&assert.mutant) else {
                let Assert { file, line, mutant, .. } = assert;
                let file = file.display();
                faults.push(format!(
                    "{file}:{line}: `{mutant}` is said to be caught, and no source asks for it"
                ));
                continue;
            };
            match Catch::of(assert, number, &tests) {
                Ok(catch) => mutant.catches.push(catch),
                Err(fault) => faults.push(format!("{}:{}: {fault}", assert.file.display(), assert.line)),
            }
        }
        let is_left_out = |mutant: &&Mutant| !asserts.iter().any(|assert| assert.mutant == mutant.name);
        for mutant in mutants.values().filter(is_left_out) {
            if let Some(Place { name, file, line }) = mutant.places.first() {
                faults.push(format!("{}:{line}: no test catches `{name}`", file.display()));
            }
        }
        faults.sort();
        faults.dedup();
        Self { mutants: mutants.into_values().collect(), faults }
    }
}

impl Mutant {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), places: Vec::new(), catches: Vec::new() }
    }
}

impl Catch {
    fn of(assert: &Assert, number: usize, tests: &[Test]) -> Result<Self, String> {
        let Assert { target, test, by, .. } = assert;
        let named = |path: &str| tests.iter().find(|test| test.target == *target && test.path == path);
        let asserting = named(by).ok_or_else(|| format!("{by} is no test"))?;
        let checked = named(test).ok_or_else(|| format!("there is no test {test}"))?;
        for test in [asserting, checked] {
            if test.is_ignored {
                return Err(format!("the test {} is ignored", test.path));
            }
        }
        // What it runs may be part of other builds as well.
        let checker = asserting.checker.ok_or_else(|| format!("cannot tell which checker runs {by}"))?;
        let is_passed_over = target.has_unit_tests()
            && checker != Checker::Plain
            && !test.split("::").any(|module| module == MODULE);
        if is_passed_over {
            return Err(format!("{test} is not run: it is in no module `{MODULE}`"));
        }
        let claim = checked.claim.clone();
        let claim = claim.ok_or_else(|| format!("{test} has no comment that says what it claims"))?;
        Ok(Self {
            target: Rc::clone(target),
            checker,
            test: test.clone(),
            claim,
            file: checked.file.clone(),
            line: checked.line,
            by: by.clone(),
            number,
        })
    }
}
