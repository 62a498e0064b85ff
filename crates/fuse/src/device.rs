//! `/dev/fuse`: reading requests, writing replies, cloning the connection for another reader.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{self, Setter};
use zerocopy::IntoBytes as _;

use crate::protocol::abi::{NotifyCode, OutHeader};

/// An answer: bytes, one part after the other, or an error.
pub(crate) type ReplyBytes<'a> = Result<[&'a [u8]; 2], Errno>;

/// Where the kernel's side of every connection is opened.
pub(crate) const DEV_FUSE: &str = "/dev/fuse";

/// `FUSE_DEV_IOC_CLONE`: ties a newly opened device to the connection of another one.
const IOC_CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);

/// One opening of the device, tied to a connection. A request must be answered where it was read.
#[derive(Debug)]
pub(crate) struct Dev(OwnedFd);

impl Dev {
    /// Takes a descriptor that mount(2) has tied to a connection.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Another opening of the same connection, with its own queue of requests under way.
    pub(crate) fn try_clone(&self, nonblocking: bool) -> io::Result<Self> {
        let flags = if nonblocking { OFlags::NONBLOCK } else { OFlags::empty() };
        let flags = i32::try_from((flags | OFlags::CLOEXEC).bits()).map_err(io::Error::other)?;
        let new = OpenOptions::new().read(true).write(true).custom_flags(flags).open(DEV_FUSE)?;
        let master = u32::try_from(self.0.as_raw_fd()).map_err(io::Error::other)?;
        // SAFETY: FUSE_DEV_IOC_CLONE takes a pointer to a u32 that it only reads, as Setter passes
        // it.
        unsafe { ioctl::ioctl(new.as_fd(), Setter::<IOC_CLONE, u32>::new(master)) }?;
        Ok(Self(new.into()))
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Reads one request; says how many bytes.
    pub(crate) fn read(&self, space: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, space)
    }

    /// Answers a request.
    pub(crate) fn answer(&self, unique: u64, answer: ReplyBytes<'_>) -> Result<(), Errno> {
        match answer {
            Ok(parts) => self.send(unique, 0, parts),
            Err(errno) => self.send(unique, -errno.raw_os_error(), [&[], &[]]),
        }
    }

    /// Sends the kernel a notification.
    pub(crate) fn notify(&self, code: NotifyCode, parts: [&[u8]; 2]) -> Result<(), Errno> {
        self.send(0, code as i32, parts)
    }

    fn send(&self, unique: u64, error: i32, parts: [&[u8]; 2]) -> Result<(), Errno> {
        let len = size_of::<OutHeader>() + parts[0].len() + parts[1].len();
        let header = OutHeader { len: u32::try_from(len).map_err(|_| Errno::MSGSIZE)?, error, unique };
        let slices = [IoSlice::new(header.as_bytes()), IoSlice::new(parts[0]), IoSlice::new(parts[1])];
        let count = if parts[1].is_empty() { if parts[0].is_empty() { 1 } else { 2 } } else { 3 };
        rustix::io::writev(&self.0, &slices[..count]).map(drop)
    }
}
