//! `docker-plugin`: the volume plugin protocol, as an engine speaks it; `engines` has real ones.

mod abandoned;
mod engines;
#[cfg(feature = "objects")]
mod objects;
mod podman;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::rig::{Daemon, Rig, eventually, is_mounted, no_copies};
use crate::upgrade::next_program;

/// The plugin, and what an engine would do.
struct Plugin {
    rig: Rig,
    socket: PathBuf,
    state: PathBuf,
}

impl Plugin {
    fn new() -> Option<Self> {
        let rig = Rig::mounting()?;
        let (socket, state) = (rig.root.join("plugins/wt.sock"), rig.root.join("state"));
        Some(Self { rig, socket, state })
    }

    fn command(&self) -> Command {
        let mut command = self.rig.command(&["docker-plugin", "--socket"]);
        command.arg(&self.socket).arg("--state").arg(&self.state);
        command
    }

    fn start(&mut self) -> Daemon {
        let command = self.command();
        self.rig.start(command)
    }

    /// Sends a call; its answer comes by the connection.
    fn send(&self, call: &str, body: &Value) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        let body = body.to_string();
        let length = body.len();
        let head = format!("POST /{call} HTTP/1.1\r\nHost: plugin\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + &body).as_bytes()).unwrap();
        stream
    }

    /// A call's answer; the error if it has one.
    fn call(&self, call: &str, body: &Value) -> Result<Value, String> {
        answer(self.send(call, body))
    }

    #[track_caller]
    fn ok(&self, call: &str, body: &Value) -> Value {
        self.call(call, body).unwrap_or_else(|error| panic!("{call}: {error}"))
    }

    #[track_caller]
    fn create(&self, name: &str, source: &Path) {
        fs::create_dir_all(source).unwrap();
        self.ok("VolumeDriver.Create", &json!({"Name": name, "Opts": {"source": source}}));
    }

    #[track_caller]
    fn mount(&self, name: &str, id: &str) -> PathBuf {
        let reply = self.ok("VolumeDriver.Mount", &json!({"Name": name, "ID": id}));
        PathBuf::from(reply["Mountpoint"].as_str().unwrap())
    }

    fn unmount(&self, name: &str, id: &str) -> Result<Value, String> {
        self.call("VolumeDriver.Unmount", &json!({"Name": name, "ID": id}))
    }

    #[track_caller]
    fn status(&self, name: &str) -> Value {
        self.ok("VolumeDriver.Get", &json!({"Name": name}))["Volume"]["Status"].clone()
    }

    /// The mount process of a volume.
    fn mount_process(&self, path: &Path) -> Pid {
        let status = self.rig.status();
        let volumes = status["volumes"].as_array().unwrap();
        let at = |volume: &&Value| volume["mountpoint"].as_str() == path.to_str();
        let pid = volumes.iter().find(at).unwrap_or_else(|| panic!("{status}"))["pid"].as_i64().unwrap();
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // Mount processes outlive the plugin; the rig has their mounts taken away.
        for mount in watertight::host::mountinfo::MountTable::read().iter() {
            if mount.mountpoint.starts_with(&self.state) {
                let _ = self.rig.run(&["umount".as_ref(), "--force".as_ref(), mount.mountpoint.as_os_str()]);
            }
        }
    }
}

fn answer(mut stream: UnixStream) -> Result<Value, String> {
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {text:?}"))?;
    let body: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {text}"))?;
    let (is_ok, error) = (head.starts_with("HTTP/1.1 200 "), body["Err"].as_str().unwrap().to_owned());
    assert_eq!(is_ok, error.is_empty(), "{text}");
    if is_ok { Ok(body) } else { Err(error) }
}

fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
}

