//! The manual and the completion scripts, both made from the definition of the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory as _;
use watertight::cli::Cli;

use crate::rig::{Out, Rig, has, run};

fn pages(rig: &Rig) -> Vec<PathBuf> {
    let dir = rig.root.join("man1");
    fs::create_dir(&dir).unwrap();
    rig.run(&["man-pages", dir.to_str().unwrap()]).ok().says("watertight-mount.1");
    let mut pages: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    pages
}

/// The output of man(1) for a page, on a terminal of 80 columns.
fn rendered(page: &Path) -> Out {
    let mut command = Command::new("man");
    command.args(["--warnings", "--local-file"]).arg(page);
    command.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").env_remove("MANPAGER").env_remove("PAGER");
    run(command).ok()
}

#[test]
fn every_verb_has_a_page_that_man_renders_without_a_warning() {
    let rig = Rig::new();
    let pages = pages(&rig);
    let verbs: Vec<_> =
        Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    assert_eq!(pages.len(), verbs.len() + 1);
    if !has("man") {
        return;
    }
    for page in &pages {
        let out = rendered(page);
        assert_eq!(out.stderr, "", "{}", page.display());
        for heading in ["NAME", "SYNOPSIS", "OPTIONS", "EXAMPLE", "SEE ALSO", "Watertight Manual"] {
            assert!(out.stdout.contains(heading), "no {heading} in: {}", out.stdout);
        }
    }
    for verb in verbs {
        let name = format!("watertight-{}", verb.get_name());
        let out = rendered(&pages[0].with_file_name(format!("{name}.1"))).says(&name);
        let shown = verb.get_arguments().filter(|argument| !argument.is_hide_set());
        for option in shown.filter_map(|argument| argument.get_long()) {
            assert!(out.stdout.contains(&format!("--{option}")), "no --{option} in: {}", out.stdout);
        }
    }
    let mount = rendered(&pages[0].with_file_name("watertight-mount.1"));
    mount
        .says("OPTIONS FOR -O")
        .says("\n       cache=SIZE\n")
        .says("\n       watertight mount /srv/data /mnt/data\n");

    let wrong = rig.root.join("wrong.1");
    fs::write(&wrong, ".TH X 1\n.XX unknown\ntext\n").unwrap();
    assert!(rendered(&wrong).stderr.contains("XX"), "man does warn");
}

#[test]
fn pages_are_written_where_it_was_said() {
    let rig = Rig::new();
    rig.run(&["man-pages", rig.root.join("none").to_str().unwrap()]).ends(2, "is not a directory");
    rig.run(&["man-pages"]).ends(2, "Usage");
    fs::create_dir(rig.root.join("watertight.1")).unwrap();
    rig.run(&["man-pages", rig.root.to_str().unwrap()]).ends(1, "watertight.1 cannot be written");
}

/// The completions of bash for a line whose last word is being typed.
fn offered(script: &Path, line: &[&str]) -> Vec<String> {
    let mut command = Command::new("bash");
    let body = r#"script=$1; shift
        source "$script"
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        _watertight watertight "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    command.args(["--norc", "-c", body, "bash"]).arg(script).args(line);
    run(command).ok().stdout.lines().map(str::to_owned).collect()
}

#[test]
fn completions_are_for_the_shell_that_was_asked_for() {
    let rig = Rig::new();
    rig.run(&["completions", "fish"]).ok().says("complete -c watertight");
    rig.run(&["completions", "zsh"]).ok().says("#compdef watertight");
    rig.run(&["completions", "tcsh"]).ends(2, "possible values");
    let script = rig.root.join("completions");
    fs::write(&script, rig.run(&["completions", "bash"]).ok().stdout).unwrap();
    if !has("bash") {
        return;
    }
    assert_eq!(offered(&script, &["watertight", "um"]), ["umount"]);
    assert_eq!(offered(&script, &["watertight", "umount", "--la"]), ["--lazy"]);
    assert_eq!(offered(&script, &["watertight", "completions", "zs"]), ["zsh"]);
    let all = offered(&script, &["watertight", ""]);
    assert!(all.contains(&"mount".to_owned()) && all.contains(&"--log-level".to_owned()), "{all:?}");
    for hidden in ["kernel-side", "--in-background"] {
        assert!(!all.contains(&hidden.to_owned()), "{all:?}");
    }
}
