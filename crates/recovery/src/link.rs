//! Messages from a server to its keeper, with descriptors.
//!
//! A pair of sockets that keeps messages whole. What a message brings stays open in the socket until the
//! keeper reads it, so that a server may die right after it was sent.
//!
//! A keeper that does not read (it is stopped, or its cgroup is frozen) does not stop its server: where
//! the socket is full, one message waits for a second at most, and those that follow do not wait until
//! there is room again.
//!
//! Locks: `unsent` is held while a message is sent, so that messages about one object keep their order;
//! nothing is taken under it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use sync::Mutex;

/// Bytes of a message at most.
const BYTES_MAX: usize = 64 << 10;
/// Descriptors of a message at most.
const DESCRIPTORS_MAX: usize = 8;

/// How many objects the keeper holds at most.
pub const HELD_MAX: usize = 4096;

/// How long a message waits for room.
const WAIT: Duration = Duration::from_secs(1);

/// What a server says.
#[derive(Debug)]
pub enum Message {
    /// All that the next server needs, in place of what was sent before: see
    /// [`NUMBERS`](crate::keeper::NUMBERS).
    State(Vec<OwnedFd>),
    /// It is about to read requests, or does; with its standard output and error, and lines for who
    /// waits for the mount.
    Ready(Vec<OwnedFd>, String),
    /// For the service manager.
    Notify(String),
    /// An open object that has no name any more.
    Hold(Held, OwnedFd),
    /// It is not needed any more.
    Drop(HoldId),
    /// The program of the next server: this one leaves its place to it.
    Program(OwnedFd),
    /// The mount is gone, and the process ends.
    End,
}

/// One opening that the keeper holds. An object that is dropped and held again is another one, so that
/// no thread drops what another one has just had held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId(pub u64);

/// What the keeper holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The opening.
    pub id: HoldId,
    /// Whose it is.
    pub node: u64,
}

/// A server's end.
#[derive(Debug)]
pub struct Link {
    /// None: there never was a keeper.
    fd: Option<OwnedFd>,
    unsent: Mutex<Unsent>,
}

#[derive(Debug, Default)]
struct Unsent {
    /// How many objects the keeper holds, of which those below are not needed any more.
    held: usize,
    next: u64,
    /// The keeper holds these, and could not be told yet to drop them: that goes before the next one that
    /// it is to hold.
    drops: Vec<HoldId>,
    /// The last message found no room in time: none waits until one has found it.
    is_full: bool,
}

