//! Names in the documents and the dashboard exist in the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use clap::CommandFactory as _;
use watertight::cli::Cli;
use watertight::control::metrics;

use crate::rig::{run, tool};
use crate::sample;

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// The names of all metrics, without their common prefix.
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
            for name in metrics_in(query) {
                assert!(exported.contains(name), "no metric is called watertight_{name}: {query}");
                named += 1;
            }
        }
    }
    assert!(named > 10, "{named}");
}

/// The names of our metrics in a text, without their common prefix.
fn metrics_in(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter_map(|word| word.strip_prefix("watertight_")).collect()
}

#[test]
fn the_alerts_are_of_metrics_that_exist_and_prometheus_own_checker_takes_them() {
    let (rules, tests) = ("watertight.rules.yml", "watertight.test.yml");
    let (text, tried) =
        (file("packaging/prometheus/watertight.rules.yml"), file("packaging/prometheus/watertight.test.yml"));
    let exported = exported();
    let named = metrics_in(&text);
    assert!(named.len() >= 8, "{named:?}");
    for name in named.into_iter().chain(metrics_in(&tried)) {
        assert!(exported.contains(name), "no metric is called watertight_{name}");
    }
    let alerts: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    for alert in &alerts {
        let is_tried = tried.contains(&format!("alertname: {alert}\n        exp_alerts:"));
        assert!(is_tried, "nothing tries whether {alert} fires");
        assert!(tried.contains(&format!("alertname: {alert} }}")), "nothing tries whether {alert} rests");
    }
    assert!(alerts.len() >= 6, "{alerts:?}");
    let Some(promtool) = tool("promtool") else { return };
    let dir = tempfile::tempdir().unwrap();
    let check = |rules_text: &str| {
        fs::write(dir.path().join(rules), rules_text).unwrap();
        fs::write(dir.path().join(tests), &tried).unwrap();
        let promtool = |what: [&str; 3]| {
            let mut command = Command::new(&promtool);
            command.args(what).current_dir(dir.path());
            run(command)
        };
        promtool(["check", "rules", rules]).ok();
        promtool(["test", "rules", tests])
    };
    check(&text).ok();
    // It does find a mistake: a bound that another stall passes.
    let wrong = check(&text.replace("stalled_seconds > 60", "stalled_seconds > 600"));
    assert!(wrong.code != Some(0), "{wrong:?}");
}

#[test]
fn the_table_of_metrics_is_whole() {
    let text = file("docs/OPERATIONS.md");
    let table = text.split("## Metrics").nth(1).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<String> = rows.map(str::to_owned).collect();
    assert_eq!(documented, exported());
}

/// The words after each occurrence of `before`, up to the end of a command's word.
fn words_after<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let ends = |c: char| c.is_whitespace() || c == '`' || c == '|';
    text.split(before).skip(1).filter_map(|rest| rest.split(ends).next()).collect()
}

