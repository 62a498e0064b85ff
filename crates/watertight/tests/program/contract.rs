//! docs/SEMANTICS.md, the contract: each of its items names the tests that hold it, and these exist
//! and run: functions with `#[test]`, and without `#[ignore]` or a condition, in a file that is
//! part of its crate's tests.
//!
//! An item is an entry of a list, a table or a paragraph; the introduction and the definitions of
//! words have none. It says `` Tests: `P unmounting::force_over_a_store_that_hangs`. ``, the letter
//! being the tests' directory, or `Untested:` and why.

use std::fs;
use std::path::{Path, PathBuf};

const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const SECURITY: &str = include_str!("../../../../docs/SECURITY.md");
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
            is_open = items.last().is_some_and(|(_, item)| item.starts_with('|') && !item.contains("Tests:"));
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

/// The tests that an item names; or the defect.
fn named(item: &str) -> Result<Vec<&str>, String> {
    let Some((_, tests)) = item.split_once("Tests:") else {
        let untested = item.split_once("Untested: ").is_some_and(|(_, why)| why.len() > 10);
        return if untested { Ok(Vec::new()) } else { Err(format!("names no test: {item}")) };
    };
    let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
    if names.is_empty() { Err(format!("names no test: {item}")) } else { Ok(names) }
}

/// Whether a test is there and run, by a name as `P unmounting::force_over_a_store_that_hangs`; if
/// not, why.
fn exists(name: &str) -> Result<(), String> {
    let (letter, path) = name.split_once(' ').ok_or("no letter")?;
    let (file, test) = path.rsplit_once("::").ok_or("no file")?;
    let file = file.replace("::", "/");
    let (krate, tests) = match letter {
        "P" => ("watertight", "tests/program"),
        "A" => ("acceptance", "tests"),
        "V" => ("volume", "tests"),
        "W" => ("writeback", "tests"),
        "T" => ("throttle", "tests"),
        "F" => ("fuse", "tests"),
        "S" => ("store", "tests"),
        "C" => ("cgroups", "tests"),
        _ => return Err("no such letter".to_owned()),
    };
    let inside = |dir: &str| -> PathBuf { Path::new(CRATES).join(krate).join(dir) };
    // Behaviour that is not visible from outside of a crate is tested inside it.
    let dirs = [tests, "src"].map(inside);
    let mut paths = dirs.iter().map(|dir| dir.join(&file).with_extension("rs"));
    let path = paths.find(|path| path.is_file()).ok_or("no such file")?;
    // Each file of `tests` is a program of its own; one that is part of another is so by its name
    // there.
    let is_part = letter != "P" && path.parent().is_some_and(|dir| dir.ends_with("tests"));
    if !is_part && !is_module(&path) {
        return Err(format!("nobody has {} as a module", path.display()));
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    is_run(&text, test)
}

/// Whether a file beside this one, or the one that its directory belongs to, has it as a module.
fn is_module(path: &Path) -> bool {
    let (Some(name), Some(dir)) = (path.file_stem().and_then(|name| name.to_str()), path.parent()) else {
        return false;
    };
    let declares = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        if text.contains(&format!("#[path = \"{name}.rs\"]")) {
            return true;
        }
        let declared = text.lines().filter_map(|line| line.strip_suffix(';')?.split_once("mod "));
        declared.into_iter().any(|(visibility, declared)| declared == name && !visibility.contains('/'))
    };
    let beside = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    beside.chain([dir.with_extension("rs")]).any(declares)
}

/// Whether `text` has this function, with `#[test]` and nothing that keeps it from being run.
fn is_run(text: &str, test: &str) -> Result<(), String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let begin = format!("fn {test}(");
    let at = lines.iter().position(|line| line.starts_with(&begin)).ok_or("no such function")?;
    let above = lines[..at].iter().rev();
    let attributes: Vec<&str> = above
        .take_while(|line| line.starts_with('#') || line.starts_with("//"))
        .copied()
        .filter(|line| line.starts_with('#'))
        .collect();
    if !attributes.contains(&"#[test]") {
        return Err("it has no #[test]".to_owned());
    }
    match attributes.iter().find(|line| line.contains("ignore") || line.contains("cfg")) {
        Some(line) => Err(format!("it is not always run: {line}")),
        None => Ok(()),
    }
}

#[test]
fn every_item_of_the_contract_names_tests_that_exist() {
    let items = items(CONTRACT);
    let named: Vec<(&str, Vec<&str>)> = items
        .iter()
        .map(|(_, item)| (item.as_str(), named(item).unwrap_or_else(|wrong| panic!("{wrong}"))))
        .collect();
    assert!(named.len() > 120, "{}", named.len());
    for (item, names) in &named {
        for name in names {
            let there = exists(name);
            assert!(there.is_ok(), "no test `{name}` ({there:?}), which is named by: {item}");
        }
    }
    let untested = named.iter().filter(|(_, names)| names.is_empty()).count();
    assert!(untested <= 8, "{untested} items are untested");
}

/// The lines of docs/SECURITY.md's tables: attacker, attack, and the tests in the last column.
fn lines(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    rows.filter(|row| !row.contains(" Tests |")).collect()
}

#[test]
fn every_line_of_the_security_page_names_tests_that_exist() {
    let lines = lines(SECURITY);
    assert!(lines.len() >= 15, "{}", lines.len());
    for line in lines {
        let last = line.trim_end_matches(['|', ' ']).rsplit_once(" | ").unwrap().1;
        let names: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        let is_excused = last.strip_prefix("Untested: ").is_some_and(|why| why.len() > 10);
        assert!(!names.is_empty() || is_excused, "names no test: {line}");
        for name in names {
            let there = exists(name);
            assert!(there.is_ok(), "no test `{name}` ({there:?}), which is named by: {line}");
        }
    }
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
    assert_eq!(exists("P contract::what_names_no_test_is_found"), Ok(()));
    for (wrong, why) in [
        ("P contract::nobody", "no such function"),
        ("P contract::exists", "no #[test]"),
        ("P nowhere::a", "no such file"),
        ("X contract::exists", "no such letter"),
        ("contract::exists", "no letter"),
        ("P contract", "no file"),
    ] {
        assert!(exists(wrong).is_err_and(|said| said.contains(why)), "{wrong}: {:?}", exists(wrong));
    }
}

#[test]
fn what_is_not_run_is_no_test() {
    let page = "#[test]\nfn runs() {\n}\n\nfn helps() {\n}\n\n#[test]\n// A word.\n#[ignore = \"slow\"]\nfn is_ignored() {\n}\n\n\
        #[cfg(nothing)]\n#[test]\nfn has_a_condition() {\n}\n\n    /// In a macro.\n    #[test]\n    fn is_inside(a in 0..9) {\n";
    assert_eq!(is_run(page, "runs"), Ok(()));
    assert_eq!(is_run(page, "is_inside"), Ok(()));
    for (test, why) in [
        ("helps", "no #[test]"),
        ("is_ignored", "not always run: #[ignore"),
        ("has_a_condition", "not always run: #[cfg"),
        ("run", "no such function"),
    ] {
        assert!(is_run(page, test).is_err_and(|said| said.contains(why)), "{test}: {:?}", is_run(page, test));
    }
}
