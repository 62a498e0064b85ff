//! `status`: the volumes of this host.
//!
//! It shows the running volumes, and ended ones that did not end well, until their store is mounted
//! again.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::cli::StatusArgs;
use crate::control::api::{Following, Missing, RecoveryState, RecoveryStatus, State, Status, Unanswered};
use crate::control::metrics::{self, Down, VolumeLabels};
use crate::control::volume_id::VolumeId;
use crate::host::holders::{self, Holders};
use crate::host::mountinfo::{self, Device, Mount, MountTable};
use crate::host::pods::Pods;
use crate::host::{checks, mount_agent, unmount, users};
use crate::registry::missing;
use crate::registry::survey::Survey;
use crate::registry::target::{self, RegisteredVolume, Target};
use crate::registry::{DIR_VARIABLE, Record};
use crate::term::console::{Colour, console};
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Name, Show as _, Words};
use crate::term::units;

/// How many files with errors are listed for each volume.
const ERRORS_NAMED_MAX: usize = 10;

/// The output of `--json`.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// The running volumes.
    volumes: Vec<VolumeReport>,
    /// Volumes that ended with data that was not written, or whose process was killed.
    ended: Vec<Record>,
    /// Mountpoints of ours that no process serves any more.
    dead_mounts: Vec<Name>,
    /// Volumes whose process does not answer: id and reason.
    silent: Vec<Silent>,
    /// Volumes of the files of `serve` that are not mounted; not searched where one volume was
    /// asked for.
    missing: Vec<Missing>,
    /// How many volumes other users have mounted, by the kernel's table of mounts, of which nothing
    /// more is known here; not counted where one volume was asked for.
    of_others: usize,
    /// How many volumes this user has mounted that this user's runtime directory does not know.
    unknown: usize,
    /// Whether one volume was asked for.
    #[serde(skip)]
    is_of_one: bool,
}

/// A running volume.
#[derive(Debug, Serialize)]
struct VolumeReport {
    #[serde(flatten)]
    status: Status,
    /// Its holders, if it is detached or the caller asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Holders>,
}

#[derive(Debug, Serialize)]
struct Silent {
    id: VolumeId,
    pid: u32,
    mountpoint: Name,
    source: Name,
    error: String,
}

/// Runs the verb.
///
/// # Errors
/// Exit 2 when a volume was named that does not exist; 1 when it is another user's, and when
/// processes do not answer, after the answers of the others.
pub fn run(args: &StatusArgs) -> Result<()> {
    let report = match &args.path {
        None => gather(None, args.holders),
        Some(name) => {
            let Target { mount, volume, path } = target::resolve(name);
            let mount = mount.filter(mountinfo::is_ours);
            if volume.is_none()
                && let Some(problem) = path.as_deref().and_then(target::of_another_user)
            {
                return Err(problem);
            }
            if volume.is_some() || mount.is_some() {
                gather(Some((volume, mount)), args.holders)
            } else {
                let shown = name.shown();
                let Some((volume, mount)) = path.as_deref().and_then(target::containing) else {
                    let why = "is neither a volume nor inside one; `watertight status` lists them";
                    return Err(Problem::usage(format!("{shown} {why}")));
                };
                if !args.json && !args.metrics {
                    let Record { id, mountpoint, .. } = volume.record();
                    console().print(&format!("{shown} is inside volume {id}, {mountpoint}"));
                }
                gather(Some((Some(volume), mount)), args.holders)
            }
        }
    };
    if args.json {
        console().print_value(&report)?;
    } else if let Some(file) = &args.output {
        replace(file, &report.metrics())?;
    } else if args.metrics {
        console().print_page(report.metrics().trim_end());
    } else {
        report.print();
    }
    report.is_whole()
}

