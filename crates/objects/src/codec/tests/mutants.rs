//! Checks that are left out on purpose: a test misses each of them.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-objects --lib codec::tests::mutants`

use sync::mutant;

#[test]
fn a_check_that_is_left_out_is_caught() {
    let test = "codec::tests::hostile::each_bit_that_flips_is_found";
    mutant::assert_caught(test, &["objects-crc-unchecked"], "did not object");
    let test = "codec::tests::hostile::a_chunk_is_read_in_its_place_alone";
    mutant::assert_caught(test, &["objects-chunk-index-unbound"], "read: chunks that changed places");
    mutant::assert_caught(test, &["objects-extent-length-unbound"], "read: an extent that was cut");
}
