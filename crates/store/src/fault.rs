//! For tests: a store around another one that fails, delays, hangs or tears chosen calls.

mod control;
mod rules;

use std::io::IoSlice;

pub use control::Faults;
pub use rules::FaultOp;

use crate::around::{Around, AroundStore};
use crate::{Error, File, Result};
use control::Verdict;

/// A store around another one that fails, delays, hangs or tears chosen calls.
///
/// # Rules
/// `CALL:WHAT:WHAT…`, several joined by `;`. `CALL` is a method's name (`create`, `read`, `write`,
/// `file.sync`, `store.sync`, `sync` for both of these, …) or `*`; `file.close` and `dir.close`,
/// the end of an open file or directory, are not included in `*`, and cannot fail.
///
/// | what | meaning |
/// |---|---|
/// | `nth=N` | only the N-th call that the rule matches, from 1; without it every call |
/// | `from=N` | the N-th and all later ones |
/// | `fail=ENOSPC` | fails so, and does nothing |
/// | `delay=20ms` | takes that much longer (`us`, `ms`, `s`); delays of several rules add up |
/// | `hang` | waits until [`FaultStore::release`] or the store's close |
/// | `panic` | panics, as a defect of the store's would |
/// | `torn` | writes the first half of the bytes, then fails (`EIO`, or what `fail=` says) |
///
/// A delay comes first, then a hang, then the failure. [`Store::forget`](crate::Store::forget),
/// [`Store::path_of`](crate::Store::path_of), [`Store::describe`](crate::Store::describe) and
/// [`Store::close`](crate::Store::close) always pass. Calls are counted whether they fail or
/// not.
pub type FaultStore = AroundStore<Faults>;

impl Around for Faults {
    fn describe(&self, inner: String) -> String {
        format!("fault:{inner}")
    }

    fn call<T>(&self, op: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let op = FaultOp::of(op);
        match self.enter(op)? {
            Verdict::Pass => work(),
            Verdict::Tear(kind) => Err(Error::with(kind, op.name(), "on purpose")),
        }
    }

    fn write(&self, file: &dyn File, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        match self.enter(FaultOp::Write)? {
            Verdict::Pass => file.write_at(bufs, offset),
            Verdict::Tear(kind) => {
                write_half(file, bufs, offset)?;
                Err(Error::with(kind, FaultOp::Write.name(), "torn on purpose"))
            }
        }
    }

    /// `forget` and `close` always pass; after a close nothing else does.
    fn tell<T>(&self, op: &'static str, work: impl FnOnce() -> T) -> T {
        if op == "close" {
            self.close();
        }
        work()
    }

    fn end(&self, op: &'static str, work: impl FnOnce()) {
        let _cannot_fail = self.enter(FaultOp::of(op));
        work();
    }
}

/// Writes the first half of `bufs`.
fn write_half(file: &dyn File, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
    let all: usize = bufs.iter().map(|b| b.len()).sum();
    let mut left = all / 2;
    let mut half = Vec::new();
    for buf in bufs {
        let n = buf.len().min(left);
        half.push(IoSlice::new(&buf[..n]));
        left -= n;
    }
    file.write_at(&half, offset)
}
