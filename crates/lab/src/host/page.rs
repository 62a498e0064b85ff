//! The results of hosts, as blocks of docs/KERNELS.md and as lines for a terminal.
//!
//! ```text
//! <!-- lab host: facts -->
//! <!-- end of report -->
//! ```
//!
//! `origin`: which hosts and when. `facts`: a table of facts and hosts. `words`: the use of each
//! fact. `missing`: hosts that were made to lack something, beside the unchanged host. `mounts`:
//! the program's behaviour in each situation.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;

use super::attempts::{self, Attempt};
use super::facts::{self, Answer, Measured};
use super::{Host, Hosts};
use crate::page_blocks;

/// The name of the file in docs/results, without `.json`.
pub(crate) const NAME: &str = "host";

const COLUMNS: usize = 100;

/// The page with its blocks made of `hosts`; a page without such blocks is as it was.
pub(crate) fn fill(page: &str, hosts: Option<&Hosts>) -> anyhow::Result<String> {
    page_blocks::fill(page, "host", |name| {
        let hosts = hosts.with_context(|| format!("there is no results/{NAME}.json"))?;
        block(name, hosts)
    })
}

fn block(name: &str, hosts: &Hosts) -> anyhow::Result<String> {
    match name {
        "origin" => Ok(origin(hosts)),
        "facts" => facts_table(&whole(hosts)),
        "words" => Ok(words()),
        "missing" => Ok(missing(hosts)),
        "mounts" => Ok(mounts(hosts)),
        _ => anyhow::bail!("there is no block `{name}`; there are: origin, facts, words, missing, mounts"),
    }
}

/// The output for a person that has one host measured.
pub(super) fn terminal(hosts: &Hosts) -> anyhow::Result<String> {
    let mut text = String::new();
    for host in &hosts.hosts {
        for measured in &host.facts {
            let fact = fact(&measured.fact)?;
            let _ = writeln!(text, "{}: {}", fact.title, cell(measured));
            for (what, words) in
                [("seen", measured.seen.as_str()), ("used for", fact.used_for), ("without", fact.without)]
            {
                text.push_str(&wrapped(&format!("{what}: {words}"), "    ", "    "));
            }
        }
    }
    let mounts = mounts(hosts);
    if !mounts.is_empty() {
        let _ = write!(text, "\n`watertight mount` where something is missing:\n\n{mounts}");
    }
    Ok(text)
}

/// Hosts that lack nothing.
fn whole(hosts: &Hosts) -> Vec<&Host> {
    hosts.hosts.iter().filter(|host| host.lacking.is_none()).collect()
}

fn fact(name: &str) -> anyhow::Result<&'static facts::Fact> {
    facts::ALL.iter().find(|fact| fact.name == name).with_context(|| format!("there is no fact `{name}`"))
}

fn cell(measured: &Measured) -> String {
    match &measured.answer {
        Answer::Yes => "yes".to_owned(),
        Answer::No => "**no**".to_owned(),
        Answer::Is(what) => what.clone(),
        Answer::NotMeasured => "not measured".to_owned(),
    }
}

fn origin(hosts: &Hosts) -> String {
    let whole = whole(hosts);
    let mut text = String::new();
    for host in whole {
        let version = host.facts.iter().find(|measured| measured.fact == "release");
        let version = version.map_or("", |measured| measured.seen.as_str());
        let item = format!(
            "{}: {}, `{version}`, on {} cores of {}; commit {}, {}",
            host.name, host.machine.kernel, host.machine.cores, host.machine.cpu, host.commit, host.when
        );
        text.push_str(&wrapped(&item, "- ", "  "));
    }
    text
}

