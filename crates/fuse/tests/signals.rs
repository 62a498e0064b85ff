//! Requests that hang, callers that are killed, handlers that panic.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use common::hook::{Gate, OpenAtEnd};
use common::{Mounted, Setup, eventually};
use rustix::process::{Pid, Signal, kill_process};
use watertight_fuse::abi::Opcode;
use watertight_fuse::{SessionOptions, Uring};

/// A mount with the file `slow` in it, whose store hangs in one operation while the gate is shut.
fn hanging_in(hanging: &'static str) -> Option<(Mounted, Arc<Gate>)> {
    let (setup, gate) = Setup::hanging_in(hanging);
    let mounted = setup.mount()?;
    fs::write(mounted.store_path().join("slow"), "content").unwrap();
    Some((mounted, gate))
}

fn client(program: &str, args: &[&str], mounted: &Mounted) -> Child {
    let mut command = Command::new(program);
    command.args(args).current_dir(mounted.path()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Kills a client whose request hangs, and expects its end while the store still hangs.
fn killed_while_it_hangs(hanging: &'static str, program: &str, args: &[&str]) {
    let Some((mounted, gate)) = hanging_in(hanging) else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    gate.shut();
    let mut child = client(program, args, &mounted);
    eventually("the hung request", || gate.waiting() == 1);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "{program} {args:?}: {status}");
    assert_eq!(gate.waiting(), 1, "the store answered");
    // Other requests are served meanwhile, and afterwards.
    assert!(fs::metadata(mounted.path()).is_ok());
    gate.open();
    eventually("the late return", || gate.waiting() == 0);
    assert_eq!(common::text(&mounted.path().join("slow")), "content");
    mounted.unmount();
}

#[test]
fn a_killed_reader_ends_while_the_store_hangs() {
    killed_while_it_hangs("read_at", "cat", &["slow"]);
}

#[test]
fn a_killed_reader_around_the_page_cache_ends_while_the_store_hangs() {
    killed_while_it_hangs("read_at", "dd", &["if=slow", "iflag=direct"]);
}

#[test]
fn a_killed_caller_of_statfs_ends_while_the_store_hangs() {
    killed_while_it_hangs("statfs", "stat", &["-f", "."]);
}

#[test]
fn a_killed_caller_of_fsync_ends_while_the_store_hangs() {
    killed_while_it_hangs("file_sync", "sync", &["slow"]);
}

#[test]
fn a_killed_caller_of_a_look_up_ends_while_the_store_hangs_and_no_reference_stays() {
    let Some((mounted, gate)) = hanging_in("lookup") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    assert!(fs::metadata(mounted.path()).is_ok());
    let nodes = mounted.volume.status().nodes;
    gate.shut();
    let mut child = client("stat", &["slow"], &mounted);
    eventually("the hung request", || gate.waiting() == 1);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    gate.open();
    eventually("the look-up is taken back", || mounted.volume.status().nodes == nodes);
    mounted.unmount();
}

#[test]
fn a_killed_opener_leaves_no_open_file() {
    let Some((mounted, gate)) = hanging_in("open") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    gate.shut();
    let mut child = client("cat", &["slow"], &mounted);
    eventually("the hung request", || gate.waiting() == 1);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    gate.open();
    eventually("the late opening is closed", || {
        gate.waiting() == 0 && mounted.volume.status().open_files == 0
    });
    mounted.unmount();
}

/// Kills a client that changes names while the store hangs. The client ends, the directory is free
/// for others, and every process sees the late change, also those that have looked meanwhile.
/// `before` and `after`: the names that are there.
fn killed_while_names_change(
    hanging: &'static str,
    program: &str,
    args: &[&str],
    [before, after]: [&'static [&'static str]; 2],
) {
    let Some((mounted, gate)) = hanging_in(hanging) else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    fs::create_dir(mounted.store_path().join("dir")).unwrap();
    let there = |names: &[&str]| {
        ["slow", "dir", "new"]
            .iter()
            .all(|name| mounted.path().join(name).symlink_metadata().is_ok() == names.contains(name))
    };
    gate.shut();
    let mut child = client(program, args, &mounted);
    eventually("the hung request", || gate.waiting() == 1);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9), "{program} {args:?}");
    assert_eq!(gate.waiting(), 1, "the store answered");
    assert!(there(before), "{program} {args:?}: nothing is done, and the directory is nobody's");
    gate.open();
    eventually("what is done late is seen", || there(after));
    eventually("nothing is open", || mounted.volume.status().open_files == 0);
    mounted.unmount();
}

#[test]
fn a_killed_caller_that_changes_names_ends_while_the_store_hangs_and_what_is_done_late_is_seen() {
    const BOTH: &[&str] = &["slow", "dir"];
    const ALL: &[&str] = &["slow", "dir", "new"];
    let made: [(&str, &str, &[&str]); 5] = [
        ("make", "mkdir", &["new"]),
        ("make", "mkfifo", &["new"]),
        ("make", "ln", &["-s", "slow", "new"]),
        ("link", "ln", &["slow", "new"]),
        ("create", "touch", &["new"]),
    ];
    for (hanging, program, args) in made {
        killed_while_names_change(hanging, program, args, [BOTH, ALL]);
    }
    killed_while_names_change("unlink", "rm", &["-f", "slow"], [BOTH, &["dir"]]);
    killed_while_names_change("rmdir", "rmdir", &["dir"], [BOTH, &["slow"]]);
    killed_while_names_change("rename", "mv", &["slow", "new"], [BOTH, &["dir", "new"]]);
    killed_while_names_change("rename", "mv", &["-T", "dir", "new"], [BOTH, &["slow", "new"]]);
}