#[test]
fn what_is_measured_is_in_the_results_and_commands_name_what_is_there() {
    let (testing, results) = (file("docs/TESTING.md"), file("docs/RESULTS.md"));
    let mut experiments = words_after(&testing, "-p lab -- ");
    // Not an experiment: its results are verdicts.
    assert!(experiments.remove("mutants"));
    // Its section has a title of its own.
    assert!(experiments.remove("kernels") && results.contains("\n## The kernels themselves\n"));
    assert!(experiments.len() >= 6, "{experiments:?}");
    for name in experiments {
        assert!(results.contains(&format!("## `{name}`")), "no section of RESULTS.md is on {name}");
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tests = words_after(&testing, "--test ");
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

/// The crates of this workspace.
fn crates() -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The crates of this workspace that a crate is built with; not those that only its tests use.
fn dependencies(name: &str) -> BTreeSet<String> {
    let manifest: toml::Table = file(&format!("crates/{name}/Cargo.toml")).parse().unwrap();
    let named = manifest.get("dependencies").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    named.keys().filter(|name| crates().contains(*name)).cloned().collect()
}

/// On which line of the picture each crate's name stands, alone between spaces.
fn drawn(picture: &str) -> Vec<(String, usize)> {
    let all = crates();
    let mut drawn: Vec<(String, usize)> = Vec::new();
    for (number, line) in picture.lines().enumerate() {
        // Names stand apart, remarks on them in sentences.
        let parts = line.trim().split("  ").map(|part| part.trim().trim_matches('|').trim());
        let names = parts.flat_map(|part| part.split(", ")).filter(|part| all.contains(*part));
        for name in names {
            assert!(drawn.iter().all(|(other, _)| other != name), "{name} is drawn twice");
            drawn.push((name.to_owned(), number));
        }
    }
    drawn
}

#[test]
fn the_picture_has_all_crates_and_dependencies_point_down() {
    let text = file("docs/ARCHITECTURE.md");
    let picture = text.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let drawn = drawn(picture);
    let line = |name: &str| drawn.iter().find(|(drawn, _)| drawn == name).map(|(_, line)| *line);
    // The crate that tests share is described below the picture.
    let missing: Vec<String> =
        crates().into_iter().filter(|name| name != "testing" && line(name).is_none()).collect();
    assert!(missing.is_empty(), "not in the picture: {missing:?}");
    let mut seen = 0;
    for (name, above) in &drawn {
        for below in dependencies(name).iter().filter(|below| *below != "testing") {
            assert!(
                line(below).is_some_and(|line| line > *above),
                "{name} needs {below}, which is not below it"
            );
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
    assert!(text.contains("`testing` is for the tests"));
}

/// The code in a page, in lines and in blocks.
fn code(page: &str) -> Vec<&str> {
    let parts = page.split("```").enumerate();
    parts
        .flat_map(|(number, part)| {
            let (blocks, texts) = if number % 2 == 1 { (Some(part), None) } else { (None, Some(part)) };
            let in_blocks = blocks.into_iter().flat_map(str::lines);
            let in_texts = texts.into_iter().flat_map(|text| text.split('`').skip(1).step_by(2));
            in_blocks.chain(in_texts).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn commands_in_the_documents_name_verbs_and_options_that_exist() {
    let mut program = Cli::command();
    program.build();
    let mut seen = BTreeSet::new();
    for page in [
        "README.md",
        "docs/OPERATIONS.md",
        "docs/CONTAINERS.md",
        "docs/KUBERNETES.md",
        "docs/SEMANTICS.md",
        "docs/TESTING.md",
    ] {
        let text = file(page);
        for line in code(&text) {
            // The text behind a comment or a pipe is another command, or none.
            let line = line.split(['#', '|', ';']).next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(at) =
                words.iter().position(|word| *word == "watertight" || word.ends_with("/watertight"))
            else {
                continue;
            };
            let Some(verb) =
                words.get(at + 1).filter(|verb| verb.starts_with(|c: char| c.is_ascii_lowercase()))
            else {
                continue;
            };
            // `enable --now watertight demands` and the like are not ours: a verb follows the
            // program.
            if words[..at].iter().any(|word| ["systemctl", "-p", "mount"].contains(word)) {
                continue;
            }
            let command = program.find_subcommand(verb);
            let command = command.unwrap_or_else(|| panic!("{page}: there is no verb {verb}: {line}"));
            for option in words.iter().filter_map(|word| word.trim_start_matches('[').strip_prefix("--")) {
                let name = option.trim_end_matches([']', ',', '.']).split('=').next().unwrap_or_default();
                let known = command.get_arguments().any(|argument| argument.get_long() == Some(name));
                assert!(known || name == "help", "{page}: {verb} has no option --{name}: {line}");
            }
            seen.insert((*verb).to_owned());
        }
    }
    assert!(seen.len() > 12, "{seen:?}");
}
