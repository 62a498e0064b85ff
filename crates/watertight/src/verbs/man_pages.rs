//! `man-pages`: the manual, from the same definition of the command line as the help.
//!
//! The text after a verb's help is cut at its empty lines. A part that begins with a heading
//! (`Examples:`) becomes a section of that name; the others become notes.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::{Cli, ManPagesArgs};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// Runs the verb.
///
/// # Errors
/// Exit 2 when the directory is none, 1 when a page cannot be written.
pub fn run(args: &ManPagesArgs) -> Result<()> {
    let dir = &args.directory;
    if !dir.is_dir() {
        return Err(Problem::usage(format!("{} is not a directory; make it first", dir.shown())));
    }
    let pages = pages().map_err(|error| Problem::failure(format!("a page cannot be made: {error}")))?;
    for (name, text) in pages {
        write(&dir.join(name), &text)?;
    }
    Ok(())
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    let shown = path.shown();
    fs::write(path, text).map_err(|error| Problem::failure(format!("{shown} cannot be written: {error}")))?;
    console().print(&shown.to_string());
    Ok(())
}

/// All pages: file name and text.
///
/// # Errors
/// None that is known: pages are written to memory.
pub fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let verbs: Vec<Command> = program.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    let others: Vec<String> = verbs.iter().map(|verb| format!("watertight-{}", verb.get_name())).collect();
    let mut pages = vec![("watertight.1".to_owned(), page(program, "watertight", &others)?)];
    for (verb, name) in verbs.into_iter().zip(&others) {
        pages.push((format!("{name}.1"), page(verb, name, &["watertight".to_owned()])?));
    }
    Ok(pages)
}

fn page(command: Command, name: &str, see_also: &[String]) -> io::Result<Vec<u8>> {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_verbs = command.has_subcommands();
    let source = concat!("watertight ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).title(name.to_uppercase()).section("1").date("").source(source);
    let man = man.manual("Watertight Manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_verbs {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    after.split("\n\n").filter(|part| !part.trim().is_empty()).for_each(|part| section(&mut roff, part));
    roff.control("SH", ["SEE ALSO"]);
    for (n, other) in see_also.iter().enumerate() {
        let comma = if n + 1 == see_also.len() { "" } else { "," };
        roff.text([bold(other.as_str()), roman(format!("(1){comma}"))]);
    }
    roff.to_writer(&mut text)?;
    Ok(text)
}

/// One part of the text after the help.
fn section(roff: &mut Roff, part: &str) {
    let (heading, lines): (String, Vec<&str>) = match part.split_once('\n') {
        Some((first, rest)) if first.ends_with(':') => {
            (first.trim_end_matches(':').to_uppercase(), rest.lines().collect())
        }
        _ => ("NOTES".to_owned(), part.lines().collect()),
    };
    roff.control("SH", [heading.as_str()]);
    for line in lines {
        match line.trim_start().split_once("  ") {
            // A row of a list: a word, and its meaning.
            Some((what, meaning)) if line.starts_with("  ") => {
                roff.control("TP", []);
                roff.text([bold(what)]);
                roff.text([roman(meaning.trim_start())]);
            }
            _ if line.starts_with("  ") => {
                roff.control("PP", []);
                roff.control("nf", []);
                roff.text([bold(line.trim_start())]);
                roff.control("fi", []);
            }
            _ => {
                roff.control("PP", []);
                roff.text([roman(line)]);
            }
        }
    }
}