/// Puts a file with this content in the place of another, in one step. All users can read it.
///
/// # Errors
/// Exit 2 for an existing path that is no file: a name in its place would remove a device or a
/// link.
fn replace(file: &Path, content: &str) -> Result<()> {
    if fs::symlink_metadata(file).is_ok_and(|found| !found.is_file()) {
        let why = "exists and is not a regular file; --output replaces only a regular file";
        return Err(Problem::usage(format!("{}: {why}", file.shown())));
    }
    let failed =
        |error: io::Error| Problem::failure(format!("{}: {error}; the file is unchanged", file.shown()));
    let name = file.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    // No collector takes a name that begins with a dot, and does not end in `.prom`.
    let mut new = OsString::from(".");
    new.push(name);
    new.push(format!(".{}.new", std::process::id()));
    let new = file.with_file_name(new);
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(0o644).open(&new)?;
        // Independent of the umask.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(content.as_bytes())
    };
    let done = write().and_then(|()| fs::rename(&new, file)).inspect_err(|_| drop(fs::remove_file(&new)));
    done.map_err(failed)
}

/// Asks all volumes, or the one that was found with its mount. `holders`: look for holders of all
/// volumes, not only of detached ones.
fn gather(one: Option<(Option<RegisteredVolume>, Option<Mount>)>, holders: bool) -> Report {
    let mut report = Report::default();
    let mounts: Option<Vec<Mount>> = one.as_ref().map(|(_, mount)| mount.iter().cloned().collect());
    let survey = match one {
        None => Survey::now(),
        Some((volume, _)) => volume.map(of_one).unwrap_or_default(),
    };
    report.ended = survey.ended;
    for (record, error) in survey.silent {
        let Record { id, pid, mountpoint, source, .. } = record;
        report.silent.push(Silent { id, pid, mountpoint, source, error });
    }
    for status in survey.volumes {
        let wanted = holders || status.state == State::Detached;
        let holders = wanted.then(|| holders_of(&status));
        report.volumes.push(VolumeReport { status, holders });
    }
    report.is_of_one = mounts.is_some();
    if !report.is_of_one {
        report.leave_out_what_is_over();
        report.missing = missing::all();
    }
    let table = MountTable::read();
    let mounts =
        mounts.unwrap_or_else(|| table.iter().filter(|mount| mountinfo::is_ours(mount)).cloned().collect());
    let devices: BTreeSet<Device> = report.volumes.iter().map(|v| v.status.device).collect();
    let served = |mount: &Mount| {
        devices.contains(&Device::of(mount))
            || report.silent.iter().any(|silent| silent.mountpoint == Name::of(&mount.mountpoint))
    };
    let unserved = mounts.iter().filter(|mount| mountinfo::is_for_this_user(mount) && !served(mount));
    let unserved: Vec<&Mount> = unserved.collect();
    let paths: Vec<&Path> = unserved.iter().map(|mount| &*mount.mountpoint).collect();
    let dead = unmount::dead_among(&paths);
    report.dead_mounts = dead.iter().map(Name::of).collect();
    if !report.is_of_one {
        // A volume may have several mountpoints.
        let count = |of: &mut dyn Iterator<Item = &Mount>| of.map(Device::of).collect::<BTreeSet<_>>().len();
        report.of_others =
            count(&mut mounts.iter().filter(|mount| !mountinfo::is_own(mount) && !served(mount)));
        let is_dead = |mount: &Mount| dead.iter().any(|path| *path == mount.mountpoint);
        report.unknown =
            count(&mut unserved.iter().copied().filter(|mount| mountinfo::is_own(mount) && !is_dead(mount)));
    }
    report
}

/// A volume that was named.
fn of_one(volume: RegisteredVolume) -> Survey {
    let mut survey = Survey::default();
    let known = || volume.record().clone();
    match volume.status() {
        Ok(Some(status)) => survey.volumes.push(status),
        // Its process may have ended between: read again how.
        Ok(None) => match &volume.found.silent {
            Some(why) => survey.silent.push((known(), why.clone())),
            None => survey.ended.push(volume.dir.read_record(&volume.record().id).unwrap_or_else(known)),
        },
        Err(error) => survey.silent.push((known(), error.to_string())),
    }
    survey
}

fn holders_of(status: &Status) -> Holders {
    let holders = holders::of_device(status.device).unwrap_or_default();
    let holders = match status.attached_to {
        None => holders,
        Some(_) => holders.below(std::path::Path::new(&status.mountpoint)),
    };
    holders.with_pods()
}

