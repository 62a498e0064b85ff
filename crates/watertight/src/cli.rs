//! The command line.

mod doctor;
pub mod kept;
pub mod opts;
mod stats;
pub mod suggest;
mod why;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub use crate::cli::doctor::DoctorArgs;
use crate::cli::kept::Kept;
pub use crate::cli::stats::{StatsArgs, StatsBy};
pub use crate::cli::why::WhyArgs;
use crate::control::api::{Propagation, UmountKind};
use crate::term::logging::LogFormat;
use crate::term::shown::Show as _;
use crate::term::units::{parse_bytes, parse_duration};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default().bold())
    .usage(AnsiColor::Yellow.on_default().bold())
    .literal(AnsiColor::Green.on_default())
    .placeholder(AnsiColor::Cyan.on_default());

/// Volumes over a directory or object storage, with an unmount that tells the truth.
///
/// A mounted volume writes back in the background, like a kernel file system; an unmount returns
/// when the data is on the store and the store is free.
#[derive(Debug, Parser)]
#[command(
    name = "watertight",
    version,
    styles = STYLES,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 failed (or not done yet), 2 usage error or bad input.\n\n\
                  Examples:\n  \
                  watertight demo\n  \
                  watertight mount /srv/data /mnt/data\n  \
                  watertight umount /mnt/data\n  \
                  watertight format s3://bucket/prefix && watertight mount s3://bucket/prefix /mnt/data"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,

    /// What to log: error, warn, info, debug or trace, or filters as RUST_LOG takes them.
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log_level: Option<String>,

    /// The form of the log on standard error [default for `mount`: text on a terminal, journald
    /// where the journal reads it, json otherwise; for other verbs: text].
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// This process is the background one of `mount -d`; its parent waits for its first line.
    #[arg(long, hide = true)]
    pub in_background: bool,

    /// This program takes the place of another one, which has left its state in this descriptor.
    #[arg(long, hide = true, value_name = "DESCRIPTOR")]
    pub taken_over: Option<i32>,

    /// This process is the server of a mount that another process keeps.
    #[arg(long, hide = true, value_name = "SERVERS")]
    pub kept: Option<Kept>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Mount a store and serve it until it is unmounted.
    #[command(after_help = opts::mount_help())]
    Mount(MountArgs),

    /// Make a volume on object storage, once, before it is mounted.
    #[command(after_help = FORMAT_HELP)]
    Format(FormatArgs),

    /// Describe a volume on object storage, and who holds it, without taking it.
    #[command(after_help = "Examples:\n  \
        watertight info s3://bucket/prefix\n  \
        watertight info --json s3://bucket/prefix | jq .holder\n\n\
        A volume that is mounted has a holder, on whatever host. `watertight status` tells more of those of this host.")]
    Info(InfoArgs),

    /// Give an encrypted volume on object storage another key; its data stays as it is.
    #[command(after_help = "Example:\n  \
        watertight change-key --old-key-file old --new-key-file new s3://bucket/prefix\n\n\
        One conditional request: a crash leaves the old key or the new one, and a call that is repeated finds it done. The volume may be \
        mounted, on any host: what encrypts the data does not change, and the next mount needs the new key. Whoever has the old key \
        and a copy of the object `format` from before can read the volume still: delete old versions of that object where the bucket keeps them.")]
    ChangeKey(ChangeKeyArgs),

    /// Remove objects that nobody needs from the bucket of a volume that is not mounted.
    #[command(after_help = "Examples:\n  \
        watertight gc --dry-run s3://bucket/prefix\n  \
        watertight gc s3://bucket/prefix\n\n\
        A mount removes by itself what was replaced and deleted, some ten minutes later, and what its holder left undone. This finds \
        also what hosts have left that crashed or were cut off in the midst of an upload. While the volume is mounted read-only \
        elsewhere, nothing is removed. It holds the volume meanwhile, as a mount does, also with --dry-run, which removes nothing.")]
    Gc(GcArgs),

    /// Check whether a volume on object storage is whole, and mend it.
    #[command(after_help = FSCK_HELP)]
    Fsck(FsckArgs),

    /// Make, list or delete snapshots of a volume on object storage: its files as they were.
    #[command(after_help = SNAPSHOT_HELP)]
    Snapshot(SnapshotArgs),

    /// Make a volume on object storage that begins as a snapshot of another, without copying data.
    #[command(after_help = CLONE_VOLUME_HELP)]
    CloneVolume(CloneVolumeArgs),

    /// Bring files of a volume on object storage to the disk cache of its mount.
    #[command(after_help = "Examples:\n  \
        watertight mount -d -o disk_cache=/var/cache/watertight s3://bucket/prefix /mnt/data\n  \
        watertight warm /mnt/data/project\n\n\
        What is there already is not fetched again. Links are not followed; other file systems and attached volumes are left out. \
        Exit codes: 0 all is in the cache, 1 there is none, something could not be fetched, or a signal stopped it, 2 bad input.")]
    Warm(WarmArgs),

    /// Limit bytes and files of a volume on object storage, or of directories in it.
    #[command(after_help = "Examples:\n  \
        watertight quota set /mnt/data/project --bytes 10G --inodes 100000\n  \
        watertight quota set s3://bucket/prefix --path /project --bytes 10G\n  \
        watertight quota set /mnt/data --bytes 1T\n  \
        watertight quota list /mnt/data\n  \
        watertight quota delete /mnt/data/project\n\n\
        By a path where the volume is mounted (as root), or by the URL of one that is not mounted anywhere. The root's quota is the \
        volume's: beyond it a write is refused with ENOSPC, beyond a directory's with EDQUOT, when it is made. Bytes are the sizes of \
        files. What is below a directory with a quota of its own counts for that one alone; renames and links from one to another \
        are refused with EXDEV, and mv copies. With its first quota a volume gets version 2, which earlier programs refuse.")]
    Quota(QuotaArgs),

    /// Unmount: return when the data is on the store and the store is free.
    #[command(
        visible_alias = "unmount",
        after_help = "Examples:\n  \
            watertight umount /mnt/data\n  \
            watertight umount --lazy /mnt/data && watertight wait /srv/data\n  \
            watertight umount --force /mnt/data\n\n\
            If a process holds the volume: exit 1, the process is named, nothing is changed.\n\
            With --force: exit 1 if data was given up; the files are named."
    )]
    Umount(UmountArgs),

    /// Attach a volume to a directory inside a mounted one.
    #[command(after_help = opts::ATTACH_HELP)]
    Attach(AttachArgs),

    /// Detach what was attached: return when its data is on the store and the store is free.
    #[command(after_help = "Examples:\n  \
        watertight detach /mnt/data/project\n  \
        watertight detach --lazy /mnt/data/project && watertight wait /srv/project\n\n\
        If a process holds the volume: exit 1, the process is named, nothing is changed. On return the path is gone for every process.")]
    #[command(mut_arg("path", |path| path.help("The path where it is attached.")))]
    Detach(UmountArgs),

    /// Move what is attached to another directory of the same mountpoint.
    #[command(after_help = "Example:\n  watertight move /mnt/data/project /mnt/data/archive/project")]
    Move(MoveArgs),

    /// Show what is mounted at a second mountpoint as well: a clone of its namespace.
    #[command(after_help = "Examples:\n  \
        watertight clone /mnt/data /srv/container/data\n  \
        watertight clone --propagation private /mnt/data /mnt/other\n\n\
        Both mountpoints show the same volume: a change of a file is visible in both at once. A volume that is attached or detached later \
        is so in both with `shared`; with `slave` in the clone as well if it is in the first; with `private` only where it was done. \
        `watertight umount` of one mountpoint leaves the other; the volume ends with the last. Root only.")]
    Clone(CloneArgs),

    /// Make everything durable that was written to a volume so far.
    #[command(after_help = "Example:\n  watertight sync /mnt/data")]
    Sync(SyncArgs),

    /// Show the volumes of this host and what they have still to write.
    #[command(
        after_help = "Examples:\n  watertight status\n  watertight status --json /mnt/data | jq .volumes[0].state\n  \
            watertight status --holders /mnt/data\n  \
            watertight status --metrics --output /var/lib/prometheus/node-exporter/watertight.prom"
    )]
    Status(StatusArgs),

    /// Show how long a volume's operations take, and what their time is spent on.
    #[command(after_help = stats::HELP)]
    Stats(StatsArgs),

    /// Say what a process, or a volume's requests, wait for now.
    #[command(after_help = why::HELP)]
    Why(WhyArgs),

    /// Say whether volumes work on this host, what they lack, and what repairs it.
    #[command(after_help = doctor::HELP)]
    Doctor(DoctorArgs),

    /// Print what happens to volumes: life cycle, stalls, a full cache, errors.
    #[command(after_help = "Examples:\n  \
        watertight events\n  \
        watertight events --once /mnt/data\n  \
        watertight events --json | jq -c 'select(.kind == \"error\")'\n\n\
        Prints the events that each volume has kept (its newest 1024), then new ones until Ctrl-C; for one volume, until \
        its end. Without a name: all volumes, also those that are mounted later. Where events are missing, \
        because they were not read in time, a gap says how many. With --json each line is one object, as from `GET /v1/events`; \
        openapi.json describes it.")]
    Events(EventsArgs),

    /// Show the volumes of this host live: rates, dirty bytes, waits, stalls; and their cgroups.
    #[command(after_help = "Examples:\n  \
        watertight top\n  \
        watertight top --interval 200ms\n\n\
        Keys: q ends, s sorts by the next column, / filters (Enter keeps the filter, Esc removes it), c changes between volumes \
        and cgroups (with their limits, where there are any), the arrows, page keys, Home and End scroll.")]
    Top(TopArgs),

    /// Mount the volumes of a configuration file, and keep them mounted.
    #[command(after_help = "Examples:\n  \
        watertight serve --example > /etc/watertight/watertight.toml\n  \
        watertight serve --check /etc/watertight/watertight.toml\n  \
        watertight serve /etc/watertight/watertight.toml\n\n\
        SIGHUP reads the file again: new volumes are mounted, removed ones unmounted; a volume whose source or options have changed \
        goes on as it is, and the log says so; limits of cgroups ([[limit]]) are changed while it is mounted. SIGTERM \
        writes all data and unmounts all volumes.")]
    Serve(ServeArgs),

    /// Serve volumes to Docker and Podman: the volume plugin `watertight`.
    #[command(after_help = "Examples:\n  \
        watertight docker-plugin\n  \
        docker volume create -d watertight -o source=/srv/data data\n  \
        docker volume create -d watertight -o source=s3://bucket/prefix -o o=cache=1G data\n  \
        docker run -v data:/data IMAGE\n\n\
        Options of a volume: source (a directory, or the URL of a volume on object storage, which is made if it is not there), \
        o (options of `watertight mount`, separated by commas), size, compress, encrypt-key-file (as for `watertight format`), \
        read-bps, write-bps, read-iops, write-iops (limits of the volume). Credentials for object storage are those in the plugin's \
        environment.\n\n\
        When the last container of a volume has ended, `docker stop` returns when the data is on the store and the store is free. \
        Mounts are served by processes of their own: the plugin may be restarted at any time. \
        `docker volume rm` forgets the name; the data stays.")]
    DockerPlugin(DockerPluginArgs),

    /// Serve volumes to Kubernetes: a driver of the Container Storage Interface.
    #[cfg(feature = "csi")]
    #[command(after_help = "Examples:\n  \
        watertight csi --endpoint unix:///csi/csi.sock --node-id NODE\n  \
        watertight csi --endpoint unix:///csi/csi.sock --controller --url-prefix s3://bucket/volumes\n\n\
        Volumes on object storage are made, cloned, enlarged and deleted by the controller (parameters of a class: url, the prefix below which \
        they are; compress, as for `watertight format`; pod-read-bps, pod-write-bps, pod-read-iops, pod-write-iops, pod-dirty-max, \
        pod-sync-isolation, which are limits of each pod), and mounted by the node (mountOptions: those of `watertight mount` that name nothing of \
        the node). Secrets are the \
        keys of a bucket, by the names that their variables have (AWS_ACCESS_KEY_ID and the like); without them the driver's own environment has \
        them. Directories of the node are static or ephemeral volumes: attributes `type: directory` and `path`.\n\n\
        Unpublishing removes a bind mount and waits for nothing; unstaging returns when the data is on the store and the store is free. Mounts \
        are served by processes of their own: the driver may be restarted at any time.")]
    Csi(CsiArgs),

    /// Do one step of the driver's with a bucket.
    #[cfg(feature = "csi")]
    #[command(hide = true)]
    CsiStep,

    /// Unmount for the driver, and write down what was lost.
    #[cfg(feature = "csi")]
    #[command(hide = true)]
    CsiUnmount {
        /// Where.
        path: PathBuf,
    },

    /// Run a process of the driver's outside of its cgroups.
    #[cfg(feature = "csi")]
    #[command(hide = true)]
    CsiOutside {
        /// What is run.
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<OsString>,
    },

    /// Wait until a volume is drained and its store is free.
    #[command(after_help = "Examples:\n  \
        watertight wait /mnt/data\n  \
        watertight wait --timeout 30 /srv/data\n  \
        watertight wait 1f00ba47\n\n\
        Exit 0: everything is on the store and the store is free. Exit 1: not yet, or data was lost; \
        what is left is printed.")]
    Wait(WaitArgs),

    /// Show in under a minute what an unmount that tells the truth is worth, and volumes that do
    /// not wait for each other.
    #[command(after_help = "Examples:\n  watertight demo\n  watertight demo objects\n\n\
            Needs the right to mount: root, or /dev/fuse and fusermount3. Where this \
            user can make no cgroups, it says so and leaves out the part that needs two. Leaves nothing behind.\n\n\
            `objects` starts an S3 server on 127.0.0.1 if one is in PATH (versitygw, minio, weed, moto_server), and else takes a directory; \
            it shows `rclone mount` beside it if that is installed.")]
    Demo(DemoArgs),

    /// Measure a volume on this host beside its bare store, within a minute.
    #[command(after_help = "Examples:\n  \
        watertight bench /mnt/data\n  \
        watertight bench --slice 200ms --json /mnt/data\n\n\
        Volume and store take turns; each workload ends with its data durable. Reads are of a file that was just written: like other \
        programs, they have the kernel's page cache. The file has 64 MiB, or as much as is durable within a part of a slice: a slow or limited \
        volume gets less data, which the table says, and not more time. In both a directory `.watertight-bench.…` is made, and removed.")]
    Bench(BenchArgs),

    /// Limit what a cgroup may read from a volume's store and write to it.
    #[command(
        override_usage = "watertight limit <CGROUP> <VOLUME> <LIMIT>...\n       watertight limit --show [--json] [CGROUP] <VOLUME>",
        after_help = "Limits: rbps, wbps (bytes a second), riops, wiops (operations a second): a number that may end in K, M or G, or \
            max; dirty_max: bytes that wait to be written; sync_isolation=1: syncs of the cgroup cover only what it and the cgroups below it wrote.\n\n\
            Examples:\n  \
            watertight limit /customers/a /mnt/data wbps=1M wiops=100\n  \
            watertight limit /customers/a /mnt/data wbps=max\n  \
            watertight limit /customers/b /mnt/data sync_isolation=1\n  \
            watertight limit --show /mnt/data\n\n\
            A limit holds for the cgroup and all below it, whether they exist yet or not, until the volume is unmounted; `mount -o limit=…` \
            sets one from the beginning, as a [[limit]] in the file of `serve` does, which a reload changes."
    )]
    Limit(LimitArgs),

    /// Have another version of this program serve mounts that go on meanwhile.
    #[command(after_help = UPGRADE_HELP)]
    Upgrade(UpgradeArgs),

    /// Say whether this program can take a mount over.
    #[command(hide = true)]
    CanTake(CanTakeArgs),

    /// Ask the kernel something on behalf of a mount process.
    #[command(hide = true)]
    KernelSide(KernelSideArgs),

    /// Write the manual's pages into a directory.
    #[command(
        after_help = "Example:\n  watertight man-pages /usr/local/share/man/man1 && man watertight-mount"
    )]
    ManPages(ManPagesArgs),

    /// Have mount(8) and umount(8) call this program for its mounts: fstab entries,
    /// `mount -t fuse.watertight`.
    #[command(after_help = "Examples:\n  \
        watertight install-helpers\n  \
        watertight install-helpers --directory /usr/local/sbin\n  \
        watertight install-helpers --remove\n\n\
        In /etc/fstab:\n  \
        /srv/data  /mnt/data  fuse.watertight  cache=1G,nofail  0  0\n  \
        s3://bucket/prefix  /mnt/cloud  fuse.watertight  nofail,_netdev  0  0\n\n\
        The options are those of `watertight mount`. Of the options that fstab has for all file systems the following mean nothing to a \
        volume, and are left out: user, owner, nofail, _netdev, x-… and the like, which are mount(8)'s; relatime, strictatime, nodiratime, lazytime; \
        async, iversion, silent. sync, dirsync and mand are refused. suid and dev are written allow_suid and allow_dev there.\n\n\
        Makes symbolic links to this program. The Debian package has them already.")]
    InstallHelpers(InstallHelpersArgs),

    /// Print a completion script for a shell.
    #[command(after_help = "Examples:\n  \
        watertight completions bash > /etc/bash_completion.d/watertight\n  \
        watertight completions zsh > /usr/local/share/zsh/site-functions/_watertight\n  \
        watertight completions fish > /etc/fish/completions/watertight.fish")]
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

