//! How fast it is.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::*;

/// Bytes of an extent that is measured.
const LEN: usize = 4 << 20;

/// Prints how fast each combination is on one thread, for data that does not shrink and for source
/// text, and how long 4 KiB of a chunk take.
///
/// `cargo test --release -p watertight-objects --lib codec::tests::speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn throughput_of_each_combination() {
    let mut noise = vec![0; LEN];
    crypto::random(&mut noise);
    println!("{:26} {:>9} {:>9} {:>7} {:>13}", "", "encode", "decode", "stored", "4 KiB of it");
    for (kind, plain) in [("noise", noise), ("source", source())] {
        for codec in codecs() {
            let (stored, table) = codec.encode(&plain);
            let len = len_of(&plain);
            let mut out = vec![0; LEN];
            let encode = best(|| drop(black_box(codec.encode(black_box(&plain)))));
            let decode = best(|| codec.decode(&table, len, 0, black_box(&stored), 0..len, &mut out).unwrap());
            assert_eq!(out, plain);
            let part = CHUNK..CHUNK + 4096;
            let (range, first) = codec.stored_range(&table, len, part.clone()).unwrap();
            let fetched = &stored[range.start as usize..range.end as usize];
            let part = best(|| {
                codec.decode(&table, len, first, black_box(fetched), part.clone(), &mut out[..4096]).unwrap();
            });
            let name =
                format!("{:?}{}", codec.0.compression, if codec.is_encrypted() { " + key" } else { "" });
            println!(
                "{:26} {:>4.2} GB/s {:>4.2} GB/s {:>6.1}% {:>10.1} µs",
                format!("{kind}, {name}"),
                rate(encode),
                rate(decode),
                100.0 * stored.len() as f64 / LEN as f64,
                part.as_secs_f64() * 1e6,
            );
        }
    }
}

fn rate(took: Duration) -> f64 {
    LEN as f64 / took.as_secs_f64() / 1e9
}

/// The fastest of many runs.
fn best(mut run: impl FnMut()) -> Duration {
    let begin = Instant::now();
    let mut best = Duration::MAX;
    while begin.elapsed() < Duration::from_millis(400) {
        let begin = Instant::now();
        run();
        best = best.min(begin.elapsed());
    }
    best
}

/// Source text, as often as fits, each copy with other numbers in it.
fn source() -> Vec<u8> {
    let texts = [include_str!("../../codec.rs"), include_str!("hostile.rs"), include_str!("../tests.rs")];
    let text = texts.concat().into_bytes();
    let copies = (0..=LEN / text.len()).flat_map(|copy| {
        let salt = u8::try_from(copy % 10).unwrap();
        text.iter().map(move |byte| if byte.is_ascii_digit() { b'0' + (byte + salt) % 10 } else { *byte })
    });
    copies.take(LEN).collect()
}