/// A pair: the keeper's end, and the server's.
///
/// # Errors
/// The kernel's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Link {
    /// This end, of a keeper that holds these objects.
    #[must_use]
    pub fn new(fd: OwnedFd, held: &[Held]) -> Self {
        let next = held.iter().map(|held| held.id.0 + 1).max().unwrap_or(0);
        Self { fd: Some(fd), unsent: Mutex::new(Unsent { held: held.len(), next, ..Unsent::default() }) }
    }

    /// Of no keeper, for tests: nothing can be sent.
    #[must_use]
    pub fn to_nobody() -> Self {
        Self { fd: None, unsent: Mutex::default() }
    }

    /// Whether the keeper is there.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Sends the descriptors of [`Message::State`].
    ///
    /// # Errors
    /// When the keeper is gone, or does not read: as of all messages.
    pub fn send_state(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&mut self.unsent.lock(), b"S", descriptors)
    }

    /// Sends [`Message::Ready`].
    ///
    /// # Errors
    /// See [`Link::send_state`]; also when the text is too long.
    pub fn send_ready(&self, lines: &str) -> io::Result<()> {
        let output = [rustix::stdio::stdout(), rustix::stdio::stderr()];
        self.send(&mut self.unsent.lock(), &[b"R", lines.as_bytes()].concat(), &output)
    }

    /// Sends [`Message::Notify`].
    ///
    /// # Errors
    /// See [`Link::send_ready`].
    pub fn notify(&self, text: &str) -> io::Result<()> {
        self.send(&mut self.unsent.lock(), &[b"N", text.as_bytes()].concat(), &[])
    }

    /// Has the keeper hold an opening: sends [`Message::Hold`].
    ///
    /// # Errors
    /// See [`Link::send_state`]; [`io::ErrorKind::QuotaExceeded`] when the keeper holds as much as it does.
    pub fn hold(&self, node: u64, object: BorrowedFd<'_>) -> io::Result<HoldId> {
        let mut unsent = self.unsent.lock();
        self.send_drops(&mut unsent)?;
        if unsent.held >= HELD_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let id = unsent.next;
        let message = [&b"H"[..], &id.to_le_bytes(), &node.to_le_bytes()].concat();
        self.send(&mut unsent, &message, &[object])?;
        unsent.next += 1;
        unsent.held += 1;
        Ok(HoldId(id))
    }

    /// The keeper need not hold this any more: sends [`Message::Drop`], later if the keeper does not read.
    pub fn drop_held(&self, id: HoldId) {
        let mut unsent = self.unsent.lock();
        unsent.drops.push(id);
        let _next_time = self.send_drops(&mut unsent);
    }

    /// Sends [`Message::Program`]: the caller ends then, by SIGKILL.
    ///
    /// # Errors
    /// See [`Link::send_state`].
    pub fn send_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&mut self.unsent.lock(), b"P", &[program])
    }

    /// Sends [`Message::End`].
    ///
    /// # Errors
    /// See [`Link::send_state`].
    pub fn end(&self) -> io::Result<()> {
        self.send(&mut self.unsent.lock(), b"E", &[])
    }

    fn send_drops(&self, unsent: &mut Unsent) -> io::Result<()> {
        while let Some(id) = unsent.drops.last().copied() {
            self.send(unsent, &[&b"D"[..], &id.0.to_le_bytes()].concat(), &[])?;
            unsent.drops.pop();
            unsent.held -= 1;
        }
        Ok(())
    }

    fn send(&self, unsent: &mut Unsent, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = self.fd.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut sent = try_send(fd, bytes, descriptors);
        if sent == Err(Errno::AGAIN) && !unsent.is_full {
            let mut fds = [PollFd::new(fd, PollFlags::OUT)];
            let wait = Timespec::try_from(WAIT).map_err(io::Error::other)?;
            rustix::io::retry_on_intr(|| poll(&mut fds, Some(&wait)))?;
            sent = try_send(fd, bytes, descriptors);
        }
        unsent.is_full = sent == Err(Errno::AGAIN);
        Ok(sent?)
    }
}

/// Sends a message if there is room for it.
fn try_send(fd: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| sendmsg(fd, &[IoSlice::new(bytes)], &mut ancillary, flags)).map(drop)
}

/// The next message; none when the server's end is closed. What makes no sense is passed over.
///
/// # Errors
/// The kernel's.
pub fn receive(keeper: &OwnedFd) -> io::Result<Option<Message>> {
    loop {
        let mut bytes = vec![0; BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(keeper.as_fd(), &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let len = match received {
            Ok(message) => message.bytes,
            Err(Errno::INTR) => continue,
            // Its end was closed with messages in it.
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if len == 0 {
            return Ok(None);
        }
        if let Some(message) = parse(&bytes[..len], descriptors) {
            return Ok(Some(message));
        }
    }
}

fn parse(bytes: &[u8], mut descriptors: Vec<OwnedFd>) -> Option<Message> {
    let (kind, rest) = bytes.split_first()?;
    let text = || String::from_utf8(rest.to_vec()).ok();
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    Some(match kind {
        b'S' => Message::State(descriptors),
        b'R' => Message::Ready(descriptors, text()?),
        b'N' => Message::Notify(text()?),
        b'H' => {
            let (id, node) = rest.split_at_checked(8)?;
            let held = Held { id: HoldId(number(id)?), node: number(node)? };
            Message::Hold(held, descriptors.pop()?)
        }
        b'D' => Message::Drop(HoldId(number(rest)?)),
        b'P' => Message::Program(descriptors.pop()?),
        b'E' => Message::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
