//! The command line of `lab mutants`.

use clap::Parser;
use std::path::PathBuf;

/// Lists the mutants of the workspace, the tests that catch them and the claims that these tests
/// make, as the sources have them.
#[derive(Debug, Parser)]
#[command(name = "lab mutants")]
pub(super) struct Arguments {
    /// Print the list as JSON
    #[arg(long, conflicts_with_all = ["write", "check", "run"])]
    pub(super) json: bool,
    /// Write docs/PROOFS.md
    #[arg(long, conflicts_with_all = ["check", "run"])]
    pub(super) write: bool,
    /// Write nothing; fail if docs/PROOFS.md differs from the sources, or mutants are missing
    #[arg(long, conflicts_with = "run")]
    pub(super) check: bool,
    /// Run the tests that catch these mutants, by name or by how their names begin; all, if none is
    /// named
    #[arg(long, value_name = "NAME", num_args = 0..)]
    pub(super) run: Option<Vec<String>>,
    /// Of these mutants run N, evenly chosen
    #[arg(long, value_name = "N", requires = "run", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) sample: Option<u16>,
    /// Which N: the same number chooses the same ones
    #[arg(long, value_name = "S", requires = "sample", default_value_t = 1)]
    pub(super) seed: u64,
    /// Where the workspace is
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) root: PathBuf,
}

impl Arguments {
    /// The page that is made.
    pub(super) fn page(&self) -> PathBuf {
        self.root.join("docs/PROOFS.md")
    }
}