#[test]
fn a_volume_is_made_mounted_written_unmounted_and_removed() {
    let Some(mut plugin) = Plugin::new() else { return };
    let daemon = plugin.start();
    let mode = fs::metadata(&plugin.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(plugin.ok("Plugin.Activate", &json!({}))["Implements"], json!(["VolumeDriver"]));
    let capabilities = plugin.ok("VolumeDriver.Capabilities", &json!({}));
    assert_eq!(capabilities["Capabilities"]["Scope"], "local");

    let store = plugin.rig.store.clone();
    plugin.create("data", &store);
    // Once more, as an engine does that did not get its answer; not with other options.
    plugin.create("data", &store);
    let other = json!({"Name": "data", "Opts": {"source": plugin.rig.mnt}});
    let wrong = plugin.call("VolumeDriver.Create", &other).unwrap_err();
    assert!(wrong.contains("there is a volume data already, with other options"), "{wrong}");
    assert_eq!(plugin.ok("VolumeDriver.Path", &json!({"Name": "data"}))["Mountpoint"], "");

    let path = plugin.mount("data", "c1");
    assert!(is_mounted(&path));
    assert_eq!(plugin.mount("data", "c2"), path);
    fs::write(path.join("a"), vec![7; 3 << 20]).unwrap();
    let list = plugin.ok("VolumeDriver.List", &json!({}));
    assert_eq!(list["Volumes"][0]["Name"], "data");
    assert_eq!(list["Volumes"][0]["Mountpoint"], path.to_str().unwrap());
    let status = plugin.status("data");
    assert_eq!((&status["uses"], &status["state"]), (&json!(2), &json!("active")), "{status}");

    plugin.unmount("data", "c1").unwrap();
    assert!(is_mounted(&path));
    plugin.unmount("data", "c2").unwrap();
    // On return: the data is on the store, and nothing has it any more.
    assert_eq!(plugin.rig.stored("a").unwrap(), vec![7; 3 << 20]);
    assert!(!is_mounted(&path) && !path.exists());
    plugin.rig.is_quiet();
    // Asked once more, as by an engine that did not get its answer.
    plugin.unmount("data", "c2").unwrap();
    plugin.ok("VolumeDriver.Remove", &json!({"Name": "data"}));
    assert_eq!(plugin.ok("VolumeDriver.List", &json!({}))["Volumes"], json!([]));
    assert!(plugin.rig.stored("a").is_some(), "the data stays");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    assert!(!plugin.socket.exists());
}

/// The mount process of a volume is taken over by another program: the plugin and the containers
/// that use the volume go on.
#[test]
fn a_mount_that_is_upgraded_is_the_plugins_still() {
    let Some(mut plugin) = Plugin::new() else { return };
    let daemon = plugin.start();
    let store = plugin.rig.store.clone();
    let options = json!({"Name": "data", "Opts": {"source": store, "o": "uring=off,dirty_after=1h"}});
    plugin.ok("VolumeDriver.Create", &options);
    let path = plugin.mount("data", "c1");
    let mut file = fs::File::create(path.join("a")).unwrap();
    file.write_all(b"before ").unwrap();
    let process = plugin.mount_process(&path);
    let program = next_program(&plugin.rig);
    let upgrade = [OsStr::new("upgrade"), "--program".as_ref(), program.as_ref(), path.as_ref()];
    plugin.rig.run(&upgrade).ok().says("requests waited");
    file.write_all(b"after").unwrap();
    drop(file);
    assert_eq!(plugin.mount_process(&path), process);
    assert_eq!(plugin.mount("data", "c2"), path);
    let status = plugin.status("data");
    assert_eq!((&status["uses"], &status["state"]), (&json!(2), &json!("active")), "{status}");
    plugin.unmount("data", "c1").unwrap();
    assert!(is_mounted(&path));
    plugin.unmount("data", "c2").unwrap();
    assert_eq!(plugin.rig.stored("a").unwrap(), b"before after");
    assert!(!is_mounted(&path) && !path.exists());
    plugin.rig.is_quiet();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn what_an_engine_asks_wrongly_is_refused_with_the_reason() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    let create = |name: &str, opts: Value| {
        plugin.call("VolumeDriver.Create", &json!({"Name": name, "Opts": opts})).unwrap_err()
    };
    let source = plugin.rig.store.to_str().unwrap();
    for name in ["", "..", "../a", "a/b", ".a", "a\n", &"a".repeat(300)] {
        let wrong = create(name, json!({"source": source}));
        assert!(wrong.contains("a volume's name"), "{wrong}");
    }
    for (opts, word) in [
        (json!(null), "option source is missing"),
        (json!({"source": "store"}), "absolute path"),
        (json!({"source": "/no/such/dir"}), "does not exist"),
        (json!({"source": source, "o": "frob"}), "no mount option frob"),
        (json!({"source": source, "sise": "1G"}), "no option \"sise\""),
    ] {
        let wrong = create("a", opts);
        assert!(wrong.contains(word), "{wrong}");
    }
    for call in ["Mount", "Unmount", "Remove", "Get", "Path"] {
        let wrong = plugin.call(&format!("VolumeDriver.{call}"), &json!({"Name": "a", "ID": "c"}));
        assert_eq!(wrong.unwrap_err(), "there is no volume a");
    }
    plugin.create("a", &plugin.rig.store);
    for id in ["", "a b", "\u{1b}", &"x".repeat(300)] {
        let wrong = plugin.call("VolumeDriver.Mount", &json!({"Name": "a", "ID": id})).unwrap_err();
        assert!(wrong.contains("an id of a mount has"), "{wrong}");
    }
    assert!(plugin.call("VolumeDriver.Frob", &json!({})).unwrap_err().contains("there is no call"));
    assert!(plugin.call("VolumeDriver.Get", &json!([1])).unwrap_err().contains("not as it should be"));
    let large = json!({"Name": "a".repeat(100 << 10)});
    // It may be refused before it was sent.
    assert!(plugin.call("VolumeDriver.Get", &large).is_err());
    let second = crate::rig::run(plugin.command());
    second.ends(1, "another process of watertight uses it");
}

#[test]
fn uses_outlive_a_killed_plugin_and_mounts_do_not_notice() {
    let Some(mut plugin) = Plugin::new() else { return };
    let daemon = plugin.start();
    let store = plugin.rig.store.clone();
    plugin.create("data", &store);
    let path = plugin.mount("data", "c1");
    plugin.mount("data", "c2");
    let process = plugin.mount_process(&path);
    let mut file = fs::File::create(path.join("a")).unwrap();
    file.write_all(b"before").unwrap();
    daemon.kill();
    file.write_all(b" without ").unwrap();
    assert_eq!(plugin.mount_process(&path), process);
    let daemon = plugin.start();
    assert_eq!(plugin.status("data")["uses"], 2);
    file.write_all(b"after").unwrap();
    drop(file);
    plugin.unmount("data", "c1").unwrap();
    assert_eq!(plugin.mount_process(&path), process);
    plugin.unmount("data", "c2").unwrap();
    assert_eq!(plugin.rig.stored("a").unwrap(), b"before without after");

    // A use that another boot counted is none, and a damaged record is one volume's.
    plugin.mount("data", "c1");
    plugin.unmount("data", "c1").unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    let record = plugin.state.join("volumes/data.json");
    let text = fs::read_to_string(&record).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let other = text.replace(boot.trim(), "another").replace("\"uses\":{}", "\"uses\":{\"c1\":1}");
    assert_ne!(other, text);
    fs::write(&record, other).unwrap();
    fs::write(plugin.state.join("volumes/cut.json"), &text[..20]).unwrap();
    let _daemon = plugin.start();
    assert_eq!(plugin.status("data")["uses"], 0);
    let wrong = plugin.call("VolumeDriver.Get", &json!({"Name": "cut"})).unwrap_err();
    assert!(wrong.contains("record of volume cut") && wrong.contains("damaged"), "{wrong}");
}

#[test]
fn a_mount_without_a_use_is_taken_away_by_the_next_plugin() {
    let Some(mut plugin) = Plugin::new() else { return };
    let daemon = plugin.start();
    let store = plugin.rig.store.clone();
    plugin.create("data", &store);
    let path = plugin.mount("data", "c1");
    fs::write(path.join("a"), "a").unwrap();
    daemon.kill();
    // As if it had been killed in the midst of the unmount.
    let record = plugin.state.join("volumes/data.json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"uses\":{\"c1\":1}", "\"uses\":{}")).unwrap();
    let _daemon = plugin.start();
    eventually("it is unmounted", || !is_mounted(&path));
    eventually("nothing has it", || plugin.rig.status()["volumes"].as_array().unwrap().is_empty());
    assert_eq!(plugin.rig.stored("a").unwrap(), b"a");
}

