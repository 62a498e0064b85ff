//! The protocol of FUSE: bytes and their meaning. These modules act on nothing and hold nothing.

pub mod abi;
pub mod decode;
pub mod encode;
pub mod errno;
pub mod init;
