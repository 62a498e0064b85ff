//! Bytes from the kernel to typed requests.
//!
//! Purpose: [`header`] splits a message, [`operation`] reads the rest of it. Every length is
//! checked, every name ends with the NUL that belongs to it. Nothing panics, whatever the bytes
//! are, and nothing is copied but the fixed part. Bytes after the known ones are ignored, as newer
//! kernels may append some.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use zerocopy::{FromBytes, IntoBytes as _};

use crate::protocol::abi::{
    self, BatchForgetIn, CopyFileRangeIn, CreateIn, FAllocateIn, FSyncIn, FlushIn, ForgetIn, ForgetOne,
    GetAttrIn, GetXattrIn, InHeader, InitIn, InterruptIn, LSeekIn, LinkIn, MkDirIn, MkNodIn, Opcode, OpenIn,
    ReadIn, ReleaseIn, Rename2In, RenameIn, SetAttrIn, SetXattrIn, SetXattrInCompat, WriteIn,
};

/// Why bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Not even a header.
    #[error("message of {got} bytes is shorter than a header")]
    NoHeader {
        /// Bytes there are.
        got: usize,
    },
    /// The header's length is not that of the message.
    #[error("header says {said} bytes where {got} came")]
    Length {
        /// The length in the header.
        said: u32,
        /// Bytes there are.
        got: usize,
    },
    /// The extensions are longer than the message.
    #[error("extensions of {said} bytes do not fit a body of {got}")]
    Extensions {
        /// The length in the header.
        said: usize,
        /// Bytes of the body.
        got: usize,
    },
    /// The fixed part or the data is cut off.
    #[error("{} needs {need} more bytes where {got} are left", .op.name())]
    Short {
        /// The request.
        op: Opcode,
        /// Bytes needed.
        need: usize,
        /// Bytes left.
        got: usize,
    },
    /// A name without its end.
    #[error("{} has a name without an end", .op.name())]
    UnendedName {
        /// The request.
        op: Opcode,
    },
}

/// The part of the agreement with the kernel that changes how bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreed {
    /// SETXATTR has its long form.
    pub setxattr_ext: bool,
}

/// One request after its header.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "fields are the structures of the protocol and the names that follow them")]
#[non_exhaustive]
pub enum Op<'a> {
    Lookup {
        name: &'a OsStr,
    },
    Forget(ForgetIn),
    BatchForget(Forgets<'a>),
    GetAttr(GetAttrIn),
    SetAttr(SetAttrIn),
    ReadLink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    MkNod {
        arg: MkNodIn,
        name: &'a OsStr,
    },
    MkDir {
        arg: MkDirIn,
        name: &'a OsStr,
    },
    Unlink {
        name: &'a OsStr,
    },
    RmDir {
        name: &'a OsStr,
    },
    Rename {
        arg: Rename2In,
        name: &'a OsStr,
        new_name: &'a OsStr,
    },
    Link {
        arg: LinkIn,
        name: &'a OsStr,
    },
    Open(OpenIn),
    Read(ReadIn),
    Write {
        arg: WriteIn,
        data: &'a [u8],
    },
    StatFs,
    Release(ReleaseIn),
    FSync(FSyncIn),
    SetXattr {
        arg: SetXattrIn,
        name: &'a OsStr,
        value: &'a [u8],
    },
    GetXattr {
        arg: GetXattrIn,
        name: &'a OsStr,
    },
    ListXattr(GetXattrIn),
    RemoveXattr {
        name: &'a OsStr,
    },
    Flush(FlushIn),
    Init(InitIn),
    OpenDir(OpenIn),
    ReadDir(ReadIn),
    ReadDirPlus(ReadIn),
    ReleaseDir(ReleaseIn),
    FSyncDir(FSyncIn),
    Create {
        arg: CreateIn,
        name: &'a OsStr,
    },
    TmpFile(CreateIn),
    Interrupt(InterruptIn),
    Destroy,
    FAllocate(FAllocateIn),
    LSeek(LSeekIn),
    CopyFileRange(CopyFileRangeIn),
    CopyFileRange64(CopyFileRangeIn),
    SyncFs,
    /// Known, but nothing that this crate serves.
    NotServed(Opcode),
    /// Newer than this crate.
    Unknown(u32),
}