#[test]
fn a_volume_that_hangs_keeps_no_other_and_its_late_call_goes_on() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    plugin.create("slow", &plugin.rig.root.join("slow"));
    plugin.create("other", &plugin.rig.root.join("other"));
    let slow = plugin.mount("slow", "c1");
    fs::write(slow.join("a"), "a").unwrap();
    let process = plugin.mount_process(&slow);
    signal(process, Signal::STOP);
    let unmounting = plugin.send("VolumeDriver.Unmount", &json!({"Name": "slow", "ID": "c1"}));
    eventually("it is being unmounted", || plugin.status("slow")["doing"] == "unmounting it");
    // Another container wants it, and gives up: it never gets its turn.
    drop(plugin.send("VolumeDriver.Mount", &json!({"Name": "slow", "ID": "c2"})));
    // The engine gives up as well.
    drop(unmounting);
    for n in 0..3 {
        let path = plugin.mount("other", "c3");
        fs::write(path.join("b"), format!("{n}")).unwrap();
        plugin.unmount("other", "c3").unwrap();
    }
    assert_eq!(fs::read_to_string(plugin.rig.root.join("other/b")).unwrap(), "2");
    assert_eq!(plugin.status("slow")["doing"], "unmounting it");
    signal(process, Signal::CONT);
    plugin.unmount("slow", "c1").unwrap();
    assert_eq!(fs::read_to_string(plugin.rig.root.join("slow/a")).unwrap(), "a");
    assert_eq!(plugin.status("slow")["uses"], 0);
    plugin.rig.is_quiet();
}

