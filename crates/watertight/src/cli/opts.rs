//! The options of `mount -o` and `attach -o`, and the help about them.

use std::path::PathBuf;
use std::time::Duration;

use cgroups::Choice;
use fuse::mount::Wanted;
use fuse::{Mode, Uring};
use volume::{CgroupPath, LimitChange, SyncPolicy};

use crate::cli::suggest::nearest;
use crate::host::checks;
use crate::object_volumes::{self, ObjectOptions};
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, in_one_line};
use crate::term::units::{parse_bytes, parse_duration};

/// The name of a mode in options and in `status`.
#[must_use]
pub const fn name_of(mode: Mode) -> &'static str {
    match mode {
        Mode::WriteThrough => "write-through",
        Mode::KernelWriteback => "kernel-writeback",
    }
}

/// All options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`: `Some(true)`, `rw`: `Some(false)`, neither: as the store allows.
    pub read_only: Option<bool>,
    /// The cache's bound, in bytes.
    pub cache_bytes: u64,
    /// How data reaches us.
    pub mode: Mode,
    /// Which kind of mount.
    pub mount_type: Wanted,
    /// Whether other users may enter; none: for root's mounts only.
    pub allow_other: Option<bool>,
    /// Threads that write data back; none: the volume's default.
    pub flushers: Option<usize>,
    /// Threads that read requests; none: the front end's default.
    pub threads: Option<usize>,
    /// Whether threads that serve a lone client over io_uring may be of the class SCHED_IDLE.
    pub idle_sched: bool,
    /// The way to the kernel.
    pub uring: Uring,
    /// Whether another server follows if this one dies.
    pub recover: bool,
    /// When data begins to be written back; none: the volume's default.
    pub dirty_after: Option<Duration>,
    /// Whether close(2) writes the file's data and reports how that went.
    pub flush_on_close: bool,
    /// How long an unmount goes on without any progress before it gives up.
    pub drain_timeout: Duration,
    /// How many bytes each cgroup may have that are not on the store; none: its share of the cache.
    pub dirty_bytes_max: Option<u64>,
    /// The tree of cgroups of the host that tells tenants apart.
    pub cgroup: Choice,
    /// The policy of syncs.
    pub sync_policy: SyncPolicy,
    /// Limits of cgroups from the beginning.
    pub limits: Vec<(CgroupPath, LimitChange)>,
    /// A store that takes longer over one call is stalled.
    pub stall_after: Duration,
    /// Flags of the mount that the kernel enforces: `nosuid` and `nodev` unless they are switched
    /// off, `noexec`, `noatime`, `nosymfollow`.
    pub flags: Vec<String>,
    /// Of a volume on object storage.
    pub objects: ObjectOptions,
}

/// A sixteenth of the host's memory, 64 MiB to 1 GiB.
fn default_cache_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    let bytes = (host.totalram as u64).saturating_mul(u64::from(host.mem_unit));
    (bytes / 16).clamp(64 << 20, 1 << 30)
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: None,
            cache_bytes: default_cache_bytes(),
            mode: Mode::default(),
            mount_type: Wanted::default(),
            allow_other: None,
            flushers: None,
            threads: None,
            idle_sched: true,
            uring: Uring::default(),
            recover: false,
            dirty_after: None,
            flush_on_close: false,
            drain_timeout: Duration::from_secs(60),
            dirty_bytes_max: None,
            cgroup: Choice::Auto,
            sync_policy: SyncPolicy::Boost,
            limits: Vec::new(),
            stall_after: Duration::from_secs(5),
            flags: DEFAULT_FLAGS.map(str::to_owned).to_vec(),
            objects: ObjectOptions::default(),
        }
    }
}

/// A store's set-id bits and devices give no rights on this host, unless an option asks for that.
const DEFAULT_FLAGS: [&str; 2] = ["nosuid", "nodev"];

