//! One entry of a queue: memory into which the kernel puts a request and from which it takes the
//! answer.
//!
//! Purpose: reads and writes an entry's bytes ([`Entry::receive`], [`Entry::answer`]). An `Entry`
//! is in the daemon's hands; while the kernel has it, it is inside a `entry_ring::EntryRing` and no
//! thread can read it.
//!
//! # Layout
//! One [`Buffer`]: the kernel's header (`fuse_uring_req_header`) and the two `iovec`s that name
//! header and payload are at its beginning; the payload is the buffer's data, at the second page.
//!
//! The kernel splits a request into its header, its first structure (`op_in`) and the rest
//! (payload). They are put together as `/dev/fuse` has them, so that the same decoder reads them
//! with the same checks:
//! - [`Payload::Copied`]: everything is copied to the thread's own buffer. No thread reads the
//!   entry any more until it is answered, which any thread can do at any time.
//! - [`Payload::InPlace`]: the data of a large WRITE stays where it is and that of a large READ is
//!   put there; only the two headers are copied, to where they belong before the data. The entry
//!   must not go back to the kernel before the handler has returned.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::single_client::Client;
use crate::buffer::Buffer;
use crate::device::ReplyBytes;
use crate::protocol::abi::{InHeader, Opcode, OutHeader, ReadIn, WriteIn};

/// Data up to this is copied, which costs less than a tenth of the request.
const COPIED_MAX: usize = 16 << 10;
/// Data of this size or more in an entry's buffer is worth giving back.
const WORTH_RELEASING: usize = 64 << 10;
/// Length of `in_out` and `op_in`.
const PART: usize = 128;

/// `fuse_uring_ent_in_out`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EntInOut {
    flags: u64,
    commit_id: u64,
    payload_sz: u32,
    padding: u32,
    reserved: u64,
}

/// `fuse_uring_req_header`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    /// Before: the request's header. After: the answer's.
    in_out: [u8; PART],
    op_in: [u8; PART],
    ent: EntInOut,
}

const _: () = assert!(size_of::<Header>() == 288);

/// The two `iovec`s of a registration, as the kernel reads them.
#[derive(IntoBytes, Immutable, KnownLayout, FromBytes)]
#[repr(C)]
struct Vecs([[usize; 2]; 2]);

/// Where the `iovec`s are.
const VECS_AT: usize = 512;

/// What is wrong with an entry's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum EntryError {
    #[error("request without a number")]
    NoNumber,
    #[error("payload of {said} bytes where {room} fit")]
    Payload { said: u32, room: usize },
    #[error(
        "request of {said} bytes with a payload of {payload}: the first structure cannot be as long as that"
    )]
    Length { said: u32, payload: u32 },
}

/// Where a request's bytes were put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload {
    /// In the thread's own buffer.
    Copied,
    /// In the entry.
    InPlace,
}

/// A request that was put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) unique: u64,
    pub(super) caller: Client,
    /// Bytes of the message.
    pub(super) len: usize,
    pub(super) payload: Payload,
    /// Whether the kernel reads ahead, so that the caller goes on meanwhile.
    pub(super) reads_ahead: bool,
}

/// Largest answer to a in-place entry's request that is not the data itself: WRITE's.
pub(super) const SMALL: usize = 16;

/// The answer to a in-place entry's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InPlaceReply {
    Error(Errno),
    /// This many bytes, which are in the entry.
    Data(usize),
    Small([u8; SMALL], usize),
}

/// An entry in the daemon's hands.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its queue, which is the number of a CPU.
    queue: u16,
    /// The kernel's number of the request in it.
    commit_id: u64,
    /// Bytes of data that were in it since the last release, about.
    used: usize,
    /// Whether it is the one of its queue that keeps its memory whatever other requests are under
    /// way.
    pub(super) is_resident: bool,
    pub(super) buffer: Buffer,
}

impl Entry {
    /// A new entry, which the kernel does not know yet.
    pub(super) fn new(queue: u16) -> Result<Self, Errno> {
        Ok(Self { queue, commit_id: 0, used: 0, is_resident: false, buffer: Buffer::new()? })
    }

    /// Its queue.
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// The kernel's number of the request in it.
    pub(super) fn commit_id(&self) -> u64 {
        self.commit_id
    }

    /// Writes the `iovec`s of a registration; says where they are and how many.
    pub(super) fn vecs(&mut self) -> (*const u8, u32) {
        let payload = self.buffer.data();
        let payload = [payload.as_mut_ptr().expose_provenance(), payload.len()];
        let head = self.buffer.head();
        let header = [head.as_mut_ptr().expose_provenance(), size_of::<Header>()];
        let vecs = &mut head[VECS_AT..VECS_AT + size_of::<Vecs>()];
        vecs.copy_from_slice(Vecs([header, payload]).as_bytes());
        (vecs.as_ptr(), 2)
    }

    fn header(&mut self) -> &mut Header {
        let head = &mut self.buffer.head()[..size_of::<Header>()];
        // The mapping is page-aligned and the length is that of the structure.
        match Header::mut_from_bytes(head) {
            Ok(header) => header,
            Err(_) => unreachable!("a page is aligned and large enough for a header"),
        }
    }