impl Verb {
    /// Whether the volumes of all users are meant.
    #[must_use]
    pub const fn is_for_all_users(&self) -> bool {
        let users = match self {
            Self::Umount(args) | Self::Detach(args) => args.users,
            Self::Sync(args) => args.users,
            Self::Status(args) => args.users,
            Self::Stats(args) => args.users,
            Self::Why(args) => args.users,
            Self::Events(args) => args.users,
            Self::Top(args) => args.users,
            Self::Wait(args) => args.users,
            Self::Limit(args) => args.users,
            _ => return false,
        };
        users.all_users
    }
}

/// A mistake in a command line, with its words as they are [shown](crate::term::shown): `find` and
/// the like may put any file's name there.
#[must_use]
pub fn shown_error<T>(
    error: clap::Error,
    parse: impl FnOnce(Vec<String>) -> Result<T, clap::Error>,
) -> clap::Error {
    let shown = |word: OsString| word.shown().to_string();
    parse(std::env::args_os().map(shown).collect()).err().unwrap_or(error)
}

/// The command line without hidden verbs, for completion scripts, which would offer them.
#[must_use]
pub fn visible() -> Command {
    let all = Cli::command();
    Command::new("watertight")
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().filter(|argument| !argument.is_hide_set()).cloned())
        .subcommands(all.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned())
}

