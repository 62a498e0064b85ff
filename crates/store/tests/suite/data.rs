//! Data: reading, writing, sizes, holes, allocation, copying, syncing.

use std::io::IoSlice;

use watertight_store::{Access, AllocateMode, ErrorKind, FileType, NewNode, ObjectId, Seek, SetAttr, Store};

use super::{ROOT, Scenario, content, create, file_with, kind, lookup, me, mkdir, n, symlink, write};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("reads_see_writes", reads_see_writes),
    ("many_buffers", many_buffers),
    ("openings_share_the_bytes", openings_share_the_bytes),
    ("holes_read_as_zeros", holes_read_as_zeros),
    ("truncate", truncate),
    ("limits_of_offsets", limits_of_offsets),
    ("seek_data_and_hole", seek_data_and_hole),
    ("allocate", allocate),
    ("copy_range", copy_range),
    ("only_regular_files_have_data", only_regular_files_have_data),
    ("sync_everything", sync_everything),
    ("statfs", statfs),
    ("random_writes", random_writes),
];

fn set_size(store: &dyn Store, id: ObjectId, size: u64) -> u64 {
    store.set_attr(id, &SetAttr { size: Some(size), ..Default::default() }).unwrap().size
}

fn reads_see_writes(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    write(&*made.file, b"hello world", 0);
    write(&*made.file, b"W", 6);
    assert_eq!(content(store, made.entry.id), b"hello World");
    let mut buf = [0; 5];
    assert_eq!(made.file.read_at(&mut buf, 6).unwrap(), 5);
    assert_eq!(&buf, b"World");
    assert_eq!(made.file.read_at(&mut buf, 9).unwrap(), 2, "short at the end");
    assert_eq!(made.file.read_at(&mut buf, 11).unwrap(), 0);
    assert_eq!(made.file.read_at(&mut buf, 1 << 40).unwrap(), 0);
    assert_eq!(made.file.read_at(&mut [], 0).unwrap(), 0);
    made.file.write_at(&[], 100).unwrap();
    made.file.write_at(&[IoSlice::new(b"")], 100).unwrap();
    assert_eq!(store.attr(made.entry.id).unwrap().size, 11, "writing nothing changes nothing");
}

fn many_buffers(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    let parts: Vec<Vec<u8>> = (0..3000u32).map(|i| vec![i.to_le_bytes()[0]; (i % 7) as usize]).collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|p| IoSlice::new(p)).collect();
    made.file.write_at(&slices, 5).unwrap();
    let mut expected = vec![0; 5];
    expected.extend(parts.concat());
    assert_eq!(content(store, made.entry.id), expected);
}

fn openings_share_the_bytes(store: &dyn Store) {
    let id = file_with(store, ROOT, "f", b"abc").id;
    let reader = store.open(id, Access::Read).unwrap();
    let writer = store.open(id, Access::ReadWrite).unwrap();
    write(&*writer, b"X", 1);
    let mut buf = [0; 3];
    assert_eq!(reader.read_at(&mut buf, 0).unwrap(), 3);
    assert_eq!(&buf, b"aXc");
    drop(writer);
    assert_eq!(content(store, id), b"aXc");
    drop(reader);
    assert_eq!(content(store, id), b"aXc");
}

fn holes_read_as_zeros(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    let far = 10 * 1024 * 1024 + 17;
    write(&*made.file, b"end", far);
    assert_eq!(store.attr(made.entry.id).unwrap().size, far + 3);
    let mut buf = vec![1; 70_000];
    assert_eq!(made.file.read_at(&mut buf, 1_000_000).unwrap(), 70_000);
    assert!(buf.iter().all(|&b| b == 0));
    let blocks = store.attr(made.entry.id).unwrap().blocks;
    assert!(blocks * 512 < far, "{blocks} blocks for a sparse file");
}

