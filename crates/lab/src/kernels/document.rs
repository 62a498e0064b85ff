//! One document of the results of several kernels.

use std::time::Duration;

use super::EXPERIMENT;
use crate::machine::Machine;
use crate::report::{Baseline, Document, Row};

/// One boot, as far as the host knows of it.
pub(super) struct Boot<'a> {
    pub(super) kernel: &'a str,
    /// The part that was measured.
    pub(super) part: &'static str,
    pub(super) took: Duration,
    pub(super) commit: String,
}

/// The baseline of ratios.
pub(super) fn baseline() -> Baseline {
    Baseline::Variant("default".to_owned())
}

/// Rows of all kernels so far.
#[derive(Debug, Default)]
pub(super) struct Collected {
    rows: Vec<Row>,
    notes: Vec<String>,
    machine: Option<Machine>,
}

impl Collected {
    /// The results of earlier boots in a file.
    pub(super) fn of(document: Document) -> Self {
        let Document { rows, notes, machine, .. } = document;
        Self { rows, notes, machine: Some(machine) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds the results of one kernel; rows of the same kernel and name are replaced.
    pub(super) fn add(&mut self, boot: &Boot<'_>, document: Document) {
        let Document { rows, notes, machine, .. } = document;
        let named = |mut row: Row| {
            row.scenario = format!("{}/{}", row.scenario, boot.kernel);
            row
        };
        let rows: Vec<Row> = rows.into_iter().map(named).collect();
        self.rows.retain(|old| !rows.iter().any(|new| new.scenario == old.scenario));
        self.rows.extend(rows);
        let head = format!("`{}`, {}: ", boot.kernel, boot.part);
        self.notes.retain(|note| !note.starts_with(&head));
        let Boot { took, commit, .. } = boot;
        let Machine { cpu, cores, kernel } = &machine;
        let minutes = took.as_secs_f64() / 60.0;
        let note = format!(
            "{head}Linux {kernel}, {cores} processors ({cpu}), commit {commit}, {minutes:.1} minutes."
        );
        let new: Vec<String> = notes.into_iter().filter(|note| !self.notes.contains(note)).collect();
        self.notes.extend(new);
        self.notes.push(note);
        let kernels = match &self.machine {
            Some(before) if !before.kernel.split(", ").any(|one| one == *kernel) => {
                format!("{}, {kernel}", before.kernel)
            }
            Some(before) => before.kernel.clone(),
            None => kernel.clone(),
        };
        self.machine = Some(Machine { kernel: kernels, ..machine });
    }

    /// All of it: each scenario with its kernels, one after the other.
    pub(super) fn document(&self, command: String, commit: String, when: String) -> Document {
        let of = |row: &Row| row.scenario.split('/').next().unwrap_or_default().to_owned();
        let mut names: Vec<String> = Vec::new();
        for name in self.rows.iter().map(of) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let position = |row: &Row| names.iter().position(|name| *name == of(row));
        let mut rows = self.rows.clone();
        rows.sort_by_key(|row| (position(row), row.scenario.clone()));
        Document {
            experiment: EXPERIMENT.to_owned(),
            command,
            commit,
            when,
            machine: self.machine.clone().unwrap_or_else(Machine::this),
            quick: false,
            rows,
            notes: self.notes.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Metric, Recorder};

    const MS: Metric = Metric::new("umount", "ms");

    fn brought(kernel: &str, value: f64) -> Document {
        let mut recorder = Recorder::default();
        recorder.value("idle", "kernel", MS, value);
        Document {
            experiment: EXPERIMENT.to_owned(),
            command: String::new(),
            commit: String::new(),
            when: String::new(),
            machine: Machine { cpu: "a".to_owned(), cores: 2, kernel: kernel.to_owned() },
            quick: false,
            rows: recorder.into_rows(),
            notes: vec!["idle: nothing".to_owned()],
        }
    }

    #[test]
    fn a_kernel_that_comes_again_replaces_its_own_rows_only() {
        let mut all = Collected::default();
        for (kernel, value) in [("7.2", 1.0), ("6.12", 2.0), ("7.2", 3.0)] {
            let took = Duration::from_secs(6);
            all.add(&Boot { kernel, part: "s1", took, commit: "c".to_owned() }, brought(kernel, value));
        }
        let document = all.document(String::new(), String::new(), String::new());
        let rows: Vec<_> = document.rows.iter().map(|row| (row.scenario.as_str(), row.p50)).collect();
        assert_eq!(rows, [("idle/6.12", Some(2.0)), ("idle/7.2", Some(3.0))]);
        assert_eq!(document.machine.kernel, "7.2, 6.12");
        assert_eq!(document.notes.len(), 3, "{:?}", document.notes);
    }
}
