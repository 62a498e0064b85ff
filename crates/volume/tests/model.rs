//! File data against a model: whatever write-back does meanwhile, users see one sequence of bytes,
//! and the store has it after the drain.

mod common;

use common::{Client, eager, lazy};
use proptest::prelude::*;
use store::{AllocateMode, SetAttr};

#[derive(Debug, Clone)]
enum Op {
    Write { at: usize, len: usize, byte: u8 },
    Read { at: usize, len: usize },
    Truncate(usize),
    Punch { at: usize, len: usize },
    Zero { at: usize, len: usize },
    Copy { from: usize, to: usize, len: usize },
    Fsync,
    Fdatasync,
    Reopen,
    Sync,
}

const SIZE: usize = 40_000;

fn op() -> impl Strategy<Value = Op> {
    let at = 0..SIZE;
    let len = prop_oneof![1..100usize, Just(4096), 1..20_000usize];
    prop_oneof![
        6 => (at.clone(), len.clone(), any::<u8>()).prop_map(|(at, len, byte)| Op::Write { at, len, byte }),
        4 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Read { at, len }),
        2 => at.clone().prop_map(Op::Truncate),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Punch { at, len }),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Zero { at, len }),
        1 => (at.clone(), at, len).prop_map(|(from, to, len)| Op::Copy { from, to, len }),
        1 => Just(Op::Fsync),
        1 => Just(Op::Fdatasync),
        1 => Just(Op::Reopen),
        1 => Just(Op::Sync),
    ]
}

fn grow(model: &mut Vec<u8>, end: usize) {
    if model.len() < end {
        model.resize(end, 0);
    }
}

fn fill(model: &mut [u8], at: usize, len: usize) {
    let end = (at + len).min(model.len());
    if at < end {
        model[at..end].fill(0);
    }
}

fn run(ops: &[Op], options: watertight_volume::Options) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store::open(dir.path().to_str().expect("utf-8")).expect("a store");
    let client = Client::new(store, options);
    let (id, mut handle) = client.create("file");
    let mut model: Vec<u8> = Vec::new();
    for op in ops {
        match *op {
            Op::Write { at, len, byte } => {
                let data: Vec<u8> = (0..=255u8).cycle().take(len).map(|i| byte.wrapping_add(i)).collect();
                assert_eq!(client.write(handle, at as u64, &data), Ok(len));
                grow(&mut model, at + len);
                model[at..at + len].copy_from_slice(&data);
            }
            Op::Read { at, len } => {
                let end = (at + len).min(model.len());
                let want = if at < end { &model[at..end] } else { &[] };
                assert!(client.read(handle, at as u64, len) == want, "read {len} at {at}");
            }
            Op::Truncate(size) => {
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                let attr = client.volume.set_attr(&client.ctx(), id, &set, false).expect("a truncation");
                assert_eq!(attr.size, size as u64);
                model.resize(size, 0);
            }
            Op::Punch { at, len } => {
                let mode = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
                let (at64, len64) = (at as u64, len as u64);
                client.volume.allocate(&client.ctx(), handle, mode, at64, len64).expect("a hole");
                fill(&mut model, at, len);
            }
            Op::Zero { at, len } => {
                let (at64, len64) = (at as u64, len as u64);
                let zeroed =
                    client.volume.allocate(&client.ctx(), handle, AllocateMode::ZERO_RANGE, at64, len64);
                // Not every host file system can.
                if zeroed.is_ok() {
                    grow(&mut model, at + len);
                    fill(&mut model, at, len);
                }
            }
            Op::Copy { from, to, len } => {
                let len = len.min(from.abs_diff(to));
                if len == 0 {
                    continue;
                }
                let copied = client.volume.copy_range(
                    &client.ctx(),
                    (handle, from as u64),
                    (handle, to as u64),
                    len as u64,
                );
                let copied = copied.map_or(0, |copied| usize::try_from(copied).expect("64 bits"));
                let bytes: Vec<u8> = model.iter().skip(from).take(copied).copied().collect();
                assert_eq!(bytes.len(), copied, "no more than there is");
                if copied > 0 {
                    grow(&mut model, to + copied);
                    model[to..to + copied].copy_from_slice(&bytes);
                }
            }
            Op::Fsync => client.fsync(handle).expect("fsync"),
            Op::Fdatasync => client.volume.fsync(&client.ctx(), handle, true).expect("fdatasync"),
            Op::Sync => client.volume.sync(&client.ctx()).expect("sync"),
            Op::Reopen => {
                client.volume.release(handle);
                handle = client.open(id);
            }
        }
        assert_eq!(client.volume.attr(id).expect("attributes").size, model.len() as u64, "after {op:?}");
    }
    assert!(client.read(handle, 0, model.len() + 10) == model, "the whole file");
    let mtime = client.volume.attr(id).expect("attributes").mtime;
    assert!(client.volume.shutdown().is_complete());
    assert_eq!(client.volume.status().cached_bytes, 0, "a page was kept");
    let stored = dir.path().join("file");
    assert!(std::fs::read(&stored).expect("the stored file") == model, "the store after the drain");
    use std::os::unix::fs::MetadataExt as _;
    let meta = std::fs::metadata(&stored).expect("its attributes");
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (mtime.secs, i64::from(mtime.nanos)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lazy_write_back_keeps_the_bytes(ops in proptest::collection::vec(op(), 1..40)) {
        run(&ops, lazy());
    }

    #[test]
    fn eager_write_back_keeps_the_bytes(ops in proptest::collection::vec(op(), 1..40)) {
        run(&ops, eager());
    }
}
