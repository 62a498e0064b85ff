//! `top` on a terminal: the screen that tmux shows, compared with the API.

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
        screen[0].starts_with("watertight: 1 volume, 0 stalled  unwritten 3.0 MiB")
            && row(screen, &name).is_some_and(|row| row.contains(" active ") && row.contains(" 3.0 MiB "))
    });
    assert_eq!(rig.volume()["dirty_bytes"], 3 << 20);
    // Its cgroup has equal figures.
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
    // Looks go on: the other volume's present figures appear.
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
fn more_volumes_than_lines_are_sorted_scrolled_and_found() {
    let Some(mut rig) = Rig::mounting() else { return };
    if !has("tmux") {
        return;
    }
    let daemon = rig.mount("dirty_after=1h");
    let long = "a-long-name-".repeat(8);
    let names: Vec<String> = (0..30).map(|n| format!("v-{n:02}")).chain([long]).collect();
    for name in &names {
        let path = rig.mnt.join(name);
        fs::create_dir(&path).unwrap();
        rig.run(&["attach", "-o", "dirty_after=1h", "mem:size=8M", path.to_str().unwrap()]).ok();
    }
    for (name, mib) in [("v-05", 1), ("v-17", 3), ("v-28", 2)] {
        fs::write(rig.mnt.join(name).join("file"), vec![1; mib << 20]).unwrap();
    }
    let terminal = Terminal::start(&rig, &format!("{PROGRAM} top --interval 100ms"));
    let begins = |screen: &[String], names: &[&str]| {
        let rows = screen.iter().skip(2).zip(names);
        screen.len() == 24
            && rows.filter(|(row, name)| row.contains(&format!("{name} "))).count() == names.len()
    };
    terminal.shows("those with most dirty bytes first", |screen| {
        screen[0].starts_with("watertight: 32 volumes, 0 stalled  unwritten 6.0 MiB")
            && begins(screen, &["v-17", "v-28", "v-05"])
            && screen[23].starts_with("q quit  s sort [dirty]")
    });
    for _ in 0..6 {
        terminal.keys("s");
    }
    terminal.shows("by name, a long one by its end", |screen| {
        screen[23].contains("s sort [name]")
            && screen[3].starts_with('…')
            && screen[3].contains("a-long-name- ")
            && screen[4].contains("v-00 ")
    });
    terminal.keys("End");
    terminal.shows("the last ones", |screen| screen[22].contains("v-29 ") && screen[2].contains("v-09 "));
    terminal.keys("Up");
    terminal.shows("one line up", |screen| screen[22].contains("v-28 ") && screen[2].contains("v-08 "));
    terminal.keys("Home");
    terminal.shows("the first ones", |screen| screen[4].contains("v-00 "));
    for key in ["/", "v", "-", "2", "Enter"] {
        terminal.keys(key);
    }
    let found = |screen: &[String]| screen[2..23].iter().filter(|row| row.contains("v-2")).cloned().collect();
    terminal.shows("those that the filter fits", |screen| {
        let rows: Vec<String> = found(screen);
        rows.len() == 10 && screen[23].contains("filter [v-2]") && screen[12].is_empty()
    });
    // Each as the API has it.
    let (rows, status): (Vec<String>, _) = (found(&terminal.screen()), rig.status());
    assert_eq!(rows.len(), 10, "{rows:?}");
    for (row, n) in rows.iter().zip(20..) {
        let volumes = status["volumes"].as_array().unwrap();
        let path = rig.mnt.join(format!("v-{n}"));
        let volume = volumes.iter().find(|volume| volume["mountpoint"] == path.to_str().unwrap()).unwrap();
        let figures: Vec<&str> = row.split_whitespace().skip(1).take(3).collect();
        let dirty = watertight::term::units::bytes(volume["dirty_bytes"].as_u64().unwrap());
        assert_eq!(figures.join(" "), format!("{} {dirty}", volume["state"].as_str().unwrap()), "{row}");
    }
    // A larger window shows more, a smaller one less, and each to its edges.
    terminal.keys("Escape");
    terminal.tmux(&["resize-window", "-x", "200", "-y", "50"]).ok();
    terminal.shows("all of them, by their whole names", |screen| {
        names.iter().all(|name| row(screen, rig.mnt.join(name).to_str().unwrap()).is_some())
    });
    terminal.tmux(&["resize-window", "-x", "40", "-y", "6"]).ok();
    terminal.shows("three of them", |screen| {
        screen.len() == 6 && screen[1].starts_with("MOUNTPOINT") && screen[5].starts_with("q quit")
    });
    terminal.keys("q");
    terminal.shows("the end", |screen| row(screen, "ended with 0").is_some());
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
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
