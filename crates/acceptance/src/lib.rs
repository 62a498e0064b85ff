//! Acceptance tests: mounted volumes used as people use them, through the real program.
//!
//! The tests are in `tests/`; this library is what they share:
//!
//! | module | what it gives |
//! |---|---|
//! | [`subject`] | a volume to test, mounted by the program, cleaned up whatever happens |
//! | [`daemon`] | the program serving one mount: its log, its life, its death |
//! | [`program`] | where the program and other people's tools are |
//! | [`command`] | external commands that cannot hang |
//! | [`scratch`] | directories of a test's own |
//! | [`report`] | lines that are seen although the test passes: skips and figures |
//! | [`tree`] | two trees compared bit for bit |
//! | [`stress`] | stress-ng: one stressor, and whether it did anything |
//! | [`oddtree`] | a tree with everything a file system must keep |
//! | [`model`] | a file system in memory, and random operations on it and on a mount |
//! | [`crash`] | a writer whose every byte says where it belongs, and the check after its crash |
//! | [`sys`] | memory maps and other calls that `std` does not have |
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `WATERTIGHT_BIN` | the program to test; otherwise it is built with cargo |
//! | `WATERTIGHT_TOOLS` | directories (`:` between them) with `pjdfstest` and `fsx`, besides `PATH` and `~/.cargo/bin` |
//! | `ACCEPTANCE_SUBJECT=host` | test a plain directory instead of a mount: this validates the tests themselves |
//! | `ACCEPTANCE_STORE=URL` | volumes are made below this URL, `s3://BUCKET`, not in directories |
//! | `ACCEPTANCE_OPTIONS` | mount options added to every mount, `mode=kernel-writeback,type=fuse` |
//! | `ACCEPTANCE_LONG=1` | the long versions: more seeds, more rounds, more cases |
//! | `ACCEPTANCE_DIR` | where to make stores and mountpoints, otherwise the temporary directory |
//!
//! A test that lacks root, `/dev/fuse` or an external program prints a line `SKIPPED: …` and
//! returns.

pub mod command;
pub mod crash;
pub mod daemon;
pub mod model;
pub mod oddtree;
pub mod program;
pub mod report;
pub mod rng;
pub mod scratch;
pub mod stress;
pub mod subject;
pub mod sys;
pub mod tree;

pub use command::Cmd;
pub use report::{is_long, note, skip};
pub use subject::{Setup, Subject, Verb};
