//! What is read from the disk cache is what was kept, and the mutants that read something else.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib
//! schedules`

use bytes::Bytes;

use super::entry;
use crate::blocks::Key;
use crate::rows::Object;

const UUID: [u8; 16] = [7; 16];
const KEY: Key = (Object::Log(5), 2);

fn file(uuid: [u8; 16], key: Key, block: &[u8]) -> Bytes {
    [&entry::header(&uuid, key, block)[..], block].concat().into()
}

/// A file of the disk cache is read as the block that it was kept for, whole, and as no other.
#[test]
fn a_file_is_read_as_the_block_that_it_was_kept_for() {
    let block = [9; 700];
    let whole = file(UUID, KEY, &block);
    assert_eq!(entry::open(&UUID, KEY, whole.clone()).as_deref(), Some(&block[..]));
    for at in 0..whole.len() {
        let mut changed = whole.to_vec();
        changed[at] ^= 1;
        assert!(entry::open(&UUID, KEY, changed.into()).is_none(), "a byte that was changed is read: {at}");
    }
    for (object, number) in [(Object::Log(5), 3), (Object::Log(6), 2), (Object::Segment(0, 5), 2)] {
        let opened = entry::open(&UUID, (object, number), whole.clone());
        assert!(opened.is_none(), "another block is read");
    }
    assert!(entry::open(&[8; 16], KEY, whole).is_none(), "another volume's block is read");
}

#[cfg(shuttle)]
#[test]
fn a_cache_that_reads_what_was_not_kept_is_caught() {
    use sync::mutant::assert_caught;
    let test = "disk_cache::schedules::a_file_is_read_as_the_block_that_it_was_kept_for";
    assert_caught(test, &["disk-cache-unchecked"], "a byte that was changed is read");
    assert_caught(test, &["disk-cache-without-object"], "another block is read");
    assert_caught(test, &["disk-cache-without-volume"], "another volume's block is read");
}
