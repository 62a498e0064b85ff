//! `quota`: limits of bytes and files, of a volume and of directories in it.

use std::path::{Path, PathBuf};

use objects::{QUOTA_ATTRIBUTE, QUOTAS_ATTRIBUTE, QuotaCall, QuotaInfo, QuotaLimits, QuotaPage};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::cli::{QuotaAction, QuotaArgs};
use crate::control::progress;
use crate::object_volumes::{canonical, looks_like, problem};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::term::units;

/// The largest answer of the kernel's.
const ANSWER_BYTES: usize = 64 << 10;

/// Runs the verb.
///
/// # Errors
/// Exit 2 for arguments that do not go together; 1 where the volume is held or cannot be used, where
/// the directory is not there, and where it has no quota.
pub fn run(args: &QuotaArgs) -> Result<()> {
    let limits = QuotaLimits { bytes: args.bytes, inodes: args.inodes };
    let has_limits = limits != QuotaLimits::default();
    if has_limits != (args.action == QuotaAction::Set) {
        let why = if has_limits {
            "--bytes and --inodes are for `quota set`"
        } else {
            "give --bytes, --inodes or both"
        };
        return Err(Problem::usage(why));
    }
    let url = args.target.to_str().filter(|target| looks_like(target));
    let quotas = match url {
        Some(url) => by_url(url, args, limits)?,
        None => by_path(Path::new(&args.target), args, limits)?,
    };
    if args.json {
        return console().print_value(&quotas);
    }
    if args.action == QuotaAction::List && quotas.is_empty() {
        console().print("there are no quotas");
    }
    quotas.iter().for_each(|quota| console().print(&line(quota)));
    Ok(())
}

fn by_url(url: &str, args: &QuotaArgs, limits: QuotaLimits) -> Result<Vec<QuotaInfo>> {
    let url = canonical(url)?;
    let path = args.path.clone().unwrap_or_else(|| PathBuf::from("/"));
    let (shown, at) = (path.shown().to_string(), path.clone());
    let call = match args.action {
        QuotaAction::Set => QuotaCall::Set(path, limits),
        QuotaAction::Get => QuotaCall::Get(path),
        QuotaAction::List => QuotaCall::List,
        QuotaAction::Delete => QuotaCall::Delete(path),
    };
    let what = format!("quotas of {}", url.shown());
    let answer = || {
        objects::quotas(&url, args.encrypt_key_file.as_deref(), &call).map_err(|error| match error.kind() {
            store::ErrorKind::NoAttribute => no_quota(&at),
            store::ErrorKind::NotFound if error.op() == "quota" => {
                Problem::failure(format!("there is no directory {shown} in {}", url.shown()))
            }
            store::ErrorKind::NotDirectory => Problem::failure(format!("{shown} is no directory")),
            store::ErrorKind::Invalid if error.op() == "quota" => {
                Problem::usage(format!("{shown}: give the path from the volume's root, without `..`"))
            }
            _ => problem(&url, &error),
        })
    };
    progress::waiting_for(&what, "the bucket", answer)
}

fn no_quota(path: &Path) -> Problem {
    Problem::failure(format!("{} has no quota of its own", path.shown()))
}

fn of_root_alone(path: &Path) -> Problem {
    Problem::failure(format!(
        "{}: quotas of a mounted volume are root's; of one that is not mounted, its URL is enough",
        path.shown()
    ))
}

fn by_path(path: &Path, args: &QuotaArgs, limits: QuotaLimits) -> Result<Vec<QuotaInfo>> {
    if args.path.is_some() || args.encrypt_key_file.is_some() {
        return Err(Problem::usage(
            "--path and --encrypt-key-file are for a URL: give the directory's own path",
        ));
    }
    let refused = |error: Errno| match error {
        // To others the kernel says of such an attribute that there is none.
        Errno::NODATA if !rustix::process::geteuid().is_root() => of_root_alone(path),
        Errno::NODATA => no_quota(path),
        Errno::NOTDIR => Problem::failure(format!("{} is no directory", path.shown())),
        Errno::NOTSUP => Problem::failure(format!(
            "{} is not in a volume on object storage that is mounted without `follow`: no other shows quotas",
            path.shown()
        )),
        Errno::PERM => of_root_alone(path),
        Errno::ROFS => Problem::failure(format!("{} is mounted read-only", path.shown())),
        error => Problem::failure(format!("{}: {error}", path.shown())),
    };
    let get = || -> Result<Vec<QuotaInfo>> {
        let json = attribute(path, QUOTA_ATTRIBUTE).map_err(refused)?;
        let quota = serde_json::from_slice(&json).map_err(|_| refused(Errno::NOTSUP))?;
        Ok(vec![quota])
    };
    match args.action {
        QuotaAction::Set => {
            let json = serde_json::to_vec(&limits).map_err(|error| Problem::failure(error.to_string()))?;
            setxattr(path, QUOTA_ATTRIBUTE, &json, XattrFlags::empty()).map_err(refused)?;
            get()
        }
        QuotaAction::Get => get(),
        QuotaAction::Delete => removexattr(path, QUOTA_ATTRIBUTE).map(|()| Vec::new()).map_err(refused),
        QuotaAction::List => {
            let (mut quotas, mut name, mut last) = (Vec::new(), QUOTAS_ATTRIBUTE.to_owned(), 0);
            loop {
                let json = attribute(path, &name).map_err(|error| match error {
                    Errno::NODATA if rustix::process::geteuid().is_root() => refused(Errno::NOTSUP),
                    error => refused(error),
                })?;
                let page: QuotaPage = serde_json::from_slice(&json).map_err(|_| refused(Errno::NOTSUP))?;
                quotas.extend(page.quotas);
                match page.next {
                    // Another file system may be asked, whose pages need not end.
                    Some(next) if next > last && quotas.len() < objects::QUOTAS_MAX => {
                        (name, last) = (format!("{QUOTAS_ATTRIBUTE}.{next}"), next);
                    }
                    Some(_) => return Err(refused(Errno::NOTSUP)),
                    None => return Ok(quotas),
                }
            }
        }
    }
}

fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; ANSWER_BYTES];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// A line for a person.
fn line(quota: &QuotaInfo) -> String {
    let of = |limit: Option<String>| limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    let bytes = format!("{}{}", units::bytes(quota.used_bytes), of(quota.bytes.map(units::bytes)));
    let inodes = of(quota.inodes.map(|inodes| inodes.to_string()));
    let counts = if quota.is_counted { "" } else { "; what was there before is being counted" };
    format!("{}: {bytes}, {}{inodes} files{counts}", quota.path.shown(), quota.used_inodes)
}
