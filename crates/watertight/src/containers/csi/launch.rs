//! Where mount processes run: outside of the driver's cgroup, and of its container, so that neither
//! its end nor its upgrade ends them.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::outside;
use crate::cli::ServedBy;
use crate::containers::records::own_dir;
use crate::host::new_file;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// The command that runs a mount process; empty: none does.
pub(super) fn wrapper(by: ServedBy) -> Vec<OsString> {
    let by = match by {
        ServedBy::Auto if Path::new("/run/systemd/system").is_dir() => ServedBy::Systemd,
        ServedBy::Auto if outside::is_in_pod() => ServedBy::Cgroup,
        by => by,
    };
    match by {
        ServedBy::Systemd => {}
        ServedBy::Cgroup => {
            let own = fs::read_link("/proc/self/exe").unwrap_or_default();
            return vec![own.into_os_string(), "csi-outside".into(), "--".into()];
        }
        ServedBy::Session | ServedBy::Auto => return Vec::new(),
    }
    // A scope has the environment of its caller: no secret is on a command line.
    let words = [
        "systemd-run",
        "--scope",
        "--quiet",
        "--collect",
        "--slice=watertight.slice",
        "--description=Watertight volume",
        "--",
    ];
    words.map(OsString::from).to_vec()
}

/// Leaves the container: goes on in the namespaces of process 1, with this program's copy in the
/// state directory there, which an end of the container does not remove. The process has one thread
/// here.
///
/// # Errors
/// It may not, or is not in the host's PID namespace.
pub(super) fn enter_host(state: &Path) -> Result<()> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Problem::failure(format!(
            "--in-host: {what}: {error}; the container needs hostPID and to be privileged"
        ))
    };
    let kinds = [
        ("cgroup", LinkNameSpaceType::ControlGroup),
        ("ipc", LinkNameSpaceType::InterProcessCommunication),
        ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
        ("net", LinkNameSpaceType::Network),
        // The last: afterwards the paths are the host's.
        ("mnt", LinkNameSpaceType::Mount),
    ];
    let mut program = File::open("/proc/self/exe").map_err(|error| failed("/proc/self/exe", &error))?;
    let open = |(name, kind): &(&str, LinkNameSpaceType)| {
        let path = format!("/proc/1/ns/{name}");
        File::open(&path).map(|file| (path.clone(), file, *kind)).map_err(|error| failed(&path, &error))
    };
    let namespaces = kinds.iter().map(open).collect::<Result<Vec<_>>>()?;
    for (path, namespace, kind) in &namespaces {
        use std::os::fd::AsFd as _;
        move_into_link_name_space(namespace.as_fd(), Some(*kind)).map_err(|error| failed(path, &error))?;
    }
    let _own = own_dir(state)?;
    let (new, own) = (state.join("watertight.new"), state.join("watertight"));
    let mut copy = || {
        let _left_over = fs::remove_file(&new);
        let mut file = new_file(&new)?;
        std::io::copy(&mut program, &mut file)?;
        file.set_permissions(Permissions::from_mode(0o700))?;
        file.sync_all()?;
        fs::rename(&new, &own)
    };
    copy().map_err(|error: std::io::Error| failed(&own.shown().to_string(), &error))?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--in-host");
    Err(failed("exec", &Command::new(&own).arg0("watertight").args(arguments).exec()))
}
