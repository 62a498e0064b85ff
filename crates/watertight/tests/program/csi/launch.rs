//! Where a driver and its mount processes run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use testing::cgroup::Cgroup;

use super::Driver;
use crate::rig::{PROGRAM, eventually, has, unshare};

#[test]
fn a_driver_in_a_container_goes_on_in_the_host_s_namespaces() {
    if !has("unshare") {
        return;
    }
    let Some(mut driver) = Driver::new() else { return };
    // A host of the test's own, whose process 1 is a shell; in it a container.
    let (_right, mut command) = unshare();
    command.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--", "sh", "-c"]);
    command.arg("unshare --mount --uts --ipc --net -- \"$@\" --in-host; exit 1").args(["sh", PROGRAM]);
    command.args(driver.command().get_args()).env("WATERTIGHT_RUNTIME_DIR", &driver.rig.runtime);
    let daemon = driver.rig.start(command);
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid);
    let host = fs::read_to_string(children).unwrap().trim().to_owned();
    let socket = UnixStream::connect(&driver.socket).unwrap();
    let own = socket_peercred(&socket).unwrap().pid.as_raw_pid().to_string();
    for namespace in ["mnt", "net", "uts", "ipc"] {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).unwrap();
        assert_eq!(of(&own), of(&host), "{namespace}");
    }
    let copy = driver.rig.root.join("state/watertight");
    assert_eq!(fs::read_link(format!("/proc/{own}/exe")).unwrap(), copy);
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o700);
    let client = driver.client();
    let id = driver.create("a");
    client.node_stage_volume(driver.stage(&id, "a")).unwrap();
    let mounts = fs::read_to_string(format!("/proc/{host}/mountinfo")).unwrap();
    let staging = driver.root.join("plugins/a/globalmount");
    assert!(mounts.contains(staging.to_str().unwrap()), "{mounts}");
    client.node_unstage_volume(driver.unstage(&id, "a")).unwrap();
}

#[test]
fn mount_processes_are_run_by_systemd_and_get_their_keys_by_their_environment() {
    let Some(mut driver) = Driver::new() else { return };
    let (bin, said) = (driver.rig.root.join("bin"), driver.rig.root.join("said"));
    fs::create_dir(&bin).unwrap();
    // Stands in for systemd-run, which needs systemd: its arguments are noted, and the command run.
    let stand_in = format!(
        "#!/bin/sh\necho \"$*\" >> {}\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n",
        said.display()
    );
    let path = bin.join("systemd-run");
    fs::write(&path, stand_in).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    driver.more = vec!["--mounts".to_owned(), "systemd".to_owned()];
    let mut command = driver.command();
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let _daemon = driver.rig.start(command);
    let client = driver.client();
    let id = driver.create("a");
    let secrets = [("AWS_ACCESS_KEY_ID", "key-in-a-test"), ("AWS_SECRET_ACCESS_KEY", "hidden-in-a-test")];
    let secrets = secrets.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let stage = csi_proto::v1::NodeStageVolumeRequest { secrets, ..driver.stage(&id, "a") };
    client.node_stage_volume(stage).unwrap();
    let line = fs::read_to_string(&said).unwrap();
    for part in ["--scope", "--slice=watertight.slice", "/watertight mount -d", &id] {
        assert!(line.contains(part), "no {part:?} in {line:?}");
    }
    assert!(line.lines().count() == 1 && !line.contains("hidden"), "{line}");
    let pid = driver.serving("a").as_raw_pid();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(String::from_utf8_lossy(&environment).contains("AWS_SECRET_ACCESS_KEY=hidden-in-a-test"));
    eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, "a")).is_ok());
}

/// Removes the cgroup of the host's mount processes, unless others are in it.
struct OfMounts;

impl Drop for OfMounts {
    fn drop(&mut self) {
        for mount in watertight::host::mountinfo::MountTable::read().iter() {
            if mount.fstype.starts_with("cgroup") {
                let _others_are_in_it = fs::remove_dir(mount.mountpoint.join("watertight"));
            }
        }
    }
}

#[test]
fn without_systemd_mounts_outlive_a_container_that_is_ended_as_runtimes_end_it() {
    let Some(mut driver) = Driver::new() else { return };
    let Some(host) = Cgroup::make() else { return };
    let _cgroup = OfMounts;
    let pods = host.child("kubepods");
    let pod = pods.child("pod0c1b2a3d-4e5f-6789-abcd-ef0123456789");
    let container = pod.child("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08");
    if Path::new("/run/systemd/system").is_dir() {
        driver.more = vec!["--mounts".to_owned(), "cgroup".to_owned()];
    }
    let mut command = container.command(PROGRAM);
    command.args(driver.command().get_args()).env("WATERTIGHT_RUNTIME_DIR", &driver.rig.runtime);
    let daemon = driver.rig.start(command);
    let client = driver.client();
    let id = driver.create("a");
    client.node_stage_volume(driver.stage(&id, "a")).unwrap();
    let serving = driver.serving("a").as_raw_pid();
    let cgroups = fs::read_to_string(format!("/proc/{serving}/cgroup")).unwrap();
    assert!(cgroups.contains(":/watertight\n") && !cgroups.contains("kubepods"), "{cgroups}");
    // With the host's process ids, a container's end is that of all that is in its cgroup.
    for pid in fs::read_to_string(container.directory().join("cgroup.procs")).unwrap().lines() {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        let _is_gone = kill_process(pid, Signal::KILL);
    }
    daemon.end();
    fs::write(Path::new(&driver.staging("a")).join("file"), "whole").unwrap();
    let _daemon = driver.start();
    let client = driver.client();
    client.node_unstage_volume(driver.unstage(&id, "a")).unwrap();
    assert!(driver.holder(&id).is_null());
}
