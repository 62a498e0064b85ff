//! `mount.fuse.watertight` and `umount.fuse.watertight`: the helpers that mount(8) and umount(8)
//! call for mounts of this program.
//!
//! They are this program under other names; it acts by the name that it was started by. So fstab
//! entries, `mount -t fuse.watertight` and `umount` with `-l` and `-f` do what the verbs do, and
//! return when the verbs return.
//!
//! Exit codes are those of mount(8): 1 for a wrong call, 32 for a failure.

mod call;
mod install;
mod remount;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::opts;
use crate::cli::{self, UmountArgs, Users};
use crate::daemon::background;
use crate::host::{checks, mountinfo};
use crate::registry::target::{self, Target};
use crate::term::console::console;
use crate::term::logging::{self, LogFormat};
use crate::term::problem::{Exit, Problem, Result};
use crate::term::shown::Show as _;
use crate::verbs::umount;
use call::{MountCall, UmountCall, is_fstab_only};

pub use call::Helper;
pub use install::{NAMES, run as install};

/// The exit code of mount(8) and umount(8) for a wrong call.
const WRONG: u8 = 1;
/// Their exit code for a failure.
const FAILED: u8 = 32;

/// Runs as a helper, with the process's own arguments.
#[must_use]
pub fn main(helper: Helper) -> ExitCode {
    let done =
        logging::start(LogFormat::Text, None, "warn").map(|()| ExitCode::SUCCESS).and_then(
            |_| match helper {
                Helper::Mount => parse::<MountCall>().and_then(|call| mount(&call)),
                Helper::Umount => parse::<UmountCall>().and_then(umount),
            },
        );
    done.unwrap_or_else(|problem| {
        console().clear_status();
        console().say(&format!("watertight: {problem}"));
        ExitCode::from(if problem.exit() == Exit::Usage { WRONG } else { FAILED })
    })
}

/// mount(8) and umount(8) say nothing where nothing is wrong, unless they are asked to.
fn quiet_unless(verbose: bool) {
    if !verbose {
        console().be_quiet();
    }
}

fn parse<T: Parser>() -> Result<T> {
    T::try_parse().map_err(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        let error = cli::shown_error(error, T::try_parse_from::<Vec<String>, String>);
        Problem::usage(error.to_string().trim_end().trim_start_matches("error: "))
    })
}

fn mount(call: &MountCall) -> Result<ExitCode> {
    quiet_unless(call.verbose);
    if remount::is_asked_for(&call.options) {
        return remount::run(call).map(|()| ExitCode::SUCCESS);
    }
    let options = options(&call.options, call.sloppy)?;
    if is_there_already(call) {
        console().print(&format!(
            "{} is mounted at {} already",
            call.source.shown(),
            call.mountpoint.shown()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if call.fake {
        let source = checks::source(&call.source)?;
        let mountpoint = checks::mountpoint(&call.mountpoint)?;
        opts::MountOptions::parse(std::slice::from_ref(&options))?;
        opts::fit(&[options], &source.spec)?;
        source.directory.map_or(Ok(()), |directory| checks::apart(&directory, &mountpoint))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut arguments: Vec<OsString> = vec!["mount".into(), "-d".into()];
    if !options.is_empty() {
        arguments.extend(["-o".into(), options.into()]);
    }
    arguments.extend(["--".into(), (&call.source).into(), (&call.mountpoint).into()]);
    let code = background::start(arguments, call.verbose)?;
    // It has printed its error; only the numbers differ.
    Ok(match code {
        ExitCode::SUCCESS => code,
        code if code == Exit::Usage.code().into() => WRONG.into(),
        _ => FAILED.into(),
    })
}

/// `mount -a` calls for mounted entries, too: it cannot know these mounts by their source.
fn is_there_already(call: &MountCall) -> bool {
    let Target { mount, volume, .. } = target::resolve(call.mountpoint.as_os_str());
    let Some(volume) = volume.filter(|volume| volume.is_running()) else { return false };
    let same = |source: checks::Source| source.spec == volume.record().source;
    mount.as_ref().is_some_and(mountinfo::is_ours) && checks::source(&call.source).is_ok_and(same)
}

/// The options that mount(8) hands over and that are for this program.
fn options(lists: &[String], sloppy: bool) -> Result<String> {
    let mut left = Vec::new();
    for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
        // An option that is refused with a reason is not meant by `-s`, which is for options that
        // another program knows.
        let known =
            || opts::refused(option).is_some() || opts::MountOptions::parse(&[option.to_owned()]).is_ok();
        if !is_fstab_only(option) && (!sloppy || known()) {
            left.push(option);
        }
    }
    Ok(left.join(","))
}

fn umount(call: UmountCall) -> Result<ExitCode> {
    quiet_unless(call.verbose);
    let (lazy, users) = (call.lazy && !call.force, Users::default());
    let args = UmountArgs { path: call.path, lazy, force: call.force, no_links: false, users };
    umount::of_another_user(&args).unwrap_or_else(|| umount::run(&args)).map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn the_name_says_which_helper() {
        let named = |name: &str| Helper::named(OsStr::new(name));
        assert_eq!(named("/sbin/mount.fuse.watertight"), Some(Helper::Mount));
        assert_eq!(named("umount.fuseblk.watertight"), Some(Helper::Umount));
        for other in ["watertight", "/usr/bin/watertight", "mount.fuse.sshfs", "xmount.fuse.watertight", ""] {
            assert_eq!(named(other), None, "{other}");
        }
    }

    #[test]
    fn options_for_others_are_left_out() {
        let given =
            ["rw,noauto,x-systemd.automount,cache=64M".to_owned(), "nofail,_netdev,nosuid".to_owned()];
        assert_eq!(options(&given, false).unwrap(), "cache=64M,nosuid");
        assert_eq!(options(&["frob,cache=64M".to_owned()], true).unwrap(), "cache=64M");
        assert_eq!(options(&["frob".to_owned()], false).unwrap(), "frob", "the verb refuses it, by name");
        let generic =
            "lazytime,nodiratime,relatime,strictatime,iversion,async,silent,loud,nomand,nosymfollow";
        assert_eq!(options(&[generic.to_owned()], false).unwrap(), "nosymfollow");
        assert_eq!(
            options(&["frob,sync".to_owned()], true).unwrap(),
            "sync",
            "to be refused with its reason"
        );
    }

    #[test]
    fn the_calls_are_those_of_mount_and_umount() {
        let call = MountCall::try_parse_from([
            "mount.fuse.watertight",
            "/srv/a",
            "/mnt/a",
            "-v",
            "-o",
            "rw,cache=64M",
            "-t",
            "fuse.watertight",
        ]);
        assert_eq!(call.unwrap().options, ["rw,cache=64M"]);
        let call =
            MountCall::try_parse_from(["x", "mem:", "/mnt/a", "-sfnv", "-N", "/proc/1/ns/mnt"]).unwrap();
        assert!(call.sloppy && call.fake && call.no_table && call.verbose);
        let call =
            UmountCall::try_parse_from(["x", "/mnt/a", "-l", "-f", "-t", "fuseblk.watertight"]).unwrap();
        assert!(call.lazy && call.force);
    }
}