fn facts_table(hosts: &[&Host]) -> anyhow::Result<String> {
    let mut text = "| |".to_owned();
    hosts.iter().for_each(|host| text.push_str(&format!(" {} |", host.name)));
    text.push_str("\n|---|");
    hosts.iter().for_each(|_| text.push_str("---|"));
    text.push('\n');
    let mut reasons = String::new();
    for fact in &facts::ALL {
        let found = |host: &Host| host.facts.iter().find(|measured| measured.fact == fact.name).cloned();
        let _ = write!(text, "| {} |", fact.title);
        for host in hosts {
            let measured =
                found(host).with_context(|| format!("{} has no fact `{}`", host.name, fact.name))?;
            let _ = write!(text, " {} |", cell(&measured));
            let is_reason = matches!(measured.answer, Answer::No | Answer::NotMeasured);
            if is_reason {
                let item = format!("{}, {}: {}", host.name, fact.title, measured.seen);
                reasons.push_str(&wrapped(&item, "- ", "  "));
            }
        }
        text.push('\n');
    }
    if !reasons.is_empty() {
        let _ = write!(
            text,
            "\n<details><summary>What was seen where it says no, and why something was not measured</summary>\n\n\
             {reasons}\n</details>\n"
        );
    }
    Ok(text)
}

fn words() -> String {
    let mut text = String::new();
    for fact in &facts::ALL {
        let item = format!(
            "**{}.** Measured by: {}. Used for: {}. Without it: {}.",
            fact.title, fact.how, fact.used_for, fact.without
        );
        text.push_str(&wrapped(&item, "- ", "  "));
    }
    text
}

/// The differences from the same kernel when nothing is missing.
fn missing(hosts: &Hosts) -> String {
    let mut text = String::new();
    for host in &hosts.hosts {
        let Some(lacking) = &host.lacking else { continue };
        let base = whole(hosts).into_iter().find(|base| base.name == host.name);
        let _ = writeln!(text, "- {}, {lacking}:", host.name);
        let mut is_equal = true;
        for measured in &host.facts {
            let was = base.and_then(|base| base.facts.iter().find(|was| was.fact == measured.fact));
            if was.is_none_or(|was| was.answer != measured.answer) {
                is_equal = false;
                let title = fact(&measured.fact).map_or(measured.fact.as_str(), |fact| fact.title);
                let item = format!("{title}: {} ({})", cell(measured), measured.seen);
                text.push_str(&wrapped(&item, "  - ", "    "));
            }
        }
        if is_equal {
            text.push_str("  - every fact is as without it\n");
        }
        if let Some(attempt) = host.attempts.iter().find(|attempt| attempt.situation == "root") {
            text.push_str(&wrapped(
                &format!("`watertight mount` as root: {}", outcome(attempt)),
                "  - ",
                "    ",
            ));
        }
    }
    text
}

fn mounts(hosts: &Hosts) -> String {
    let mut text = String::new();
    for situation in &attempts::ALL {
        // Hosts by result.
        let mut outcomes: BTreeMap<usize, (String, Vec<&str>)> = BTreeMap::new();
        for host in whole(hosts) {
            let Some(attempt) = host.attempts.iter().find(|attempt| attempt.situation == situation.name)
            else {
                continue;
            };
            let said = outcome(attempt);
            let known = outcomes.iter().find(|(_, (known, _))| *known == said).map(|(at, _)| *at);
            let at = known.unwrap_or(outcomes.len());
            outcomes.entry(at).or_insert((said, Vec::new())).1.push(&host.name);
        }
        if outcomes.is_empty() {
            continue;
        }
        text.push_str(&wrapped(situation.title, "- ", "  "));
        for (said, names) in outcomes.values() {
            text.push_str(&wrapped(&format!("{}: {said}", names.join(", ")), "  - ", "    "));
        }
    }
    text
}

/// The result of an attempt, in one line.
fn outcome(attempt: &Attempt) -> String {
    if let Some(reason) = &attempt.not_measured {
        return format!("not measured: {reason}");
    }
    let said: Vec<String> = attempt.said.iter().map(|line| format!("“{line}”")).collect();
    let said = if said.is_empty() {
        "it says nothing".to_owned()
    } else {
        format!("it says {}", said.join(" and "))
    };
    let code = attempt.exit.map_or("by a signal".to_owned(), |code| code.to_string());
    match &attempt.mounted {
        Some(kind) => format!("mounted as `{kind}`; {said}; exit after SIGTERM: {code}"),
        None => format!("not mounted, exit {code}; {said}"),
    }
}

