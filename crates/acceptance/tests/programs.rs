//! Programs that people run on their files: git, sqlite, a compiler.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use watertight_acceptance::command::Output;
use watertight_acceptance::program::have;
use watertight_acceptance::rng::Rng;
use watertight_acceptance::{Cmd, Subject, is_long};

/// git without the user's own configuration.
fn git(dir: &Path, args: &[&str]) -> Output {
    Cmd::new("git")
        .args(["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "safe.directory=*"])
        .args(["-c", "core.fsync=all", "-c", "init.defaultBranch=main", "-c", "advice.detachedHead=false"])
        .args(args)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .dir(dir)
        .limit(Duration::from_secs(120))
        .ok()
}

/// A repository with some history: files of all sizes that change, move and go.
fn make_repository(dir: &Path) {
    let mut rng = Rng::new(42);
    git(dir, &["init", "--quiet"]);
    for commit in 0..12 {
        for _ in 0..25 {
            let sub = dir.join(format!("src/{}", rng.below(6)));
            std::fs::create_dir_all(&sub).expect("mkdir");
            let len = if rng.below(20) == 0 { 300_000 } else { rng.index(8000) };
            std::fs::write(sub.join(format!("file {}", rng.below(60))), rng.bytes(len)).expect("write");
        }
        git(dir, &["add", "--all"]);
        git(dir, &["commit", "--quiet", "--message", &format!("change {commit}")]);
    }
    git(dir, &["tag", "v1"]);
}

fn assert_clean(dir: &Path, when: &str) {
    let status = git(dir, &["status", "--porcelain"]).out();
    assert!(status.is_empty(), "git status {when}:\n{status}");
    let fsck = git(dir, &["fsck", "--full", "--strict"]);
    assert!(!fsck.err().contains("missing") && !fsck.out().contains("missing"), "{when}: {}", fsck.out());
}

#[test]
fn git_clone_commit_gc_fsck() {
    let name = "git";
    if !have(name, &["git"]) {
        return;
    }
    let Some(mut subject) = Subject::start(name) else { return };
    let origin = subject.outside("origin");
    make_repository(&origin);
    let source = format!("file://{}", origin.display());

    git(subject.path(), &["clone", "--quiet", &source, "clone"]);
    let clone = subject.at("clone");
    assert_clean(&clone, "after the clone");
    assert_eq!(git(&clone, &["rev-parse", "HEAD"]).out(), git(&origin, &["rev-parse", "HEAD"]).out());

    git(&clone, &["checkout", "--quiet", "-b", "work"]);
    std::fs::write(clone.join("new file"), "new").unwrap();
    std::fs::create_dir_all(clone.join("src/0")).unwrap();
    std::fs::write(clone.join("src/0/another"), "another").unwrap();
    git(&clone, &["add", "--all"]);
    git(&clone, &["commit", "--quiet", "--message", "on the volume"]);
    git(&clone, &["checkout", "--quiet", "v1"]);
    assert!(!clone.join("new file").exists());
    git(&clone, &["checkout", "--quiet", "work"]);
    assert_eq!(std::fs::read(clone.join("new file")).unwrap(), b"new");
    git(&clone, &["gc", "--quiet", "--prune=now"]);
    assert_clean(&clone, "after gc");
    git(&clone, &["push", "--quiet", "origin", "work"]);
    assert_eq!(git(&origin, &["rev-parse", "work"]).out(), git(&clone, &["rev-parse", "HEAD"]).out());

    subject.remount();
    assert_clean(&clone, "after a remount");
    git(&clone, &["worktree", "add", "--quiet", "../second", "v1"]);
    assert_clean(&subject.at("second"), "in a second worktree");
    subject.close();
    // The paths in it lead to the mount, so only the clone stands on its own in the store.
    assert_clean(&subject.store().join("clone"), "in the store");
}

/// One sqlite3 process that runs `script`; any error ends it with a failure.
fn sqlite(database: &Path, script: &str) -> Cmd {
    let script = format!(".bail on\n.timeout 60000\n{script}");
    Cmd::new("sqlite3").arg(database).limit(Duration::from_secs(150)).input(script)
}

fn assert_intact(database: &Path, when: &str) {
    let said = sqlite(database, "PRAGMA integrity_check; PRAGMA foreign_key_check;").ok().out();
    assert_eq!(said.trim(), "ok", "integrity_check {when}");
}

const WRITERS: usize = 4;

/// What writer `w` does: transactions that insert, move between accounts (the sum never changes),
/// delete.
fn transactions(w: usize, count: usize) -> String {
    let mut rng = Rng::new(w as u64);
    let mut script = String::from("PRAGMA synchronous=FULL;\n");
    for n in 0..count {
        let len = rng.below(3000);
        let (from, to, amount) = (rng.below(20), rng.below(20), rng.below(100));
        let end = if rng.below(6) == 0 { "ROLLBACK" } else { "COMMIT" };
        write!(
            script,
            "BEGIN IMMEDIATE;\n\
             INSERT INTO log(writer, n, filler) VALUES({w}, {n}, randomblob({len}));\n\
             UPDATE account SET value = value - {amount} WHERE id = {from};\n\
             UPDATE account SET value = value + {amount} WHERE id = {to};\n\
             DELETE FROM log WHERE writer = {w} AND n = {n} - 40;\n\
             {end};\n"
        )
        .expect("write to a string");
        if n % 25 == 24 {
            script.push_str("SELECT CASE sum(value) WHEN 20000 THEN '' ELSE 'torn' END FROM account;\n");
        }
    }
    script
}

fn sqlite_stress(name: &str, journal: &str) {
    if !have(name, &["sqlite3"]) {
        return;
    }
    let Some(mut subject) = Subject::start(name) else { return };
    let database = subject.at("stress.db");
    let made = sqlite(
        &database,
        &format!(
            "PRAGMA journal_mode={journal};\n\
             CREATE TABLE account(id INTEGER PRIMARY KEY, value INTEGER NOT NULL);\n\
             CREATE TABLE log(writer, n, filler BLOB, UNIQUE(writer, n));\n\
             CREATE INDEX by_filler ON log(filler);\n\
             WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c WHERE i < 19)\n\
             INSERT INTO account SELECT i, 1000 FROM c;"
        ),
    )
    .ok();
    assert_eq!(made.out().trim().to_lowercase(), journal, "the journal mode was accepted");

    let count = if is_long() { 2000 } else { 120 };
    std::thread::scope(|scope| {
        for w in 0..WRITERS {
            let database = &database;
            scope.spawn(move || {
                let said = sqlite(database, &transactions(w, count)).ok().out();
                assert_eq!(said.trim(), "", "writer {w}");
            });
        }
    });
    assert_intact(&database, "after the stress");
    let sum = "SELECT sum(value) FROM account;";
    assert_eq!(sqlite(&database, sum).ok().out().trim(), "20000");
    sqlite(&database, "VACUUM;").ok();
    assert_intact(&database, "after VACUUM");
    let rows = sqlite(&database, "SELECT writer, n, hex(filler) FROM log ORDER BY 1, 2;").ok().out();
    subject.remount();
    assert_intact(&database, "after a remount");
    assert_eq!(sqlite(&database, "SELECT writer, n, hex(filler) FROM log ORDER BY 1, 2;").ok().out(), rows);
    subject.close();
    let stored = subject.store().join("stress.db");
    assert_intact(&stored, "in the store");
    assert_eq!(sqlite(&stored, sum).ok().out().trim(), "20000");
}

#[test]
fn sqlite_rollback_journal() {
    sqlite_stress("sqlite-delete", "delete");
}

#[test]
fn sqlite_wal() {
    sqlite_stress("sqlite-wal", "wal");
}

/// A C project of `count` sources, each with a function of its own, a static library and a program.
fn make_project(dir: &Path, count: usize) {
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("write a source");
    std::fs::create_dir_all(dir.join("src")).expect("mkdir");
    let (mut header, mut main) = (String::new(), String::new());
    main.push_str("#include <stdio.h>\n#include \"all.h\"\nint main(void) {\n  long sum = 0;\n");
    for i in 0..count {
        writeln!(header, "long f{i}(long);").expect("write to a string");
        writeln!(main, "  sum += f{i}({i});").expect("write to a string");
        let body = format!(
            "#include \"all.h\"\n#include <string.h>\n\
             long f{i}(long x) {{ char b[{}]; memset(b, (int)x, sizeof b); return b[x % {}] + {i}; }}\n",
            i + 10,
            i + 10
        );
        write(&format!("src/f{i}.c"), &body);
    }
    main.push_str("  printf(\"%ld\\n\", sum);\n  return 0;\n}\n");
    write("src/all.h", &header);
    write("src/main.c", &main);
    write(
        "Makefile",
        "SRC := $(filter-out src/main.c,$(wildcard src/*.c))\n\
         OBJ := $(SRC:src/%.c=build/%.o)\n\
         CFLAGS := -O1 -Wall -Isrc -MMD\n\
         build/program: build/main.o build/liball.a\n\t$(CC) -o $@ $^\n\
         build/liball.a: $(OBJ)\n\trm -f $@\n\tar rcs $@ $^\n\
         build/%.o: src/%.c | build\n\t$(CC) $(CFLAGS) -c -o $@ $<\n\
         build:\n\tmkdir -p $@\n\
         -include $(wildcard build/*.d)\n",
    );
}

#[test]
fn c_project_builds_and_rebuilds() {
    let name = "c-project";
    if !have(name, &["gcc", "make", "ar"]) {
        return;
    }
    let Some(mut subject) = Subject::start(name) else { return };
    let count = 110;
    make_project(subject.path(), count);
    let make = |dir: &Path| Cmd::new("make").arg("-j2").dir(dir).limit(Duration::from_secs(180)).ok().out();
    let compiled = |said: &str| said.matches(" -c -o ").count();

    let first = make(subject.path());
    assert_eq!(compiled(&first), count + 1, "{first}");
    let expected: u64 = (0..count as u64).map(|i| 2 * i).sum();
    let run = |subject: &Subject| Cmd::new(subject.at("build/program")).ok().out();
    assert_eq!(run(&subject).trim(), expected.to_string());

    let idle = make(subject.path());
    assert!(idle.contains("up to date"), "nothing changed, but make did:\n{idle}");
    subject.remount();
    let idle = make(subject.path());
    assert!(idle.contains("up to date"), "after a remount make did:\n{idle}");
    assert_eq!(run(&subject).trim(), expected.to_string(), "the program after a remount");

    // Later by the file's own clock, however coarse that is.
    let built = subject.at("build/f7.o").metadata().unwrap().modified().unwrap();
    let source = std::fs::OpenOptions::new().append(true).open(subject.at("src/f7.c")).unwrap();
    std::io::Write::write_all(&mut &source, b"// touched\n").unwrap();
    source.set_modified(built + Duration::from_secs(1)).unwrap();
    drop(source);
    let again = make(subject.path());
    assert_eq!(compiled(&again), 1, "one source changed, but make did:\n{again}");
    subject.close();
    let stored = Cmd::new(subject.store().join("build/program")).ok();
    assert_eq!(stored.out().trim(), expected.to_string(), "the program from the store");
}

/// A running program's file can be replaced; the process keeps the old one.
#[test]
fn running_programs_keep_their_file() {
    let name = "replaced-program";
    let Some(subject) = Subject::start(name) else { return };
    let program = subject.at("sleep");
    // By another process: children that other tests start would have it open for writing, and it
    // could not be started.
    Cmd::new("cp").args(["/bin/sleep".as_ref(), program.as_os_str()]).ok();
    let mut sleeper = Cmd::new(&program).arg("100").start();
    let exe = format!("/proc/{}/exe", sleeper.id());
    let ino = program.metadata().unwrap().ino();
    std::fs::copy("/bin/sleep", subject.at("new")).expect("copy /bin/sleep");
    std::fs::rename(subject.at("new"), &program).expect("replace the program");
    assert_ne!(program.metadata().unwrap().ino(), ino);
    // Read through /proc, which leads to the old file that has no name any more.
    assert_eq!(std::fs::read(&exe).unwrap(), std::fs::read("/bin/sleep").unwrap());
    assert!(sleeper.wait(Duration::ZERO).is_none(), "the old program still runs");
    sleeper.kill();
}