/// The nodes of a BATCH_FORGET.
#[derive(Debug, Clone, Copy)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Each node with its count.
    pub fn iter(&self) -> impl Iterator<Item = ForgetOne> + '_ {
        self.0.chunks_exact(size_of::<ForgetOne>()).filter_map(|one| ForgetOne::read_from_bytes(one).ok())
    }
}

/// Splits a message into its header and what follows it, without extensions.
///
/// # Errors
/// When the message is shorter than a header, or not as long as the header says, or than its
/// extensions.
pub fn header(message: &[u8]) -> Result<(InHeader, &[u8]), DecodeError> {
    let Ok((header, body)) = InHeader::read_from_prefix(message) else {
        return Err(DecodeError::NoHeader { got: message.len() });
    };
    if usize::try_from(header.len) != Ok(message.len()) {
        return Err(DecodeError::Length { said: header.len, got: message.len() });
    }
    let extensions = usize::from(header.total_extlen) * 8;
    match body.len().checked_sub(extensions) {
        Some(len) => Ok((header, &body[..len])),
        None => Err(DecodeError::Extensions { said: extensions, got: body.len() }),
    }
}

/// Reads what follows a header.
///
/// # Errors
/// When it is shorter or longer than the opcode allows, or a name in it is no name. An unknown
/// opcode is no error.
pub fn operation<'a>(header: &InHeader, body: &'a [u8], agreed: Agreed) -> Result<Op<'a>, DecodeError> {
    let Some(op) = Opcode::from_number(header.opcode) else {
        return Ok(Op::Unknown(header.opcode));
    };
    let mut rest = Rest { op, bytes: body };
    Ok(match op {
        Opcode::Lookup => Op::Lookup { name: rest.name()? },
        Opcode::Forget => Op::Forget(rest.take()?),
        Opcode::BatchForget => Op::BatchForget(rest.forgets()?),
        Opcode::GetAttr => Op::GetAttr(rest.take()?),
        Opcode::SetAttr => Op::SetAttr(rest.take()?),
        Opcode::ReadLink => Op::ReadLink,
        Opcode::Symlink => Op::Symlink { name: rest.name()?, target: rest.name()? },
        Opcode::MkNod => Op::MkNod { arg: rest.take()?, name: rest.name()? },
        Opcode::MkDir => Op::MkDir { arg: rest.take()?, name: rest.name()? },
        Opcode::Unlink => Op::Unlink { name: rest.name()? },
        Opcode::RmDir => Op::RmDir { name: rest.name()? },
        Opcode::Rename => {
            let RenameIn { newdir } = rest.take()?;
            let arg = Rename2In { newdir, flags: 0, padding: 0 };
            Op::Rename { arg, name: rest.name()?, new_name: rest.name()? }
        }
        Opcode::Rename2 => Op::Rename { arg: rest.take()?, name: rest.name()?, new_name: rest.name()? },
        Opcode::Link => Op::Link { arg: rest.take()?, name: rest.name()? },
        Opcode::Open => Op::Open(rest.take()?),
        Opcode::Read => Op::Read(rest.take()?),
        Opcode::Write => {
            let arg: WriteIn = rest.take()?;
            Op::Write { arg, data: rest.bytes(arg.size)? }
        }
        Opcode::StatFs => Op::StatFs,
        Opcode::Release => Op::Release(rest.take()?),
        Opcode::FSync => Op::FSync(rest.take()?),
        Opcode::SetXattr => rest.set_xattr(agreed)?,
        Opcode::GetXattr => Op::GetXattr { arg: rest.take()?, name: rest.name()? },
        Opcode::ListXattr => Op::ListXattr(rest.take()?),
        Opcode::RemoveXattr => Op::RemoveXattr { name: rest.name()? },
        Opcode::Flush => Op::Flush(rest.take()?),
        Opcode::Init => Op::Init(rest.init()?),
        Opcode::OpenDir => Op::OpenDir(rest.take()?),
        Opcode::ReadDir => Op::ReadDir(rest.take()?),
        Opcode::ReadDirPlus => Op::ReadDirPlus(rest.take()?),
        Opcode::ReleaseDir => Op::ReleaseDir(rest.take()?),
        Opcode::FSyncDir => Op::FSyncDir(rest.take()?),
        Opcode::Create => Op::Create { arg: rest.take()?, name: rest.name()? },
        Opcode::TmpFile => Op::TmpFile(rest.take()?),
        Opcode::Interrupt => Op::Interrupt(rest.take()?),
        Opcode::Destroy => Op::Destroy,
        Opcode::FAllocate => Op::FAllocate(rest.take()?),
        Opcode::LSeek => Op::LSeek(rest.take()?),
        Opcode::CopyFileRange => Op::CopyFileRange(rest.take()?),
        Opcode::CopyFileRange64 => Op::CopyFileRange64(rest.take()?),
        Opcode::SyncFs => Op::SyncFs,
        Opcode::Access
        | Opcode::BMap
        | Opcode::Ioctl
        | Opcode::Poll
        | Opcode::NotifyReply
        | Opcode::SetupMapping
        | Opcode::RemoveMapping
        | Opcode::GetLk
        | Opcode::SetLk
        | Opcode::SetLkW
        | Opcode::StatX => Op::NotServed(op),
    })
}