fn truncate(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    let id = made.entry.id;
    write(&*made.file, &[7; 5000], 0);
    assert_eq!(set_size(store, id, 10), 10);
    assert_eq!(set_size(store, id, 5000), 5000);
    let mut expected = vec![7; 10];
    expected.resize(5000, 0);
    assert_eq!(content(store, id), expected, "what was cut off does not come back");
    drop(made);
    assert_eq!(set_size(store, id, 4), 4);
    assert_eq!(content(store, id), [7; 4]);
    assert_eq!(set_size(store, id, 0), 0);
    assert_eq!(store.attr(id).unwrap().blocks, 0);
    let dir = mkdir(store, ROOT, "d");
    let size = SetAttr { size: Some(0), ..Default::default() };
    assert_eq!(kind(store.set_attr(dir.id, &size)), ErrorKind::IsDirectory);
    let link = symlink(store, ROOT, "l", "f");
    assert_eq!(kind(store.set_attr(link.id, &size)), ErrorKind::Invalid);
}

fn limits_of_offsets(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    let near = i64::MAX.unsigned_abs() - 1;
    for offset in [near, near + 1, u64::MAX - 1, u64::MAX] {
        let e = made.file.write_at(&[IoSlice::new(b"abc")], offset).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FileTooBig, "at {offset}");
    }
    let too_far = SetAttr { size: Some(u64::MAX), ..Default::default() };
    assert_eq!(kind(store.set_attr(made.entry.id, &too_far)), ErrorKind::FileTooBig);
    let e = made.file.allocate(AllocateMode::empty(), near, 10).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::FileTooBig);
    assert_eq!(store.attr(made.entry.id).unwrap().size, 0);
}

fn seek_data_and_hole(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    let unit = 1 << 20;
    write(&*made.file, &[1; 4096], unit);
    set_size(store, made.entry.id, 3 * unit);
    let data = made.file.seek(Seek::Data, 0).unwrap();
    assert!(data > 0 && data <= unit, "data at {data}");
    assert_eq!(made.file.seek(Seek::Data, unit + 5).unwrap(), unit + 5);
    assert_eq!(made.file.seek(Seek::Hole, 5).unwrap(), 5);
    let hole = made.file.seek(Seek::Hole, unit).unwrap();
    assert!(hole >= unit + 4096 && hole <= 2 * unit, "hole at {hole}");
    assert_eq!(kind(made.file.seek(Seek::Data, 2 * unit + 5)), ErrorKind::NoSuchAddress);
    assert_eq!(kind(made.file.seek(Seek::Data, 3 * unit)), ErrorKind::NoSuchAddress);
    assert_eq!(kind(made.file.seek(Seek::Hole, 3 * unit)), ErrorKind::NoSuchAddress);
    assert_eq!(kind(made.file.seek(Seek::Data, u64::MAX)), ErrorKind::NoSuchAddress);
    let full = create(store, ROOT, "full");
    write(&*full.file, b"x", 0);
    assert_eq!(full.file.seek(Seek::Hole, 0).unwrap(), 1, "the end counts as a hole");
}

fn allocate(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    let id = made.entry.id;
    let file = &made.file;
    match file.allocate(AllocateMode::empty(), 0, 200_000) {
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            testing::skipped(format_args!("no fallocate on {}", store.describe()));
            return;
        }
        other => other.unwrap(),
    }
    let attr = store.attr(id).unwrap();
    assert_eq!(attr.size, 200_000);
    assert!(attr.blocks * 512 >= 200_000, "space is taken");
    file.allocate(AllocateMode::KEEP_SIZE, 200_000, 100_000).unwrap();
    assert_eq!(store.attr(id).unwrap().size, 200_000);
    write(&**file, &[9; 200_000], 0);
    let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
    file.allocate(punch, 1000, 150_000).unwrap();
    let mut expected = vec![9; 200_000];
    expected[1000..151_000].fill(0);
    assert_eq!(content(store, id), expected);
    file.allocate(AllocateMode::ZERO_RANGE, 160_000, 60_000).unwrap();
    expected[160_000..].fill(0);
    expected.resize(220_000, 0);
    assert_eq!(content(store, id), expected);
    let keep = AllocateMode::ZERO_RANGE | AllocateMode::KEEP_SIZE;
    file.allocate(keep, 210_000, 60_000).unwrap();
    assert_eq!(store.attr(id).unwrap().size, 220_000);
    assert_eq!(kind(file.allocate(AllocateMode::empty(), 0, 0)), ErrorKind::Invalid);
    assert_eq!(
        kind(file.allocate(AllocateMode::PUNCH_HOLE, 0, 1)),
        ErrorKind::Unsupported,
        "needs KEEP_SIZE"
    );
}