#[test]
fn so_does_one_that_changes_attributes() {
    let Some((mounted, gate)) = hanging_in("set_attr") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    let slow = mounted.path().join("slow");
    let mode = || fs::metadata(&slow).unwrap().permissions().mode() & 0o777;
    let before = mode();
    assert_ne!(before, 0o751);
    gate.shut();
    let mut child = client("chmod", &["751", "slow"], &mounted);
    eventually("the hung request", || gate.waiting() == 1);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert_eq!((gate.waiting(), mode()), (1, before), "the store answered");
    gate.open();
    eventually("what is done late is seen", || mode() == 0o751);
    mounted.unmount();
}

#[test]
fn other_signals_do_not_interrupt_but_a_later_kill_does() {
    let Some((mounted, gate)) = hanging_in("lookup") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    gate.shut();
    // The shell itself looks, and handles the signal.
    let mut child = client("bash", &["-c", "trap : USR1; [ -e slow ]"], &mounted);
    eventually("the hung request", || gate.waiting() == 1);
    kill_process(pid(&child), Signal::USR1).unwrap();
    eventually("INTERRUPT", || mounted.view.stats().of(Opcode::Interrupt) == 1);
    // The kernel reports the first signal only; the watcher checks a few times meanwhile.
    std::thread::sleep(Duration::from_millis(250));
    assert!(child.try_wait().unwrap().is_none(), "a signal with a handler ended a look-up");
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert_eq!(mounted.view.stats().of(Opcode::Interrupt), 1);
    assert_eq!(gate.waiting(), 1);
    gate.open();
    mounted.unmount();
}

#[test]
fn an_interrupted_look_up_still_finds_the_file() {
    let Some((mounted, gate)) = hanging_in("lookup") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    gate.shut();
    let mut child = client("bash", &["-c", "trap : USR1; [ -e slow ]"], &mounted);
    eventually("the hung request", || gate.waiting() == 1);
    kill_process(pid(&child), Signal::USR1).unwrap();
    eventually("INTERRUPT", || mounted.view.stats().of(Opcode::Interrupt) == 1);
    gate.open();
    assert!(child.wait().unwrap().success());
    mounted.unmount();
}

#[test]
fn hung_requests_do_not_hold_up_another_file() {
    let Some((mounted, gate)) = hanging_in("read_at") else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    fs::write(mounted.path().join("other"), "fine").unwrap();
    for n in 0..40 {
        fs::write(mounted.store_path().join(format!("slow{n}")), "content").unwrap();
    }
    gate.shut();
    let clients: Vec<_> = (0..40)
        .map(|n| {
            let path = mounted.path().join(format!("slow{n}"));
            std::thread::spawn(move || fs::read_to_string(path).unwrap())
        })
        .collect();
    eventually("forty hung requests", || gate.waiting() == 40);
    for round in 0..100 {
        let path = mounted.path().join(format!("new{round}"));
        fs::write(&path, "x").unwrap();
        assert_eq!(common::text(&path), "x");
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(gate.waiting(), 40);
    assert!(mounted.view.threads() > 40);
    gate.open();
    for client in clients {
        assert_eq!(client.join().unwrap(), "content");
    }
    mounted.unmount();
}

#[test]
fn killed_callers_end_even_when_no_thread_is_left() {
    let (setup, gate) = Setup::hanging_in("statfs");
    let _open = OpenAtEnd(Arc::clone(&gate));
    let session = SessionOptions { threads_max: 4, ..SessionOptions::default() };
    let Some(mounted) = (Setup { session, uring: Uring::Off, ..setup }).mount() else { return };
    gate.shut();
    let mut clients: Vec<_> = (0..6).map(|_| client("stat", &["-f", "."], &mounted)).collect();
    eventually("as many hung requests as threads", || gate.waiting() == 4);
    for client in &mut clients {
        client.kill().unwrap();
    }
    for mut client in clients {
        assert_eq!(client.wait().unwrap().signal(), Some(9));
    }
    assert_eq!(gate.waiting(), 4);
    gate.open();
    eventually("service goes on", || fs::write(mounted.path().join("file"), "x").is_ok());
    mounted.unmount();
}

#[test]
fn a_panic_is_eio_for_its_request_and_nobody_else() {
    let victim = Arc::new(Mutex::new(""));
    let hook = Arc::clone(&victim);
    let setup = Setup::with_hook(move |op| {
        let due = *hook.lock().unwrap() == op;
        assert!(!due, "a panic as the test asked");
    });
    let Some(mounted) = setup.mount() else { return };
    for (n, op) in ["lookup", "open", "read_at", "statfs"].into_iter().enumerate() {
        // A file of its own each time: the kernel remembers data.
        let path = mounted.path().join(op);
        fs::write(mounted.store_path().join(op), "content").unwrap();
        *victim.lock().unwrap() = op;
        let error = match op {
            "statfs" => rustix::fs::statvfs(mounted.path()).map(drop).map_err(std::io::Error::from),
            _ => fs::read(&path).map(drop),
        };
        let error = error.expect_err(op);
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{op}");
        *victim.lock().unwrap() = "";
        // Counted after it was answered; the kernel tries a read a second time.
        eventually("the panic is counted", || mounted.view.stats().panics > n as u64);
        assert_eq!(common::text(&path), "content", "after {op}");
    }
    mounted.unmount();
}
