//! Runtime directories that an ordinary user has filled to harm root when root looks at them.
//!
//! Each test has a user of its own, which exists by the number only, and so a directory of its own
//! in /tmp.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::{Value, json};

use crate::rig::{Out, Rig, run, skipped};

/// A user's runtime directory, which root finds.
struct Hostile {
    uid: u32,
    dir: PathBuf,
}

impl Hostile {
    fn new(uid: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("needs root");
            return None;
        }
        let dir = PathBuf::from(format!("/tmp/watertight-{uid}"));
        let _left_over = fs::remove_dir_all(&dir);
        let hostile = Self { uid, dir };
        fs::create_dir(&hostile.dir).unwrap();
        fs::set_permissions(&hostile.dir, Permissions::from_mode(0o700)).unwrap();
        hostile.own(&hostile.dir);
        Some(hostile)
    }

    fn own(&self, path: &Path) {
        lchown(path, Some(self.uid), Some(self.uid)).unwrap();
    }

    /// A file of the user's.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.dir.join(name);
        for dir in path.parent().unwrap().ancestors().take_while(|dir| **dir != self.dir) {
            fs::create_dir_all(dir).unwrap();
            self.own(dir);
        }
        fs::write(&path, content).unwrap();
        self.own(&path);
    }

    fn link(&self, name: &str, to: &Path) {
        let path = self.dir.join(name);
        symlink(to, &path).unwrap();
        self.own(&path);
    }

    fn fifo(&self, name: &str) {
        let path = self.dir.join(name);
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        self.own(&path);
    }

    /// All that is there, with sizes and times.
    fn all(&self) -> Vec<(PathBuf, u64, i64, i64)> {
        let (mut all, mut dirs) = (Vec::new(), vec![self.dir.clone()]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let meta = fs::symlink_metadata(entry.path()).unwrap();
                all.push((entry.path(), meta.len(), meta.mtime_nsec(), meta.ctime_nsec()));
                if meta.is_dir() {
                    dirs.push(entry.path());
                }
            }
        }
        all.sort();
        all
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        let _ = fs::remove_file(&self.dir).or_else(|_| fs::remove_dir_all(&self.dir));
    }
}

fn record(id: &str) -> Value {
    let device = json!({"major": 0, "minor": 1});
    json!({"id": id, "pid": 1, "source": "mem:", "mountpoint": "/nowhere", "device": device, "started_ms": 1, "ended": null})
}

/// Every verb by which root reads them.
fn look(rig: &Rig) {
    for verb in [&["status"][..], &["status", "--json"], &["status", "--metrics"], &["events", "--once"]] {
        for all in [&[][..], &["--all-users"]] {
            let out = run(rig.command(&[verb, all].concat()));
            // The exit code reports volumes that do not answer.
            assert!(matches!(out.code, Some(0 | 1)), "{verb:?} {all:?}: {out:?}");
        }
    }
}

fn status(rig: &Rig, more: &[&str]) -> Value {
    let out = run(rig.command(&[&["status", "--json"], more].concat()));
    serde_json::from_str(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"))
}

fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect()
}

#[test]
fn an_id_that_is_a_path_deletes_nothing() {
    let Some(hostile) = Hostile::new(61_001) else { return };
    let rig = Rig::new();
    let victim = rig.root.join("delete_me");
    fs::write(victim.with_extension("sock"), "root's").unwrap();
    fs::write(&victim, "root's").unwrap();
    hostile.file("x.json", record(victim.to_str().unwrap()).to_string());
    hostile.file("x.sock", "");
    // And a valid record, with a socket where no process listens: only its user may remove it.
    hostile.file("y1.json", record("y1").to_string());
    drop(UnixListener::bind(hostile.dir.join("y1.sock")).unwrap());
    hostile.own(&hostile.dir.join("y1.sock"));
    let before = hostile.all();
    look(&rig);
    assert_eq!(fs::read(&victim).unwrap(), b"root's");
    assert_eq!(fs::read(victim.with_extension("sock")).unwrap(), b"root's");
    assert_eq!(hostile.all(), before);
    // The second was seen, by root that asked for it, and only then.
    assert!(ids(&status(&rig, &["--all-users"])["ended"]).contains(&"y1"));
    assert!(!ids(&status(&rig, &[])["ended"]).contains(&"y1"));
    run(rig.command(&["wait", "--forget", "--all-users", "y1"])).ends(1, "belongs to another user");
    run(rig.command(&["umount", "--force", "--all-users", "y1"])).ends(2, "there is no y1");
    assert_eq!(hostile.all(), before);
}