#[test]
fn one_id_mounts_several_times_while_the_kernel_shows_its_use() {
    let Some(mut plugin) = Plugin::new() else { return };
    // A copy of the mount in another namespace is a use.
    let _no_copies = no_copies();
    let _daemon = plugin.start();
    let store = plugin.rig.store.clone();
    plugin.create("data", &store);
    let path = plugin.mount("data", "c1");
    // A container that runs, and `docker cp` into it.
    let held = fs::File::open(&path).unwrap();
    plugin.mount("data", "c1");
    assert_eq!(plugin.status("data")["uses"], 2);
    let wrong = plugin.call("VolumeDriver.Remove", &json!({"Name": "data"})).unwrap_err();
    assert!(wrong.contains("is in use"), "{wrong}");
    plugin.unmount("data", "c1").unwrap();
    assert!(is_mounted(&path));
    drop(held);
    // The engine has crashed, and starts the container again by the same id.
    plugin.mount("data", "c1");
    assert_eq!(plugin.status("data")["uses"], 1);
    plugin.unmount("data", "c1").unwrap();
    assert!(!is_mounted(&path));
    // And one that it will never unmount is removed.
    plugin.mount("data", "c1");
    plugin.ok("VolumeDriver.Remove", &json!({"Name": "data"}));
    assert!(!is_mounted(&path));
    plugin.rig.is_quiet();
}

#[test]
fn a_volume_that_a_process_of_the_host_holds_is_written_and_unmounted_later() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    let store = plugin.rig.store.clone();
    plugin.create("data", &store);
    let path = plugin.mount("data", "c1");
    fs::write(path.join("a"), "a").unwrap();
    let held = fs::File::open(&path).unwrap();
    let said = plugin.unmount("data", "c1").unwrap_err();
    assert!(said.contains("is busy") && said.contains("is on its store"), "{said}");
    assert_eq!(plugin.rig.stored("a").unwrap(), b"a");
    assert!(plugin.status("data")["error"].as_str().unwrap().contains("is busy"));
    drop(held);
    eventually("it is unmounted without a call", || !is_mounted(&path));
    eventually("nothing has it", || plugin.rig.status()["volumes"].as_array().unwrap().is_empty());
}

#[test]
fn a_mount_process_that_was_killed_is_followed_by_another() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    let store = plugin.rig.store.clone();
    plugin.create("data", &store);
    let path = plugin.mount("data", "c1");
    signal(plugin.mount_process(&path), Signal::KILL);
    eventually("it is gone", || plugin.rig.status()["volumes"].as_array().unwrap().is_empty());
    assert_eq!(plugin.mount("data", "c2"), path);
    fs::write(path.join("a"), "a").unwrap();
    plugin.unmount("data", "c2").unwrap();
    assert!(is_mounted(&path), "the other use is counted still");
    signal(plugin.mount_process(&path), Signal::KILL);
    eventually("it is gone", || plugin.rig.status()["volumes"].as_array().unwrap().is_empty());
    // The truth: it was not unmounted by the plugin.
    let said = plugin.unmount("data", "c1").unwrap_err();
    assert!(said.contains("died before everything was written"), "{said}");
    assert!(!is_mounted(&path));
    plugin.unmount("data", "c1").unwrap();
}
