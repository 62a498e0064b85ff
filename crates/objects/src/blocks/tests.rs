use super::*;

const LOG: Object = Object::Log(7);
const SEGMENT: Object = Object::Segment(1, 2);

fn keys(object: Object, numbers: &[u32]) -> Vec<Key> {
    numbers.iter().map(|&number| (object, number)).collect()
}

fn runs(lookup: &Lookup) -> Vec<(Object, Range<u32>)> {
    lookup.claims.iter().map(|claim| (claim.object(), claim.run())).collect()
}

/// Ends a claim with what was fetched, of which it takes what it has claimed.
fn fill(claim: Claim, fetched: &[u8]) {
    let mut blocks = split(claim.object(), claim.run().start, fetched);
    blocks.truncate(claim.run().len());
    claim.fill(&blocks);
}

fn data(blocks: u64) -> Vec<u8> {
    vec![1; usize::try_from(blocks * BLOCK).unwrap()]
}

#[tokio::test]
async fn neighbours_are_one_run_and_each_block_is_claimed_once() {
    let blocks = Arc::new(Blocks::default());
    let wanted = [keys(LOG, &[0, 1, 3, 6]), keys(SEGMENT, &[4])].concat();
    let first = blocks.look_up(&wanted, 4, 1);
    assert_eq!(runs(&first), [(LOG, 0..4), (LOG, 6..7), (SEGMENT, 4..5)]);
    let second = blocks.look_up(&wanted, 4, 1);
    assert_eq!((second.claims.len(), second.awaited.len(), second.here.len()), (0, 5, 0));
    for claim in first.claims {
        fill(claim, &data(4));
    }
    for mut awaited in second.awaited {
        assert!(awaited.changed().await.is_err(), "the claim has ended");
    }
    let third = blocks.look_up(&wanted, 4, 1);
    assert_eq!((third.claims.len(), third.awaited.len(), third.here.len()), (0, 0, 5));
    let (bytes, ahead, claimed) = blocks.figures();
    assert_eq!((bytes, ahead, claimed), (6 * BLOCK, 0, 0), "a run of one block keeps one");
}

#[tokio::test]
async fn a_claim_that_is_given_up_is_the_next_callers() {
    let blocks = Arc::new(Blocks::default());
    let mut ahead = blocks.claim_ahead(LOG, 0..4, blocks.reserve(4 * BLOCK));
    assert_eq!(ahead.len(), 1);
    let mut reader = blocks.look_up(&keys(LOG, &[1]), 4, 0);
    assert!(reader.claims.is_empty());
    drop(ahead.pop());
    assert!(reader.awaited[0].changed().await.is_err());
    assert_eq!(runs(&blocks.look_up(&keys(LOG, &[1]), 4, 0)), [(LOG, 1..2)]);
}

#[tokio::test]
async fn what_continues_blocks_that_are_here_grows_and_ends_with_the_object() {
    let blocks = Arc::new(Blocks::default());
    let mut lengths = Vec::new();
    let mut next = 0;
    while next < 20 {
        let mut lookup = blocks.look_up(&keys(LOG, &[next]), 8, 0);
        let claim = lookup.claims.pop().unwrap();
        lengths.push(claim.run().len());
        next = claim.run().end;
        let len = claim.run().len();
        // The object has 20 blocks and a half.
        let there = (20 - claim.run().start.min(20)) as usize * data(1).len() + 100;
        fill(claim, &data(len as u64)[..there.min(len * data(1).len())]);
    }
    assert_eq!(lengths, [1, 2, 4, 8, 8]);
    let last = blocks.look_up(&keys(LOG, &[20]), 8, 0);
    assert_eq!(last.here[0].1.len(), 100);
    assert!(blocks.is_missing(LOG, 21..22), "there is no such block");
}

