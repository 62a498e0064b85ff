//! Every holder of a mount is found and named.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::rig::{LONG, Rig, copy_program, eventually, has, unshare, wait};

#[test]
fn every_way_to_hold_a_mount_is_named() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    copy_program("/bin/sleep", &rig.mnt.join("sleeper"));
    let busy = |what: &str| rig.verb("umount", &[]).ends(1, what);

    // An open file whose name was removed.
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

/// The processes that opened a file are checked first; where one is gone, or has handed its file
/// on, all are.
#[test]
fn a_lazy_unmount_names_who_got_a_file_from_one_that_has_ended() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let script = "exec 3>\"$1\"; sleep 1000 >/dev/null 2>&1 & echo $!";
    let out = Command::new("sh").args(["-c", script, "sh"]).arg(rig.mnt.join("x")).output().unwrap();
    let heir = String::from_utf8(out.stdout).unwrap().trim().to_owned();
    assert!(out.status.success() && !heir.is_empty());
    let said = rig.verb("umount", &["--lazy"]).ok().says("still held by").stdout;
    let killed = Command::new("kill").arg(&heir).status().unwrap();
    assert!(said.contains(&format!("(pid {heir}), open: {}", rig.mnt.join("x").display())), "{said}");
    assert!(killed.success());
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_mount_namespace_that_has_the_volume_still_is_named() {
    let Some(mut rig) = Rig::mounting().filter(|_| has("unshare")) else { return };
    let daemon = rig.mount("");
    fs::write(rig.mnt.join("f"), "x").unwrap();
    let (alone, mut unshare) = unshare();
    unshare.args(["--mount", "--propagation", "private", "sleep", "1000"]).stdin(Stdio::null());
    let mut there = unshare.spawn().unwrap();
    let name = fs::read_link("/proc/self/ns/mnt").unwrap();
    let comm = format!("/proc/{}/comm", there.id());
    eventually("it sleeps there", || fs::read_to_string(&comm).is_ok_and(|comm| comm == "sleep\n"));
    assert_ne!(fs::read_link(format!("/proc/{}/ns/mnt", there.id())).unwrap(), name);
    let mut umount = rig.command(&["umount"]);
    let mut umount = umount.arg(&rig.mnt).stderr(Stdio::piped()).spawn().unwrap();
    // Read from to the end: it may have more to say.
    let mut said = BufReader::new(umount.stderr.take().unwrap()).lines().map_while(Result::ok);
    let who = format!("sleep (pid {}), mounted in its own namespace: {}", there.id(), rig.mnt.display());
    assert!(said.any(|line| line.trim() == who), "{who}");
    assert!(!rig.is_mounted());
    assert!(umount.try_wait().unwrap().is_none(), "the volume is there still");
    there.kill().unwrap();
    there.wait().unwrap();
    drop(alone);
    assert!(wait(&mut umount, LONG).unwrap().success(), "{:?}", said.collect::<Vec<_>>());
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(rig.stored("f").as_deref(), Some(&b"x"[..]));
}

#[test]
fn status_names_holders_where_it_is_asked_to() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let status = |argument: &str| rig.run(&["status", argument]).ok().stdout;
    assert!(status("--holders").contains("no process holds it"));
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
