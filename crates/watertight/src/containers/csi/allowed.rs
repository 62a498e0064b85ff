//! The options of a mount that authors of classes and volumes may give. They are not root of the node:
//! what is the host's, directories, keys and memory, its driver's own arguments give.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use super::failure::{Failure, Result};
use crate::cli::CsiArgs;
use crate::cli::opts::MountOptions;
use crate::term::problem::{self, Problem};
use crate::term::shown::{Show as _, exact};
use crate::term::units::{self, parse_bytes};

/// What an option may be used for by others than root: that of its own volume.
const ALLOWED: [&str; 29] = [
    "ro",
    "rw",
    "cache",
    "mode",
    "flushers",
    "threads",
    "dirty_after",
    "dirty_max",
    "flush_on_close",
    "noflush_on_close",
    "drain_timeout",
    "sync_policy",
    "limit",
    "stall_after",
    "follow",
    "takeover",
    "snapshot",
    "fsync_to",
    "accept_to",
    "journal_size",
    "recover",
    "encrypt-key-file",
    "disk_cache_size",
    "nosuid",
    "nodev",
    "noexec",
    "noatime",
    "nosymfollow",
    "defaults",
];
/// The cgroup of all: what it may do on a volume, the volume may.
const WHOLE_VOLUME: &str = "limit=/:";
/// Bytes of the name of a key's file.
const KEY_NAME_BYTES_MAX: usize = 200;

/// What mounts may use of this node.
#[derive(Debug, Clone)]
pub(super) struct NodeOptions {
    disk_cache: Option<PathBuf>,
    disk_cache_max: u64,
    journal: Option<PathBuf>,
    journal_max: u64,
    keys: Option<PathBuf>,
    cache_max: u64,
}

impl NodeOptions {
    /// What the driver's arguments give.
    ///
    /// # Errors
    /// A path is relative, or has what a list of options cannot have.
    pub(super) fn parse(args: &CsiArgs) -> problem::Result<Self> {
        let directory = |name: &str, given: &Option<PathBuf>| match given {
            Some(path) if !path.is_absolute() || exact(path).contains([',', '\u{fffd}']) => {
                Err(Problem::usage(format!("--{name}: an absolute path in UTF-8 without a comma is needed")))
            }
            given => Ok(given.clone()),
        };
        Ok(Self {
            disk_cache: directory("disk-cache", &args.disk_cache)?,
            disk_cache_max: args.disk_cache_max,
            journal: directory("journal", &args.journal)?,
            journal_max: args.journal_max,
            keys: directory("key-directory", &args.key_directory)?,
            cache_max: args.cache_max,
        })
    }