/// `mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// The store: a directory (`/srv/data` or `dir:/srv/data`), memory (`mem:`, or
    /// `mem:size=1G`: bytes, or K, M, G, T), or a volume on object storage (`s3://bucket/prefix`;
    /// gs://, az://, file://, memory://).
    pub source: String,
    /// An empty directory.
    pub mountpoint: PathBuf,
    /// Options, separated by commas; see below.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Return when the mount is up, and serve it in the background.
    #[arg(short = 'd', long = "daemon", visible_alias = "background")]
    pub background: bool,
    /// Where the background process logs, as JSON unless --log-format says otherwise; it is silent
    /// without this.
    #[arg(long, value_name = "FILE", requires = "background")]
    pub log_file: Option<PathBuf>,
    /// Refuse a mountpoint that a symbolic link leads away from.
    #[arg(long, hide = true)]
    pub no_links: bool,
}

/// The help that follows the arguments of `clone-volume`.
const CLONE_VOLUME_HELP: &str = "Example:\n  \
    watertight snapshot create s3://bucket/data base\n  \
    watertight clone-volume s3://bucket/data base s3://bucket/test\n  \
    watertight mount s3://bucket/test /mnt/test\n\n\
    A constant number of requests, whatever the volume holds. The clone reads the data of the snapshot where it is, and writes its own: \
    both volumes are mounted, changed and collected independently. It has the key of its volume, compression and size, and may be cloned \
    itself. A snapshot that a clone needs cannot be deleted; delete the clone's objects first.";

