//! Everything that can hold a mount is found and named.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use crate::rig::{Rig, eventually, has};

#[test]
fn every_way_to_hold_a_mount_is_named() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    fs::copy("/bin/sleep", rig.mnt.join("sleeper")).unwrap();
    let busy = |what: &str| rig.verb("umount", &[]).ends(1, what);

    // An open directory, whose file is long gone by name.
    let open = File::create(rig.mnt.join("gone")).unwrap();
    fs::remove_file(rig.mnt.join("gone")).unwrap();
    busy(&format!("(pid {}), open: {}/gone (deleted)", std::process::id(), rig.mnt.display()));
    drop(open);

    // A program that runs, and is mapped.
    let mut child = Command::new(rig.mnt.join("sleeper")).arg("1000").stdin(Stdio::null()).spawn().unwrap();
    let exe = format!("/proc/{}/exe", child.id());
    eventually("it runs", || fs::read_link(&exe).is_ok_and(|exe| exe == rig.mnt.join("sleeper")));
    busy(&format!("sleeper (pid {}), program: ", child.id()));
    child.kill().unwrap();
    child.wait().unwrap();

    // A loop device over a file.
    if has("losetup") {
        File::create(rig.mnt.join("image")).unwrap().set_len(1 << 20).unwrap();
        let out =
            Command::new("losetup").args(["--find", "--show"]).arg(rig.mnt.join("image")).output().unwrap();
        let device = String::from_utf8(out.stdout).unwrap().trim().to_owned();
        if out.status.success() {
            let out = rig.verb("umount", &[]);
            assert!(Command::new("losetup").args(["-d", &device]).status().unwrap().success());
            out.ends(1, &format!("loop device over {} ({device})", rig.mnt.join("image").display()));
        } else {
            crate::rig::skipped("no loop device to be had");
        }
    }
    eventually("the loop device lets go", || rig.verb("umount", &[]).code == Some(0));
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn status_names_holders_where_it_is_asked_to() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let status = |argument: &str| rig.run(&["status", argument]).ok().stdout;
    assert!(status("--holders").contains("held by nobody"));
    let open = File::create(rig.mnt.join("open")).unwrap();
    let who = format!("(pid {}), open: {}/open", std::process::id(), rig.mnt.display());
    assert!(status("--holders").contains(&who), "{}", status("--holders"));
    assert!(!status("--json").contains("holders"), "looking disturbs others");
    let report: serde_json::Value =
        serde_json::from_str(&rig.run(&["status", "--json", "--holders"]).ok().stdout).unwrap();
    let found = report["volumes"][0]["holders"]["found"].as_array().unwrap();
    assert!(
        found.iter().any(|holder| holder["pid"] == std::process::id() && holder["how"] == "open-file"),
        "{report}"
    );
    drop(open);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}
