//! Write-back errors and the open files that report them, under loom.
//!
//! All of the state is under one mutex, so that there is no ordering to get wrong. The test checks
//! that the steps interleave in any order: each open file reports the last error, and no error
//! twice.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-writeback --release --test loom_errseq`
#![cfg(loom)]

use std::sync::Arc;

use sync::{mutant, thread};
use watertight_writeback::{Cursor, ErrSeq};

fn check(errors: &ErrSeq<u32>, cursor: &mut Cursor, heard: &mut Vec<u32>) {
    heard.extend(errors.check_and_advance(cursor));
}

/// Every open file reports the last write-back error, and none twice; under one mutex, so that
/// only the order of steps is checked.
#[test]
fn each_open_file_hears_of_each_error_once() {
    loom::model(|| {
        let errors = Arc::new(ErrSeq::default());
        let files: Vec<_> = (0..2)
            .map(|_| {
                let mut cursor = errors.sample();
                let errors = Arc::clone(&errors);
                thread::spawn(move || {
                    let mut heard = Vec::new();
                    check(&errors, &mut cursor, &mut heard);
                    (cursor, heard)
                })
            })
            .collect();
        errors.set(1);
        errors.set(2);
        for file in files {
            let (mut cursor, mut heard) = file.join().expect("no assertion failed");
            check(&errors, &mut cursor, &mut heard);
            check(&errors, &mut cursor, &mut heard);
            assert_eq!(heard.last(), Some(&2), "the last error was not heard of: {heard:?}");
            assert!(heard.is_sorted_by(|a, b| a < b), "an error was heard of twice: {heard:?}");
        }
    });
}

#[test]
fn each_mutant_is_caught() {
    let test = "each_open_file_hears_of_each_error_once";
    mutant::assert_caught(test, &["errseq-not-seen"], "the last error was not heard of");
    mutant::assert_caught(test, &["errseq-not-advanced"], "an error was heard of twice");
}
