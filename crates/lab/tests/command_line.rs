//! The lab as a person or a program runs it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use testing::cgroup::Cgroup;

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(arguments)
        .env_remove("CARGO")
        .output()
        .expect("the lab runs")
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_names_end_with_2_and_name_the_right_ones() {
    for (arguments, wrong, right) in [
        (vec!["volume"], "`volume`", "volumes"),
        (vec!["volumes", "--variant", "default,tmpf"], "`tmpf`", "tmpfs"),
        (vec!["volumes", "--scenario", "stat"], "`stat`", "stat-1"),
    ] {
        let output = lab(&arguments);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(wrong) && said.contains(right), "{said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn mutants_are_listed_and_their_page_is_made_and_checked() {
    let root = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let file = root.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    write("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");
    write("crates/a/src/lib.rs", "fn f() -> bool { is_on(\"a-early\") }\n");
    write("docs/PROOFS.md", "By hand.\n");
    let mutants = |options: &[&str]| {
        let output = lab(&[&["mutants", "--root", root.path().to_str().unwrap()], options].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), complaint(&output))
    };
    for options in [&[][..], &["--json"], &["--check"], &["--write"]] {
        let (code, _, said) = mutants(options);
        assert!(code == Some(1) && said.contains("no test catches `a-early`"), "{options:?}: {said}");
    }
    let page = || std::fs::read_to_string(root.path().join("docs/PROOFS.md")).unwrap();
    assert_eq!(page(), "By hand.\n", "nothing is written of what has faults");
    write(
        "crates/a/tests/loom_a.rs",
        "#![cfg(loom)]\n/// It holds.\n#[test]\nfn holds() {}\n#[test]\nfn each_is_caught() {\n\
         mutant::assert_caught(\"holds\", &[\"a-early\"], \"x\"); }\n",
    );
    let (code, list, said) = mutants(&["--json"]);
    assert_eq!(code, Some(0), "{said}");
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list[0]["caught_by"][0]["claim"], "It holds.");
    assert_eq!(mutants(&["--write"]).0, Some(0));
    assert!(page().contains("- It holds. `holds`\n  - `a-early`"), "{}", page());
    // The page is right; that so few are left is the only fault.
    let (code, _, said) = mutants(&["--check"]);
    assert!(code == Some(1) && said.contains("1 were found") && !said.contains("PROOFS.md"), "{said}");
    write("docs/PROOFS.md", &page().replace("It holds", "It may hold"));
    let (code, _, said) = mutants(&["--check"]);
    assert!(code == Some(1) && said.contains("PROOFS.md") && said.contains("It may hold"), "{said}");
    let (code, _, said) = mutants(&["--run", "b-"]);
    assert!(code == Some(2) && said.contains("`b-`"), "{said}");
    assert_eq!(mutants(&["--sample", "3"]).0, Some(2), "of what is not run");
    assert_eq!(mutants(&["--write", "--check"]).0, Some(2));
}

#[test]
fn a_report_is_checked_and_made_again() {
    let docs = tempfile::tempdir().unwrap();
    let report = |options: &[&str]| {
        let arguments = [&["report", "--docs", docs.path().to_str().unwrap()], options].concat();
        let output = lab(&arguments);
        (output.status.code(), complaint(&output))
    };
    let (code, said) = report(&["--check"]);
    assert!(code == Some(1) && said.contains("RESULTS.md"), "{said}");
    std::fs::create_dir(docs.path().join("results")).unwrap();
    std::fs::write(docs.path().join("RESULTS.md"), "By hand.\n").unwrap();
    let json = include_str!("../src/results/tests/drain.json");
    std::fs::write(docs.path().join("results/drain.json"), json).unwrap();
    let (code, said) = report(&["--check"]);
    assert!(code == Some(1) && said.contains("drain.svg"), "{said}");
    assert_eq!(
        std::fs::read_to_string(docs.path().join("RESULTS.md")).unwrap(),
        "By hand.\n",
        "only looked at"
    );
    assert_eq!(report(&[]).0, Some(0));
    assert_eq!(report(&["--check"]).0, Some(0));
    assert_eq!(report(&["--chek"]).0, Some(2));
}

