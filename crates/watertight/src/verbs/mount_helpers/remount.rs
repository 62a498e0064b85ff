//! `mount -o remount`: read-only, writable again, and the flags that the kernel enforces.
//!
//! The kernel does it: it refuses (EBUSY) while a file is open for writing, hands over its dirty
//! pages, and refuses writes from then on (EROFS), in all mounts of the volume and in attached
//! volumes. This module writes everything before, so that a store that fails leaves the volume
//! writable, and after, since the last writes may have come meanwhile.

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use super::call::{MountCall, is_fstab_only};
use crate::cli::opts::{self, MountOptions};
use crate::control::client::{CallError, Client};
use crate::control::progress;
use crate::host::checks;
use crate::host::mountinfo::{self, Mount};
use crate::registry::target::{self, RegisteredVolume, Target};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// The options that change a mount flag of the kernel's, the options that set it, and the flag.
const FLAGS: [(&str, &str, MountFlags); 6] = [
    ("rw", "ro", MountFlags::RDONLY),
    ("suid", "nosuid", MountFlags::NOSUID),
    ("dev", "nodev", MountFlags::NODEV),
    ("exec", "noexec", MountFlags::NOEXEC),
    ("atime", "noatime", MountFlags::NOATIME),
    ("symfollow", "nosymfollow", MountFlags::NOSYMFOLLOW),
];

/// Options that the kernel shows for a FUSE mount, and mount(8) hands over again.
const KERNELS: [&str; 6] = ["user_id", "group_id", "default_permissions", "max_read", "blksize", "rootmode"];

/// Whether the options ask for it.
pub(super) fn is_asked_for(lists: &[String]) -> bool {
    named(lists).any(|option| option == "remount")
}

fn named(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty())
}

/// Serves the call.
///
/// # Errors
/// Exit 1 for options that do not exist, or a mount that is no volume of ours; 32 for a failure.
pub(super) fn run(call: &MountCall) -> Result<()> {
    let shown = call.mountpoint.shown();
    let Target { mount, volume, path } = target::resolve(call.mountpoint.as_os_str());
    let is_there = |mount: &Mount| mountinfo::is_ours(mount) && path.as_deref() == Some(&mount.mountpoint);
    let Some(mount) = mount.filter(is_there) else {
        return Err(Problem::usage(format!(
            "{shown} is not a mountpoint of a volume: it cannot be remounted"
        )));
    };
    let flags = flags(now(&mount)?, &call.options, call.sloppy)?;
    if call.fake {
        return Ok(());
    }
    let client = volume.as_ref().and_then(|volume| volume.found.client.as_ref());
    if flags.contains(MountFlags::BIND) {
        return remount(&mount, flags);
    }
    if flags.contains(MountFlags::RDONLY) {
        write_all(&mount, client)?;
        remount(&mount, flags)?;
        return write_all(&mount, client);
    }
    if let Some(store) = volume.as_ref().and_then(read_only_store) {
        return Err(Problem::failure(format!(
            "{shown} stays read-only (EROFS): its store {} is read-only",
            store.shown()
        )));
    }
    remount(&mount, flags)
}

/// The flags of the mount.
fn now(mount: &Mount) -> Result<MountFlags> {
    let path = &mount.mountpoint;
    let stat = statvfs(path).map_err(|error| Problem::failure(format!("{}: {error}", path.shown())))?;
    let is_set = |name: &str| {
        let flag = match name {
            "nosuid" => StatVfsMountFlags::NOSUID,
            "nodev" => StatVfsMountFlags::NODEV,
            "noexec" => StatVfsMountFlags::NOEXEC,
            "noatime" => StatVfsMountFlags::NOATIME,
            // ST_NOSYMFOLLOW
            "nosymfollow" => StatVfsMountFlags::from_bits_retain(0x2000),
            _ => StatVfsMountFlags::RDONLY,
        };
        stat.f_flag.contains(flag)
    };
    Ok(FLAGS
        .iter()
        .filter(|(_, name, _)| is_set(name))
        .fold(MountFlags::empty(), |all, (.., flag)| all | *flag))
}

/// The new flags, from the options and the mount's present flags. As for any file system, it is
/// writable unless `ro` is given; mount(8) adds the options of fstab and of the mount itself.
fn flags(now: MountFlags, lists: &[String], sloppy: bool) -> Result<MountFlags> {
    let mut flags = now - MountFlags::RDONLY;
    for option in named(lists) {
        if KERNELS.contains(&option.split('=').next().unwrap_or(option)) {
            continue;
        }
        // The form in which mount(8) lets `suid` and `dev` through.
        let option = match option {
            "allow_suid" => "suid",
            "allow_dev" => "dev",
            option => option,
        };
        let meant = FLAGS.iter().find(|(clear, set, _)| option == *clear || option == *set);
        if let Some((_, set, flag)) = meant {
            flags.set(*flag, option == *set);
        } else if option == "bind" {
            flags |= MountFlags::BIND;
        } else if option != "remount" && !is_fstab_only(option) {
            let parsed = MountOptions::parse(&[option.to_owned()]);
            if parsed.is_err() && !(sloppy && opts::refused(option).is_none()) {
                return parsed.map(|_| flags);
            }
            // It may be fstab's: mount(8) does not tell the two apart.
            console().print(&format!("option {} is not changed by -o remount", option.shown()));
        }
    }
    Ok(flags)
}

fn write_all(mount: &Mount, client: Option<&Client>) -> Result<()> {
    let Some(client) = client else { return Ok(()) };
    let path = mount.mountpoint.shown();
    match progress::during(&format!("remounting {path}"), client, || client.sync_all()) {
        Ok(_) => Ok(()),
        Err(CallError::Refused(why)) => {
            Err(Problem::failure(format!("{path} is not remounted, its data could not be written: {why}")))
        }
        Err(error) => Err(Problem::failure(format!("{path} is not remounted: {error}"))),
    }
}

fn remount(mount: &Mount, flags: MountFlags) -> Result<()> {
    let path = mount.mountpoint.shown();
    mount_remount(&mount.mountpoint, flags, "").map_err(|error| match error {
        Errno::BUSY => Problem::failure(format!(
            "{path} is busy (EBUSY): files are open for writing; `watertight status --holders {path}` names the processes that have files open"
        )),
        error => Problem::failure(format!("cannot remount {path}: {error}")),
    })
}

/// The store's directory, if the host has that read-only.
fn read_only_store(volume: &RegisteredVolume) -> Option<String> {
    let directory = checks::plain_directory_of(volume.record().source.as_str())?;
    let is_read_only = statvfs(directory).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY));
    is_read_only.then(|| directory.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_stay_unless_they_are_named_and_ro_has_to_be() {
        let now = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
        let flags = |text: &str| flags(now, &[text.to_owned()], false);
        assert_eq!(flags("remount,ro").unwrap(), now);
        assert_eq!(
            flags("rw,remount,user_id=0,allow_other,cache=64M,nofail").unwrap(),
            now - MountFlags::RDONLY
        );
        assert_eq!(
            flags("remount,ro,suid,noexec").unwrap(),
            MountFlags::NODEV | MountFlags::RDONLY | MountFlags::NOEXEC
        );
        assert_eq!(flags("rw,nosuid,nodev,remount,allow_suid,allow_dev,ro").unwrap(), MountFlags::RDONLY);
        assert!(flags("remount,bind,ro").unwrap().contains(MountFlags::BIND));
        assert!(flags("remount,frob").is_err());
        assert!(flags("remount,sync").is_err());
    }
}
