//! The kernel's own view of its switches and drains: a tracepoint, and a probe at the function that
//! an unmount waits in.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use rustix::mount::{MountFlags, mount};

const TRACEFS: &str = "/sys/kernel/tracing";
const SWITCH: &str = "inode_switch_wbs";
const DRAIN: &str = "cgroup_writeback_umount";
const ENTRY: &str = "lab_drain_entry";
const RETURN: &str = "lab_drain_return";

/// The kernel's trace, for as long as this lives.
pub(super) struct Tracer {
    /// Why there is no probe at the drain, if there is none.
    pub(super) no_drain: Option<String>,
}

/// The events since the last check.
pub(super) struct Seen {
    /// Inodes that changed owners.
    pub(super) switches: usize,
    /// The time of each drain.
    pub(super) drains: Vec<Duration>,
}

impl Tracer {
    /// Turns it on.
    pub(super) fn start() -> anyhow::Result<Self> {
        if !file("trace").exists() {
            mount("lab", TRACEFS, "tracefs", MountFlags::empty(), None::<&std::ffi::CStr>)
                .context("tracefs")?;
        }
        let probes = format!("p:{ENTRY} {DRAIN}\nr:{RETURN} {DRAIN}\n");
        let no_drain = fs::write(file("kprobe_events"), probes).err().map(|error| error.to_string());
        fs::write(file(&format!("events/writeback/{SWITCH}/enable")), "1")
            .context("the tracepoint of switches")?;
        if no_drain.is_none() {
            fs::write(file("events/kprobes/enable"), "1").context("the probe at the drain")?;
        }
        fs::write(file("tracing_on"), "1").context("the trace")?;
        let this = Self { no_drain };
        this.take()?;
        Ok(this)
    }

    /// The events since the last check.
    pub(super) fn take(&self) -> anyhow::Result<Seen> {
        let text = fs::read_to_string(file("trace")).context("the trace")?;
        fs::write(file("trace"), "").context("the trace")?;
        Ok(seen(&text))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let off = [
            (format!("events/writeback/{SWITCH}/enable"), "0"),
            ("events/kprobes/enable".to_owned(), "0"),
            ("kprobe_events".to_owned(), ""),
        ];
        for (name, value) in off {
            let _not_there = fs::write(file(&name), value);
        }
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(TRACEFS).join(name)
}

/// Reads a trace. Its lines are `TASK-PID [CPU] FLAGS SECONDS: EVENT: …`.
fn seen(text: &str) -> Seen {
    let (mut switches, mut drains, mut begun) = (0, Vec::new(), HashMap::new());
    for line in text.lines() {
        let Some((task, rest)) = line.split_once(" [") else { continue };
        let mut words = rest.split_whitespace().skip_while(|word| !word.ends_with(':'));
        let (Some(time), Some(event)) = (words.next(), words.next()) else { continue };
        let Ok(time) = time.trim_end_matches(':').parse::<f64>() else { continue };
        match event.trim_end_matches(':') {
            SWITCH => switches += 1,
            ENTRY => drop(begun.insert(task.trim(), time)),
            RETURN => {
                drains.extend(begun.remove(task.trim()).map(|begun| Duration::from_secs_f64(time - begun)))
            }
            _ => {}
        }
    }
    Seen { switches, drains }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read() {
        let text = "# tracer: nop\n#\n\
            lab kernels-7   [001] .....  12.000010: lab_drain_entry: (cgroup_writeback_umount+0x0/0x70)\n\
            kworker/0:1-11  [000] .....  12.000011: inode_switch_wbs: bdi 250:0: ino=12 old_cgroup_ino=1 new_cgroup_ino=2\n\
            umount-8        [001] d..1.  12.000012: lab_drain_entry: (cgroup_writeback_umount+0x0/0x70)\n\
            lab kernels-7   [001] .....  12.000060: lab_drain_return: (generic_shutdown_super+0x6e/0x110 <- cgroup_writeback_umount)\n";
        let seen = seen(text);
        assert_eq!((seen.switches, seen.drains.len()), (1, 1));
        assert_eq!(seen.drains[0].as_micros(), 50);
    }
}