/// The smallest cache that can work.
const CACHE_BYTES_MIN: u64 = 4 << 20;
/// The smallest disk cache.
const DISK_CACHE_BYTES_MIN: u64 = 16 << 20;
/// The smallest limit of a cgroup: one write of the kernel's.
const DIRTY_BYTES_MIN: u64 = 1 << 20;
/// The smallest journal.
const JOURNAL_BYTES_MIN: u64 = 16 << 20;
/// The most threads that write back, and that serve requests.
const FLUSHERS_MAX: usize = 64;
const THREADS_MAX: usize = 1024;

/// Every option, for the help and for the error about an unknown one.
pub const VALID: &[(&str, &str)] = &[
    ("ro", "mount read-only; on object storage: beside others, as it is now, without holding the volume"),
    ("rw", "refuse to mount a store that is read-only"),
    ("cache=SIZE", "bound on the memory that holds file data [a sixteenth of the host's, 64M to 1G]"),
    ("mode=MODE", "write-through [default], or kernel-writeback: faster small writes"),
    ("type=TYPE", "fuseblk (umount(2) itself waits), fuse, or auto [default]"),
    ("allow_other", "let other users access the mount, as root's mounts do; or noallow_other"),
    ("flushers=N", "threads that write data back [3]"),
    ("threads=N", "most requests under way, each with a thread [by memory and descriptors, 256 to 1024]"),
    ("uring=WHEN", "FUSE over io_uring: on, off, or auto [default]: where the host's switch is on"),
    (
        "recover=WHEN",
        "if the mount process dies, another one goes on with the mount: on, or off [default]; written data goes to the store at once. Object storage: with journal=DIR, to the journal",
    ),
    ("idle_sched=WHEN", "over io_uring, serve a single client in the class SCHED_IDLE: on [default], off"),
    ("dirty_after=TIME", "write data back when it is this old [5s]"),
    ("dirty_max=SIZE", "each cgroup's bound on data that is not on the store [its share of the cache]"),
    ("flush_on_close", "close(2) waits until the store has the file's data, and reports errors"),
    ("drain_timeout=TIME", "an unmount gives up after this long without progress [60s]"),
    (
        "cgroup=TREE",
        "the hierarchy whose cgroups tell tenants apart: v2, a v1 controller's name, off, or auto [default]",
    ),
    (
        "sync_policy=POLICY",
        "a sync writes other cgroups' data at full speed: boost [default]; at their limits: vanilla; or not at all: isolated",
    ),
    (
        "limit=CGROUP:LIMIT[:LIMIT]",
        "as `watertight limit`: limit=/customers/a:wbps=1M:sync_isolation=1; may be given several times",
    ),
    ("stall_after=TIME", "a store that does not answer a call for this long is stalled [5s]"),
    (
        "follow=TIME",
        "object storage, with ro: show what others commit, looking for it this often [not at all]",
    ),
    ("takeover", "object storage: take the volume from a holder that does not answer for 15 s"),
    ("abandon=HOST", "object storage: take it although only this host's journal has some of its data"),
    ("snapshot=NAME", "object storage: show this snapshot of the volume, read-only, and hold nothing"),
    (
        "journal=DIR",
        "object storage: what an fsync waits for with fsync_to=host, on a disk of this host; an absolute path",
    ),
    (
        "fsync_to=WHERE",
        "object storage: an fsync returns when the bucket has it: store [default]; or the journal: host",
    ),
    (
        "accept_to=WHERE",
        "object storage: a write returns when this process has it: memory [default]; or the journal, from which the next mount has it if this process dies: host, as with recover=on",
    ),
    ("journal_size=SIZE", "bound on the journal; when it is full, an fsync waits for the bucket [1G]"),
    ("encrypt-key-file=FILE", "object storage: the key of an encrypted volume; an absolute path"),
    ("disk_cache=DIR", "object storage: keep what was read or written on this host's disk, for later mounts"),
    ("disk_cache_size=SIZE", "the bound of the volume's part of that [10G]"),
    ("suid", "set-id bits and capabilities of its programs take effect: nosuid is the default; root only"),
    ("dev", "its devices can be opened: nodev is the default; root only"),
    ("allow_suid, allow_dev", "suid and dev for mount(8) and fstab, which keep those two for themselves"),
    ("noexec, noatime, ...", "also nosymfollow, nosuid, nodev: as in mount(8)"),
];