    /// Makes the journal's directory, if it is missing. Whether others can change one that is there, mounts
    /// look at.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn make_journal_dir(&self) -> problem::Result<()> {
        let Some(dir) = &self.journal else { return Ok(()) };
        let made = DirBuilder::new().mode(0o700).recursive(true).create(dir);
        made.map_err(|error| Problem::failure(format!("--journal {}: {error}", dir.shown())))
    }

    /// A node that has all of it, for the controller, which knows none.
    pub(super) fn of_any_node() -> Self {
        let any = || Some(PathBuf::from("/any"));
        let most = u64::MAX;
        Self {
            disk_cache: any(),
            disk_cache_max: most,
            journal: any(),
            journal_max: most,
            keys: any(),
            cache_max: most,
        }
    }

    /// The lists of options for `mount -o`, of those that were given.
    ///
    /// # Errors
    /// One is not for authors of classes and volumes, or is none.
    pub(super) fn mount_options(&self, given: &[String], is_object_volume: bool) -> Result<Vec<String>> {
        let wrong = |why: String| Failure::invalid(format!("mountOptions: {why}"));
        let mut lists = Vec::new();
        let mut has_journal = false;
        for option in given.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !ALLOWED.contains(&name) || name == "limit" && !option.starts_with(WHOLE_VOLUME) {
                // An option that is none is named as such.
                MountOptions::parse(&[option.to_owned()]).map_err(|problem| wrong(problem.to_string()))?;
                return Err(wrong(format!("{name}: {}", why_not(name))));
            }
            match name {
                "cache" => within(option, value, self.cache_max, "--cache-max").map_err(wrong)?,
                "disk_cache_size" => {
                    within(option, value, self.disk_cache_max, "--disk-cache-max").map_err(wrong)?;
                    let missing = || wrong(format!("{option}: the node's driver has no --disk-cache"));
                    let dir = self.disk_cache.as_ref().ok_or_else(missing)?;
                    lists.push(format!("disk_cache={}", exact(dir)));
                }
                "journal_size" => {
                    within(option, value, self.journal_max, "--journal-max").map_err(wrong)?;
                    has_journal = true;
                }
                // A directory needs no journal for that.
                "recover" if value != "on" || !is_object_volume => {}
                "fsync_to" | "accept_to" | "recover" if value == "host" || name == "recover" => {
                    let missing = || wrong(format!("{option}: the node's driver has no --journal"));
                    let dir = self.journal.as_ref().ok_or_else(missing)?;
                    let journal = format!("journal={}", exact(dir));
                    if !lists.contains(&journal) {
                        lists.push(journal);
                    }
                }
                "encrypt-key-file" => {
                    lists.push(self.key_file(value).map_err(wrong)?);
                    continue;
                }
                _ => {}
            }
            lists.push(option.to_owned());
        }
        if !has_journal && lists.iter().any(|option| option.starts_with("journal=")) {
            lists.push(format!("journal_size={}", self.journal_max));
        }
        MountOptions::parse(&lists).map_err(|problem| wrong(problem.to_string()))?;
        Ok(lists)
    }

    /// The key of this name.
    fn key_file(&self, name: &str) -> std::result::Result<String, String> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_name = name.len() <= KEY_NAME_BYTES_MAX
            && name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.bytes().all(is_part);
        if !is_name {
            return Err(
                "encrypt-key-file: give the name of a file in the driver's --key-directory, and no path"
                    .to_owned(),
            );
        }
        let missing = || format!("encrypt-key-file={name}: the node's driver has no --key-directory");
        let dir = self.keys.as_ref().ok_or_else(missing)?;
        Ok(format!("encrypt-key-file={}", exact(dir.join(name))))
    }
}

/// Checks a number of bytes against what the node's driver allows. What is no number is found later.
fn within(option: &str, value: &str, most: u64, argument: &str) -> std::result::Result<(), String> {
    if parse_bytes(value).is_ok_and(|bytes| bytes > most) {
        let most = units::bytes(most);
        return Err(format!("{option}: the node's driver allows {most} ({argument})"));
    }
    Ok(())
}

fn why_not(name: &str) -> &'static str {
    match name {
        "journal" => {
            "it names a directory of the node; give fsync_to=host or accept_to=host, and the driver --journal DIR"
        }
        "disk_cache" => {
            "it names a directory of the node; give disk_cache_size=, and the driver --disk-cache DIR"
        }
        "limit" => "only the whole volume's limits are given here, as in limit=/:wbps=50M",
        "suid" | "dev" | "allow_suid" | "allow_dev" => {
            "a volume's set-id programs and devices give no rights on a node"
        }
        _ => "it is the node's to say, and not a class's or a volume's",
    }
}

