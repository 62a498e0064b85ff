//! Any bytes as a message from the kernel: decoded or refused, never a panic or a look beyond the
//! end.
//!
//! The first byte chooses what was negotiated and whether the header's length is made right, so
//! that the fuzzer spends its time behind the header.
#![no_main]

use std::hint::black_box;

use libfuzzer_sys::fuzz_target;
use watertight_fuse::decode::{self, Agreed, Op};

fuzz_target!(|input: &[u8]| {
    let Some((&choice, message)) = input.split_first() else { return };
    let mut message = message.to_vec();
    if choice & 1 == 0
        && let Some(len) = message.first_chunk_mut::<4>().is_some().then_some(message.len())
    {
        message[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    }
    let agreed = Agreed { setxattr_ext: choice & 2 == 0 };
    let Ok((header, body)) = decode::header(&message) else { return };
    match decode::operation(&header, body, agreed) {
        Ok(Op::BatchForget(forgets)) => forgets.iter().for_each(|one| {
            black_box(one);
        }),
        other => {
            // Formatting looks at every byte of every name.
            black_box(format!("{other:?}"));
        }
    }
});
