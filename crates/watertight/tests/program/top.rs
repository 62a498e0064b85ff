//! `top` on a terminal: the screen that tmux shows, beside what the API says.

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;

use crate::rig::{PROGRAM, Rig, has};
use crate::tmux::{Terminal, row};

#[test]
fn the_screen_says_what_the_api_says() {
    let Some(mut rig) = Rig::mounting() else { return };
    if !has("tmux") {
        return;
    }
    let daemon = rig.mount_faulty("write:hang", "dirty_after=1h,stall_after=100ms");
    fs::write(rig.mnt.join("a"), vec![1; 3 << 20]).unwrap();
    let terminal = Terminal::start(&rig, &format!("{PROGRAM} top --interval 100ms"));
    let name = rig.mnt.file_name().unwrap().to_str().unwrap().to_owned();
    terminal.shows("the volume and its dirty bytes", |screen| {
        screen[0].starts_with("watertight: 1 volume, 0 stalled  dirty 3.0 MiB")
            && row(screen, &name).is_some_and(|row| row.contains(" active ") && row.contains(" 3.0 MiB "))
    });
    assert_eq!(rig.volume()["dirty_bytes"], 3 << 20);
    // Its cgroup has what it has.
    let cgroup = rig.volume()["cgroups"][0]["path"].as_str().unwrap_or("/").to_owned();
    terminal.keys("c");
    terminal.shows("the cgroup", |screen| {
        let end: String = cgroup.chars().rev().take(8).collect::<Vec<_>>().into_iter().rev().collect();
        screen[1].starts_with("CGROUP")
            && screen.iter().skip(2).any(|row| row.contains(&end) && row.contains("3.0 MiB"))
    });
    terminal.keys("c");
    // A filter that fits nothing, and none.
    for key in ["/", "x", "y", "z", "Enter"] {
        terminal.keys(key);
    }
    terminal
        .shows("nothing fits", |screen| row(screen, &name).is_none() && screen[23].contains("filter [xyz]"));
    terminal.keys("Escape");
    terminal.shows("the volume again", |screen| row(screen, &name).is_some());
    // The store stops answering.
    let mut sync = rig.command(&["sync"]);
    let mut sync = sync.arg(&rig.mnt).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    terminal.shows("the stall", |screen| {
        screen[0].contains("1 stalled") && row(screen, &name).is_some_and(|row| row.contains(" stalled "))
    });
    assert_eq!(rig.volume()["state"], "stalled");
    // A window that becomes smaller is filled and no more.
    terminal.tmux(&["resize-window", "-x", "60", "-y", "10"]).ok();
    terminal.shows("ten rows", |screen| screen.len() == 10 && screen[9].starts_with("q quit"));
    terminal.keys("q");
    terminal.shows("the end", |screen| row(screen, "ended with 0").is_some());
    rig.verb("umount", &["--force"]).ends(1, "3145728 bytes");
    sync.wait().unwrap();
    assert_eq!(daemon.end(), Some(1));
}

#[test]
fn a_mount_process_that_is_stopped_is_named_and_the_screen_goes_on() {
    let Some(mut rig) = Rig::mounting() else { return };
    if !has("tmux") {
        return;
    }
    let mut other = Rig::new();
    // One runtime directory: `top` sees both.
    other.runtime.clone_from(&rig.runtime);
    // The kernel asks neither for anything meanwhile.
    let (stopped, daemon) = (rig.mount("type=fuse"), other.mount("type=fuse,dirty_after=1h"));
    let names =
        [&rig.mnt, &other.mnt].map(|mnt| mnt.parent().unwrap().file_name().unwrap().to_str().unwrap());
    let terminal = Terminal::start(&rig, &format!("{PROGRAM} top --interval 100ms"));
    terminal.tmux(&["resize-window", "-x", "120", "-y", "24"]).ok();
    terminal.shows("both", |screen| {
        screen[0].contains("2 volumes") && names.iter().all(|name| row(screen, name).is_some())
    });
    stopped.signal(Signal::STOP);
    terminal.shows("who is silent", |screen| {
        screen[0].contains("1 volume,")
            && row(screen, "its process does not answer").is_some_and(|row| row.contains(names[0]))
    });
    // Looks go on: what the other one has now is seen.
    fs::write(other.mnt.join("a"), vec![1; 3 << 20]).unwrap();
    terminal.shows("what is dirty now", |screen| {
        row(screen, names[1]).is_some_and(|row| row.contains(" 3.0 MiB "))
            && row(screen, "does not answer").is_some()
    });
    // So do keys.
    terminal.keys("c");
    terminal.shows("the cgroups", |screen| screen.iter().any(|row| row.starts_with("CGROUP")));
    terminal.keys("c");
    stopped.signal(Signal::CONT);
    terminal.shows("both again", |screen| {
        screen[0].contains("2 volumes") && row(screen, "does not answer").is_none()
    });
    terminal.keys("q");
    terminal.shows("the end", |screen| row(screen, "ended with 0").is_some());
    for (rig, daemon) in [(&rig, stopped), (&other, daemon)] {
        rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn an_interval_that_is_none_is_refused() {
    for interval in ["0", "0s", "9ms"] {
        Rig::new().run(&["top", "--interval", interval]).ends(2, "--interval");
    }
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    Rig::new().run(&["top"]).ends(2, "`watertight status --json`");
}