/// The rest of a body that is still to be read.
struct Rest<'a> {
    op: Opcode,
    bytes: &'a [u8],
}

impl<'a> Rest<'a> {
    fn take<T: FromBytes>(&mut self) -> Result<T, DecodeError> {
        match T::read_from_prefix(self.bytes) {
            Ok((value, rest)) => {
                self.bytes = rest;
                Ok(value)
            }
            Err(_) => Err(self.short(size_of::<T>())),
        }
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], DecodeError> {
        let need = usize::try_from(len).unwrap_or(usize::MAX);
        match self.bytes.split_at_checked(need) {
            Some((bytes, rest)) => {
                self.bytes = rest;
                Ok(bytes)
            }
            None => Err(self.short(need)),
        }
    }

    fn name(&mut self) -> Result<&'a OsStr, DecodeError> {
        let Some(end) = self.bytes.iter().position(|&byte| byte == 0) else {
            return Err(DecodeError::UnendedName { op: self.op });
        };
        let name = &self.bytes[..end];
        self.bytes = &self.bytes[end + 1..];
        Ok(OsStr::from_bytes(name))
    }

    fn forgets(&mut self) -> Result<Forgets<'a>, DecodeError> {
        let BatchForgetIn { count, .. } = self.take()?;
        let len = u64::from(count) * size_of::<ForgetOne>() as u64;
        Ok(Forgets(self.bytes(u32::try_from(len).unwrap_or(u32::MAX))?))
    }

    fn set_xattr(&mut self, agreed: Agreed) -> Result<Op<'a>, DecodeError> {
        let arg = if agreed.setxattr_ext {
            self.take()?
        } else {
            let SetXattrInCompat { size, flags } = self.take()?;
            SetXattrIn { size, flags, ..SetXattrIn::default() }
        };
        Ok(Op::SetXattr { arg, name: self.name()?, value: self.bytes(arg.size)? })
    }

    /// INIT grew with the protocol; missing fields are zero.
    fn init(&mut self) -> Result<InitIn, DecodeError> {
        const FIRST_FIELDS: usize = 16;
        if self.bytes.len() < FIRST_FIELDS {
            return Err(self.short(FIRST_FIELDS));
        }
        let mut arg = InitIn::default();
        let len = self.bytes.len().min(size_of::<InitIn>());
        arg.as_mut_bytes()[..len].copy_from_slice(&self.bytes[..len]);
        if u64::from(arg.flags) & abi::InitFlags::INIT_EXT.bits() == 0 {
            arg.flags2 = 0;
        }
        Ok(arg)
    }

    fn short(&self, need: usize) -> DecodeError {
        DecodeError::Short { op: self.op, need, got: self.bytes.len() }
    }
}

#[cfg(test)]
mod tests;
