//! A database on a volume: how it is made, started, asked and ended, and what must be in it.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;
use watertight_acceptance::command::Running;
use watertight_acceptance::rng::Rng;
use watertight_acceptance::subject::need_root;
use watertight_acceptance::{Cmd, Subject, program, skip};

/// How many clients write at a time.
pub(crate) const WRITERS: usize = 4;

/// More transactions than a writer commits before the kill.
const TRANSACTIONS: usize = 1000;

const ACCOUNTS: u64 = 20;

/// A user that owns nothing: postgres refuses to run as root.
const NOBODY: u32 = 65534;

/// How long a database may take to start, with its recovery, and a client for one question.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which database, and how it makes its commits durable.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Sqlite { journal: &'static str },
    Postgres { fsync: bool },
}

impl Kind {
    /// Whether it can be run here; says that `test` is skipped if not.
    pub(crate) fn is_installed(self, test: &str) -> bool {
        match self {
            Self::Sqlite { .. } => program::have(test, &["sqlite3", "stdbuf"]),
            Self::Postgres { .. } if postgres_dir().is_none() => {
                skip(test, "not installed: postgres");
                false
            }
            Self::Postgres { .. } => program::have(test, &["setpriv", "stdbuf"]) && need_root(test),
        }
    }
}

/// Where the programs of postgres are: distributions keep them out of the path, a directory for each
/// version.
fn postgres_dir() -> Option<PathBuf> {
    if let Some(found) = program::find("initdb") {
        // One in the path may be a link to where the others are.
        return found.canonicalize().ok()?.parent().map(PathBuf::from);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut dirs: Vec<PathBuf> = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect();
    dirs.retain(|dir| dir.join("initdb").is_file());
    dirs.sort();
    dirs.pop()
}

/// A program of postgres as a user that is not root, with all that it says on standard output.
fn postgres(name: &str) -> Cmd {
    let as_nobody =
        format!("exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \"$0\" \"$@\" 2>&1");
    Cmd::new("sh").arg("-c").arg(as_nobody).arg(postgres_dir().expect("asked before").join(name)).dir("/")
}

/// What one client does in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) round: usize,
    pub(crate) writer: usize,
}

impl Work {
    /// Transactions that each insert a row and move between two accounts; each is followed by
    /// `done N`, counted from 0.
    pub(crate) fn script(self) -> String {
        let mut rng = Rng::new((self.round * WRITERS + self.writer) as u64);
        let mut script = String::new();
        for n in 0..TRANSACTIONS {
            let (one, other) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
            // In one order, so that no two wait for each other.
            let (from, to) = (one.min(other), one.max(other));
            let amount = rng.below(100);
            let Self { round, writer } = self;
            let filler = self.filler(n);
            write!(
                script,
                "BEGIN;\n\
                 UPDATE account SET value = value - {amount} WHERE id = {from};\n\
                 UPDATE account SET value = value + {amount} WHERE id = {to};\n\
                 INSERT INTO log(round, writer, n, filler) VALUES({round}, {writer}, {n}, '{filler}');\n\
                 COMMIT;\n\
                 ECHO done {n}\n"
            )
            .unwrap();
        }
        script
    }

    /// The text of the `n`th row, which nothing else has.
    fn filler(self, n: usize) -> String {
        let mut rng = Rng::new(((self.round * WRITERS + self.writer) * TRANSACTIONS + n) as u64);
        let words = rng.range(1, 150);
        (0..words).fold(String::new(), |mut text, _| {
            write!(text, "{:016x}", rng.next_u64()).unwrap();
            text
        })
    }
}

/// A server, and what it has said.
struct Server {
    process: Running,
    log: JoinHandle<String>,
}

/// A database whose files are on a volume.
pub(crate) struct Database {
    kind: Kind,
    /// Of sqlite the file, of postgres the directory.
    path: PathBuf,
    /// Where postgres has its socket, not on the volume.
    sockets: PathBuf,
    server: Option<Server>,
}