/// The help that follows the arguments of `fsck`.
const FSCK_HELP: &str = "Examples:\n  \
    watertight fsck s3://bucket/prefix\n  \
    watertight fsck --data s3://bucket/prefix\n  \
    watertight fsck --repair s3://bucket/prefix\n  \
    watertight fsck --json s3://bucket/prefix | jq .findings\n\n\
    A check holds nothing: a mounted volume is checked as its last commit left it. It reads all metadata, and looks whether every object is \
    there and long enough that files and snapshots need; with --data it reads these, too.\n\n\
    --repair takes the volume as a mount does. What is counted wrongly is counted; a name of nothing goes; a file without a name gets one in \
    /lost+found; a lease, and objects of the log that cannot be replayed, are replaced, and kept as copies below damaged/ in the bucket. \
    Data that is missing or damaged is named, and reads as an error until its object is put back: nothing is made up. Where a manifest or \
    a table is damaged, nothing is touched. Exit codes: 0 the volume is whole, 1 something is damaged, or it could not be checked, 2 bad input.";

/// The help that follows the arguments of `snapshot`.
const SNAPSHOT_HELP: &str = "Examples:\n  \
    watertight snapshot create /mnt/data before-upgrade\n  \
    watertight snapshot list s3://bucket/prefix\n  \
    watertight mount -o snapshot=before-upgrade s3://bucket/prefix /mnt/old\n  \
    watertight snapshot delete /mnt/data before-upgrade\n\n\
    A snapshot takes neither a copy nor time in proportion to the data: what it shows stays in the bucket when the volume replaces or \
    deletes it, until the snapshot is deleted. It is made and deleted by the process that holds the volume: by its path, or by its URL on \
    the same host. Of a volume that nobody holds, by its URL. `list` holds nothing.";

