//! Databases killed in mid-load: the program that serves their files dies by `kill -9`, the database
//! with it, and after its own recovery every transaction that it acknowledged is there, whole.
#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod database;

use std::io::{BufRead as _, BufReader};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};
use watertight_acceptance::command::Running;

use database::{Database, Kind, WRITERS, Work};
use watertight_acceptance::rng::Rng;
use watertight_acceptance::{Setup, Subject, is_long, note, skip};

/// What each writer of a round was told to be committed: how many of its transactions.
type Acknowledged = [usize; WRITERS];

/// All writers at work, the program killed `after` the first acknowledgement.
fn round(subject: &mut Subject, database: &mut Database, round: usize, after: Duration) -> Acknowledged {
    database.start();
    let (tell, begun) = mpsc::channel::<()>();
    let mut clients: Vec<_> =
        (0..WRITERS).map(|writer| database.client(Work { round, writer }.script())).collect();
    let handles: Vec<_> = clients.iter().map(Running::pidfd).collect();
    let writers: Vec<_> = clients
        .drain(..)
        .enumerate()
        .map(|(writer, mut client)| {
            let tell = tell.clone();
            let lines = BufReader::new(client.stdout().expect("a pipe")).lines();
            thread::spawn(move || {
                let mut acknowledged = 0;
                for line in lines {
                    let line = line.expect("read a pipe");
                    assert_eq!(line.trim(), format!("done {acknowledged}"), "writer {writer}");
                    acknowledged += 1;
                    // Nobody listens after the first.
                    let _ = tell.send(());
                }
                // It ends by itself, with an error of the database, or because there is nothing more to do.
                assert!(
                    client.wait(Duration::from_secs(120)).is_some(),
                    "writer {writer} outlives the database"
                );
                acknowledged
            })
        })
        .collect();
    drop(tell);
    begun.recv().expect("somebody commits something");
    thread::sleep(after);
    if subject.is_host() {
        for client in handles {
            pidfd_send_signal(client, Signal::KILL).unwrap();
        }
    }
    subject.crash();
    database.stop();
    let mut each = writers.into_iter().map(|writer| writer.join().expect("a writer"));
    std::array::from_fn(|_| each.next().expect("as many as were started"))
}

/// `rounds` crashes of one database; what was acknowledged in any of them is there after each.
fn crashes(name: &str, kind: Kind, rounds: usize) {
    if !kind.is_installed(name) {
        return;
    }
    let started = Instant::now();
    let Some(mut subject) = Subject::with(name, Setup::default()) else { return };
    let mut database = Database::create(kind, &subject);
    let mut rng = Rng::new(7);
    let mut all = Vec::new();
    for number in 0..rounds {
        let after = Duration::from_millis(rng.range(20, 800));
        all.push(round(&mut subject, &mut database, number, after));
        subject.mount();
        database.start();
        let wrong = database.complaints(&all);
        assert!(wrong.is_empty(), "round {number}, killed after {after:?}:\n{}", wrong.join("\n"));
        database.stop();
    }
    subject.remount();
    database.start();
    let wrong = database.complaints(&all);
    assert!(wrong.is_empty(), "after an orderly unmount:\n{}", wrong.join("\n"));
    database.stop();
    let commits: usize = all.iter().flatten().sum();
    let each = started.elapsed().as_secs_f64() / rounds as f64;
    note(name, &format!("{rounds} rounds, {commits} acknowledged transactions, {each:.2} s a round"));
}

fn rounds(usual: usize) -> usize {
    if is_long() { usual * 10 } else { usual }
}

#[test]
fn sqlite_with_a_rollback_journal_keeps_what_it_committed() {
    crashes("sqlite-killed-delete", Kind::Sqlite { journal: "delete" }, rounds(5));
}

#[test]
fn sqlite_with_a_log_keeps_what_it_committed() {
    crashes("sqlite-killed-wal", Kind::Sqlite { journal: "wal" }, rounds(5));
}

#[test]
fn postgres_keeps_what_it_committed() {
    crashes("postgres-killed", Kind::Postgres { fsync: true }, rounds(4));
}

/// Anti-vacuity: a database that does not sync loses what it acknowledged, and the same check sees
/// it.
#[test]
fn postgres_without_fsync_is_caught() {
    let (name, kind) = ("postgres-killed-lying", Kind::Postgres { fsync: false });
    if !kind.is_installed(name) {
        return;
    }
    let Some(mut subject) = Subject::with(name, Setup::default()) else { return };
    if subject.is_host() {
        return skip(name, "a plain directory loses nothing when a process dies");
    }
    let mut database = Database::create(kind, &subject);
    let acknowledged = round(&mut subject, &mut database, 0, Duration::from_millis(500));
    subject.mount();
    // It may be damaged so that it does not start at all.
    let caught = !database.try_start() || !database.complaints(&[acknowledged]).is_empty();
    database.stop();
    assert!(caught, "{acknowledged:?} transactions were acknowledged and none is missing");
}