fn copy_range(store: &dyn Store) {
    let data: Vec<u8> = (0..100_000u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
    let src = file_with(store, ROOT, "src", &data).id;
    let dst = file_with(store, ROOT, "dst", b"0123456789").id;
    let mut done = 0;
    while done < 90_000 {
        match store.copy_range(src, 1000 + done, dst, 5 + done, 90_000 - done) {
            Ok(0) => panic!("nothing copied at {done}"),
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                testing::skipped(format_args!("no copy_range on {}", store.describe()));
                return;
            }
            Err(e) => panic!("{e}"),
        }
    }
    let mut expected = b"01234".to_vec();
    expected.extend(&data[1000..91_000]);
    assert_eq!(content(store, dst), expected);
    assert_eq!(store.copy_range(src, 100_000, dst, 0, 10).unwrap(), 0, "nothing behind the end");
    assert_eq!(store.copy_range(src, 99_990, dst, 0, 1000).unwrap(), 10);
    assert_eq!(&content(store, dst)[..10], &data[99_990..]);
}

fn only_regular_files_have_data(store: &dyn Store) {
    let link = symlink(store, ROOT, "l", "f");
    assert_eq!(kind(store.open(link.id, Access::Read)), ErrorKind::Loop);
    let fifo = NewNode::Special { kind: FileType::Fifo, rdev: 0 };
    let fifo = store.make(ROOT, n("p"), fifo, 0o644, me()).unwrap();
    assert_eq!(kind(store.open(fifo.id, Access::Read)), ErrorKind::Invalid);
    let dir = mkdir(store, ROOT, "d");
    assert_eq!(kind(store.copy_range(dir.id, 0, dir.id, 0, 1)), ErrorKind::IsDirectory);
}

fn sync_everything(store: &dyn Store) {
    let dir = mkdir(store, ROOT, "d");
    let made = create(store, dir.id, "f");
    write(&*made.file, b"data", 0);
    made.file.sync(true).unwrap();
    made.file.sync(false).unwrap();
    store.sync_dir(dir.id).unwrap();
    store.sync_dir(ROOT).unwrap();
    write(&*made.file, b"more", 4);
    store.unlink(dir.id, n("f")).unwrap();
    store.sync().unwrap();
    made.file.sync(false).unwrap();
    store.rmdir(ROOT, n("d")).unwrap();
    store.sync().unwrap();
    store.sync().unwrap();
    let file = create(store, ROOT, "g");
    assert_eq!(kind(store.sync_dir(file.entry.id)), ErrorKind::NotDirectory);
}

fn statfs(store: &dyn Store) {
    let s = store.statfs().unwrap();
    assert!(s.frsize > 0 && s.bsize > 0 && s.namelen >= 255);
    assert!(s.blocks > 0 && s.bfree <= s.blocks && s.bavail <= s.bfree);
}

/// A small generator of its own, so that the sequence is the same everywhere.
fn random_writes(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    let mut model: Vec<u8> = Vec::new();
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    for round in 0..200u8 {
        let (at, len) = (random(300_000), random(70_000));
        match round % 4 {
            0 => {
                set_size(store, made.entry.id, at as u64);
                model.resize(at, 0);
            }
            _ => {
                write(&*made.file, &vec![round; len], at as u64);
                if len > 0 {
                    if model.len() < at + len {
                        model.resize(at + len, 0);
                    }
                    model[at..at + len].fill(round);
                }
            }
        }
    }
    assert!(content(store, made.entry.id) == model, "content differs from the model");
    assert_eq!(lookup(store, ROOT, "f").attr.size, model.len() as u64);
}