/// The help that follows the arguments of `upgrade`.
const UPGRADE_HELP: &str = "Examples:\n  \
    watertight upgrade /mnt/data\n  \
    watertight upgrade --all\n  \
    watertight upgrade --program /opt/watertight-0.2/watertight /mnt/data\n\n\
    After a new package is installed: the program that is called takes over, in the same process. Requests wait meanwhile, for some \
    milliseconds and what it takes to make the last writes durable; open files, locks, working directories, mapped files and running programs \
    on the volume go on.\n\n\
    What cannot be handed over is refused with a reason, and nothing is changed: volumes in memory, volumes on object storage that are only \
    read, connections over io_uring, another program that cannot read this one's state (an older one, say) or that \
    others could have written, requests or writes that do not come to an end in time. If the new program fails while it takes over, the old one is started again and goes on.";

/// `upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// Mountpoints, stores or volumes' ids.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub volumes: Vec<OsString>,
    /// All mounts of this user.
    #[arg(long)]
    pub all: bool,
    /// The new program [this one]: root's, or the mount's user's, in a place where nobody else can write.
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// How long dirty data may be written before, while requests are served.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// How long requests may wait before it is given up.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub max_pause: Duration,
}

/// `can-take`.
#[derive(Debug, Args)]
pub struct CanTakeArgs {
    /// The version of the state.
    pub version: u32,
    /// The arguments of the process.
    #[arg(last = true)]
    pub arguments: Vec<OsString>,
}

