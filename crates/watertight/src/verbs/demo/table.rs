//! The results of the demo, shown at its end.

use crate::term::console::{Colour, console};

/// For each action, the result without the mechanism, and the result with it.
#[derive(Debug)]
pub(super) struct Table {
    /// What stands above the results without it.
    without: &'static str,
    rows: Vec<[String; 3]>,
    notes: Vec<String>,
}

impl Default for Table {
    fn default() -> Self {
        Self::beside("without")
    }
}

impl Table {
    /// Results beside those of something else.
    pub(super) fn beside(without: &'static str) -> Self {
        Self { without, rows: Vec::new(), notes: Vec::new() }
    }

    /// An action without a comparison has nothing in `without`.
    pub(super) fn row(&mut self, what: &str, without: impl Into<String>, with: impl Into<String>) {
        let without = Some(without.into()).filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        self.rows.push([what.to_owned(), without, with.into()]);
    }

    /// The meaning of `without` in the last row, or the reason why a row is missing.
    pub(super) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    pub(super) fn print(&self) {
        let console = console();
        console.print("");
        console.print(&console.paint(Colour::Bold, &line("", self.without, "watertight")));
        for [what, without, with] in &self.rows {
            console.print(&line(what, without, with));
        }
        for note in &self.notes {
            console.print(&console.paint(Colour::Dim, note));
        }
    }
}

/// Within 80 columns.
fn line(what: &str, without: &str, with: &str) -> String {
    format!("{what:<40} {without:>18} {with:>18}")
}
