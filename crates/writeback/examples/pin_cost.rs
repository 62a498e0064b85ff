//! The cost of a pin and its end, with several threads at once: in shards, and with one counter for
//! all.
//!
//! `cargo run --release -p watertight-writeback --example pin_cost`
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::sync::Barrier;
use std::time::Instant;

use watertight_writeback::Drain;

const PAIRS: u32 = 2_000_000;

/// Nanoseconds of one pair, as a thread sees it.
fn measure(drain: &Drain, threads: usize) -> f64 {
    let begin = Barrier::new(threads);
    let took: Vec<f64> = std::thread::scope(|scope| {
        let body = || {
            begin.wait();
            let begun = Instant::now();
            (0..PAIRS).for_each(|_| drop(std::hint::black_box(drain.pin())));
            begun.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS)
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(body)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    took.iter().sum::<f64>() / took.len() as f64
}

fn main() {
    println!("ns for a pin and its end, mean of the threads\nthreads\tshards\tone counter");
    for threads in [1, 2] {
        let shards = measure(&Drain::new(), threads);
        let one = measure(&Drain::with_shards(1), threads);
        println!("{threads}\t{shards:.1}\t{one:.1}");
    }
}