/// Options of mount(8) that promise more than a volume does, and the reason.
const REFUSED: [(&str, &str); 3] = [
    (
        "sync",
        "not every change could be made durable before its call returns; open files with O_SYNC, or call fsync",
    ),
    ("dirsync", "changes of names are not durable when their calls return; call fsync of the directory"),
    ("mand", "the kernel has no mandatory locks any more"),
];

/// Why an option that exists elsewhere is none of a volume's.
#[must_use]
pub fn refused(name: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(refused, _)| *refused == name).map(|(_, why)| *why)
}

/// The help that follows the arguments of `attach`.
pub const ATTACH_HELP: &str = "Options for -o: ro, rw, cache=SIZE, flushers=N, dirty_after=TIME, dirty_max=SIZE, \
flush_on_close, drain_timeout=TIME, sync_policy=POLICY, limit=CGROUP:LIMIT[:LIMIT], stall_after=TIME, follow=TIME, takeover, abandon=HOST, snapshot=NAME, encrypt-key-file=FILE, journal=DIR, fsync_to=WHERE, accept_to=WHERE, journal_size=SIZE, disk_cache=DIR, disk_cache_size=SIZE, as for `mount`.\n\n\
Examples:\n  \
watertight attach /srv/project /mnt/data/project\n  \
watertight attach -o ro,cache=64M dir:/srv/archive /mnt/data/archive\n  \
watertight attach s3://bucket/project /mnt/data/cloud\n  \
watertight attach /mnt/data/project/docs /mnt/data/docs\n\n\
The last one shows a directory of the mountpoint in a second place.\n\
 When the command returns, every process sees the volume in the directory. Attached volumes end with the mountpoint. \
 Credentials for object storage are those in the environment of the mount process.";

/// Options of volumes on object storage.
const OF_OBJECT_STORAGE: [&str; 11] = [
    "follow",
    "takeover",
    "abandon",
    "snapshot",
    "journal",
    "fsync_to",
    "accept_to",
    "journal_size",
    "encrypt-key-file",
    "disk_cache",
    "disk_cache_size",
];
/// How often a volume that others write may be looked at.
const FOLLOW: std::ops::RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_secs(3600);

/// Options that are of a mountpoint, and not of a volume.
const OF_THE_MOUNTPOINT: [&str; 17] = [
    "recover",
    "mode",
    "type",
    "allow_other",
    "noallow_other",
    "threads",
    "uring",
    "idle_sched",
    "cgroup",
    "nosuid",
    "nodev",
    "suid",
    "dev",
    "allow_suid",
    "allow_dev",
    "noexec",
    "nosymfollow",
];

/// The help that follows the arguments of `mount`.
#[must_use]
pub fn mount_help() -> String {
    let mut text = "Options for -o:\n".to_owned();
    for (name, meaning) in VALID {
        text.push_str(&format!("  {name:<22} {meaning}\n"));
    }
    text.push_str(
        "\nExamples:\n  \
         watertight mount /srv/data /mnt/data\n  \
         watertight mount -d -o cache=1G,ro dir:/srv/data /mnt/data\n  \
         watertight mount mem: /mnt/scratch\n  \
         watertight mount s3://bucket/prefix /mnt/data\n  \
         watertight mount -o ro,follow=1s s3://bucket/prefix /mnt/copy\n\n\
         Volumes on object storage are made once, by `watertight format`. Credentials, region and endpoint come from where every \
         tool of AWS finds them (AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL and the like), for gs:// and az:// from GOOGLE_… and \
         AZURE_…; the mount process keeps them in its environment.\n\n\
         Ctrl-C or SIGTERM writes all data and unmounts; a second one prints how much is left, a third gives it up.\n\
         Exit codes: 0 unmounted with everything on the store, 1 failed or data was lost, 2 bad input.",
    );
    text
}

/// The option of these that is the mountpoint's, if one is.
#[must_use]
pub fn of_the_mountpoint(options: &str) -> Option<&str> {
    options.split(',').find(|option| {
        let name = option.split('=').next().unwrap_or(option);
        OF_THE_MOUNTPOINT.contains(&name)
    })
}

