//! The table of docs/SEMANTICS.md.

use super::cell::{STATES, State};

const CONTRACT: &str = include_str!("../../../../../docs/SEMANTICS.md");
const SECTION: &str = "\n## Every way to unmount\n";

/// Its rows, each with its name first.
pub(super) struct Table(Vec<Vec<&'static str>>);

impl Table {
    pub(super) fn of_contract() -> Self {
        let section = CONTRACT.split(SECTION).nth(1).expect("the section");
        let section = section.split("\n## ").next().unwrap();
        let lines = section.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
        let rows = lines.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
        let rows: Vec<_> = rows.filter(|row| !row[0].starts_with("---")).collect();
        assert!(rows.iter().all(|row| row.len() == STATES.len() + 1), "{rows:?}");
        Self(rows)
    }

    pub(super) fn states(&self) -> Vec<&'static str> {
        self.0[0][1..].to_vec()
    }

    pub(super) fn rows(&self) -> Vec<&'static str> {
        self.0[1..].iter().map(|row| row[0]).collect()
    }

    pub(super) fn cell(&self, row: &str, state: State) -> &'static str {
        let at = STATES.iter().position(|&one| one == state).unwrap();
        let row = self.0.iter().find(|cells| cells[0] == row).unwrap_or_else(|| panic!("no row {row}"));
        row[at + 1]
    }
}
