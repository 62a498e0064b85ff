//! What the documents and the dashboard name is what the program has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use watertight::metrics;

use crate::sample;

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// The names of all metrics, without what they all begin with.
fn exported() -> BTreeSet<String> {
    let page = metrics::page(&[&sample::status()], &[]) + &metrics::page_of_missing(&[]);
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE watertight_"));
    types.filter_map(|rest| rest.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&file("packaging/grafana/watertight.json")).unwrap();
    let exported = exported();
    let mut named = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let names = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in names.filter_map(|word| word.strip_prefix("watertight_")) {
                assert!(exported.contains(name), "no metric is called watertight_{name}: {query}");
                named += 1;
            }
        }
    }
    assert!(named > 10, "{named}");
}

#[test]
fn the_table_of_metrics_is_whole() {
    let text = file("docs/OPERATIONS.md");
    let table = text.split("## Metrics").nth(1).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<String> = rows.map(str::to_owned).collect();
    assert_eq!(documented, exported());
}

/// The words after each place where `before` stands, up to what ends a command's word.
fn words_after<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let ends = |c: char| c.is_whitespace() || c == '`' || c == '|';
    text.split(before).skip(1).filter_map(|rest| rest.split(ends).next()).collect()
}

#[test]
fn what_the_readme_measures_is_in_the_results_and_its_commands_name_what_is_there() {
    let (readme, results) = (file("README.md"), file("docs/RESULTS.md"));
    let experiments = words_after(&readme, "-p lab -- ");
    assert!(experiments.len() >= 6, "{experiments:?}");
    for name in experiments {
        assert!(results.contains(&format!("## `{name}`")), "no section of RESULTS.md is on {name}");
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tests = words_after(&readme, "--test ");
    assert!(tests.len() > 5, "{tests:?}");
    for name in tests {
        let mut dirs =
            fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path().join("tests").join(name));
        assert!(
            dirs.any(|path| path.with_extension("rs").exists() || path.join("main.rs").exists()),
            "there is no test {name}"
        );
    }
}