#[test]
fn a_source_that_is_not_there_ends_with_1() {
    let output = lab(&["volumes", "--variant", "tmpfs", "--source", "/no/such/place"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint(&output).contains("/no/such/place"), "{}", complaint(&output));
}

#[test]
fn an_output_that_cannot_be_written_is_known_before_anything_runs() {
    let output = lab(&["volumes", "--variant", "tmpfs", "--json", "/no/such/place/out.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint(&output).contains("/no/such/place/out.json"), "{}", complaint(&output));
}

/// The rows, the table and the plot of a run of `scenarios` with the null server and a program that
/// does not exist; everything the lab makes is below `directory`.
fn run(scenarios: &str, directory: &Path) -> (Vec<Value>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["volumes", "--quick", "--variant", "default,null", "--scenario", scenarios])
        .args(["--program", "/no/such/program", "--json", "out.json", "--svg", "out.svg"])
        .current_dir(directory)
        .env("TMPDIR", directory)
        .output()
        .expect("the lab runs");
    assert!(output.status.success(), "{}", complaint(&output));
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).expect("the lab wrote its files");
    let document: Value = serde_json::from_str(&read("out.json")).expect("JSON");
    let rows = document["rows"].as_array().expect("rows").clone();
    (rows, String::from_utf8_lossy(&output.stdout).into_owned(), read("out.svg"))
}

#[test]
fn a_run_measures_what_is_there_and_says_what_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (rows, table, svg) = run("stat-1,untar,git-clone", directory.path());
    let find = |scenario: &str, variant: &str, metric: &str| {
        let is = |row: &&Value| {
            row["scenario"] == scenario && row["variant"] == variant && row["metric"] == metric
        };
        rows.iter().find(is).cloned().unwrap_or_else(|| panic!("no row {scenario} {variant} {metric}"))
    };
    for scenario in ["stat-1", "stat-1/mem"] {
        let absent = find(scenario, "default", "ops_per_s");
        assert_eq!(absent["n"], 0);
        assert!(absent["note"].as_str().unwrap().starts_with("not built: "), "{absent}");
    }
    assert!(find("git-clone", "null", "seconds")["note"].as_str().unwrap().starts_with("not possible"));
    assert!(table.contains("not built") && svg.contains("not built"), "{table}");
    let measured = find("stat-1", "null", "ops_per_s");
    if measured["n"] == 0 {
        testing::skipped(format_args!("the null server cannot be mounted here: {}", measured["note"]));
        return;
    }
    assert!(measured["mean"].as_f64().unwrap() > 0.0 && measured["p99"].is_null(), "{measured}");
    let tail = find("stat-1", "null", "p99_us");
    assert!(tail["p50"].as_f64().unwrap() <= tail["p99"].as_f64().unwrap(), "{tail}");
    assert!(tail["p99"].as_f64().unwrap() <= tail["max"].as_f64().unwrap(), "{tail}");
    assert!(find("untar/mem", "null", "seconds")["p50"].as_f64().unwrap() > 0.0);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = directory.path().to_str().unwrap();
    assert!(!mounts.contains(place), "a mount is left: {mounts}");
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "out.json" || name == "out.svg"), "left: {left:?}");
}

#[test]
fn every_variant_of_drain_unmounts() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args([
            "drain",
            "--quick",
            "--runs",
            "1",
            "--scenario",
            "churning,idle,churning-beside-16",
            "--json",
            "out.json",
        ])
        .current_dir(directory.path())
        .output()
        .expect("the lab runs");
    assert!(output.status.success(), "{}", complaint(&output));
    let text = std::fs::read_to_string(directory.path().join("out.json")).expect("the lab wrote it");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    for variant in ["persb", "base", "race", "rmbarrier", "persb-fifo"] {
        for scenario in ["churning", "idle", "churning-beside-16"] {
            for metric in ["umount", "drain", "in_flight"] {
                let is = |row: &&Value| {
                    row["scenario"] == scenario && row["variant"] == variant && row["metric"] == metric
                };
                let row =
                    rows.iter().find(is).unwrap_or_else(|| panic!("no row {scenario} {variant} {metric}"));
                assert!(row["n"].as_u64() > Some(0) && row["max"].as_f64() > Some(0.0), "{row}");
            }
        }
    }
    let notes = document["notes"].to_string();
    assert!(
        notes.contains("`persb` in all, grace periods every 4 ms") && notes.contains(" 0 busy inodes"),
        "{notes}"
    );
}

/// liburcu is linked where it was available when the lab was built; elsewhere, and where it lacks a
/// call, its row has that reason.
#[test]
fn a_library_without_a_call_is_a_row_that_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["rcu", "--quick", "--runs", "1", "--variant", "default,seize,liburcu"])
        .args(["--scenario", "read,grace-at-rest,poll-idle", "--json", "out.json"])
        .current_dir(directory.path())
        .output()
        .expect("the lab runs");
    assert!(output.status.success(), "{}", complaint(&output));
    let text = std::fs::read_to_string(directory.path().join("out.json")).expect("the lab wrote its file");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 9, "{rows:?}");
    for row in rows {
        let is_measured = row["n"].as_u64().is_some_and(|n| n > 0);
        let says_why = row["note"].as_str().is_some_and(|note| !note.is_empty());
        assert!(is_measured != says_why, "{row}");
        assert!(is_measured || row["variant"] != "default", "{row}");
    }
}