#[test]
fn a_link_in_an_index_empties_nothing() {
    let Some(hostile) = Hostile::new(61_002) else { return };
    let rig = Rig::new();
    let victim = rig.root.join("empty_me");
    fs::write(&victim, "root's").unwrap();
    for id in ["x", "y", "z"] {
        hostile.file(&format!("{id}.json"), record(id).to_string());
        drop(UnixListener::bind(hostile.dir.join(format!("{id}.sock"))).unwrap());
        hostile.own(&hostile.dir.join(format!("{id}.sock")));
    }
    // Those that began in the first millisecond, and that root would note as ended then.
    hostile.file("index/ended/00000000000000000000-w", "");
    for name in ["index/ended/00000000000000000001-x", "index/ended/00000000000000000007-x", "index/mounts/y"]
    {
        fs::create_dir_all(hostile.dir.join(name).parent().unwrap()).unwrap();
        hostile.link(name, &victim);
    }
    for temporary in ["x.json.new", "x.new", "1.serve"] {
        hostile.link(temporary, &victim);
    }
    let before = hostile.all();
    look(&rig);
    assert_eq!(fs::read(&victim).unwrap(), b"root's");
    assert_eq!(hostile.all(), before);
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let Some(hostile) = Hostile::new(61_003) else { return };
    let rig = Rig::new();
    for name in ["a.serve", "b.json", "b.sock", "c.sock", "index"] {
        hostile.fifo(name);
    }
    hostile.file("c.json", record("c").to_string());
    hostile.link("d.json", Path::new("/dev/zero"));
    hostile.link("e.serve", Path::new("/dev/tty"));
    fs::create_dir(hostile.dir.join("f.json")).unwrap();
    // A record of root's, which only root could have put there.
    fs::write(hostile.dir.join("9.json"), record("9").to_string()).unwrap();
    look(&rig);
    let seen = status(&rig, &["--all-users"]);
    let silent = seen["silent"].as_array().unwrap().iter().find(|silent| silent["id"] == "c").unwrap();
    let why = silent["error"].as_str().unwrap();
    assert!(why.contains("is not the socket of a process of user 61003"), "{why}");
    let seen = seen.to_string();
    assert!(!seen.contains(r#""id":"b""#) && !seen.contains(r#""id":"9""#), "{seen}");
}

#[test]
fn a_link_to_roots_socket_ends_nothing_of_roots() {
    let Some(hostile) = Hostile::new(61_004) else { return };
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let volume = rig.volume();
    let socket = rig.socket();
    hostile.link("evil.sock", &socket);
    fs::hard_link(&socket, hostile.dir.join("hard.sock")).unwrap();
    // The link could be in the way, too.
    hostile.link("way", &rig.runtime);
    for id in ["evil", "hard"] {
        let mut lie = record(id);
        for key in ["pid", "device", "source"] {
            lie[key] = volume[key].clone();
        }
        lie["mountpoint"] = "/nowhere/else".into();
        hostile.file(&format!("{id}.json"), lie.to_string());
    }
    // And one that claims to be root's own volume.
    let id = volume["id"].as_str().unwrap();
    let mut twin = record(id);
    twin["mountpoint"] = volume["mountpoint"].clone();
    twin["started_ms"] = u64::MAX.into();
    hostile.file(&format!("{id}.json"), twin.to_string());
    for verb in [
        &["umount", "--force"][..],
        &["umount", "--lazy"],
        &["umount"],
        &["wait", "--timeout", "0"],
        &["sync"],
    ] {
        for id in ["evil", "hard"] {
            let out = run(rig.command(&[verb, &["--all-users", id]].concat()));
            assert!(matches!(out.code, Some(1 | 2)), "{verb:?}: {out:?}");
        }
    }
    assert!(rig.is_mounted());
    let named = status(&rig, &["--all-users", rig.mnt.to_str().unwrap()]);
    assert_eq!(named["volumes"][0]["uid"], 0, "{named}");
    // Root's own is the one that is meant by its id, and by its path.
    run(rig.command(&["umount", "--all-users", id])).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_directory_is_looked_into_only_if_it_is_its_users_own() {
    let Some(hostile) = Hostile::new(61_005) else { return };
    let rig = Rig::new();
    hostile.file("a.json", record("a").to_string());
    let is_seen = || ids(&status(&rig, &["--all-users"])["ended"]).contains(&"a");
    assert!(is_seen());
    let said = || run(rig.command(&["status", "--all-users"])).stderr;
    fs::set_permissions(&hostile.dir, Permissions::from_mode(0o755)).unwrap();
    assert!(!is_seen() && said().contains("open to other users"), "{}", said());
    fs::set_permissions(&hostile.dir, Permissions::from_mode(0o700)).unwrap();
    chown(&hostile.dir, Some(61_006), None).unwrap();
    assert!(!is_seen() && said().contains("belongs to user 61006"), "{}", said());
    chown(&hostile.dir, Some(61_005), None).unwrap();
    assert!(is_seen());
    // A file system over it, whose server may give any answer, or none.
    rustix::mount::mount("none", &hostile.dir, "tmpfs", MountFlags::empty(), None).unwrap();
    hostile.own(&hostile.dir);
    fs::set_permissions(&hostile.dir, Permissions::from_mode(0o700)).unwrap();
    hostile.file("a.json", record("a").to_string());
    assert!(!is_seen() && said().contains("is a mountpoint"), "{}", said());
    rustix::mount::unmount(&hostile.dir, UnmountFlags::DETACH).unwrap();
    let elsewhere = rig.root.join("elsewhere");
    run({
        let mut command = Command::new("mv");
        command.arg(&hostile.dir).arg(&elsewhere);
        command
    })
    .ok();
    symlink(&elsewhere, &hostile.dir).unwrap();
    assert!(!is_seen() && said().contains("is not a directory"), "{}", said());
}

#[test]
fn the_work_that_a_directory_makes_is_bounded() {
    let Some(hostile) = Hostile::new(61_007) else { return };
    let rig = Rig::new();
    for n in 0..20_000 {
        fs::write(hostile.dir.join(format!("{n}.json")), "").unwrap();
    }
    // It fails where another test's user has a record of no process.
    let out = run(rig.command(&["status", "--all-users"]));
    assert!(out.stderr.contains("not all volumes are shown"), "{out:?}");
    // And none of it for root without the option.
    assert!(!run(rig.command(&["status"])).ok().stderr.contains("not all volumes are shown"));
    let huge = fs::File::create(hostile.dir.join("huge.json")).unwrap();
    huge.set_len(1 << 40).unwrap();
    hostile.own(&hostile.dir.join("huge.json"));
    let Out { code, .. } = run(rig.command(&["wait", "--all-users", "huge"]));
    assert_eq!(code, Some(2));
}

#[test]
fn only_root_may_ask_for_all_users() {
    let Some(hostile) = Hostile::new(61_008) else { return };
    let rig = Rig::new();
    let program = rig.root.join("watertight");
    crate::rig::copy_program(crate::rig::PROGRAM, &program);
    for verb in ["status", "events", "umount /x", "sync /x", "wait /x", "detach /x", "limit --show /x"] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=61008", "--regid=61008", "--clear-groups"]).arg(&program);
        command.args(verb.split(' ')).arg("--all-users").current_dir("/");
        run(command).ends(2, "--all-users needs root");
    }
    drop(hostile);
}