/// The help that follows the arguments of `format`.
const FORMAT_HELP: &str = "Examples:\n  \
    watertight format s3://bucket/prefix\n  \
    AWS_ENDPOINT_URL=http://127.0.0.1:9000 watertight format s3://bucket/prefix\n  \
    watertight format --encrypt-key-file /etc/watertight/key --compress lz4 gs://bucket/prefix\n  \
    watertight format file:///srv/volume\n\n\
    URLs: s3://BUCKET/PREFIX (AWS, and servers that speak its protocol), gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, \
    file:///DIRECTORY (the same in a directory, to try it). Credentials, region and endpoint come from the environment, profiles and the \
    instance's metadata, never from the URL.\n\n\
    Refused where there is a volume already, and where the bucket does not keep conditional writes, on which the safety of its \
    data rests. A key is 32 bytes, or 64 hexadecimal digits: `openssl rand -hex 32`. Who loses it loses the data.";

/// `format`.
#[derive(Debug, Args)]
pub struct FormatArgs {
    /// Where: s3://BUCKET/PREFIX, gs://, az://, or file:///DIRECTORY.
    pub url: String,
    /// How data is compressed.
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = Compress::Zstd)]
    pub compress: Compress,
    /// Encrypt data and names, with the key in this file; each mount needs it, by
    /// `-o encrypt-key-file`.
    #[arg(long, value_name = "FILE")]
    pub encrypt_key_file: Option<PathBuf>,
    /// The most bytes of data that it takes; or K, M, G, T. Without it, what the bucket takes.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// How data is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compress {
    /// By zstd.
    Zstd,
    /// By LZ4: faster, larger.
    Lz4,
    /// Not at all.
    None,
}

/// `info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// The volume, as for `format`.
    pub url: String,
    /// The key of an encrypted volume, without which its size is not known.
    #[arg(long, value_name = "FILE")]
    pub encrypt_key_file: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// `change-key`.
#[derive(Debug, Args)]
pub struct ChangeKeyArgs {
    /// The volume, as for `format`.
    pub url: String,
    /// The key that it has.
    #[arg(long, value_name = "FILE")]
    pub old_key_file: PathBuf,
    /// The key that it gets.
    #[arg(long, value_name = "FILE")]
    pub new_key_file: PathBuf,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// `gc`.
#[derive(Debug, Args)]
pub struct GcArgs {
    /// The volume, as for `format`.
    pub url: String,
    /// Only count what would be removed.
    #[arg(long)]
    pub dry_run: bool,
    /// The key of an encrypted volume.
    #[arg(long, value_name = "FILE")]
    pub encrypt_key_file: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// `fsck`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// The volume, as for `format`.
    pub url: String,
    /// Mend what is damaged; the volume is held meanwhile.
    #[arg(long)]
    pub repair: bool,
    /// Read all data, and compare it with its checksums.
    #[arg(long)]
    pub data: bool,
    /// The key of an encrypted volume.
    #[arg(long, value_name = "FILE")]
    pub encrypt_key_file: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// `snapshot`.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// What to do.
    #[arg(value_enum, value_name = "ACTION")]
    pub action: SnapshotAction,
    /// The volume: its URL, or any path inside it where it is mounted or attached.
    pub volume: OsString,
    /// The snapshot, for `create` and `delete`.
    pub name: Option<String>,
    /// The key of an encrypted volume that is not mounted on this host.
    #[arg(long, value_name = "FILE")]
    pub encrypt_key_file: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// `quota`.
#[derive(Debug, Args)]
pub struct QuotaArgs {
    /// What to do.
    #[arg(value_enum)]
    pub action: QuotaAction,
    /// A directory of a mounted volume, or the URL of a volume that is not mounted.
    pub target: OsString,
    /// With a URL: the directory, from the volume's root.
    #[arg(long, value_name = "DIRECTORY")]
    pub path: Option<PathBuf>,
    /// The most bytes of files; or K, M, G, T. Without it, any.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub bytes: Option<u64>,
    /// The most files, directories and links, the directory itself among them. Without it, any.
    #[arg(long, value_name = "N")]
    pub inodes: Option<u64>,
    /// With a URL: the key of an encrypted volume.
    #[arg(long, value_name = "FILE")]
    pub encrypt_key_file: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// `warm`.
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// A file or a directory in a mounted volume.
    pub path: OsString,
    /// For programs: `files`, `bytes`, `failed`, `stopped`.
    #[arg(long)]
    pub json: bool,
}

/// `clone-volume`.
#[derive(Debug, Args)]
pub struct CloneVolumeArgs {
    /// The volume, as for `format`.
    pub url: String,
    /// Its snapshot.
    pub name: String,
    /// The new volume: another prefix in the same bucket.
    pub new_url: String,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// What becomes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SnapshotAction {
    /// Make one of everything that was written so far.
    Create,
    /// Show all, the oldest first.
    List,
    /// Delete one.
    Delete,
}

/// What is done with a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QuotaAction {
    /// Give a directory these limits, in place of others.
    Set,
    /// Show the limits of a directory, and what is used.
    Get,
    /// Show all quotas of the volume.
    List,
    /// Take a directory's limits away.
    Delete,
}

/// Whose volumes are meant.
#[derive(Debug, Default, Clone, Copy, Args)]
pub struct Users {
    /// Root only: the volumes of all users; their runtime directories are read and their processes
    /// asked. Without it: only this user's own.
    #[arg(long)]
    pub all_users: bool,
}

/// `umount`.
#[derive(Debug, Args)]
pub struct UmountArgs {
    /// The mountpoint (or the volume's id).
    pub path: OsString,
    /// Remove the path although processes hold it; the data is written afterwards.
    #[arg(short = 'l', long, conflicts_with = "force")]
    pub lazy: bool,
    /// Give up at once the data that is not written; callers that wait get an error.
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Refuse a path that a symbolic link leads away from.
    #[arg(long, hide = true)]
    pub no_links: bool,
    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

impl UmountArgs {
    /// The way that is meant.
    #[must_use]
    pub const fn how(&self) -> UmountKind {
        match (self.force, self.lazy) {
            (true, _) => UmountKind::Force,
            (_, true) => UmountKind::Lazy,
            _ => UmountKind::Plain,
        }
    }
}

/// `attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The store, as for `mount`; or a directory inside the mountpoint, to be shown in a second
    /// place.
    pub volume: OsString,
    /// A directory inside a mounted volume.
    pub path: PathBuf,
    /// Options of the volume, separated by commas; see below.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// `move`.
#[derive(Debug, Args)]
pub struct MoveArgs {
    /// Where it is attached.
    pub from: PathBuf,
    /// A directory of the same mountpoint.
    pub to: PathBuf,
}

/// `clone`.
#[derive(Debug, Args)]
pub struct CloneArgs {
    /// The mountpoint, the store, or the volume's id.
    pub volume: OsString,
    /// An empty directory: the second mountpoint.
    pub new: PathBuf,
    /// Whether what is attached or detached in one mountpoint is so in the other.
    #[arg(long, value_enum, default_value_t = Propagation::Shared)]
    pub propagation: Propagation,
}

/// `sync`.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// The mountpoint, a path inside it, the store, or the volume's id.
    pub path: OsString,
    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

/// `limit`.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Show what is set, and change nothing.
    #[arg(long)]
    pub show: bool,