/// Checks the `mountOptions` of a manifest.
///
/// # Errors
/// What is wrong, in words.
pub fn check_mount_options(given: &[String]) -> std::result::Result<(), String> {
    let checked = NodeOptions::of_any_node().mount_options(given, true);
    checked.map(drop).map_err(|failure| failure.words().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeOptions {
        NodeOptions {
            disk_cache: Some("/var/cache/w".into()),
            disk_cache_max: 10 << 30,
            journal: Some("/var/lib/j".into()),
            journal_max: 256 << 20,
            keys: Some("/etc/keys".into()),
            cache_max: 1 << 30,
        }
    }

    fn options(node: &NodeOptions, given: &str) -> Result<String> {
        node.mount_options(&[given.to_owned()], true).map(|lists| lists.join(","))
    }

    #[test]
    fn directories_are_those_of_the_driver() {
        for (given, options_of_mount) in [
            ("", ""),
            ("cache=1G,noatime,limit=/:wbps=1M", "cache=1G,noatime,limit=/:wbps=1M"),
            ("disk_cache_size=1G", "disk_cache=/var/cache/w,disk_cache_size=1G"),
            ("fsync_to=host", "journal=/var/lib/j,fsync_to=host,journal_size=268435456"),
            (
                "fsync_to=host,accept_to=host",
                "journal=/var/lib/j,fsync_to=host,accept_to=host,journal_size=268435456",
            ),
            ("recover=on", "journal=/var/lib/j,recover=on,journal_size=268435456"),
            ("recover=off", "recover=off"),
            ("journal_size=64M,fsync_to=host", "journal_size=64M,journal=/var/lib/j,fsync_to=host"),
            ("encrypt-key-file=team-a.key", "encrypt-key-file=/etc/keys/team-a.key"),
        ] {
            assert_eq!(options(&node(), given).unwrap(), options_of_mount, "{given}");
        }
    }

    #[test]
    fn a_directory_has_no_journal() {
        let lists = node().mount_options(&["recover=on,noatime".to_owned()], false);
        assert_eq!(lists.unwrap(), ["recover=on", "noatime"]);
    }

    #[test]
    fn what_is_the_host_s_is_refused() {
        for (given, word) in [
            ("journal=/etc", "give fsync_to=host"),
            ("disk_cache=/etc", "give disk_cache_size="),
            ("encrypt-key-file=/etc/shadow", "and no path"),
            ("encrypt-key-file=../shadow", "and no path"),
            ("encrypt-key-file=", "and no path"),
            ("ro,suid", "no rights on a node"),
            ("dev", "no rights on a node"),
            ("allow_suid", "no rights on a node"),
            ("cgroup=off", "the node's to say"),
            ("type=fuse", "the node's to say"),
            ("uring=on", "the node's to say"),
            ("idle_sched=on", "the node's to say"),
            ("allow_other", "the node's to say"),
            ("abandon=host", "the node's to say"),
            ("limit=/system.slice:wbps=1", "only the whole volume's"),
            ("cache=2G", "allows 1.0 GiB (--cache-max)"),
            ("disk_cache_size=1T", "--disk-cache-max"),
            ("fsync_to=host,journal_size=1G", "--journal-max"),
            ("journal_size=64M", "give journal=DIR"),
            ("oom_score_adj=-1000", "no mount option oom_score_adj"),
            ("cache=lots", "is not a size"),
        ] {
            let wrong = options(&node(), given).unwrap_err();
            assert!(wrong.words().contains(word), "{given}: {wrong:?}");
        }
        let bare = NodeOptions { disk_cache: None, journal: None, keys: None, ..node() };
        for (given, word) in [
            ("disk_cache_size=1G", "no --disk-cache"),
            ("fsync_to=host", "no --journal"),
            ("encrypt-key-file=a", "no --key-directory"),
        ] {
            assert!(options(&bare, given).unwrap_err().words().contains(word), "{given}");
        }
        // What an author may give is an option of `mount`, but for what stands for the driver's own.
        let known = |name: &str| {
            crate::cli::opts::VALID.iter().any(|(all, _)| {
                all.split(", ").any(|one| one.split('=').next() == Some(name.trim_start_matches("no")))
                    || all.split(", ").any(|one| one.split('=').next() == Some(name))
            })
        };
        for name in
            ALLOWED.iter().filter(|name| !["nosymfollow", "nosuid", "nodev", "defaults"].contains(name))
        {
            assert!(known(name), "{name}");
        }
    }
}
