//! Messages from a server to its keeper, with descriptors.
//!
//! A pair of sockets that keeps messages whole. What a message brings stays open in the socket until the
//! keeper reads it, so that a server may die right after it was sent.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a message at most.
const BYTES_MAX: usize = 4096;
/// Descriptors of a message at most.
const DESCRIPTORS_MAX: usize = 8;

/// How many objects the keeper holds at most.
pub const HELD_MAX: usize = 4096;

/// What a server says.
#[derive(Debug)]
pub enum Message {
    /// All that the next server needs, in place of what was sent before: see
    /// [`NUMBERS`](crate::keeper::NUMBERS).
    State(Vec<OwnedFd>),
    /// It serves; with its standard output and error.
    Ready(Vec<OwnedFd>),
    /// For the service manager.
    Notify(String),
    /// An open object that has no name any more, by its node.
    Hold(u64, OwnedFd),
    /// It is not needed any more.
    Drop(u64),
    /// The mount is gone, and the process ends.
    End,
}

/// A server's end.
#[derive(Debug)]
pub struct Link {
    /// None: there never was a keeper.
    fd: Option<OwnedFd>,
    /// Objects that the keeper holds.
    held: AtomicUsize,
}

/// A pair: the keeper's end, and the server's.
///
/// # Errors
/// The kernel's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Link {
    /// This end, of a keeper that holds so many objects.
    #[must_use]
    pub fn new(fd: OwnedFd, held: usize) -> Self {
        Self { fd: Some(fd), held: AtomicUsize::new(held) }
    }

    /// Of no keeper, for tests: nothing can be sent.
    #[must_use]
    pub fn to_nobody() -> Self {
        Self { fd: None, held: AtomicUsize::new(0) }
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
    /// When the keeper is gone.
    pub fn send_state(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(b"S", descriptors)
    }

    /// Sends [`Message::Ready`].
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn send_ready(&self) -> io::Result<()> {
        self.send(b"R", &[rustix::stdio::stdout(), rustix::stdio::stderr()])
    }

    /// Sends [`Message::Notify`].
    ///
    /// # Errors
    /// When the keeper is gone, or the text is too long.
    pub fn notify(&self, text: &str) -> io::Result<()> {
        self.send(&[b"N", text.as_bytes()].concat(), &[])
    }

    /// Sends [`Message::Hold`].
    ///
    /// # Errors
    /// When the keeper is gone; [`io::ErrorKind::QuotaExceeded`] when it holds as much as it does.
    pub fn hold(&self, node: u64, object: BorrowedFd<'_>) -> io::Result<()> {
        // ORDERING: Relaxed here and below, a number only.
        if self.held.fetch_add(1, Ordering::Relaxed) >= HELD_MAX {
            self.held.fetch_sub(1, Ordering::Relaxed);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let sent = self.send(&[&b"H"[..], &node.to_le_bytes()].concat(), &[object]);
        if sent.is_err() {
            // ORDERING: Relaxed, see above.
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
        sent
    }

    /// Sends [`Message::Drop`].
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn drop_held(&self, node: u64) -> io::Result<()> {
        // ORDERING: Relaxed, see `hold`.
        self.held.fetch_sub(1, Ordering::Relaxed);
        self.send(&[&b"D"[..], &node.to_le_bytes()].concat(), &[])
    }

    /// Sends [`Message::End`].
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn end(&self) -> io::Result<()> {
        self.send(b"E", &[])
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = self.fd.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        rustix::io::retry_on_intr(|| {
            sendmsg(fd, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
        })?;
        Ok(())
    }
}

/// The next message; none when the server's end is closed. What makes no sense is passed over.
///
/// # Errors
/// The kernel's.
pub fn receive(keeper: &OwnedFd) -> io::Result<Option<Message>> {
    loop {
        let mut bytes = [0; BYTES_MAX];
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
    let node = || Some(u64::from_le_bytes(rest.try_into().ok()?));
    Some(match kind {
        b'S' => Message::State(descriptors),
        b'R' => Message::Ready(descriptors),
        b'N' => Message::Notify(String::from_utf8(rest.to_vec()).ok()?),
        b'H' => Message::Hold(node()?, descriptors.pop()?),
        b'D' => Message::Drop(node()?),
        b'E' => Message::End,
        _ => return None,
    })
}
