//! This machine and this process.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::time::{ClockId, clock_gettime};
use store::{Error, ErrorKind, Result};

use super::info::Process;

/// How long the kernel may take to say when a process has started.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// What the lease asks of the machine that it runs on.
///
/// No call waits for anything but the kernel.
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// The host's name.
    fn name(&self) -> String;

    /// The calling process.
    fn process(&self) -> Process;

    /// Whether `process` has ended for sure. `false` says nothing: it may be another host's.
    fn has_ended(&self, process: &Process) -> bool;

    /// A clock that goes on while the host is suspended.
    fn boottime(&self) -> Duration;

    /// Seconds of the Unix epoch: for people only.
    fn unix_time(&self) -> u64;
}

/// The machine that this process runs on.
#[derive(Debug)]
pub struct ThisHost {
    name: String,
    process: Process,
    /// Whether `/proc/PID` is what this process calls PID: a container may see its host's.
    is_own_proc: bool,
}

impl ThisHost {
    /// Asks the kernel. A process that forks asks again afterwards.
    ///
    /// # Errors
    /// `Io`: `/proc` is not there.
    pub fn new() -> Result<Self> {
        let failed = |what: &str, error: &dyn fmt::Display| {
            Error::with(ErrorKind::Io, "lease", format!("{what}: {error}"))
        };
        let inode = |kind: &str| fs::metadata(format!("/proc/self/ns/{kind}")).map(|meta| meta.ino());
        let boot_id = "/proc/sys/kernel/random/boot_id";
        let boot_id = fs::read_to_string(boot_id).map_err(|error| failed(boot_id, &error))?;
        let pid = std::process::id();
        let is_own_proc = fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == &*pid.to_string());
        let process = Process {
            boot_id: boot_id.trim().to_owned(),
            pid,
            start_time: ProcStat::read("self")
                .ok_or_else(|| failed("/proc/self/stat", &"no start time"))?
                .start_time,
            pid_namespace: inode("pid").map_err(|error| failed("/proc/self/ns/pid", &error))?,
            // Older kernels have none.
            time_namespace: inode("time").ok(),
        };
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Self { name, process, is_own_proc })
    }
}

impl Host for ThisHost {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn process(&self) -> Process {
        self.process.clone()
    }

    /// An inode number of a pid namespace comes again only after all of its processes are gone, so
    /// that a namespace of that number is the process's own, or the process has ended.
    fn has_ended(&self, process: &Process) -> bool {
        let own = &self.process;
        if (&process.boot_id, process.pid_namespace) != (&own.boot_id, own.pid_namespace) {
            return false;
        }
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return false };
        // Unlike /proc, which may hide other users' processes, the signal 0 says what there is.
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return true;
        }
        if !self.is_own_proc {
            return false;
        }
        let Some(stat) = stat_of(process.pid) else { return false };
        // A number that was used again: the process that has it now started at another time.
        let is_another =
            process.time_namespace == own.time_namespace && stat.start_time != process.start_time;
        is_another || stat.has_ended
    }

    fn boottime(&self) -> Duration {
        Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
    }

    fn unix_time(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
    }
}

/// What the kernel says of a process which may be anybody's by now. `None`, too, where it does not say
/// it in time: it holds it back while a process is in execve(2), where another server may hold the
/// process up.
fn stat_of(pid: u32) -> Option<ProcStat> {
    let (send, start) = channel();
    let read = move || {
        // Failure: it was not waited for.
        let _unheard = send.send(ProcStat::read(&pid.to_string()));
    };
    thread::Builder::new().name("wt-lease-holder".to_owned()).spawn(read).ok()?;
    start.recv_timeout(SAID_AFTER).ok()?
}

/// Of `/proc/PID/stat`.
struct ProcStat {
    start_time: u64,
    /// All of its threads have ended, and its parent has not asked for that yet, or never does: the first
    /// process of a container may wait for no other.
    has_ended: bool,
}

impl ProcStat {
    fn read(process: &str) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{process}/stat")).ok()?)
    }

    /// Fields 3, 20 and 22; the name before them may have blanks and brackets.
    ///
    /// One whose end its parent has not asked for has one thread. In execve(2) the first of several threads
    /// ends as well, and is one of none when another has taken its place.
    fn parse(stat: &[u8]) -> Option<Self> {
        let stat = String::from_utf8_lossy(stat);
        let mut fields = stat.rsplit_once(") ")?.1.split_whitespace();
        let is_first_gone = fields.next()? == "Z";
        let threads: u64 = fields.nth(16)?.parse().ok()?;
        let start_time = fields.nth(1)?.parse().ok()?;
        Some(Self { start_time, has_ended: is_first_gone && threads == 1 })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    fn process_of(pid: u32) -> Process {
        let own = ThisHost::new().unwrap().process();
        Process { pid, start_time: ProcStat::read(&pid.to_string()).unwrap().start_time, ..own }
    }

    #[test]
    fn the_end_of_a_process_is_told_on_the_same_boot_only() {
        let host = ThisHost::new().unwrap();
        assert!(!host.has_ended(&host.process()), "this process runs");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = process_of(child.id());
        assert!(!host.has_ended(&process), "the child runs");
        child.kill().unwrap();
        let id = WaitId::Pid(Pid::from_child(&child));
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(host.has_ended(&process), "the child has ended, and its parent has not asked for that");
        child.wait().unwrap();
        assert!(host.has_ended(&process), "the child has ended");
        let other_boot = Process { boot_id: "another".to_owned(), ..process.clone() };
        assert!(!host.has_ended(&other_boot), "a process of another boot");
        let other_namespace = Process { pid_namespace: process.pid_namespace + 1, ..process };
        assert!(!host.has_ended(&other_namespace), "a process of another pid namespace");
    }

    #[test]
    fn one_whose_first_thread_alone_has_ended_goes_on() {
        let of = |state: &str, threads: u64| {
            let stat = format!("7 (a) b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0");
            let stat = ProcStat::parse(stat.as_bytes()).unwrap();
            assert_eq!(stat.start_time, 4711);
            stat.has_ended
        };
        assert!(of("Z", 1));
        assert!(!of("Z", 2), "others go on");
        assert!(!of("Z", 0), "another has taken its place");
        assert!(!of("S", 1) && !of("D", 1) && !of("T", 1));
    }

    #[test]
    fn a_pid_that_was_used_again_is_another_process() {
        let host = ThisHost::new().unwrap();
        let earlier = Process { start_time: host.process().start_time - 1, ..host.process() };
        assert!(host.has_ended(&earlier));
        let elsewhere = Process { time_namespace: Some(1), ..earlier };
        assert!(!host.has_ended(&elsewhere), "start times of two time namespaces were compared");
    }

    #[test]
    fn the_clock_that_counts_suspension_goes_on() {
        let host = ThisHost::new().unwrap();
        let before = host.boottime();
        std::thread::sleep(Duration::from_millis(2));
        assert!(host.boottime() > before);
    }
}