/// A paragraph within [`COLUMNS`], where its words let it.
fn wrapped(text: &str, first: &str, others: &str) -> String {
    let (mut lines, mut line, mut is_begun) = (String::new(), first.to_owned(), false);
    for word in text.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            let _ = writeln!(lines, "{line}");
            others.clone_into(&mut line);
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    let _ = writeln!(lines, "{line}");
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn host(name: &str, kernel: &str, lacking: Option<&str>, answer: &Answer) -> Host {
        let measured = |fact: &facts::Fact| Measured {
            fact: fact.name.to_owned(),
            answer: answer.clone(),
            seen: "as it was".to_owned(),
        };
        Host {
            name: name.to_owned(),
            lacking: lacking.map(str::to_owned),
            when: "2026-01-02T03:04:05Z".to_owned(),
            commit: "0123456".to_owned(),
            machine: Machine { cpu: "A CPU".to_owned(), cores: 2, kernel: kernel.to_owned() },
            facts: facts::ALL.iter().map(measured).collect(),
            attempts: vec![Attempt {
                situation: "user".to_owned(),
                mounted: None,
                exit: Some(1),
                said: vec!["no".to_owned()],
                not_measured: None,
            }],
        }
    }

    fn hosts() -> Hosts {
        let mut hosts = Hosts::default();
        hosts.put(host("7.2", "7.2.1-x", None, &Answer::Yes));
        hosts.put(host("6.12", "6.12.3-y", Some("without loop"), &Answer::No));
        hosts.put(host("6.12", "6.12.3-y", None, &Answer::Yes));
        hosts.put(host("6.1", "6.1.0-50", None, &Answer::No));
        hosts
    }

    #[test]
    fn hosts_are_in_the_order_of_their_kernels_and_once() {
        let mut hosts = hosts();
        hosts.put(host("6.12", "6.12.4-y", None, &Answer::NotMeasured));
        let names: Vec<_> =
            hosts.hosts.iter().map(|host| (host.name.as_str(), host.lacking.is_some())).collect();
        assert_eq!(names, [("6.1", false), ("6.12", true), ("6.12", false), ("7.2", false)]);
    }

    #[test]
    fn a_page_is_made_of_prose_and_json() {
        let page = "Prose.\n\n<!-- lab host: facts -->\nold\n<!-- end of report -->\n\nMore.\n";
        let filled = fill(page, Some(&hosts())).unwrap();
        assert!(
            filled.starts_with("Prose.\n\n<!-- lab host: facts -->\n\n| | 6.1 | 6.12 | 7.2 |\n"),
            "{filled}"
        );
        assert!(filled.contains("| cgroup v2 | **no** | yes | yes |\n"), "{filled}");
        assert!(filled.contains("- 6.1, cgroup v2: as it was\n") && !filled.contains("old"), "{filled}");
        assert!(filled.ends_with("\n<!-- end of report -->\n\nMore.\n"), "{filled}");
        assert_eq!(fill(&filled, Some(&hosts())).unwrap(), filled, "made twice is made once");
        assert_eq!(fill("Prose.\n", None).unwrap(), "Prose.\n");
    }

    #[test]
    fn what_is_missing_is_told_by_what_differs() {
        let text = missing(&hosts());
        assert!(
            text.starts_with("- 6.12, without loop:\n  - kernel release: **no** (as it was)\n"),
            "{text}"
        );
    }

    #[test]
    fn hosts_with_the_same_outcome_are_told_together() {
        let text = mounts(&hosts());
        let said = "  - 6.1, 6.12, 7.2: not mounted, exit 1; it says “no”\n";
        assert_eq!(text, format!("- a user, with fusermount3\n{said}"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (page, complaint) in [
            ("\n<!-- lab host: fact -->\n<!-- end of report -->\n", "there is no block `fact`"),
            ("\n<!-- lab host: facts -->\n", "line 2: the block has no end"),
        ] {
            let said = format!("{:#}", fill(page, Some(&hosts())).unwrap_err());
            assert!(said.contains("line 2") && said.contains(complaint), "{said}");
        }
        assert!(fill("<!-- lab host: facts -->\n<!-- end of report -->\n", None).is_err());
    }
}
