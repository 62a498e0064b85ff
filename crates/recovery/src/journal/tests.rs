use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

fn key(ino: u64) -> NodeKey {
    NodeKey { ino, kind: 3, generation: Some(7), handle: (-2, (0..13).collect()) }
}

fn again(journal: Journal) -> Journal {
    let file = journal.file().expect("a memory file").try_clone_to_owned().expect("a descriptor");
    drop(journal);
    Journal::recover(file, LastEnd::Crashed).expect("a journal")
}

fn opened(handle: u64) -> OpenRecord {
    OpenRecord {
        kind: OpenKind::File,
        handle,
        node: 10,
        flags: 3,
        is_foreign_mapper: true,
        opener_pid: 9,
        request: 44,
    }
}

#[test]
fn what_was_noted_is_there_for_the_next_server() {
    let journal = Journal::create().unwrap();
    let one = journal.add_node(10, 1, Some(&key(10))).unwrap();
    let two = journal.add_node(11, 1, Some(&key(11))).unwrap();
    journal.set_lookups(one, 5);
    let file = journal.add_open(&opened(8)).unwrap();
    let dir = journal.add_open(&OpenRecord { kind: OpenKind::Dir, ..opened(9) }).unwrap();
    journal.remove_open(file);
    let journal = again(journal);
    assert_eq!((journal.servers(), journal.deaths()), (1, 1));
    let nodes = journal.nodes();
    assert_eq!(nodes[0], (one, NodeRecord { id: 10, lookups: 5, key: Some(key(10)) }));
    assert_eq!((nodes.len(), journal.opens().len(), journal.next_number()), (2, 1, 10));
    assert_eq!(journal.opens()[0].0, dir);
    journal.remove_node(two);
    assert_eq!(journal.add_node(12, 1, Some(&key(12))), Some(two), "slots are used again");
    assert_eq!(journal.add_open(&opened(12)), Some(file));
    assert!(journal.is_complete());
    journal.turn_off();
    assert!(!journal.is_complete());
}

#[test]
fn a_request_goes_on_where_the_server_before_has_left_it() {
    let mut journal = Journal::create().unwrap();
    let slot = journal.add_thread().unwrap();
    assert_eq!(journal.begin(slot, 100), None);
    assert_eq!(request_in_hand(), 100);
    journal.set_phase(slot, Phase::Intent(6));
    for crashes in 1..=3 {
        journal = again(journal);
        let thread = journal.add_thread().unwrap();
        let phase = if crashes == 3 { Phase::Done(77) } else { Phase::Intent(6) };
        assert_eq!(journal.begin(thread, 100 | RESENT), Some(RequestRecord { phase, crashes }));
        if crashes == 2 {
            journal.set_phase(thread, Phase::Done(77));
        }
        if crashes == 3 {
            journal.end(thread);
        }
    }
    let journal = again(journal);
    let thread = journal.add_thread().unwrap();
    assert_eq!(journal.begin(thread, 100 | RESENT), Some(RequestRecord::default()), "it was answered");
}

#[test]
fn a_request_that_was_not_read_again_counts_no_second_crash() {
    let journal = Journal::create().unwrap();
    let slot = journal.add_thread().unwrap();
    journal.begin(slot, 100);
    let journal = again(again(journal));
    let thread = journal.add_thread().unwrap();
    assert_eq!(journal.begin(thread, 100 | RESENT).unwrap().crashes, 1);
    let journal = again(journal);
    journal.drop_orphans();
    let journal = again(journal);
    let thread = journal.add_thread().unwrap();
    assert_eq!(journal.begin(thread, 100 | RESENT).unwrap(), RequestRecord::default());
}

#[test]
fn another_file_is_no_journal() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let short = memfd_create("test", flags).unwrap();
    assert!(Journal::recover(short, LastEnd::Crashed).is_err());
    let zeros = memfd_create("test", flags).unwrap();
    ftruncate(&zeros, (WORDS * 8) as u64).unwrap();
    assert!(Journal::recover(zeros, LastEnd::Crashed).is_err());
}

#[test]
fn records_that_nothing_follows_of_are_ended() {
    let journal = Journal::create().unwrap();
    let given_back = journal.add_node(9, 1, Some(&key(9))).unwrap();
    journal.set_lookups(given_back, 0);
    // It was given back while it was open.
    let open = journal.add_node(10, 1, Some(&key(10))).unwrap();
    journal.set_lookups(open, 0);
    // Its number was given to another one before it was ended.
    let before = journal.add_node(11, 1, Some(&key(11))).unwrap();
    journal.set_lookups(before, 0);
    let after = journal.add_node(11, 1, Some(&key(11))).unwrap();
    let gone = journal.add_node(12, 2, None).unwrap();
    let kept = journal.add_open(&opened(8)).unwrap();
    let lost = journal.add_open(&OpenRecord { node: 77, ..opened(9) }).unwrap();
    let of_root = journal.add_open(&OpenRecord { node: ROOT, kind: OpenKind::Dir, ..opened(10) }).unwrap();
    let journal = again(journal);
    let slots = |nodes: Vec<(Slot, NodeRecord)>| nodes.iter().map(|(slot, _)| *slot).collect::<Vec<_>>();
    assert_eq!(slots(journal.nodes()), [open, after, gone]);
    assert_eq!(journal.nodes()[2].1, NodeRecord { id: 12, lookups: 2, key: None });
    assert_eq!(journal.opens().iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [kept, of_root]);
    assert_eq!(journal.add_node(13, 1, None), Some(given_back), "its slot is free");
    assert_eq!(journal.add_node(14, 1, None), Some(before));
    assert_eq!(journal.add_open(&opened(11)), Some(lost));
}
