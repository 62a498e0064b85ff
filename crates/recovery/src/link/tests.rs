use std::collections::BTreeSet;

use super::*;

/// What the keeper holds after all that has been sent, with what it held before.
fn read_all(keeper: &OwnedFd, held: &mut BTreeSet<HoldId>) {
    rustix::io::ioctl_fionbio(keeper, true).expect("a socket");
    loop {
        match receive(keeper) {
            Ok(Some(Message::Hold(new, _))) => assert!(held.insert(new.id), "{new:?} twice"),
            Ok(Some(Message::Drop(id))) => assert!(held.remove(&id), "{id:?} is not held"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_keeper_that_does_not_read_stops_nobody() {
    let (keeper, server) = pair().expect("a pair");
    let (link, object) = (Link::new(server, &[]), pair().expect("a pair").0);
    let mut ids = Vec::new();
    let error = loop {
        match link.hold(ids.len() as u64, object.as_fd()) {
            Ok(id) => ids.push(id),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert!(ids.len() < HELD_MAX && link.unsent.lock().is_full, "{}", ids.len());
    // None of these waits: the test would take a second for each.
    for _ in 0..100 {
        assert!(link.notify("words").is_err());
    }
    ids.iter().for_each(|id| link.drop_held(*id));
    assert_eq!(link.unsent.lock().drops.len(), ids.len());

    let mut held = BTreeSet::new();
    read_all(&keeper, &mut held);
    assert_eq!(held, ids.iter().copied().collect());
    // As many as there is room for are told before the next one is held.
    let next = loop {
        match link.hold(7, object.as_fd()) {
            Ok(id) => break id,
            Err(_) => read_all(&keeper, &mut held),
        }
    };
    read_all(&keeper, &mut held);
    assert_eq!(held, [next].into());
    assert_eq!(link.unsent.lock().held, 1);
}

#[test]
fn an_object_that_is_held_again_is_not_dropped_with_what_was_held_before() {
    let (keeper, server) = pair().expect("a pair");
    let (link, object) = (Link::new(server, &[Held { id: HoldId(4), node: 7 }]), pair().expect("a pair").0);
    let again = link.hold(7, object.as_fd()).expect("there is room");
    assert!(again > HoldId(4), "the keeper would take them for one");
    link.drop_held(HoldId(4));
    let mut held = [HoldId(4)].into();
    read_all(&keeper, &mut held);
    assert_eq!(held, [again].into());
}