impl Report {
    /// Keeps of the ended volumes only those that a person should learn of.
    fn leave_out_what_is_over(&mut self) {
        let all = std::mem::take(&mut self.ended);
        let mounted_again = |record: &Record| {
            let again = |source: &Name, mountpoint: &Name| match checks::identity_of(record.source.as_str()) {
                Some(store) => checks::identity_of(source.as_str()) == Some(store),
                None => *source == record.source && *mountpoint == record.mountpoint,
            };
            self.volumes.iter().any(|v| again(&v.status.source, &v.status.mountpoint))
                || all.iter().any(|r| r.started_ms > record.started_ms && again(&r.source, &r.mountpoint))
        };
        self.ended = all
            .iter()
            .filter(|record| record.ended.as_ref().is_none_or(|ended| ended.state != State::Released))
            .filter(|record| !mounted_again(record))
            .cloned()
            .collect();
    }

    fn metrics(&self) -> String {
        let volumes: Vec<&Status> = self.volumes.iter().map(|shown| &shown.status).collect();
        let of = |id, mountpoint, state| Down { of: VolumeLabels { id, mountpoint }, state };
        let silent = self.silent.iter().map(|v| of(&v.id, v.mountpoint.as_str(), None));
        let ended =
            self.ended.iter().map(|v| of(&v.id, v.mountpoint.as_str(), v.ended.as_ref().map(|e| e.state)));
        let page = metrics::page(&volumes, &silent.chain(ended).collect::<Vec<_>>());
        if self.is_of_one { page } else { page + &metrics::page_of_missing(&self.missing) }
    }

    /// Fails if the state of a volume is not known, so that a caller of `status` learns it even
    /// without reading the output.
    fn is_whole(&self) -> Result<()> {
        let silent: Vec<String> =
            self.silent.iter().map(|v| format!("{} (pid {})", v.mountpoint, v.pid)).collect();
        if silent.is_empty() {
            return Ok(());
        }
        Err(Problem::failure(format!("no answer from the process of {}", silent.join(", "))))
    }

    fn print(&self) {
        if self.volumes.is_empty()
            && self.silent.is_empty()
            && self.ended.is_empty()
            && self.dead_mounts.is_empty()
            && self.missing.is_empty()
        {
            let whose = if self.of_others + self.unknown == 0 {
                ""
            } else {
                " that have a record in this user's runtime directory"
            };
            console().print(&format!("no volumes are mounted{whose}"));
        }
        if !self.volumes.is_empty() {
            print_table(&self.volumes);
        }
        self.volumes.iter().for_each(|shown| print_cgroups(&shown.status));
        self.volumes.iter().for_each(print_notes);
        for silent in &self.silent {
            let Silent { id, pid, mountpoint, error, .. } = silent;
            warn(&format!(
                "{mountpoint} ({id}, pid {pid}): {error}; `watertight umount --force {mountpoint}` ends it"
            ));
        }
        for record in &self.ended {
            print_ended(record);
        }
        for Missing { mountpoint, source, why } in &self.missing {
            warn(&format!(
                "{mountpoint}: not mounted, though a file of `watertight serve` has it ({source}): {why}"
            ));
        }
        for mountpoint in &self.dead_mounts {
            warn(&format!(
                "{mountpoint}: no process serves it any more; `watertight umount {mountpoint}` clears it"
            ));
        }
        self.print_unknown();
    }
}

impl Report {
    /// Prints mounts of which nothing more is known.
    fn print_unknown(&self) {
        let note = |line: String| console().print(&console().paint(Colour::Dim, &line));
        if self.unknown > 0 {
            let volumes =
                units::count(self.unknown as u64, "volume of this user is", "volumes of this user are");
            note(format!(
                "{volumes} mounted without a record in its runtime directory (perhaps with another {DIR_VARIABLE})"
            ));
        }
        if self.of_others > 0 {
            let volumes = units::count(
                self.of_others as u64,
                "volume of another user is",
                "volumes of other users are",
            );
            let how = if rustix::process::geteuid().is_root() && !users::includes_all_users() {
                "--all-users asks their processes"
            } else if rustix::process::geteuid().is_root() {
                "their processes could not be asked"
            } else {
                "only their users and root may ask their processes"
            };
            note(format!("{volumes} mounted: {how}"));
        }
    }
}

fn warn(line: &str) {
    console().print(&console().paint(Colour::Red, line));
}