/// The option of these that only volumes on object storage have, if one is.
#[must_use]
pub fn of_object_storage(options: &str) -> Option<&str> {
    options.split(',').find(|option| {
        let name = option.split('=').next().unwrap_or(option);
        OF_OBJECT_STORAGE.contains(&name)
    })
}

/// Checks that the options are those of this kind of store, by its checked name.
///
/// # Errors
/// Exit 2, naming the option that is not.
pub fn fit(lists: &[String], source: &str) -> Result<()> {
    let is_object_volume = object_volumes::looks_like(checks::innermost(source));
    match lists.iter().find_map(|list| of_object_storage(list)).filter(|_| !is_object_volume) {
        Some(option) => Err(wrong_option(&format!(
            "{option} is for volumes on object storage (s3://…), which {} is not",
            source.shown()
        ))),
        None => Ok(()),
    }
}

impl MountOptions {
    /// Parses the values of all `-o`, each a list separated by commas; later ones win.
    ///
    /// # Errors
    /// An unknown option, by name and with the list of valid ones; an invalid value.
    pub fn parse(lists: &[String]) -> Result<Self> {
        let mut options = Self::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            options.set(option)?;
        }
        if options.objects.disk_cache_bytes.is_some() && options.objects.disk_cache.is_none() {
            return Err(wrong_option("disk_cache_size needs a cache that has it: give disk_cache=DIR too"));
        }
        if options.objects.snapshot.is_some() {
            if options.read_only == Some(false) {
                return Err(wrong_option("snapshot: nothing can be written to a snapshot; leave rw out"));
            }
            if options.objects.follow.is_some() {
                return Err(wrong_option("follow: a snapshot stays as it is; leave one of the two out"));
            }
            options.read_only = Some(true);
        }
        if options.objects.follow.is_some() && options.read_only != Some(true) {
            return Err(wrong_option("follow: it is for a mount that only reads: give ro as well"));
        }
        if options.recover {
            if options.uring == Uring::On {
                return Err(wrong_option(
                    "recover=on: requests over io_uring end with the process that has them; leave uring=on out",
                ));
            }
            options.uring = Uring::Off;
        }
        let objects = &mut options.objects;
        let given = [
            ("fsync_to=host", objects.fsync_to_host),
            ("accept_to=host", objects.accept_to_host),
            ("journal_size", objects.journal_size.is_some()),
        ];
        objects.accept_to_host |= options.recover && objects.journal.is_some();
        if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given && objects.journal.is_none()) {
            return Err(wrong_option(&format!(
                "{option}: give journal=DIR, a directory on a disk of this host"
            )));
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<()> {
        let wrong = |reason: String| wrong_option(&format!("{option}: {reason}"));
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let needed = || value.ok_or_else(|| wrong_option(&format!("{name} needs a value: {name}=…")));
        match name {
            "cache" => {
                self.cache_bytes = parse_bytes(needed()?).map_err(wrong)?;
                if self.cache_bytes < CACHE_BYTES_MIN {
                    return Err(wrong("at least 4M are needed".to_owned()));
                }
            }
            "mode" => {
                let modes = [Mode::WriteThrough, Mode::KernelWriteback].map(|mode| (name_of(mode), mode));
                self.mode = one_of(needed()?, &modes).map_err(wrong)?;
            }
            "type" => {
                let types = [("auto", Wanted::Auto), ("fuseblk", Wanted::FuseBlk), ("fuse", Wanted::Fuse)];
                self.mount_type = one_of(needed()?, &types).map_err(wrong)?;
            }
            "uring" => {
                let all = [("auto", Uring::Auto), ("on", Uring::On), ("off", Uring::Off)];
                self.uring = one_of(needed()?, &all).map_err(wrong)?;
            }
            "recover" => {
                self.recover = one_of(needed()?, &[("on", true), ("off", false)]).map_err(wrong)?;
            }
            "idle_sched" => {
                self.idle_sched = one_of(needed()?, &[("on", true), ("off", false)]).map_err(wrong)?;
            }
            "flushers" => self.flushers = Some(threads(needed()?, FLUSHERS_MAX).map_err(wrong)?),
            "threads" => self.threads = Some(threads(needed()?, THREADS_MAX).map_err(wrong)?),
            "dirty_after" => self.dirty_after = Some(parse_duration(needed()?).map_err(wrong)?),
            "dirty_max" => {
                let bytes = parse_bytes(needed()?).map_err(wrong)?;
                if bytes < DIRTY_BYTES_MIN {
                    return Err(wrong("at least 1M is needed".to_owned()));
                }
                self.dirty_bytes_max = Some(bytes);
            }
            "cgroup" => self.cgroup = needed()?.parse().map_err(wrong)?,
            "sync_policy" => {
                let policies = [
                    ("boost", SyncPolicy::Boost),
                    ("vanilla", SyncPolicy::Vanilla),
                    ("isolated", SyncPolicy::Isolated),
                ];
                self.sync_policy = one_of(needed()?, &policies).map_err(wrong)?;
            }
            "follow" => {
                let every = parse_duration(needed()?).map_err(wrong)?;
                if !FOLLOW.contains(&every) {
                    return Err(wrong("give a time from 200ms to 1h".to_owned()));
                }
                self.objects.follow = Some(every);
            }
            "abandon" => {
                let host = needed()?;
                if host.is_empty() {
                    return Err(wrong("give the name of a host, as `watertight info` shows it".to_owned()));
                }
                self.objects.abandon = Some(host.to_owned());
            }
            "snapshot" => {
                let name = needed()?;
                if name.is_empty() {
                    return Err(wrong(
                        "give the name of a snapshot, as `watertight snapshot list` shows it".to_owned(),
                    ));
                }
                self.objects.snapshot = Some(name.to_owned());
            }
            "encrypt-key-file" => self.objects.key_file = Some(absolute(needed()?).map_err(wrong)?),
            "journal" => self.objects.journal = Some(absolute(needed()?).map_err(wrong)?),
            "fsync_to" => {
                self.objects.fsync_to_host =
                    one_of(needed()?, &[("store", false), ("host", true)]).map_err(wrong)?;
            }
            "accept_to" => {
                self.objects.accept_to_host =
                    one_of(needed()?, &[("memory", false), ("host", true)]).map_err(wrong)?;
            }
            "journal_size" => {
                let bytes = parse_bytes(needed()?).map_err(wrong)?;
                if bytes < JOURNAL_BYTES_MIN {
                    return Err(wrong("at least 16M are needed".to_owned()));
                }
                self.objects.journal_size = Some(bytes);
            }
            "disk_cache" => {
                let path = PathBuf::from(needed()?);
                if !path.is_absolute() || path.file_name().is_none() {
                    return Err(wrong("give an absolute path of a directory for it alone".to_owned()));
                }
                self.objects.disk_cache = Some(path);
            }
            "disk_cache_size" => {
                let bytes = parse_bytes(needed()?).map_err(wrong)?;
                if bytes < DISK_CACHE_BYTES_MIN {
                    return Err(wrong("at least 16M are needed".to_owned()));
                }
                self.objects.disk_cache_bytes = Some(bytes);
            }
            "limit" => self.limits.push(limit(needed()?).map_err(wrong)?),
            "drain_timeout" => self.drain_timeout = parse_duration(needed()?).map_err(wrong)?,
            "stall_after" => {
                self.stall_after = parse_duration(needed()?).map_err(wrong)?;
                if self.stall_after.is_zero() {
                    return Err(wrong("more than 0 is needed: no store answers at once".to_owned()));
                }
            }
            _ if value.is_some() => return Err(unknown(option)),
            _ => self.set_flag(name)?,
        }
        Ok(())
    }

    fn set_flag(&mut self, name: &str) -> Result<()> {
        match name {
            "ro" => self.read_only = Some(true),
            "rw" => self.read_only = Some(false),
            "allow_other" => self.allow_other = Some(true),
            "noallow_other" => self.allow_other = Some(false),
            "takeover" => self.objects.takeover = true,
            "flush_on_close" => self.flush_on_close = true,
            "noflush_on_close" => self.flush_on_close = false,
            "nosuid" | "nodev" | "noexec" | "noatime" | "nosymfollow" => {
                self.unset_flag(name);
                self.flags.push(name.to_owned());
            }
            "suid" | "dev" | "exec" | "atime" | "symfollow" => self.unset_flag(&format!("no{name}")),
            "allow_suid" => self.unset_flag("nosuid"),
            "allow_dev" => self.unset_flag("nodev"),
            "defaults" => {}
            _ => {
                let refuse = |why| wrong_option(&format!("{name}: {why}"));
                return Err(refused(name).map_or_else(|| unknown(name), refuse));
            }
        }
        Ok(())
    }

    fn unset_flag(&mut self, name: &str) {
        self.flags.retain(|flag| flag != name);
    }
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err("give an absolute path: it has to begin with /".to_owned())
    }
}

