//! Small workspaces, and what is read from them.

use super::proofs::Proofs;
use super::*;
use crate::source::checker::Checker;
use std::path::Path;

/// A workspace with these files.
struct Workspace(tempfile::TempDir);

impl Workspace {
    fn new(files: &[(&str, &str)]) -> Self {
        let workspace = Self(tempfile::tempdir().unwrap());
        workspace.write("crates/a/Cargo.toml", "[package]\nname = \"the-a\"\n");
        files.iter().for_each(|(file, text)| workspace.write(file, text));
        workspace
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.0.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    fn read(&self) -> Proofs {
        Proofs::read(self.0.path()).unwrap()
    }
}

/// What is read where the product is `source` and a test under loom is `test`.
fn read(source: &str, test: &str) -> Proofs {
    let test = format!("#![cfg(loom)]\n{test}");
    Workspace::new(&[("crates/a/src/lib.rs", source), ("crates/a/tests/loom_a.rs", &test)]).read()
}

/// A test, and one that asserts with these statements that mutants are caught.
fn asserting(statements: &str) -> String {
    format!(
        "/// It holds.\n#[test]\nfn holds() {{}}\n/// It holds, too.\n#[test]\nfn holds_too() {{}}\n\
         #[test]\nfn each_is_caught() {{ {statements} }}\n"
    )
}

/// Each mutant with the tests that catch it.
fn caught(proofs: &Proofs) -> Vec<(&str, Vec<&str>)> {
    proofs
        .mutants
        .iter()
        .map(|mutant| {
            (mutant.name.as_str(), mutant.catches.iter().map(|catch| catch.test.as_str()).collect())
        })
        .collect()
}

const TWO: &str = "fn f() { if is_on(\"one\") {} }\nfn g() -> bool { !sync::mutant::is_on(\"two\") }\n";

#[track_caller]
fn assert_reads(statements: &str, wanted: &[(&str, &[&str])]) {
    let proofs = read(TWO, &asserting(statements));
    let wanted: Vec<(&str, Vec<&str>)> = wanted.iter().map(|(name, tests)| (*name, tests.to_vec())).collect();
    assert_eq!((caught(&proofs), &proofs.faults), (wanted, &Vec::new()), "{statements}");
}

#[test]
fn names_are_found_however_they_are_given() {
    let both: &[(&str, &[&str])] = &[("one", &["holds"]), ("two", &["holds"])];
    for statements in [
        "assert_caught(\"holds\", &[\"one\", \"two\"], \"x\");",
        "let test = \"holds\"; let names = [\"one\", \"two\"]; mutant::assert_caught(test, &names, \"x\");",
        "for name in [\"one\", \"two\"] { assert_caught(\"holds\", &[name], \"x\"); }",
        "const NAMES: [&str; 2] = [\"one\", \"two\"]; assert_caught_by_any(\"holds\", &NAMES, &[\"x\"]);",
        "[\"one\", \"two\"].iter().for_each(|name| assert_caught(\"holds\", &[name], \"x\"));",
        "for (test, names, says) in [(\"holds\", &[\"one\"][..], X), (\"holds\", &[\"two\"], y())] { \
         mutant::assert_caught(test, names, says); }",
        "let test = |name: &str| format!(\"{name}\"); for name in vec![\"one\", \"two\"] { \
         assert_caught(&test(\"holds\"), &[name], \"x\"); }",
        "let ends = \"s\"; let test = format!(\"{}{ends}\", \"hold\"); \
         assert_caught(&test, &[[\"one\"], [\"two\"]].concat(), \"x\");",
        "run!(assert_caught(\"holds\", &[\"one\"], \"x\"), assert_caught(\"holds\", &[\"two\"], \"x\"));",
        "run!(a => assert_caught(\"holds\", &[\"one\", \"two\"], \"x\"));",
    ] {
        assert_reads(statements, both);
    }
    assert_reads(
        "for test in [\"holds\", \"holds_too\"] { assert_caught(test, &[\"one\"], \"x\"); } \
         let test = \"holds\"; { let test = \"holds_too\"; assert_caught(test, &[\"two\"], \"x\"); }",
        &[("one", &["holds", "holds_too"]), ("two", &["holds_too"])],
    );
}

#[test]
fn a_mutant_that_no_test_catches_is_named() {
    let proofs = read(TWO, &asserting("assert_caught(\"holds\", &[\"one\"], \"x\");"));
    assert_eq!(proofs.faults, ["crates/a/src/lib.rs:2: no test catches `two`"]);
}

#[test]
fn an_assertion_about_what_no_source_has_is_named() {
    let proofs = read(TWO, &asserting("\nassert_caught(\"holds\", &[\"one\", \"two\", \"tow\"], \"x\");"));
    let fault = "crates/a/tests/loom_a.rs:10: `tow` is said to be caught, and no source asks for it";
    assert_eq!(proofs.faults, [fault]);
}

#[test]
fn what_cannot_be_told_is_a_fault_and_not_passed_over() {
    for (statements, wanted) in [
        ("assert_caught(\"holds\", &names(), \"x\");", "cannot tell which mutants are caught here"),
        ("assert_caught(test, &[\"one\"], \"x\");", "cannot tell which mutants are caught here"),
        (
            "for (names, n) in [(names(), 1)] { assert_caught(\"holds\", names, n); }",
            "cannot tell which mutants are caught here",
        ),
        ("is_on(name);", "cannot tell which mutant is asked for"),
        ("assert_caught(\"hold\", &[\"one\"], \"x\");", "there is no test hold"),
        ("assert_caught(\"each_is_caught\", &[\"one\"], \"x\");", "has no comment"),
    ] {
        let proofs = read(TWO, &asserting(statements));
        assert!(proofs.faults.iter().any(|fault| fault.contains(wanted)), "{:?}", proofs.faults);
    }
    let helper =
        "/// It holds.\n#[test]\nfn holds() {}\nfn helps() { assert_caught(\"holds\", &[\"one\"], \"\"); }";
    assert!(read(TWO, helper).faults.iter().any(|fault| fault.contains("helps is no test")));
    let ignored = asserting("assert_caught(\"holds\", &[\"one\", \"two\"], \"x\");")
        .replace("#[test]\nfn each", "#[test]\n#[ignore]\nfn each");
    assert!(read(TWO, &ignored).faults.iter().any(|fault| fault.contains("each_is_caught is ignored")));
}

#[test]
fn places_are_found_in_macros_constants_and_what_names_them() {
    let source = "const NAME: &str = \"constant\";\nfn f(e: E) {\n assert!(x || is_on(\"argument\"), \"y\");\n \
                  matches!(x, Some(_) if is_on(\"guard\"));\n if mutant::is_on(NAME) {}\n is_on(e.mutant());\n}\n\
                  impl E {\n /// Not \"this\".\n fn mutant(self) -> &'static str {\n match self {\n \
                  E::A => \"first\",\n E::B => \"second\" } } }\n";
    let proofs = read(source, "");
    let places: Vec<(&str, usize)> =
        proofs.mutants.iter().map(|mutant| (mutant.name.as_str(), mutant.places[0].line)).collect();
    let wanted = [("argument", 3), ("constant", 5), ("first", 12), ("guard", 4), ("second", 13)];
    assert_eq!(places, wanted);
}

#[test]
fn another_function_of_the_same_name_asks_for_no_mutant() {
    let source =
        "fn is_on(switch: &Path) -> bool { true }\nmod tests { fn f() { is_on(&switch); is_on(\"x\"); } }";
    let proofs = read(source, "");
    assert!(proofs.mutants.is_empty() && proofs.faults.is_empty(), "{proofs:?}");
}

#[test]
fn modules_checkers_and_claims_are_those_of_the_test() {
    let lib = "mod b;\nmod inline { pub mod c; }\n#[path = \"other.rs\"] mod d;\n";
    let unit = |name: &str| {
        format!(
            "fn f() {{ is_on(\"{name}\"); }}\n#[cfg(all(test, shuttle))]\nmod schedules {{\n\
             /// What [`holds`] says,\n/// in two lines.\n///\n/// And more.\n#[test]\nfn holds() {{}}\n#[test]\n\
             fn mistakes() {{ let test = \"{}\"; assert_caught(test, &[\"{name}\"], \"x\"); }} }}",
            match name {
                "b" => "b::schedules::holds",
                "c" => "inline::c::schedules::holds",
                _ => "d::schedules::holds",
            }
        )
    };
    let proofs = Workspace::new(&[
        ("crates/a/src/lib.rs", lib),
        ("crates/a/src/b.rs", &unit("b")),
        ("crates/a/src/inline/c/mod.rs", &unit("c")),
        ("crates/a/src/other.rs", &unit("d")),
    ])
    .read();
    assert_eq!(proofs.faults, [""; 0]);
    let found: Vec<_> = proofs.mutants.iter().map(|mutant| mutant.catches[0].test.as_str()).collect();
    assert_eq!(found, ["b::schedules::holds", "inline::c::schedules::holds", "d::schedules::holds"]);
    let catch = &proofs.mutants[0].catches[0];
    assert_eq!(catch.claim, "What `holds` says, in two lines.");
    assert_eq!((catch.checker, catch.by.as_str()), (Checker::Shuttle, "b::schedules::mistakes"));
    assert_eq!((catch.target.package.as_str(), catch.target.option()), ("the-a", "--lib".to_owned()));
}

#[test]
fn a_test_that_no_command_runs_is_named() {
    let source = "fn f() { is_on(\"b\"); }\n#[cfg(shuttle)]\nmod tests {\n/// It holds.\n#[test]\nfn holds() {}\n\
                  #[test]\nfn mistakes() { assert_caught(\"tests::holds\", &[\"b\"], \"x\"); } }";
    let faults = read(source, "").faults;
    assert!(faults.iter().any(|fault| fault.contains("is in no module `schedules`")), "{faults:?}");
    let either =
        "#[cfg(any(loom, shuttle))]\n#[test]\nfn each() { assert_caught(\"each\", &[\"one\"], \"\"); }";
    let workspace = Workspace::new(&[("crates/a/src/lib.rs", TWO), ("crates/a/tests/either.rs", either)]);
    let faults = workspace.read().faults;
    assert!(faults.iter().any(|fault| fault.contains("cannot tell which checker runs each")), "{faults:?}");
}

#[test]
fn the_page_says_what_the_sources_say() {
    let proofs = read(
        TWO,
        &asserting(
            "assert_caught(\"holds\", &[\"one\", \"two\"], \"x\"); assert_caught(\"holds_too\", &[\"one\"], \"\");",
        ),
    );
    let page = page::text(&proofs);
    let section = "\n## the-a\n\n### `crates/a/tests/loom_a.rs`, loom\n\n- It holds. `holds`\n  - `one`: \
                   `crates/a/src/lib.rs`\n  - `two`: `crates/a/src/lib.rs`\n- It holds, too. `holds_too`\n  - `one`: \
                   `crates/a/src/lib.rs`\n";
    assert!(page.ends_with(section), "{page}");
    assert!(page.contains("There are 2 mutants, and 2 claims."), "{page}");
    let command =
        "RUSTFLAGS=\"--cfg loom\" cargo test -p the-a --release --test loom_a --target-dir target/loom\n";
    assert!(page.contains(command), "{page}");
    assert_eq!(page::difference(&page, &page), None);
    let edited = page.replace("It holds, too.", "It may hold.");
    assert!(page::difference(&edited, &page).unwrap().contains("It may hold."));
    assert!(page::difference(&page[..page.len() - 1], &page).is_some(), "the last line has no end");
}

#[test]
fn paragraphs_are_wrapped() {
    let text = page::wrap(&"word ".repeat(60), "- ", "  ");
    assert!(text.lines().all(|line| line.len() <= 100) && text.lines().count() == 4, "{text}");
    assert!(text.starts_with("- word") && text.lines().skip(1).all(|line| line.starts_with("  word")));
}

/// The workspace that this is part of: nothing is missing in it, the reading finds what a search for
/// the text finds, and the page is made of it.
#[test]
fn this_workspace_has_no_faults() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let proofs = Proofs::read(&root).unwrap();
    assert_eq!(proofs.faults, [""; 0]);
    assert!(proofs.mutants.len() >= FLOOR, "{}", proofs.mutants.len());
    let page = page::text(&proofs);
    let prose = page.lines().filter(|line| !line.contains('`'));
    prose.for_each(|line| assert!(line.chars().count() <= 100, "{line}"));
    let mut missing = Vec::new();
    search(&root.join("crates"), &mut |file, text| {
        // Not this crate, which speaks of such calls.
        let calls =
            text.split("is_on(\"").skip(1).filter(|_| !file.starts_with(root.join("crates/lab/src/mutants")));
        for name in calls.filter_map(|rest| rest.split('"').next()) {
            if !proofs.mutants.iter().any(|mutant| mutant.name == name) {
                missing.push(name.to_owned());
            }
        }
    });
    assert_eq!(missing, [""; 0], "not read");
}

fn search(directory: &Path, look: &mut impl FnMut(&Path, &str)) {
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            search(&path, look);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            look(&path, &std::fs::read_to_string(&path).unwrap());
        }
    }
}
