//! A terminal that tests type into and read.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::rig::{Out, Rig, eventually, run};

/// A terminal of 80 columns and 24 rows, of a tmux server of its own.
pub(crate) struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    pub(crate) fn start(rig: &Rig, command: &str) -> Self {
        let terminal = Self { socket: rig.root.join("tmux") };
        let text = format!(
            "WATERTIGHT_RUNTIME_DIR={} {command}; echo ended with $?; sleep 1000",
            rig.runtime.display()
        );
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", &text]).ok();
        terminal
    }

    pub(crate) fn tmux(&self, arguments: &[&str]) -> Out {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(arguments);
        command.env_remove("TMUX").env("TERM", "xterm").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        run(command)
    }

    pub(crate) fn screen(&self) -> Vec<String> {
        self.tmux(&["capture-pane", "-p"]).ok().stdout.lines().map(str::to_owned).collect()
    }

    pub(crate) fn keys(&self, keys: &str) {
        self.tmux(&["send-keys", keys]).ok();
    }

    /// Waits for a screen that is as it should be.
    pub(crate) fn shows(&self, what: &str, is_right: impl Fn(&[String]) -> bool) {
        eventually(&format!("{what}: {:#?}", self.screen()), || is_right(&self.screen()));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ended = self.tmux(&["kill-server"]);
    }
}

pub(crate) fn row<'a>(screen: &'a [String], word: &str) -> Option<&'a String> {
    screen.iter().find(|line| line.contains(word))
}