/// A mistake in an option, in one line: an option may hold any text.
fn wrong_option(what: &str) -> Problem {
    Problem::usage(format!("option {}", in_one_line(what)))
}

fn unknown(option: &str) -> Problem {
    let names: Vec<&str> = VALID.iter().map(|(name, _)| *name).collect();
    let given = option.split('=').next().unwrap_or(option);
    let plain = names.iter().map(|name| name.split(['=', ',']).next().unwrap_or(name));
    let meant = nearest(given, plain).and_then(|meant| names.iter().find(|name| name.starts_with(meant)));
    let meant = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
    let option = option.shown();
    Problem::usage(format!("there is no mount option {option}{meant}; there are: {}", names.join(", ")))
}

/// The value that goes by this word.
fn one_of<T: Copy>(word: &str, known: &[(&str, T)]) -> Result<T, String> {
    let value = known.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    value.ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let (last, others) = names.split_last().expect("there is a word");
        format!("give {} or {last}", others.join(", "))
    })
}

fn threads(text: &str, max: usize) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=max).contains(&n) => Ok(n),
        _ => Err(format!("give a number from 1 to {max}")),
    }
}

/// `CGROUP:LIMIT[:LIMIT]`.
fn limit(text: &str) -> Result<(CgroupPath, LimitChange), String> {
    let said = |error: volume::LimitError| error.to_string();
    // A cgroup may have colons in its name; each part of the limits after it has a `=`.
    let mut parts: Vec<&str> = text.split(':').collect();
    let from = parts.iter().rposition(|part| !part.contains('=')).map_or(0, |last| last + 1);
    let limits = parts.split_off(from.max(1)).join(" ");
    if limits.is_empty() {
        return Err("write limit=CGROUP:LIMIT, as in limit=/customers/a:wbps=1M".to_owned());
    }
    Ok((parts.join(":").parse().map_err(said)?, limits.parse().map_err(said)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::problem::Exit;

    fn parse(lists: &[&str]) -> Result<MountOptions> {
        MountOptions::parse(&lists.iter().map(|&list| list.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_come_in_lists_and_the_later_wins() {
        assert_eq!(parse(&[]).unwrap(), MountOptions::default());
        let options =
            parse(&["ro,cache=64M,mode=kernel-writeback", "type=fuse,rw,nosuid,nodev,suid"]).unwrap();
        assert_eq!(options.read_only, Some(false));
        assert_eq!(options.cache_bytes, 64 << 20);
        assert_eq!(options.mode, Mode::KernelWriteback);
        assert_eq!(options.mount_type, Wanted::Fuse);
        assert_eq!(options.flags, ["nodev"]);
        for (list, flags) in [
            ("defaults", &["nosuid", "nodev"][..]),
            ("nosuid,nodev,nosuid", &["nodev", "nosuid"]),
            ("suid,noexec", &["nodev", "noexec"]),
            ("dev", &["nosuid"]),
            ("suid,dev", &[]),
            ("allow_suid,allow_dev", &[]),
            ("suid,nosuid", &["nodev", "nosuid"]),
        ] {
            assert_eq!(parse(&[list]).unwrap().flags, flags, "{list}");
        }
        assert_eq!(parse(&["cgroup=off"]).unwrap().cgroup, Choice::Off);
        assert_eq!(parse(&["flushers=3,drain_timeout=2m"]).unwrap().drain_timeout, Duration::from_secs(120));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (list, word) in [
            ("frob", "no mount option frob"),
            ("frob=1", "no mount option frob=1"),
            ("sync", "open files with O_SYNC"),
            ("dirsync", "fsync of the directory"),
            ("mand", "no mandatory locks"),
            ("cahce=1G", "did you mean cache=SIZE?"),
            ("ro=1", "no mount option ro=1"),
            ("cache", "cache=…"),
            ("cache=lots", "`lots` is not a size"),
            ("cache=1K", "at least 4M"),
            ("mode=fast", "write-through or kernel-writeback"),
            ("type=nfs", "auto, fuseblk or fuse"),
            ("flushers=0", "from 1 to 64"),
            ("drain_timeout=soon", "is not a duration"),
            ("stall_after=0", "more than 0"),
            ("dirty_max=1000", "at least 1M"),
            ("sync_policy=fast", "boost, vanilla or isolated"),
            ("limit=/a", "limit=CGROUP:LIMIT"),
            ("limit=a:wbps=1M", "is not a cgroup's path"),
            ("limit=/a:wbps=fast", "wbps=fast"),
            ("limit=/a:speed=1", "there are rbps"),
            ("abandon=", "the name of a host"),
            ("snapshot=", "the name of a snapshot"),
            ("rw,snapshot=a", "nothing can be written to a snapshot"),
            ("journal=rel", "an absolute path"),
            ("journal=/j,fsync_to=disk", "give store or host"),
            ("fsync_to=host", "give journal=DIR"),
            ("accept_to=host", "give journal=DIR"),
            ("journal=/j,accept_to=disk", "give memory or host"),
            ("journal_size=1G", "give journal=DIR"),
            ("journal=/j,journal_size=1M", "at least 16M"),
            ("encrypt-key-file=key", "an absolute path"),
            ("ro,follow=0", "from 200ms to 1h"),
            ("ro,follow", "follow=…"),
            ("follow=1s", "give ro as well"),
            ("takeover=1", "no mount option takeover=1"),
            ("cgroup=", "auto, v2, off, or the name"),
        ] {
            let problem = parse(&[list]).unwrap_err();
            assert_eq!(problem.exit(), Exit::Usage);
            assert!(problem.to_string().contains(word), "{list}: {problem}");
        }
        assert!(parse(&["frob"]).unwrap_err().to_string().contains("drain_timeout=TIME"));
    }

    #[test]
    fn options_of_object_storage_are_refused_elsewhere() {
        let snapshot = MountOptions::parse(&["snapshot=a b".to_owned()]).unwrap();
        assert_eq!((snapshot.objects.snapshot.as_deref(), snapshot.read_only), (Some("a b"), Some(true)));
        let given = ["cache=64M,takeover".to_owned(), "abandon=a,encrypt-key-file=/k".to_owned()];
        let options = MountOptions::parse(&given).unwrap().objects;
        assert_eq!((options.takeover, options.abandon.as_deref()), (true, Some("a")));
        assert_eq!(options.key_file.as_deref(), Some(std::path::Path::new("/k")));
        for source in ["s3://bucket/a", "file:///srv/a", "memory://x", "fault:,s3://bucket/a"] {
            assert!(fit(&given, source).is_ok(), "{source}");
        }
        for source in ["dir:/srv/a", "mem:", "fault:,dir:/srv"] {
            for option in &given {
                let problem = fit(std::slice::from_ref(option), source).unwrap_err();
                assert_eq!(problem.exit(), Exit::Usage);
                assert!(problem.to_string().contains("is for volumes on object storage"), "{problem}");
            }
            assert!(fit(&["cache=64M".to_owned()], source).is_ok());
        }
    }

    #[test]
    fn the_help_names_the_options_of_a_volume() {
        let named = |option: &str| ATTACH_HELP.contains(&format!(" {option},"));
        for (option, _) in VALID.iter().filter(|(option, _)| !option.contains(", ")) {
            let name = option.split('=').next().unwrap();
            assert_eq!(named(option), !OF_THE_MOUNTPOINT.contains(&name), "{option}");
        }
    }
}
