//! The list of mutants, for people and for programs.

use super::page::wrap;
use super::proofs::{Catch, Mutant, Proofs};
use serde::Serialize;
use std::fmt::Write as _;

/// The list for people.
pub(super) fn text(proofs: &Proofs) -> String {
    let mut text = String::new();
    for Mutant { name, places, catches } in &proofs.mutants {
        let places: Vec<String> =
            places.iter().map(|place| format!("{}:{}", place.file.display(), place.line)).collect();
        let _ = writeln!(text, "{name}  {}", places.join(", "));
        for Catch { target, checker, test, claim, by, .. } in catches {
            text.push_str(&wrap(claim, "  ", "  "));
            let (package, option) = (&target.package, target.option());
            let _ = writeln!(text, "    {checker}: -p {package} {option} {test}, asserted by {by}");
        }
    }
    let _ = writeln!(text, "{} mutants", proofs.mutants.len());
    text
}

#[derive(Serialize)]
struct JsonMutant<'a> {
    name: &'a str,
    places: Vec<JsonPlace>,
    caught_by: Vec<JsonCatch<'a>>,
}

#[derive(Serialize)]
struct JsonPlace {
    file: String,
    line: usize,
}

#[derive(Serialize)]
struct JsonCatch<'a> {
    claim: &'a str,
    checker: &'static str,
    package: &'a str,
    target: String,
    test: &'a str,
    file: String,
    line: usize,
    asserted_by: &'a str,
}

/// The list for programs.
///
/// # Errors
/// Never: it has no maps.
pub(super) fn json(proofs: &Proofs) -> serde_json::Result<String> {
    let place = |file: &std::path::Path, line| JsonPlace { file: file.display().to_string(), line };
    let mutants = proofs.mutants.iter().map(|mutant| JsonMutant {
        name: &mutant.name,
        places: mutant.places.iter().map(|at| place(&at.file, at.line)).collect(),
        caught_by: mutant.catches.iter().map(of_catch).collect(),
    });
    let mutants: Vec<JsonMutant<'_>> = mutants.collect();
    Ok(serde_json::to_string_pretty(&mutants)? + "\n")
}

fn of_catch(catch: &Catch) -> JsonCatch<'_> {
    let Catch { target, checker, test, claim, file, line, by, .. } = catch;
    JsonCatch {
        claim,
        checker: checker.name(),
        package: &target.package,
        target: target.option(),
        test,
        file: file.display().to_string(),
        line: *line,
        asserted_by: by,
    }
}