    /// Reads what the kernel put into it.
    pub(super) fn receive(&mut self, scratch: &mut Buffer) -> Result<Received, EntryError> {
        let Header { in_out, op_in, ent } = *self.header();
        // Whatever else is wrong, the request can be answered.
        self.commit_id = ent.commit_id;
        let (Ok((header, _)), Ok(payload)) =
            (InHeader::read_from_prefix(&in_out), usize::try_from(ent.payload_sz))
        else {
            return Err(EntryError::Length { said: 0, payload: ent.payload_sz });
        };
        let room = self.buffer.data().len();
        if header.unique == 0 {
            return Err(EntryError::NoNumber);
        }
        if payload > room {
            return Err(EntryError::Payload { said: ent.payload_sz, room });
        }
        let wrong = EntryError::Length { said: header.len, payload: ent.payload_sz };
        let len = usize::try_from(header.len).map_err(|_| wrong)?;
        let first = len.checked_sub(size_of::<InHeader>() + payload).filter(|&first| first <= PART);
        let Some(first) = first else { return Err(wrong) };
        let fixed = size_of::<InHeader>() + first;
        let placed = payload_of(header.opcode, &op_in, first, payload);
        self.used = self.used.max(payload);
        let to = match placed {
            Payload::Copied => scratch.space(),
            Payload::InPlace => self.buffer.space(),
        };
        if len > to.len() {
            return Err(wrong);
        }
        to[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        to[size_of::<InHeader>()..fixed].copy_from_slice(&op_in[..first]);
        if placed == Payload::Copied {
            scratch.space()[fixed..len].copy_from_slice(&self.buffer.data()[..payload]);
        }
        let reads_ahead = placed == Payload::InPlace && payload == 0;
        Ok(Received { unique: header.unique, caller: caller(&header), len, payload: placed, reads_ahead })
    }

    /// Writes the answer; data that is in the entry's buffer already is left there.
    pub(super) fn answer(&mut self, unique: u64, answer: ReplyBytes<'_>) -> Result<(), Errno> {
        match answer {
            Err(errno) => self.conclude(unique, -errno.raw_os_error(), 0),
            Ok([first, second]) => {
                let data = self.buffer.data();
                let len = first.len() + second.len();
                let Some(data) = data.get_mut(..len) else {
                    self.conclude(unique, -Errno::IO.raw_os_error(), 0);
                    return Err(Errno::MSGSIZE);
                };
                let (one, two) = data.split_at_mut(first.len());
                one.copy_from_slice(first);
                two.copy_from_slice(second);
                self.conclude(unique, 0, len);
            }
        }
        Ok(())
    }

    /// Writes the header of an answer whose data of `len` bytes is in the buffer.
    pub(super) fn conclude(&mut self, unique: u64, error: i32, len: usize) {
        self.used = self.used.max(len);
        // Never more than the buffer holds.
        let total = u32::try_from(size_of::<OutHeader>() + len).unwrap_or(0);
        let len = u32::try_from(len).unwrap_or(0);
        let header = self.header();
        let out = OutHeader { len: total, error, unique };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        header.ent.payload_sz = len;
    }

    /// Answers the request in it, whatever it is, with an error.
    pub(super) fn refuse(&mut self, errno: Errno) {
        self.commit_id = self.header().ent.commit_id;
        self.conclude(self.commit_id, -errno.raw_os_error(), 0);
    }

    /// Writes the answer to a request whose data is in place.
    pub(super) fn conclude_in_place(&mut self, unique: u64, answer: Option<InPlaceReply>) {
        match answer {
            Some(InPlaceReply::Data(len)) => self.conclude(unique, 0, len),
            Some(InPlaceReply::Small(bytes, len)) => {
                let bytes = &bytes[..len];
                self.buffer.data()[..len].copy_from_slice(bytes);
                self.conclude(unique, 0, len);
            }
            Some(InPlaceReply::Error(errno)) => self.conclude(unique, -errno.raw_os_error(), 0),
            None => self.conclude(unique, -Errno::IO.raw_os_error(), 0),
        }
    }

    /// Whether its memory is worth giving back.
    pub(super) fn is_large(&self) -> bool {
        self.used >= WORTH_RELEASING
    }

    /// Whether there was data in it since its memory was given back.
    pub(super) fn had_data(&self) -> bool {
        self.used > 0
    }

    /// Gives all its memory back to the host: the registered `iovec`s are lost.
    pub(super) fn release_all(&mut self) {
        self.buffer.release();
    }

    /// Gives the memory of its data back to the host. An answer in it is lost.
    pub(super) fn release(&mut self) {
        self.buffer.release_data();
        self.used = 0;
    }
}

/// The maker of the request.
fn caller(header: &InHeader) -> Client {
    match (header.pid, Opcode::from_number(header.opcode)) {
        // Linux 7.2 and newer name a thread there, too.
        (_, Some(Opcode::Release | Opcode::ReleaseDir)) => Client::Kernel,
        (0, _) => Client::Unknown,
        (tid, _) => Client::Thread(tid),
    }
}

/// Where to put a request together.
fn payload_of(opcode: u32, op_in: &[u8; PART], first: usize, payload: usize) -> Payload {
    let data = match Opcode::from_number(opcode) {
        Some(Opcode::Write) if first == size_of::<WriteIn>() => payload,
        Some(Opcode::Read | Opcode::ReadDir | Opcode::ReadDirPlus)
            if first == size_of::<ReadIn>() && payload == 0 =>
        {
            let size = ReadIn::read_from_prefix(op_in).map_or(0, |(arg, _)| arg.size);
            usize::try_from(size).unwrap_or(0)
        }
        _ => 0,
    };
    if data > COPIED_MAX { Payload::InPlace } else { Payload::Copied }
}

#[cfg(test)]
mod tests;
