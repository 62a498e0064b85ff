//! docs/SEMANTICS.md, the contract: each of its items names the tests that hold it, and these exist.
//!
//! An item is an entry of a list, a table or a paragraph; the introduction and the definitions of words have none. It says
//! `` Tests: `P unmounting::force_over_a_store_that_hangs`. ``, the letter being the tests' directory, or `Untested:` and why.

use std::fs;
use std::path::{Path, PathBuf};

const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const CONTRACT: &str = include_str!("../../../../docs/SEMANTICS.md");

/// The items, each with its section's name.
fn items(text: &str) -> Vec<(&str, String)> {
    let (mut section, mut items, mut is_open) = ("", Vec::<(&str, String)>::new(), false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            (section, is_open) = (name, false);
            continue;
        }
        // A table's tests are named below it, in a paragraph of their own.
        if line.trim().is_empty() {
            is_open =
                items.last().is_some_and(|(_, item)| item.starts_with('|') && !item.contains("Tests: "));
            continue;
        }
        match items.last_mut().filter(|_| is_open && !line.starts_with("- ")) {
            Some((_, item)) => *item = format!("{item}\n{line}"),
            None => items.push((section, line.to_owned())),
        }
        is_open = true;
    }
    items.retain(|(section, _)| !["", "Words"].contains(section));
    items
}

/// The tests that an item names; or what is missing.
fn named(item: &str) -> Result<Vec<&str>, String> {
    let Some((_, tests)) = item.split_once("Tests: ") else {
        let untested = item.split_once("Untested: ").is_some_and(|(_, why)| why.len() > 10);
        return if untested { Ok(Vec::new()) } else { Err(format!("names no test: {item}")) };
    };
    let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
    if names.is_empty() { Err(format!("names no test: {item}")) } else { Ok(names) }
}

/// Whether a test is there, by a name as `P unmounting::force_over_a_store_that_hangs`.
fn exists(name: &str) -> bool {
    let find = || {
        let (letter, path) = name.split_once(' ')?;
        let (file, test) = path.split_once("::")?;
        let (krate, tests) = match letter {
            "P" => ("watertight", "tests/program"),
            "A" => ("acceptance", "tests"),
            "V" => ("volume", "tests"),
            "W" => ("writeback", "tests"),
            "F" => ("fuse", "tests"),
            "S" => ("store", "tests"),
            _ => return None,
        };
        let inside =
            |dir: &str| -> PathBuf { Path::new(CRATES).join(krate).join(dir).join(format!("{file}.rs")) };
        // What cannot be seen from outside of a crate is tested beside it.
        let text = fs::read_to_string(inside(tests)).or_else(|_| fs::read_to_string(inside("src"))).ok()?;
        Some(text.contains(&format!("fn {test}(")))
    };
    find().unwrap_or(false)
}

#[test]
fn every_item_of_the_contract_names_tests_that_exist() {
    let items = items(CONTRACT);
    let named: Vec<(&str, Vec<&str>)> = items
        .iter()
        .map(|(_, item)| (item.as_str(), named(item).unwrap_or_else(|wrong| panic!("{wrong}"))))
        .collect();
    assert!(named.len() > 80, "{}", named.len());
    for (item, names) in &named {
        for name in names {
            assert!(exists(name), "there is no test `{name}`, which is named by: {item}");
        }
    }
    let untested = named.iter().filter(|(_, names)| names.is_empty()).count();
    assert!(untested <= 3, "{untested} items are untested");
}

#[test]
fn what_names_no_test_is_found() {
    let page = "# T\nIntroduction.\n## Words\n- **a**: b\n## Rules\n- One. (P)\n  More of it.\n- Two. Tests: `P a::b`.\n\n| a |\n|---|\n| b |\n\nTests: `A c::d`, `V e::f`.\n\nText,\nand more.\nUntested: it is a wish.\n";
    let items = items(page);
    let all: Vec<_> = items.iter().map(|(_, item)| named(item)).collect();
    assert_eq!(all.len(), 4, "{items:?}");
    assert!(all[0].as_ref().is_err_and(|wrong| wrong.contains("More of it")), "{all:?}");
    assert_eq!(all[1], Ok(vec!["P a::b"]));
    assert_eq!(all[2], Ok(vec!["A c::d", "V e::f"]));
    assert_eq!(all[3], Ok(Vec::new()));
    assert!(exists("P contract::what_names_no_test_is_found"));
    for wrong in
        ["P contract::nobody", "P nowhere::a", "X contract::exists", "contract::exists", "P contract"]
    {
        assert!(!exists(wrong), "{wrong}");
    }
}