/// The program beside the lab, and a directory for its files; or nothing, and the reason is
/// printed.
fn isolation(scenarios: &str) -> Option<(Command, tempfile::TempDir)> {
    let lab = Path::new(env!("CARGO_BIN_EXE_lab"));
    let program = lab.with_file_name("watertight");
    let why = match () {
        () if !rustix::process::geteuid().is_root() => "needs root",
        () if !Path::new("/dev/fuse").exists() => "there is no /dev/fuse",
        () if !program.exists() => "the program was not built",
        () => {
            let directory = tempfile::tempdir().expect("a directory");
            let mut command = Command::new(lab);
            command.args(["isolation", "--quick", "--runs", "1", "--scenario", scenarios]);
            command.arg("--source").arg(directory.path()).arg("--program").arg(program);
            return Some((command, directory));
        }
    };
    testing::skipped(why);
    None
}

/// Mounts, and directories of the lab.
fn left_in(directory: &Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let place = directory.to_str().expect("a plain name");
    let mut left: Vec<String> =
        mounts.lines().filter(|line| line.contains(place)).map(str::to_owned).collect();
    let files = std::fs::read_dir(directory).expect("a directory").flatten();
    let names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    left.extend(names.filter(|name| name.starts_with("watertight-lab.")));
    left
}

/// Runs the scenarios, and checks every row: those of the healthy volumes, and those that a
/// scenario has of its own.
fn isolation_has_rows(scenarios: &[(&str, &[&str])]) {
    let names: Vec<&str> = scenarios.iter().map(|(name, _)| *name).collect();
    let Some((mut command, directory)) = isolation(&names.join(",")) else { return };
    let json = directory.path().join("out.json");
    let output = command.arg("--json").arg(&json).output().expect("the lab runs");
    assert!(output.status.success(), "{}", complaint(&output));
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string(json).expect("the rows")).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    let of_all =
        ["write-1m", "write-4k", "fsync", "sync", "stat", "create", "umount", "umount-lazy", "status"];
    let uses = ["threads", "memory", "mapped-4k"];
    for (scenario, own) in scenarios {
        for variant in ["default", "attached"] {
            let mut metrics: Vec<&str> = Vec::new();
            for row in rows.iter().filter(|row| row["scenario"] == *scenario && row["variant"] == variant) {
                let metric = row["metric"].as_str().expect("a name");
                // A neighbour that does nothing may use no time at all.
                let is_measured = row["p50"].as_f64() > Some(0.0) || metric == "neighbours_cpu";
                assert!(row["n"].as_u64() > Some(0) && is_measured, "{row}");
                metrics.push(metric);
            }
            assert_eq!(metrics, [&of_all[..], &uses[..], own].concat(), "{scenario} {variant}");
        }
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("times the figure of `idle-N` or `resting-N`"), "{text}");
    assert_eq!(left_in(directory.path()), [""; 0]);
}

#[test]
fn isolation_measures_beside_stalled_volumes_and_leaves_nothing() {
    isolation_has_rows(&[("idle-1", &[]), ("stalled-1", &["force", "stall-noticed"])]);
}

#[test]
fn isolation_measures_beside_volumes_that_cgroups_use_and_leaves_nothing() {
    if Cgroup::make().is_none() {
        return;
    }
    isolation_has_rows(&[
        ("resting-1", &["neighbours_cpu"]),
        ("throttled-4", &["neighbours_cpu", "neighbour_of_limit"]),
        ("churning-4", &["neighbours_cpu", "switches_per_s"]),
    ]);
}

#[test]
fn isolation_that_is_killed_leaves_nothing() {
    for scenario in ["stalled-1", "throttled-1"] {
        if scenario == "throttled-1" && Cgroup::make().is_none() {
            return;
        }
        let Some((mut command, directory)) = isolation(scenario) else { return };
        // Its output is to be read where this fails.
        command.args(["--variant", "default"]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut lab = command.spawn().expect("the lab runs");
        let has = |what: &str| left_in(directory.path()).iter().any(|line| line.contains(what));
        let mut mounted = || {
            assert!(lab.try_wait().expect("a child").is_none(), "it has ended");
            has("neighbour0")
        };
        // One of its neighbours is there; whether that is stalled, or used, by now makes no
        // difference to the process that has to clean up.
        eventually("it has mounted", &mut mounted);
        lab.kill().unwrap();
        lab.wait().unwrap();
        eventually("nothing is left", || {
            left_in(directory.path()).is_empty() && cgroups_of(lab.id()).is_empty()
        });
    }
}

/// Cgroups that a process made by [`Cgroup::make`].
fn cgroups_of(process: u32) -> Vec<PathBuf> {
    let Some(other) = Cgroup::make() else { return Vec::new() };
    let trees = other.directory().parent().expect("it is in a tree");
    let all = std::fs::read_dir(trees).expect("a tree of cgroups").flatten().map(|entry| entry.path());
    let prefix = format!("watertight-test-{process}-");
    all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
        .collect()
}

#[track_caller]
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(300), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