    /// Show it as JSON.
    #[arg(long, requires = "show")]
    pub json: bool,

    /// The cgroup, as /proc/PID/cgroup names it or by its directory; the volume by its mountpoint,
    /// a path inside it, its store or its id; what to change.
    #[arg(value_name = "CGROUP VOLUME LIMIT", required = true)]
    pub names: Vec<OsString>,

    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

/// `kernel-side`.
#[derive(Debug, Args)]
pub struct KernelSideArgs {
    /// Say whether the server of the mount at this path is gone, instead of answering questions.
    #[arg(long)]
    pub probe: Option<PathBuf>,
}

/// `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Print metrics in Prometheus' text format: what `GET /metrics` of each mount process returns.
    #[arg(long, conflicts_with = "json")]
    pub metrics: bool,
    /// Replace this file atomically by the metrics: a reader sees all of the old ones or all of the
    /// new ones. For the textfile collector of Prometheus' node exporter.
    #[arg(long, value_name = "FILE", requires = "metrics", conflicts_with = "json")]
    pub output: Option<PathBuf>,
    /// Also show which processes hold each volume, and their files. The search disturbs an unmount
    /// at the same moment.
    #[arg(long, conflicts_with = "metrics")]
    pub holders: bool,
    /// Only this volume: its mountpoint, store or id, or a file or directory in it.
    pub path: Option<OsString>,
    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

/// `events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// End after the events that were kept.
    #[arg(long, visible_alias = "no-follow")]
    pub once: bool,
    /// Go on with new events; this is the default.
    #[arg(long, conflicts_with = "once")]
    pub follow: bool,
    /// Only events after the one with this number.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "volume")]
    pub since: u64,
    /// Only this volume: its mountpoint, store or id.
    pub volume: Option<OsString>,
    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

/// `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// How often to refresh; 10ms or more.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

/// `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Check the file, print what is wrong with it, and end.
    #[arg(long)]
    pub check: bool,
    /// Print an example with explanations, and end.
    #[arg(long, conflicts_with_all = ["check", "config"])]
    pub example: bool,
}

impl ServeArgs {
    /// Whether volumes are to be served.
    #[must_use]
    pub const fn serves(&self) -> bool {
        !self.check && !self.example
    }
}

/// `docker-plugin`.
#[derive(Debug, Args)]
pub struct DockerPluginArgs {
    /// The unix socket that the engine calls; its file's name is the plugin's.
    #[arg(long, value_name = "PATH", default_value = "/run/docker/plugins/watertight.sock")]
    pub socket: PathBuf,
    /// The directory for what is known of the volumes, their mountpoints, and their logs.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/watertight/docker-plugin")]
    pub state: PathBuf,
}

/// `csi`.
#[cfg(feature = "csi")]
#[derive(Debug, Args)]
pub struct CsiArgs {
    /// The unix socket that kubelet and the sidecars call.
    #[arg(long, value_name = "URL", default_value = "unix:///csi/csi.sock")]
    pub endpoint: String,
    /// Serve the volumes of this node, by its name.
    #[arg(long, value_name = "NAME")]
    pub node_id: Option<String>,
    /// Make and delete volumes.
    #[arg(long)]
    pub controller: bool,
    /// The driver's name, which classes and volumes give.
    #[arg(long, value_name = "NAME", default_value = "csi.watertight.dev")]
    pub driver_name: String,
    /// Volumes are below this prefix alone; may be given several times. Without it they may be in
    /// any bucket, and in no directory of the host (`file:///DIR`).
    #[arg(long, value_name = "URL")]
    pub url_prefix: Vec<String>,
    /// Directories of this host below this one may be volumes; may be given several times. Without
    /// it, none may.
    #[arg(long, value_name = "DIR")]
    pub directory: Vec<PathBuf>,
    /// Where volumes whose `mountOptions` have `disk_cache_size=` keep what was read; without it they
    /// are refused.
    #[arg(long, value_name = "DIR")]
    pub disk_cache: Option<PathBuf>,
    /// The most that one volume may ask for there.
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_bytes)]
    pub disk_cache_max: u64,
    /// Where volumes whose `mountOptions` have `fsync_to=host` keep what an fsync waits for; without
    /// it they are refused.
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
    /// The most that one volume may ask for there.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    pub journal_max: u64,
    /// The keys of encrypted volumes, which `mountOptions` name: `encrypt-key-file=NAME`.
    #[arg(long, value_name = "DIR")]
    pub key_directory: Option<PathBuf>,
    /// The most memory that one volume may ask for with `cache=`.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    pub cache_max: u64,
    /// The directory below which volumes are mounted.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
    /// The directory for logs of mounts and for what the driver mounts for itself.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/watertight/csi")]
    pub state: PathBuf,
    /// Who runs the processes that serve mounts: systemd, in a scope of their own; nobody, in a cgroup
    /// `watertight` at the top of each tree; or nobody, in a session of their own in the driver's
    /// cgroup.
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub mounts: ServedBy,
    /// Leave the container that this runs in: go on in the host's namespaces, with a copy of this
    /// program in the state directory of the host. Needs hostPID and privileges.
    #[arg(long)]
    pub in_host: bool,
}

