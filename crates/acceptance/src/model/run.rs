//! Runs a sequence of operations on the model and on a directory.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::compare::{attributes, bytes, differences};
use super::{Kind, Model, Op, Real, SLOTS, Value};

/// Where operations are done.
pub trait Ground {
    /// An empty directory on the volume.
    fn dir(&self) -> PathBuf;
    /// The same directory in the store.
    fn store_dir(&self) -> PathBuf;
    /// Whether that can be seen while the volume is mounted.
    fn shows_store(&self) -> bool;
    /// Unmounts; nothing on it is in use.
    fn unmount(&mut self);
    /// Mounts again.
    fn mount(&mut self);
    /// Whether syncfs(2) reaches the program.
    fn syncs(&self) -> bool;
}

/// When the whole tree is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// After every operation.
    Always,
    /// At remounts and at the end: what comparing reads does not warm caches in between.
    Seldom,
}

/// What became of operations.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Succeeded, as they should.
    pub done: usize,
    /// Failed, as they should.
    pub refused: usize,
    /// Made no sense at their moment.
    pub left_out: usize,
}

/// Runs `ops`.
///
/// # Errors
/// What differed, after which operation.
pub fn run(ops: &[Op], ground: &mut dyn Ground, when: When) -> Result<Tally, String> {
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut model = Model::new(owner);
    let mut real = Real::new(&ground.dir());
    let mut tally = Tally::default();
    for (i, op) in ops.iter().enumerate() {
        let complain = |what: &str, found: Vec<String>| {
            if found.is_empty() {
                Ok(())
            } else {
                Err(format!("after operation {i}, {op:?}: {what}:\n  {}", found.join("\n  ")))
            }
        };
        // A closed slot, for instance; the model has not changed.
        let Some(expected) = model.apply(op) else {
            tally.left_out += 1;
            continue;
        };
        *if expected.is_ok() { &mut tally.done } else { &mut tally.refused } += 1;
        if *op == Op::Remount {
            real.close_all();
            ground.unmount();
            complain("in the store, unmounted", differences(&model, &ground.store_dir()))?;
            ground.mount();
            complain("after the remount", differences(&model, &ground.dir()))?;
            continue;
        }
        let outcome = real.apply(op);
        if outcome != expected {
            return Err(format!(
                "operation {i}, {op:?}, gave {}, not {}",
                shown(&outcome, &expected),
                shown(&expected, &outcome)
            ));
        }
        if when == When::Always {
            complain("on the mount", differences(&model, &ground.dir()))?;
            complain("open files", open_differences(&model, &real))?;
        }
        complain("synced in the store", synced_differences(&model, op, ground))?;
    }
    let found = differences(&model, &ground.dir());
    let open = open_differences(&model, &real);
    if found.is_empty() && open.is_empty() {
        Ok(tally)
    } else {
        Err(format!("at the end:\n  {}", [found, open].concat().join("\n  ")))
    }
}

/// What an fsync or sync promised, and the store does not have.
fn synced_differences(model: &Model, op: &Op, ground: &dyn Ground) -> Vec<String> {
    match *op {
        _ if !ground.shows_store() => Vec::new(),
        Op::SyncAll if ground.syncs() => differences(model, &ground.store_dir()),
        Op::Fsync { slot, .. } => {
            let Some((id, node)) = model.open_file(slot) else { return Vec::new() };
            let (Some(path), Kind::File(data)) = (model.path_of(id), &node.kind) else { return Vec::new() };
            match std::fs::read(ground.store_dir().join(&path)) {
                Ok(stored) => bytes(data, &stored).into_iter().collect(),
                Err(e) => vec![format!("{path:?}: {e}")],
            }
        }
        _ => Vec::new(),
    }
}

/// Open files, those without a name too.
fn open_differences(model: &Model, real: &Real) -> Vec<String> {
    let mut found = Vec::new();
    for slot in 0..SLOTS {
        let (Some((_, node)), Some(file)) = (model.open_file(slot), real.open_file(slot)) else { continue };
        let Kind::File(data) = &node.kind else { unreachable!("only files are open") };
        match file.metadata() {
            Ok(meta) => {
                found.extend(attributes(node, &meta).into_iter().map(|w| format!("slot {slot}: {w}")))
            }
            Err(e) => found.push(format!("slot {slot}: fstat: {e}")),
        }
        match read_through(file) {
            Ok(is) => found.extend(bytes(data, &is).map(|w| format!("slot {slot}: {w}"))),
            Err(e) => found.push(format!("slot {slot}: read: {e}")),
        }
    }
    found
}

/// The whole of an open file, by another descriptor: it may be open with O_DIRECT.
fn read_through(file: &File) -> std::io::Result<Vec<u8>> {
    use std::os::fd::AsRawFd as _;
    std::fs::read(Path::new("/proc/self/fd").join(file.as_raw_fd().to_string()))
}

/// An outcome for a person: long bytes as where they differ from `other`.
fn shown(outcome: &super::Outcome, other: &super::Outcome) -> String {
    match (outcome, other) {
        (Ok(Value::Bytes(is)), Ok(Value::Bytes(other))) => {
            format!("{} bytes ({})", is.len(), bytes(other, is).unwrap_or_default())
        }
        (Ok(Value::Bytes(is)), _) => format!("{} bytes", is.len()),
        _ => format!("{outcome:?}"),
    }
}
