//! The words of the demo: headings, steps, failures.

use std::fmt::Display;

use crate::term::console::{Colour, console};
use crate::term::problem::Problem;

pub(super) fn heading(text: &str) {
    console().print(&console().paint(Colour::Bold, text));
}

pub(super) fn step(text: &str) {
    console().print(&format!("{} {text}", console().paint(Colour::Bold, "  -")));
}

pub(super) fn failed(what: &str, why: &dyn Display) -> Problem {
    Problem::failure(format!("demo: {what}: {why}"))
}
