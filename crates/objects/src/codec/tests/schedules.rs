//! Checks that are left out on purpose: a test misses each of them. There are no threads here, and
//! one schedule.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-objects --lib codec::tests::schedules`

use sync::mutant;

use super::hostile;

/// A bit of a chunk or of a blob that flips is found.
#[test]
fn a_bit_that_flips_is_found() {
    hostile::each_bit_that_flips_is_found();
}

/// A chunk is read in its place alone, in an extent of the length that it was written in; with a
/// key, whoever calculates checksums anew does not change that.
#[test]
fn a_chunk_is_read_in_its_place() {
    hostile::a_chunk_is_read_in_its_place_alone();
}

#[test]
fn a_check_that_is_left_out_is_caught() {
    let test = "codec::tests::schedules::a_bit_that_flips_is_found";
    mutant::assert_caught(test, &["objects-crc-unchecked"], "did not object");
    let test = "codec::tests::schedules::a_chunk_is_read_in_its_place";
    mutant::assert_caught(test, &["objects-chunk-index-unbound"], "read: chunks that changed places");
    mutant::assert_caught(test, &["objects-extent-length-unbound"], "read: an extent that was cut");
}