#[tokio::test]
async fn memory_is_bounded_and_read_ahead_gets_a_part_of_it() {
    let blocks = Arc::new(Blocks::default());
    for number in 0..1000 {
        let claims = blocks.look_up(&keys(SEGMENT, &[number]), 1, 0).claims;
        claims.into_iter().for_each(|claim| fill(claim, &data(1)));
        assert!(blocks.figures().0 <= BYTES_MAX);
    }
    let mut reserved = blocks.reserve(AHEAD_BYTES_MAX - BLOCK);
    assert_eq!(blocks.reserve(10 * BLOCK).bytes, BLOCK, "there is no more");
    drop(reserved.split(2 * BLOCK));
    assert_eq!(blocks.reserve(10 * BLOCK).bytes, 3 * BLOCK);
    drop(reserved);
    assert_eq!(blocks.figures().1, 0);
    for claim in blocks.claim_ahead(LOG, 0..8, blocks.reserve(8 * BLOCK)) {
        fill(claim, &data(8));
    }
    assert_eq!(blocks.figures().1, 8 * BLOCK, "what nobody has asked for");
    drop(blocks.look_up(&keys(LOG, &[3]), 1, 0));
    assert_eq!(blocks.figures().1, 7 * BLOCK);
    blocks.forget(LOG, 0..8);
    assert_eq!(blocks.figures().1, 0);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_reads_goes_and_then_what_nobody_reads_again() {
    let blocks = Arc::new(Blocks::default());
    for claim in blocks.claim_ahead(LOG, 0..8, blocks.reserve(8 * BLOCK)) {
        fill(claim, &data(8));
    }
    drop(blocks.look_up(&keys(LOG, &[0]), 1, 0));
    tokio::time::sleep(UNREAD_AGE + 2 * SWEEP).await;
    assert_eq!(blocks.figures(), (BLOCK, 0, 0));
    tokio::time::sleep(AGE_MAX).await;
    assert_eq!(blocks.figures(), (0, 0, 0));
    assert!(!blocks.0.lock().is_swept, "nothing is looked for while there is nothing");
}

#[tokio::test]
async fn a_block_that_has_come_is_not_waited_for_with_its_claim() {
    let blocks = Arc::new(Blocks::default());
    let first = blocks.claim_ahead(LOG, 0..4, blocks.reserve(4 * BLOCK)).pop().unwrap();
    let mut awaited = blocks.look_up(&keys(LOG, &[1, 2]), 4, 0).awaited;
    first.fill(&split(LOG, 1, &data(1)));
    assert!(awaited[0].changed().await.is_err());
    assert!(awaited[1].has_changed().is_ok(), "it has not come");
    // One that came, went, and was claimed again is not the first claim's any more.
    blocks.forget(LOG, 1..2);
    let second = blocks.look_up(&keys(LOG, &[1]), 4, 0).claims;
    assert_eq!(second.len(), 1);
    drop(first);
    let others = blocks.look_up(&keys(LOG, &[1]), 4, 0);
    assert!(others.claims.is_empty() && others.awaited[0].has_changed().is_ok());
    drop(second);
    assert_eq!(blocks.figures(), (0, 0, 0));
}

#[tokio::test]
async fn a_block_that_is_read_ahead_counts_once_from_its_reservation_on() {
    let blocks = Arc::new(Blocks::default());
    let all = || blocks.figures().1;
    let mut reserved = blocks.reserve(6 * BLOCK);
    let claims = blocks.claim_ahead(LOG, 0..8, reserved.split(4 * BLOCK));
    assert_eq!((claims[0].run(), all()), (0..8, 6 * BLOCK));
    claims[0].fill(&split(LOG, 0, &data(2)));
    assert_eq!(all(), 6 * BLOCK);
    claims[0].fill(&split(LOG, 2, &[1; 100]));
    assert_eq!(all(), 5 * BLOCK + 100, "the last of an object is shorter");
    drop((claims, reserved));
    assert_eq!(all(), 2 * BLOCK + 100);
}

#[tokio::test]
async fn what_a_reader_in_sequence_has_passed_goes() {
    let blocks = Arc::new(Blocks::default());
    let number = |count: usize| u32::try_from(count).unwrap();
    for at in 0..number(3 * PASSED_MAX) {
        let claims = blocks.look_up(&keys(LOG, &[at]), 1, 0).claims;
        claims.into_iter().for_each(|claim| fill(claim, &data(1)));
        blocks.pass(LOG, at..at + 1);
        // Read again and again, it does not go before its turn.
        blocks.pass(LOG, at..at + 1);
        assert_eq!(blocks.figures().0, u64::from(at + 1).min(PASSED_MAX as u64) * BLOCK);
    }
    assert!(blocks.is_missing(LOG, 0..1));
    assert!(!blocks.is_missing(LOG, number(2 * PASSED_MAX)..number(3 * PASSED_MAX)));
}