impl Database {
    /// A new one with its two tables, stopped.
    pub(crate) fn create(kind: Kind, subject: &Subject) -> Self {
        let sockets = subject.outside("sockets");
        let mut database = Self { kind, path: subject.at("database"), sockets, server: None };
        if let Kind::Postgres { .. } = kind {
            for dir in [&database.path, &database.sockets] {
                std::fs::create_dir_all(dir).unwrap();
                std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            let args = [
                "--data-checksums",
                "--auth=trust",
                "--username=test",
                "--no-locale",
                "--encoding=UTF8",
                "-D",
            ];
            postgres("initdb").args(args).arg(&database.path).limit(PATIENCE).ok();
        }
        database.start();
        let journal = match kind {
            Kind::Sqlite { journal } => format!("PRAGMA journal_mode={journal};\n"),
            Kind::Postgres { .. } => String::new(),
        };
        let mut script = format!(
            "{journal}CREATE TABLE account(id INTEGER PRIMARY KEY, value INTEGER NOT NULL);\n\
             CREATE TABLE log(round INTEGER, writer INTEGER, n INTEGER, filler TEXT, PRIMARY KEY(round, writer, n));\n\
             CREATE INDEX by_filler ON log(filler);\n"
        );
        for id in 0..ACCOUNTS {
            writeln!(script, "INSERT INTO account VALUES({id}, 1000);").unwrap();
        }
        database.ask(&script).unwrap();
        database.stop();
        database
    }

    /// Starts it; its own recovery is over on return.
    ///
    /// # Panics
    /// If it does not start.
    pub(crate) fn start(&mut self) {
        if !self.try_start() {
            let log = self.stop();
            panic!("the database does not start:\n{log}");
        }
    }

    /// Starts it, and returns whether it did.
    pub(crate) fn try_start(&mut self) -> bool {
        let Kind::Postgres { fsync } = self.kind else { return true };
        let settings = [
            "listen_addresses=".to_owned(),
            format!("unix_socket_directories={}", self.sockets.display()),
            format!("fsync={}", if fsync { "on" } else { "off" }),
            // Little memory and small segments: data files are written, and checkpoints made, in
            // the midst of the load.
            "shared_buffers=1MB".to_owned(),
            "min_wal_size=32MB".to_owned(),
            "max_wal_size=32MB".to_owned(),
            "checkpoint_timeout=30s".to_owned(),
        ];
        let settings = settings.iter().flat_map(|set| ["-c", set]);
        let mut server = postgres("postgres").arg("-D").arg(&self.path).args(settings).start();
        let lines = BufReader::new(server.stdout().expect("a pipe")).lines();
        let (tell, ready) = mpsc::channel();
        let log = thread::spawn(move || {
            lines.map_while(Result::ok).fold(String::new(), |log, line| {
                if line.contains("ready to accept connections") {
                    // Said again after a recovery that nobody waits for.
                    let _ = tell.send(());
                }
                log + &line + "\n"
            })
        });
        self.server = Some(Server { process: server, log });
        ready.recv_timeout(PATIENCE).is_ok()
    }

    /// Ends it at once, as a crash does; returns what it said. Does nothing if it is stopped.
    pub(crate) fn stop(&mut self) -> String {
        let Some(mut server) = self.server.take() else { return String::new() };
        server.process.signal(Signal::QUIT);
        if server.process.wait(Duration::from_secs(60)).is_none() {
            server.process.kill();
        }
        server.log.join().expect("the reader of its log")
    }

    /// A client that runs `script` and ends at the first error.
    pub(crate) fn client(&self, script: String) -> Running {
        self.command(script).quiet().start()
    }

    /// What it answers, or why it does not.
    fn ask(&self, script: &str) -> Result<String, String> {
        let said = self.command(script.to_owned()).limit(PATIENCE).run();
        if said.status.success() {
            Ok(said.out())
        } else {
            Err(format!("{script}: {}{}", said.out(), said.err()))
        }
    }

    fn command(&self, script: String) -> Cmd {
        // Each line is seen when it is said.
        let client = Cmd::new("stdbuf").arg("-oL");
        match self.kind {
            Kind::Sqlite { .. } => client.arg("sqlite3").arg(&self.path).input(format!(
                ".bail on\n.timeout 60000\nPRAGMA synchronous=EXTRA;\n{}",
                script.replace("BEGIN;", "BEGIN IMMEDIATE;").replace("ECHO ", ".print ")
            )),
            Kind::Postgres { .. } => client
                .arg(postgres_dir().expect("asked before").join("psql"))
                .args(["-qXAt", "-v", "ON_ERROR_STOP=1", "-U", "test", "-d", "postgres", "-h"])
                .arg(&self.sockets)
                .input(script.replace("ECHO ", "\\echo ")),
        }
    }

    /// What is wrong with it, after rounds in which so many transactions were acknowledged.
    pub(crate) fn complaints(&self, rounds: &[[usize; WRITERS]]) -> Vec<String> {
        let whole = match self.kind {
            Kind::Sqlite { .. } => "SELECT * FROM pragma_integrity_check WHERE integrity_check <> 'ok';",
            // Every page is read, and its checksum looked at; tables and indices are compared.
            Kind::Postgres { .. } => {
                "CREATE EXTENSION IF NOT EXISTS amcheck;\n\
                 SELECT bt_index_check(c.oid, true) FROM pg_class c JOIN pg_am a ON a.oid = c.relam \
                 WHERE a.amname = 'btree' AND c.relkind = 'i' AND c.relpersistence = 'p';\n\
                 SELECT * FROM verify_heapam('log');\n\
                 SELECT * FROM verify_heapam('account');"
            }
        };
        let torn = format!("SELECT sum(value) FROM account HAVING sum(value) <> {};", ACCOUNTS * 1000);
        let mut wrong: Vec<String> =
            [whole, &torn].iter().filter_map(|query| self.should_be_empty(query)).collect();
        for (round, acknowledged) in rounds.iter().enumerate() {
            for (writer, &acknowledged) in acknowledged.iter().enumerate() {
                wrong.extend(self.check_rows(Work { round, writer }, acknowledged).err());
            }
        }
        wrong
    }

    fn should_be_empty(&self, query: &str) -> Option<String> {
        match self.ask(query) {
            Ok(said) if said.trim().is_empty() => None,
            Ok(said) => Some(format!("{query}: {said}")),
            Err(error) => Some(error),
        }
    }

    /// Rows are there from the first on without a gap, at least those acknowledged, at most one more.
    fn check_rows(&self, work: Work, acknowledged: usize) -> Result<(), String> {
        let Work { round, writer } = work;
        let rows = self.ask(&format!(
            "SELECT n, filler FROM log WHERE round = {round} AND writer = {writer} ORDER BY n;"
        ))?;
        for (n, row) in rows.lines().enumerate() {
            if row != format!("{n}|{}", work.filler(n)) {
                let begin: String = row.chars().take(60).collect();
                return Err(format!("row {n} of writer {writer} in round {round} is {begin}"));
            }
        }
        let there = rows.lines().count();
        if (acknowledged..=acknowledged + 1).contains(&there) {
            return Ok(());
        }
        Err(format!(
            "writer {writer} in round {round}: {acknowledged} transactions were acknowledged, {there} are there"
        ))
    }
}
