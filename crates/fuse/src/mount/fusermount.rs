//! Mounting without root, by the set-user-id program `fusermount3`.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::MountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use super::error::MountError;
use super::options::{MountOptions, SUBTYPE};
use crate::protocol::init::MAX_WRITE;

/// Names the inherited socket to the program.
const COMM_ENV: &str = "_FUSE_COMMFD";
const PROGRAM: &str = "fusermount3";

/// Mounts, and gives the connection's descriptor, which the program sends over a socket.
pub(super) fn mount(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| MountError::Fusermount { message: error.to_string() };
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed(error.into()))?;
    // A copy without CLOEXEC, for the program alone.
    let inherited = rustix::io::dup(&theirs).map_err(|error| failed(error.into()))?;
    let output = Command::new(PROGRAM)
        .arg("-o")
        .arg(option_list(options)?)
        .arg("--")
        .arg(mountpoint)
        .env(COMM_ENV, inherited.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output();
    drop((theirs, inherited));
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoFusermount,
        _ => failed(error),
    })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().trim_start_matches("fusermount3: ").to_owned();
        return Err(MountError::Fusermount { message });
    }
    receive(&ours).map_err(failed)?.ok_or_else(|| MountError::Fusermount {
        message: "it said that it has mounted, but sent no descriptor".to_owned(),
    })
}

/// Unmounts.
pub(super) fn unmount(mountpoint: &Path, is_lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if is_lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mountpoint).stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoFusermount,
        _ => MountError::Fusermount { message: error.to_string() },
    })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        return Err(MountError::Busy { mountpoint: mountpoint.to_owned() });
    }
    Err(MountError::Fusermount { message })
}

fn option_list(options: &MountOptions) -> Result<String, MountError> {
    let mut list = format!(
        "default_permissions,max_read={MAX_WRITE},fsname={},subtype={SUBTYPE}",
        escaped(&options.fsname)?
    );
    if options.allow_other == Some(true) {
        list.push_str(",allow_other");
    }
    // The program adds nosuid and nodev by itself.
    let named = [
        (MountFlags::RDONLY, "ro"),
        (MountFlags::NOEXEC, "noexec"),
        (MountFlags::NOATIME, "noatime"),
        (MountFlags::NOSYMFOLLOW, "nosymfollow"),
        (MountFlags::SYNCHRONOUS, "sync"),
        (MountFlags::DIRSYNC, "dirsync"),
    ];
    for (flag, name) in named {
        if options.flags.contains(flag) {
            list.push(',');
            list.push_str(name);
        }
    }
    Ok(list)
}

/// Commas end an option unless a backslash is before them.
fn escaped(value: &str) -> Result<String, MountError> {
    if value.contains('\0') {
        let option = value.to_owned();
        return Err(MountError::Option { option, reason: "it contains a NUL" });
    }
    Ok(value.replace('\\', "\\\\").replace(',', "\\,"))
}

/// The descriptor that comes with one byte of data.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            return Ok(descriptors.next());
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_escaped() {
        let mut options = MountOptions::new("/mnt");
        options.fsname = r"dir:/a,b\c".to_owned();
        options.flags = MountFlags::RDONLY | MountFlags::NOEXEC;
        options.allow_other = Some(true);
        let list = option_list(&options).unwrap();
        assert_eq!(
            list,
            "default_permissions,max_read=1048576,fsname=dir:/a\\,b\\\\c,subtype=watertight,allow_other,ro,noexec"
        );
        options.fsname = "a\0b".to_owned();
        assert!(option_list(&options).is_err());
    }
}
