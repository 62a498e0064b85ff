//! The view of a person: the status line and the progress of an unmount, on a terminal only.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{PROGRAM, Rig, eventually, has, wait};

#[test]
fn a_terminal_has_a_status_line_and_progress() {
    let Some(rig) = Rig::mounting().filter(|_| has("script")) else { return };
    let source = format!("fault:write:delay=1200ms,dir:{}", rig.store.display());
    let line =
        format!("stty cols 200; exec {PROGRAM} mount '{source}' {} -o dirty_after=1h", rig.mnt.display());
    let (mut script, screen) = rig.on_a_terminal(&line);
    eventually("it is ready", || screen().contains("ready: "));
    fs::write(rig.mnt.join("a"), vec![1; 3 << 20]).unwrap();
    eventually("the status line shows the dirty data", || screen().contains("dirty 3.0 MiB"));
    assert!(screen().contains("\r\x1b[K"), "it is redrawn in place");
    let pid = i32::try_from(rig.volume()["pid"].as_u64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    let status = wait(&mut script, crate::rig::LONG).unwrap();
    assert!(status.success(), "{}", screen());
    let screen = screen();
    assert!(screen.contains("[------------------------] unmounting"), "the bar begins empty: {screen}");
    assert!(screen.contains("########"), "the bar fills: {screen}");
    assert!(screen.contains("\x1b[32m"), "the end is green: {screen}");
    assert_eq!(rig.stored("a").unwrap().len(), 3 << 20);
}
