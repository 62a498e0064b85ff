//! The Container Storage Interface, version 1.13: messages, services and clients over gRPC.
//!
//! `csi.v1.rs` is made of `proto/csi.proto`, the file that the specification's authors publish
//! (<https://github.com/container-storage-interface/spec>), by `cd generate && cargo run --locked`.
//! That is no part of this workspace, so that nobody builds its compiler who does not change the
//! file.

#![allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]

pub use tonic;

/// The time of a message.
pub use prost_types::Timestamp;

/// The package `csi.v1`.
pub mod v1 {
    include!("csi.v1.rs");
}

#[cfg(test)]
mod tests {
    /// FNV-1a, as `generate` has it.
    fn digest(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
    }

    #[test]
    fn the_sources_are_those_of_the_file() {
        let head = include_str!("csi.v1.rs").lines().next().unwrap();
        let digest = digest(include_bytes!("../proto/csi.proto"));
        assert_eq!(
            head,
            format!("// Of csi.proto with the digest {digest:016x}."),
            "csi.proto is another: cd crates/csi-proto/generate && cargo run --locked"
        );
    }
}