fn print_table(volumes: &[VolumeReport]) {
    const HEAD: [&str; 10] = [
        "VOLUME",
        "MOUNTPOINT",
        "STORE",
        "STATE",
        "TYPE",
        "DIRTY",
        "WRITEBACK",
        "CACHE/BOUND",
        "OPEN",
        "ERRORS",
    ];
    let rows: Vec<[String; 10]> = volumes
        .iter()
        .map(|VolumeReport { status: v, .. }| {
            let access = if v.read_only { ",ro" } else { "" };
            let privileges: String = v.privileges.iter().map(|name| format!(",{name}")).collect();
            [
                v.id.to_string(),
                v.mountpoint.to_string(),
                v.source.to_string(),
                v.state.to_string(),
                format!("{}{access}{privileges}", v.mount_type),
                units::bytes(v.to_write_bytes),
                units::bytes(v.writeback_bytes),
                format!("{}/{}", units::bytes(v.cached_bytes), units::bytes(v.cache_bytes_max)),
                v.open_files.to_string(),
                v.errors.len().to_string(),
            ]
        })
        .collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([HEAD[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let head: String = HEAD.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
    console().print(&console().paint(Colour::Bold, head.trim_end()));
    for (row, VolumeReport { status: volume, .. }) in rows.iter().zip(volumes) {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let cell = format!("{cell:width$}");
            let cell = match column {
                3 => console().paint(colour_of(volume.state), &cell),
                9 if !volume.errors.is_empty() => console().paint(Colour::Red, &cell),
                _ => cell,
            };
            format!("{cell}  ")
        });
        console().print(cells.collect::<String>().trim_end());
    }
}

/// The colour that a state is shown in.
#[must_use]
pub const fn colour_of(state: State) -> Colour {
    match state {
        State::Active => Colour::Green,
        State::Released => Colour::Dim,
        State::Detached | State::Draining => Colour::Yellow,
        State::Stalled | State::Failed => Colour::Red,
    }
}

/// Prints the figures of each cgroup of a volume, where tenants are told apart.
fn print_cgroups(volume: &Status) {
    const HEAD: [&str; 6] = ["CGROUP", "INODES", "DIRTY", "WRITEBACK", "SWITCHING", "SWITCHED"];
    if volume.cgroups.iter().all(|cgroup| cgroup.path == "/") {
        return;
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    let pods = Pods::of_cgroups(volume.cgroups.iter().map(|cgroup| cgroup.path.as_str()));
    rows.extend(volume.cgroups.iter().map(|cgroup| {
        let removed = if cgroup.removed { " (removed)" } else { "" };
        let pod = pods.at(cgroup.path.as_str()).map_or_else(String::new, |pod| format!(" [{pod}]"));
        [
            format!("{}{removed}{pod}", cgroup.path),
            cgroup.owned_inodes.to_string(),
            units::bytes(cgroup.to_write_bytes),
            units::bytes(cgroup.writeback_bytes),
            cgroup.switches_in_flight.to_string(),
            cgroup.switched_inodes.to_string(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    console().print(&format!("{}: cgroups of the tree {}", volume.mountpoint, volume.cgroup_tree));
    for row in &rows {
        let cells: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
        console().print(&format!("  {}", cells.trim_end()));
    }
}

fn print_notes(shown: &VolumeReport) {
    let VolumeReport { status: volume, holders } = shown;
    let at = &volume.mountpoint;
    for clone in &volume.clones {
        console().print(&format!("{at}: also at {} ({})", clone.mountpoint, clone.propagation));
    }
    match (holders, volume.state) {
        (Some(holders), State::Detached) => {
            let left = volume.unwritten();
            console().print(&format!(
                "{at}: no path leads there any more, {left} to be written; its store is free when these processes release it:"
            ));
            holders.lines().iter().for_each(|line| console().print(&format!("  {line}")));
        }
        (Some(holders), _) if holders.found.is_empty() && holders.unseen == 0 => {
            console().print(&format!("{at}: no process holds it"));
        }
        (Some(holders), _) => {
            console().print(&format!("{at}: held by"));
            holders.lines().iter().for_each(|line| console().print(&format!("  {line}")));
        }
        (None, _) => {}
    }
    if let Some(stalled) = &volume.stalled {
        warn(&format!(
            "{at}: stalled: {stalled}; `watertight umount --force {at}` gives up what is not written"
        ));
    }
    if let Some(requests) = &volume.store_requests {
        let note = format!("{at}: requests to {}: {requests}", volume.source);
        console().print(&console().paint(Colour::Dim, &note));
        if let Some(Unanswered { for_ms, why }) = &requests.unanswered {
            let since = units::duration(Duration::from_millis(*for_ms));
            warn(&format!("{at}: no request has been answered for {since}: {why}"));
        }
        if let Some(cache) = &requests.disk_cache {
            console().print(&console().paint(Colour::Dim, &format!("{at}: disk cache: {cache}")));
        }
        if let Some(Following { every_ms, age_ms }) = requests.following {
            let [every, age] = [every_ms, age_ms].map(|ms| units::duration(Duration::from_millis(ms)));
            let note = format!(
                "{at}: follows its holder each {every}; what is asked of it now is {age} old at most"
            );
            console().print(&console().paint(Colour::Dim, &note));
        }
        if let Some(journal) = &requests.journal {
            console().print(&format!("{at}: {journal}"));
            if let Some(why) = &journal.failed {
                warn(&format!(
                    "{at}: the journal takes nothing any more, each fsync waits for the bucket: {why}"
                ));
            }
        }
    }
    if volume.lost_if_killed_bytes > 0 {
        let bytes = units::bytes(volume.lost_if_killed_bytes);
        let note = format!("{at}: {bytes} would be lost if its process died now");
        console().print(&console().paint(Colour::Dim, &note));
    }
    print_recovery(at, &volume.recovery);
    if let Some(reason) = &volume.mount_type_reason {
        let note = format!("{at}: plain `fuse`, for which a raw umount2(2) does not wait: {reason}");
        console().print(&console().paint(Colour::Dim, &note));
    }
    let syncs = match (volume.syncfs, volume.syncfs_callers) {
        (Some(false), _) => Some(mount_agent::NO_SYNCFS),
        (Some(true), Some(false)) => Some(mount_agent::NO_CALLERS),
        _ => None,
    };
    if let Some(note) = syncs {
        console().print(&console().paint(Colour::Dim, &format!("{at}: {note}")));
    }
    for error in volume.errors.iter().take(ERRORS_NAMED_MAX) {
        warn(&format!(
            "{at}: {}: {} could not be written: {}",
            error.file,
            units::bytes(error.bytes),
            error.error
        ));
    }
    if volume.errors.len() > ERRORS_NAMED_MAX {
        warn(&format!("{at}: and {} more files with errors", volume.errors.len() - ERRORS_NAMED_MAX));
    }
}

fn print_recovery(at: &Name, recovery: &RecoveryStatus) {
    let RecoveryStatus { state, deaths, not_held } = recovery;
    match state {
        RecoveryState::Off => {}
        RecoveryState::On => {
            let died = units::count(*deaths, "server has died so far", "servers have died so far");
            let note = format!("{at}: another server follows if its process dies; {died}");
            console().print(&console().paint(Colour::Dim, &note));
            if *not_held > 0 {
                let files = units::count(*not_held, "open file has", "open files have");
                warn(&format!(
                    "{at}: {files} lost the name and would be gone with its process: the keeper holds no more"
                ));
            }
        }
        RecoveryState::NoKeeper => {
            warn(&format!("{at}: its keeper is gone: the mount ends with its process"))
        }
        RecoveryState::Incomplete => warn(&format!(
            "{at}: the kernel knows more files than can be noted: the mount ends with its process"
        )),
    }
}

fn print_ended(record: &Record) {
    let Record { id, pid, mountpoint, source, .. } = record;
    match &record.ended {
        None => warn(&format!("{mountpoint} ({id}): its process ({pid}) died; {}", record.left_by_death())),
        Some(ended) if ended.state == State::Released => {
            console().print(&format!(
                "{mountpoint} ({id}): released; everything is on {source}{}",
                ended.switching()
            ));
        }
        Some(ended) => {
            let why = ended
                .error
                .as_ref()
                .map_or_else(|| "not everything was written".to_owned(), Words::to_string);
            warn(&format!("{mountpoint} ({id}): failed: {why}"));
            ended.unwritten.lines(ERRORS_NAMED_MAX).iter().for_each(|line| warn(&format!("  {line}")));
        }
    }
}