/// Who runs the processes that serve mounts.
#[cfg(feature = "csi")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServedBy {
    /// systemd where it runs; else a cgroup, where the driver is in a pod; else a session.
    Auto,
    /// `systemd-run --scope`.
    Systemd,
    /// A cgroup at the top of each tree.
    Cgroup,
    /// A session in the driver's cgroup.
    Session,
}

/// `wait`.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// The volume: its mountpoint, store or id.
    pub volume: OsString,
    /// Stop waiting after so many seconds (or 500ms, 2m); without it, never.
    #[arg(long, value_name = "S", value_parser = parse_duration, allow_hyphen_values = true)]
    pub timeout: Option<Duration>,
    /// Then forget how the volume ended: `status` and the metrics no longer report what was lost.
    #[arg(long)]
    pub forget: bool,
    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

/// `man-pages`.
#[derive(Debug, Args)]
pub struct ManPagesArgs {
    /// The directory for the pages; it has to exist.
    pub directory: PathBuf,
}

/// `install-helpers`.
#[derive(Debug, Args)]
pub struct InstallHelpersArgs {
    /// The directory for the links; mount(8) searches /sbin (and /sbin/fs.d, /sbin/fs).
    #[arg(long, default_value = "/sbin")]
    pub directory: PathBuf,
    /// Remove the links.
    #[arg(long)]
    pub remove: bool,
}

/// `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The mountpoint, a path inside it, the store, or the volume's id.
    pub path: OsString,
    /// How long each of the 28 slices takes.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub slice: Duration,
    /// How much longer a slice may take before the bench gives up on the volume or the store; its
    /// row then says so, and the exit code is 1.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub patience: Duration,
    /// Print JSON, for programs: also the number of operations, p50, p95 and max.
    #[arg(long)]
    pub json: bool,
}

/// A part of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DemoPart {
    /// A volume on object storage, and what is in the bucket when its unmount returns.
    Objects,
}

/// `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// What to show; without it, volumes over directories.
    #[arg(value_enum, value_name = "PART")]
    pub part: Option<DemoPart>,
    /// Which kind of mount: auto, fuseblk or fuse.
    #[arg(long = "type", value_name = "TYPE", default_value = "auto")]
    pub mount_type: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_verb_has_an_example() {
        let command = Cli::command();
        command.clone().debug_assert();
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let help = verb.get_after_help().unwrap_or_else(|| panic!("{} has no example", verb.get_name()));
            assert!(help.to_string().contains("watertight "), "{}", verb.get_name());
        }
    }
}
