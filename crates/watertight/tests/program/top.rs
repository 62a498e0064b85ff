//! `top` on a terminal: the screen that tmux shows, beside what the API says.

use std::fs;
use std::process::Stdio;

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
fn without_a_terminal_it_says_what_to_use() {
    Rig::new().run(&["top"]).ends(2, "`watertight status --json`");
}
