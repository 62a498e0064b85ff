//! fsync(2) by another process, which alone has the file open.
//!
//! On kernels before 6.16 whoever closes a file of a FUSE mount waits for an fsync(2) of it. A child
//! of this process closes what this process has open in its execve(2), so a verb would wait for what
//! the test has hang.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

const FILE: &str = "WATERTIGHT_TEST_SYNCED_FILE";
const DATA: &str = "WATERTIGHT_TEST_SYNCED_DATA";
const OPENED: &str = "opened";
const ENDED: &str = "ended with ";

/// A process that has opened a file.
pub(crate) struct Syncing {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Syncing {
    /// Has another process open the file.
    pub(crate) fn prepare(path: &Path, data: &str) -> Self {
        let mut client = Command::new(std::env::current_exe().unwrap());
        client.args(["--exact", "syncing::client", "--nocapture"]).env(FILE, path).env(DATA, data);
        let mut process = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut it = Self { process, lines };
        it.line(OPENED);
        it
    }

    /// Has it write the data, if there is some, and call fsync(2).
    pub(crate) fn begin(mut self) -> Self {
        self.process.stdin.take().unwrap().write_all(b"\n").unwrap();
        self
    }

    /// What the first line says that begins so.
    fn line(&mut self, begin: &str) -> String {
        let lines = self.lines.by_ref().map(Result::unwrap);
        let mut found = lines.filter_map(|line| Some(line.split_once(begin)?.1.to_owned()));
        found.next().expect("the client says so")
    }

    /// The error that it ended with, as soon as it has ended.
    pub(crate) fn error(mut self) -> Option<i32> {
        let error = self.line(ENDED).trim().parse().unwrap();
        assert!(self.process.wait().unwrap().success());
        (error != 0).then_some(error)
    }

    /// Whether it ended without an error, as soon as it has ended.
    pub(crate) fn succeeds(self) -> bool {
        self.error().is_none()
    }
}

/// Not a test of its own: what [`Syncing::prepare`] starts.
#[test]
fn client() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let data = std::env::var(DATA).unwrap();
    let mut file = File::options().read(true).write(!data.is_empty()).open(path).unwrap();
    println!("{OPENED}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let synced = file.write_all(data.as_bytes()).and_then(|()| file.sync_all());
    println!("{ENDED}{}", synced.map_or_else(|error| error.raw_os_error().unwrap(), |()| 0));
}
