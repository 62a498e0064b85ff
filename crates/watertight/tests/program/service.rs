//! Under a service manager: the notifications that it gets, and the unit for systemd.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::rig::{LONG, PROGRAM, Rig, has, run};

const UNIT: &str = include_str!("../../../../packaging/systemd/watertight@.service");

/// Where all units are.
const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");

/// A service manager's ear.
pub(crate) struct Manager(UnixDatagram);

impl Manager {
    pub(crate) fn new(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        Self(socket)
    }

    pub(crate) fn hears(&self) -> String {
        self.receive().unwrap()
    }

    /// What it hears in this time, if anything.
    pub(crate) fn hears_within(&self, limit: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(limit)).unwrap();
        let heard = self.receive();
        self.0.set_read_timeout(Some(LONG)).unwrap();
        heard.ok()
    }

    /// Passes over what it was told so far.
    pub(crate) fn hears_nothing_old(&self) {
        while self.hears_within(Duration::from_millis(1)).is_some() {}
    }

    fn receive(&self) -> std::io::Result<String> {
        let mut bytes = [0; 4096];
        let n = self.0.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..n]).into_owned())
    }
}

/// A key's value in the unit.
fn value(key: &str) -> &'static str {
    let mut lines = UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = lines.next().unwrap_or_else(|| panic!("no {key} in the unit"));
    assert!(lines.next().is_none(), "{key} is there twice");
    value
}

/// The command that starts the service, with its variables as systemd would fill them in.
fn start(rig: &Rig, options: &str) -> Command {
    let words = value("ExecStart").split(' ').flat_map(|word| match word {
        "/usr/bin/watertight" => vec![PROGRAM],
        "$OPTIONS" => options.split_whitespace().collect(),
        "${SOURCE}" => vec![rig.store.to_str().unwrap()],
        "${MOUNTPOINT}" => vec![rig.mnt.to_str().unwrap()],
        word => vec![word],
    });
    let words: Vec<_> = words.collect();
    assert_eq!(words[0], PROGRAM);
    rig.command(&words[1..])
}

#[test]
fn the_service_manager_hears_when_the_mount_is_there_and_when_it_goes() {
    let Some(mut rig) = Rig::mounting() else { return };
    let path = rig.root.join("notify");
    let manager = Manager::new(&path);
    let mut command = start(&rig, "-o cache=8M");
    // A watchdog that is another process's.
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "30000000").env("WATCHDOG_PID", "1");
    let daemon = rig.start(command);
    let ready = manager.hears();
    assert!(ready.starts_with("READY=1\n") && ready.contains(rig.mnt.to_str().unwrap()), "{ready}");
    assert!(rig.is_mounted());
    assert_eq!(rig.volume()["cache_bytes_max"], 8 << 20);
    fs::write(rig.mnt.join("a"), "a").unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(manager.hears(), "STOPPING=1");
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(rig.stored("a").unwrap(), b"a");
}

#[test]
fn more_time_is_asked_for_as_long_as_the_store_takes_data() {
    let Some(mut rig) = Rig::mounting() else { return };
    let path = rig.root.join("notify");
    let manager = Manager::new(&path);
    let source = format!("fault:write:delay=1s,dir:{}", rig.store.display());
    let mut command = rig.command(&["mount", "-o", "dirty_after=1h", &source]);
    command.arg(&rig.mnt).env("NOTIFY_SOCKET", &path);
    let daemon = rig.start(command);
    assert!(manager.hears().starts_with("READY=1\n"));
    // More than is written between one check and the next.
    for name in 0..64 {
        fs::write(rig.mnt.join(name.to_string()), "x").unwrap();
    }
    daemon.signal(Signal::TERM);
    // It announces that it ends by a signal, and then that it does.
    assert_eq!(manager.hears(), "STOPPING=1");
    let last = std::iter::repeat_with(|| manager.hears()).find(|told| told != "STOPPING=1");
    assert_eq!(last.as_deref(), Some("EXTEND_TIMEOUT_USEC=6000000"));
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(rig.stored("63").unwrap(), b"x");
}

#[test]
fn a_watchdog_is_answered() {
    let Some(mut rig) = Rig::mounting() else { return };
    let path = rig.root.join("notify");
    let manager = Manager::new(&path);
    // Its own process id is known to a process only when it runs, so the shell sets it.
    let line = format!("export WATCHDOG_PID=$$; exec {PROGRAM} mount mem: {}", rig.mnt.display());
    let mut command = Command::new("sh");
    command.args(["-c", &line]).env("WATERTIGHT_RUNTIME_DIR", &rig.runtime);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "30000000");
    let daemon = rig.start(command);
    assert!(manager.hears().starts_with("READY=1\n"));
    for _ in 0..3 {
        assert_eq!(manager.hears(), "WATCHDOG=1");
    }
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_killed_service_leaves_no_dead_mount() {
    let Some(mut rig) = Rig::mounting() else { return };
    let command = start(&rig, "");
    let daemon = rig.start(command);
    let script = value("ExecStopPost").strip_prefix("-/bin/sh -c '").unwrap().strip_suffix('\'').unwrap();
    let after = |result: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &script.replace("/usr/bin/watertight", PROGRAM)]);
        command.env("SERVICE_RESULT", result).env("MOUNTPOINT", &rig.mnt);
        command.env("WATERTIGHT_RUNTIME_DIR", &rig.runtime);
        run(command)
    };
    after("success").ok();
    assert!(rig.is_mounted(), "after a good end it does nothing");
    daemon.kill();
    assert!(rig.is_mounted(), "the mount is dead and there");
    after("signal").ends(1, "died");
    assert!(!rig.is_mounted());
}

#[test]
fn systemd_takes_the_units() {
    if !has("systemd-analyze") {
        return;
    }
    let rig = Rig::new();
    let verify = |name: &str, unit: &str| {
        let path = rig.root.join(name);
        fs::write(&path, unit).unwrap();
        let mut command = Command::new("systemd-analyze");
        // The pages are installed with the package; here they are not.
        command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(path);
        run(command)
    };
    let units = fs::read_dir(UNITS).unwrap().map(|entry| entry.unwrap().path());
    let is_unit = |path: &PathBuf| path.extension().is_some_and(|end| end == "service" || end == "timer");
    let mut units: Vec<_> = units.filter(is_unit).collect();
    // A service that a timer starts comes before the timer.
    units.sort();
    assert_eq!(units.len(), 5, "{units:?}");
    for path in units {
        let name = path.file_name().unwrap().to_str().unwrap();
        let here = fs::read_to_string(&path).unwrap().replace("/usr/bin/watertight", PROGRAM);
        let good = verify(name, &here).ok();
        assert_eq!((good.stdout.as_str(), good.stderr.as_str()), ("", ""), "{name}");
        // It does find a mistake: in a line, and in the program's path.
        for (right, wrong, said) in [
            ("KillMode=mixed", "KillMode=some", "kill mode"),
            ("Type=oneshot", "Type=often", "often"),
            ("AccuracySec=1", "AccuracySec=soon", "soon"),
            (PROGRAM, "/no/such/program", "/no/such/program"),
        ] {
            if here.contains(right) {
                assert!(verify(name, &here.replace(right, wrong)).stderr.contains(said), "{name}: {wrong}");
            }
        }
        fs::write(rig.root.join(name), here).unwrap();
    }
}
