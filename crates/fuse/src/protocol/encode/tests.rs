use std::ffi::OsString;

use proptest::prelude::*;
use store::Timestamp;
use zerocopy::FromBytes as _;

use super::*;

const VALID: Validity = Validity { entry: Duration::from_millis(1500), attr: Duration::from_secs(9) };

fn some_attr() -> store::Attr {
    let time = |secs| Timestamp { secs, nanos: 5 };
    store::Attr {
        ino: 11,
        kind: FileType::Symlink,
        perm: 0o4777,
        nlink: 2,
        uid: 3,
        gid: 4,
        rdev: 5,
        size: 6,
        blocks: 7,
        blksize: 4096,
        atime: time(-1),
        mtime: time(1),
        ctime: time(2),
    }
}

#[test]
fn attributes_of_files_with_set_id_bits_are_not_believed() {
    for (kind, perm, secs) in [
        (FileType::Regular, 0o4755, 0),
        (FileType::Regular, 0o2755, 0),
        (FileType::Regular, 0o2745, 9),
        (FileType::Regular, 0o1777, 9),
        (FileType::Directory, 0o2775, 9),
    ] {
        let attr = store::Attr { kind, perm, ..some_attr() };
        let entry = entry_out(&store::Entry { id: store::ObjectId(7), attr, generation: 0 }, VALID);
        assert_eq!((attr_out(&attr, VALID).attr_valid, entry.attr_valid), (secs, secs), "{perm:o}");
        assert_eq!(entry.entry_valid, 1, "the name stays as it is");
    }
}

#[test]
fn types_and_modes_belong_together() {
    let kinds = [
        (FileType::Regular, libc::S_IFREG, libc::DT_REG),
        (FileType::Directory, libc::S_IFDIR, libc::DT_DIR),
        (FileType::Symlink, libc::S_IFLNK, libc::DT_LNK),
        (FileType::Fifo, libc::S_IFIFO, libc::DT_FIFO),
        (FileType::Socket, libc::S_IFSOCK, libc::DT_SOCK),
        (FileType::CharDevice, libc::S_IFCHR, libc::DT_CHR),
        (FileType::BlockDevice, libc::S_IFBLK, libc::DT_BLK),
    ];
    for (kind, bits, dirent) in kinds {
        assert_eq!(type_bits(kind), bits);
        assert_eq!(file_type(bits | 0o7777), Some(kind));
        assert_eq!(dirent_type(Some(kind)), u32::from(dirent));
    }
    assert_eq!(file_type(0o644), Some(FileType::Regular));
    assert_eq!(file_type(0o150_000), None);
    assert_eq!(dirent_type(None), u32::from(libc::DT_UNKNOWN));
}

#[test]
fn attributes_and_times_keep_their_values() {
    let entry = store::Entry { id: store::ObjectId(42), attr: some_attr(), generation: 7 };
    let out = entry_out(&entry, VALID);
    assert_eq!((out.nodeid, out.entry_valid, out.entry_valid_nsec), (42, 1, 500_000_000));
    assert_eq!((out.attr_valid, out.attr_valid_nsec), (9, 0));
    assert_eq!(out.attr.mode, 0o124_777);
    assert_eq!((out.attr.atime, out.attr.atimensec), (u64::MAX, 5));
    assert_eq!(attr_out(&entry.attr, VALID).attr, out.attr);
    let none = no_entry_out(VALID);
    assert_eq!((none.nodeid, none.entry_valid, none.attr_valid), (0, 1, 0));
}

fn entries() -> impl Strategy<Value = Vec<store::DirEntry>> {
    let entry = ("[a-z]{1,60}", any::<u64>(), any::<u64>()).prop_map(|(name, ino, next)| store::DirEntry {
        name: OsString::from(name),
        ino,
        kind: Some(FileType::Regular),
        next,
    });
    prop::collection::vec(entry, 0..40)
}

/// Reads a listing as the kernel does.
fn read_back(mut bytes: &[u8], plus: bool) -> Vec<(u64, Dirent, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let before = bytes.len();
        let mut node = 0;
        if plus {
            let (entry, rest) = EntryOut::read_from_prefix(bytes).unwrap();
            node = entry.nodeid;
            bytes = rest;
        }
        let (dirent, rest) = Dirent::read_from_prefix(bytes).unwrap();
        let (name, rest) = rest.split_at(dirent.namelen as usize);
        let unaligned = (before - rest.len()) % 8;
        let padding = if unaligned == 0 { 0 } else { 8 - unaligned };
        assert!(rest[..padding].iter().all(|&byte| byte == 0));
        bytes = &rest[padding..];
        found.push((node, dirent, name.to_vec()));
    }
    found
}

proptest! {
    #[test]
    fn listings_are_read_back_and_never_overflow(entries in entries(), room in 0usize..3000, plus in any::<bool>()) {
        // Filled, to see that padding is cleared.
        let mut space = vec![0xaa; room];
        let mut listing = Listing::new(&mut space);
        let mut added = 0;
        let node = EntryOut { nodeid: 7, attr: attr(&some_attr()), ..EntryOut::default() };
        for entry in &entries {
            let need = if plus { Listing::plus_len(&entry.name) } else { Listing::plain_len(&entry.name) };
            let fits = need <= listing.left();
            let done = if plus { listing.add_plus(entry, &node) } else { listing.add(entry) };
            prop_assert_eq!(done, fits);
            if !done {
                break;
            }
            added += 1;
        }
        let len = listing.len();
        prop_assert_eq!(len == 0, listing.is_empty());
        let found = read_back(&space[..len], plus);
        prop_assert_eq!(found.len(), added);
        for (entry, (nodeid, dirent, name)) in entries.iter().zip(found) {
            prop_assert_eq!((dirent.ino, dirent.off), (entry.ino, entry.next));
            prop_assert_eq!(name, entry.name.as_bytes());
            prop_assert_eq!(nodeid, if plus { 7 } else { 0 });
            // With attributes the type is theirs.
            prop_assert_eq!(dirent.r#type, u32::from(if plus { libc::DT_LNK } else { libc::DT_REG }));
        }
        prop_assert!(space[len..].iter().all(|&byte| byte == 0xaa));
    }
}
