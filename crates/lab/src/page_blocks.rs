//! The blocks of a page that a command makes, between a line that names the block and a line that
//! ends it:
//!
//! ```text
//! <!-- lab KIND: NAME -->
//! <!-- end of report -->
//! ```

use std::fmt::Write as _;

use anyhow::{Context as _, bail, ensure};

/// What ends the line at which a block begins.
pub(crate) const BEGIN_END: &str = " -->";
/// The line at which a block ends.
pub(crate) const END: &str = "<!-- end of report -->";

/// The page with its blocks of this kind, each as `block` makes it of its name; a page without such
/// blocks is as it was.
///
/// # Errors
/// A line that begins no whole block, and those of `block`, with the line.
pub(crate) fn fill(
    page: &str,
    kind: &str,
    mut block: impl FnMut(&str) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let begin = format!("<!-- lab {kind}: ");
    let mut filled = String::with_capacity(page.len());
    let mut inside = None;
    for (number, line) in (1..).zip(page.split_inclusive('\n')) {
        let text = line.trim_end();
        if let Some(words) = text.strip_prefix(&begin) {
            let name = words.strip_suffix(BEGIN_END).with_context(|| format!("line {number} has no end"))?;
            ensure!(inside.is_none(), "line {number}: a block begins inside of another one");
            let block = block(name).with_context(|| format!("line {number}"))?;
            let _ = write!(filled, "{line}\n{block}\n");
            inside = Some(number);
        } else if text == END {
            inside = None;
        }
        if inside.is_none() {
            filled.push_str(line);
        }
    }
    match inside {
        Some(number) => bail!("line {number}: the block has no end: `{END}`"),
        None => Ok(filled),
    }
}
