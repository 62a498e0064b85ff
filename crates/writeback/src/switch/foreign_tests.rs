use super::*;

/// 100 MB/s.
const BANDWIDTH: u64 = 25_600;
const US: CgroupId = CgroupId(1);
const THEM: CgroupId = CgroupId(2);
const OTHER: CgroupId = CgroupId(3);

fn round(foreign: &mut Foreign, bytes: &[(CgroupId, u64)]) -> Option<CgroupId> {
    let mut round = foreign.begin(US);
    for (by, bytes) in bytes {
        round.count(*by, *bytes);
    }
    foreign.end(&round, BANDWIDTH)
}

#[test]
fn two_long_foreign_rounds_switch() {
    let mut foreign = Foreign::default();
    // A second of writing fills five slots each time.
    assert_eq!(round(&mut foreign, &[(THEM, BANDWIDTH * PAGE)]), None);
    assert_eq!(foreign.history(), 0b1_1111);
    assert_eq!(round(&mut foreign, &[(THEM, BANDWIDTH * PAGE)]), Some(THEM));
    assert_eq!(foreign.history(), 0b11_1111_1111);
}

#[test]
fn of_short_synchronous_writes_the_ninth_foreign_one_switches() {
    let mut foreign = Foreign::default();
    for number in 1..=8 {
        assert_eq!(round(&mut foreign, &[(THEM, PAGE)]), None, "write {number}");
        assert_eq!(foreign.history().count_ones(), number);
    }
    assert_eq!(round(&mut foreign, &[(THEM, PAGE)]), Some(THEM));
}

#[test]
fn our_own_rounds_push_foreign_ones_out() {
    let mut foreign = Foreign::default();
    for _ in 0..200 {
        assert_eq!(round(&mut foreign, &[(THEM, PAGE)]), None);
        assert_eq!(round(&mut foreign, &[(US, PAGE)]), None);
    }
    assert_eq!(foreign.history().count_ones(), 8);
}

#[test]
fn a_short_round_among_long_ones_does_not_count() {
    let mut foreign = Foreign::default();
    round(&mut foreign, &[(US, BANDWIDTH * PAGE)]);
    for _ in 0..8 {
        assert_eq!(round(&mut foreign, &[(THEM, PAGE)]), None);
    }
    // The average falls by an eighth each time; until it is eight times a short round nothing
    // counts.
    assert_eq!(foreign.history(), 0);
}

#[test]
fn ties_go_to_the_owner_then_to_the_last_winner() {
    let tie = [(US, PAGE), (THEM, PAGE)];
    let mut foreign = Foreign::default();
    round(&mut foreign, &tie);
    assert_eq!((foreign.winner, foreign.history()), (Some(US), 0));
    round(&mut foreign, &[(THEM, PAGE)]);
    round(&mut foreign, &[(THEM, PAGE), (OTHER, PAGE)]);
    assert_eq!((foreign.winner, foreign.history()), (Some(THEM), 0b11));
    round(&mut foreign, &[(THEM, PAGE), (OTHER, 2 * PAGE)]);
    assert_eq!((foreign.winner, foreign.history()), (Some(OTHER), 0b111));
}

#[test]
fn a_majority_among_many_is_found() {
    let mut foreign = Foreign::default();
    let mut bytes = Vec::new();
    for other in 10..20 {
        bytes.extend([(CgroupId(other), PAGE), (THEM, PAGE), (THEM, PAGE)]);
    }
    round(&mut foreign, &bytes);
    assert_eq!(foreign.winner, Some(THEM));
}

#[test]
fn nothing_overflows() {
    let mut foreign = Foreign::default();
    let mut round = foreign.begin(US);
    round.count(THEM, 1 << 50);
    assert_eq!(foreign.end(&round, 0), None);
    assert_eq!(foreign.average, u16::MAX);
    assert_eq!(round.candidate_bytes, 1 << 50);
    let empty = foreign.begin(US);
    assert_eq!((foreign.end(&empty, 1), foreign.history()), (None, 0b1_1111));
}
