//! The agreement with the kernel at the beginning of a connection.

use std::io;

use rustix::io::Errno;
use zerocopy::IntoBytes as _;

use crate::buffer::Buffer;
use crate::device::Dev;
use crate::protocol::abi::Opcode;
use crate::protocol::decode::{self, Agreed, Op};
use crate::protocol::init::{self, InitError, InitReply, Negotiated, Wishes};

/// Why a session could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No agreement with the kernel.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The connection ended before it had begun.
    #[error("unmounted before the first request")]
    Unmounted,
    /// The kernel began with something else.
    #[error("the kernel's first message is not INIT but {0}")]
    NotInit(String),
    /// The device failed.
    #[error("cannot talk to the kernel: {0}")]
    Device(#[source] io::Error),
    /// io_uring was asked for and cannot be had.
    #[error("no FUSE over io_uring: {reason}")]
    NoUring {
        /// Why.
        reason: String,
    },
    /// It is to outlive its process, for which the kernel is too old.
    #[error("recover=on needs a kernel that sends requests again to another server (Linux 6.9)")]
    NoResend,
    /// The host gives no thread or memory.
    #[error("cannot start serving: {0}")]
    Start(#[source] io::Error),
}

/// Answers INIT.
pub(crate) fn agree(dev: &Dev, wishes: &Wishes) -> Result<Negotiated, SessionError> {
    let mut buffer = Buffer::new().map_err(|error| SessionError::Start(error.into()))?;
    loop {
        let len = match dev.read(buffer.space()) {
            Ok(len) => len,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV | Errno::CONNABORTED) => return Err(SessionError::Unmounted),
            Err(error) => return Err(SessionError::Device(error.into())),
        };
        let message = buffer.message(len);
        let decoded = decode::header(message).and_then(|(header, body)| {
            decode::operation(&header, body, Agreed::default()).map(|op| (header, op))
        });
        let (unique, offer) = match decoded {
            Ok((header, Op::Init(offer))) => (header.unique, offer),
            Ok((header, _)) => {
                let name = Opcode::from_number(header.opcode).map_or("unknown", Opcode::name);
                return Err(SessionError::NotInit(name.to_owned()));
            }
            Err(error) => return Err(SessionError::NotInit(error.to_string())),
        };
        let device = |error: Errno| SessionError::Device(error.into());
        match init::negotiate(&offer, wishes) {
            Ok(InitReply::Agreed(out, negotiated)) => {
                dev.answer(unique, Ok([out.as_bytes(), &[]])).map_err(device)?;
                tracing::debug!(?negotiated, "connected");
                return Ok(negotiated);
            }
            Ok(InitReply::AskAgain(out)) => dev.answer(unique, Ok([out.as_bytes(), &[]])).map_err(device)?,
            Err(error) => {
                dev.answer(unique, Err(Errno::PROTO)).map_err(device)?;
                return Err(error.into());
            }
        }
    }
}
