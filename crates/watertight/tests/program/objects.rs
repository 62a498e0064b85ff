//! Volumes on object storage: the verbs `format` and `info`, and all that names a store.
//!
//! By `file://` and `memory://`, which need no server; with `WATERTIGHT_TEST_URL`, as
//! `tests/servers run` sets it, in a bucket of that server.

mod attributes;
mod bad_input;
mod clone_volumes;
mod disk_cache;
mod durability;
mod follow;
mod fsck;
mod gc;
mod ill_store;
mod journal;
mod keys;
mod listings;
mod naive_server;
mod quotas;
mod read_only;
mod requests;
mod snapshots;
mod upgrade;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::namespace;
use crate::rig::{Daemon, Out, Rig, eventually, has, is_mounted, run};
use crate::unprivileged::as_nobody;

/// Far more bytes than an object with metadata has.
const LARGE: usize = 3 << 20;

/// A rig with a volume in a directory, which was just made.
struct World {
    rig: Rig,
    url: String,
}

impl World {
    fn new() -> Option<Self> {
        Some(Self::of(Rig::mounting()?, &[]))
    }

    /// Without the right to mount.
    fn of(rig: Rig, options: &[&str]) -> Self {
        let url = match std::env::var("WATERTIGHT_TEST_URL") {
            Ok(bucket) => {
                let unique = rig.root.file_name().and_then(|name| name.to_str()).unwrap();
                format!("{bucket}/{}-{unique}", std::process::id())
            }
            Err(_) => format!("file://{}/bucket", rig.root.display()),
        };
        let world = Self { rig, url };
        world.format(options).ok();
        world
    }

    fn format(&self, options: &[&str]) -> Out {
        self.rig.run(&[&["format", &self.url], options].concat())
    }

    fn info(&self) -> Value {
        let out = self.rig.run(&["info", "--json", &self.url]).ok();
        serde_json::from_str(&out.stdout).unwrap()
    }

    fn mount(&mut self, options: &str) -> Daemon {
        let url = self.url.clone();
        self.rig.mount_source(&url, options)
    }

    /// Unmounts what `daemon` serves.
    fn umount(&self, daemon: &Daemon) {
        self.rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.rig.mnt.join(name)
    }

    /// Tries to mount a source, with the runtime directory of another host.
    fn mount_elsewhere(&self, source: &str, options: &str) -> Out {
        let other = self.rig.root.join("other");
        let _there_already = fs::create_dir(&other);
        let mut command = self.rig.command(&["mount", source]);
        command.arg(&other).env("WATERTIGHT_RUNTIME_DIR", self.rig.root.join("run-elsewhere"));
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let out = run(command);
        assert!(!is_mounted(&other), "{out:?}");
        out
    }
}

/// Makes a key file of 64 such digits.
fn key_file(rig: &Rig, name: &str, digits: &str) -> String {
    let path = rig.root.join(name);
    fs::write(&path, digits.repeat(64 / digits.len())).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect()
}

#[test]
fn a_volume_goes_from_mount_to_mount_with_everything() {
    let Some(mut world) = World::new() else { return };
    assert_eq!(world.info()["holder"], Value::Null);
    let daemon = world.mount("dirty_after=1h");
    assert_eq!(world.rig.volume()["source"], world.url.as_str());
    fs::create_dir_all(world.path("a/b")).unwrap();
    fs::write(world.path("a/b/large"), pattern(LARGE)).unwrap();
    fs::write(world.path("small"), "small").unwrap();
    fs::hard_link(world.path("small"), world.path("a/second")).unwrap();
    symlink("a/b/large", world.path("link")).unwrap();
    fs::write(world.path("gone"), "gone").unwrap();
    fs::remove_file(world.path("gone")).unwrap();
    fs::set_permissions(world.path("small"), Permissions::from_mode(0o640)).unwrap();
    let out = world.rig.verb("umount", &[]).ok();
    out.says("everything is on").says(&world.url);
    assert_eq!(daemon.end(), Some(0));
    world.rig.is_quiet();
    let info = world.info();
    assert_eq!(info["holder"], Value::Null, "{info}");
    // Where its size is known without mounting it.
    assert!(info["bytes"].as_u64().is_none_or(|bytes| bytes >= LARGE as u64), "{info}");

    // Another host: it knows nothing of the first.
    world.rig.runtime = world.rig.root.join("run-of-another-host");
    let daemon = world.mount("");
    assert_eq!(fs::read(world.path("link")).unwrap(), pattern(LARGE));
    assert_eq!(fs::read_to_string(world.path("a/second")).unwrap(), "small");
    let meta = fs::metadata(world.path("small")).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o777), (2, 0o640));
    assert!(!world.path("gone").exists());
    assert_eq!(fs::read_dir(&world.rig.mnt).unwrap().count(), 3);
    world.umount(&daemon);
}

#[test]
fn a_volume_that_is_held_names_its_holder_and_nothing_is_left_of_the_attempt() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("");
    let at = world.rig.mnt.display().to_string();
    let out = world.mount_elsewhere(&world.url, "").ends(1, "held by");
    for part in [format!("process {}", daemon.pid), at.clone(), world.url.clone()] {
        assert!(out.stderr.contains(&part), "no {part} in {}", out.stderr);
    }
    let mut status = world.rig.command(&["status", "--json"]);
    status.env("WATERTIGHT_RUNTIME_DIR", world.rig.root.join("run-elsewhere"));
    let status: Value = serde_json::from_str(&run(status).ok().stdout).unwrap();
    assert_eq!((&status["volumes"], &status["ended"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    // `info` says the same, and takes nothing away.
    let holder = world.info()["holder"].clone();
    assert_eq!((&holder["pid"], &holder["mountpoint"]), (&daemon.pid.into(), &at.as_str().into()));
    world.rig.run(&["info", &world.url]).ok().says(&format!("process {}", daemon.pid)).says(&at);
    // A holder that answers keeps it.
    world.mount_elsewhere(&world.url, "takeover").ends(1, &format!("process {}", daemon.pid));
    fs::write(world.path("still"), "mine").unwrap();
    world.umount(&daemon);
}

#[test]
fn what_was_synced_is_there_after_the_holder_was_killed() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("dirty_after=1h");
    fs::write(world.path("synced"), pattern(LARGE)).unwrap();
    fs::File::open(world.path("synced")).unwrap().sync_all().unwrap();
    daemon.kill();
    world.rig.verb("umount", &[]).ends(1, "died before everything was written");
    let daemon = world.mount("takeover");
    assert_eq!(fs::read(world.path("synced")).unwrap(), pattern(LARGE));
    world.umount(&daemon);
}

#[test]
fn a_volume_is_made_once() {
    let world = World::of(Rig::new(), &[]);
    let made = world.info();
    world.format(&[]).ends(1, "there is a volume");
    world.format(&["--compress", "none"]).ends(1, "there is a volume");
    assert_eq!(world.info(), made);
}

#[test]
fn what_was_made_is_said_to_people_and_to_programs() {
    let rig = Rig::new();
    let url = |name: &str| format!("file://{}/{name}", rig.root.display());
    let made = rig.run(&["format", "--json", "--compress", "lz4", &url("one")]).ok();
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(made["url"], url("one"));
    assert!(!made["probe"].as_str().unwrap().is_empty());
    let info: Value = serde_json::from_str(&rig.run(&["info", "--json", &url("one/")]).ok().stdout).unwrap();
    assert_eq!(info["url"], url("one"), "its one name");
    assert_eq!((&info["uuid"], &info["compression"]), (&made["uuid"], &"lz4".into()));
    assert_eq!((&info["encrypted"], &info["files"]), (&false.into(), &info["files"].as_u64().into()));
    rig.run(&["format", &url("two")]).ok().says(&format!("`watertight mount {} DIRECTORY`", url("two")));
    rig.run(&["info", &url("two")])
        .ok()
        .says("compressed by zstd, not encrypted")
        .says("nobody: it can be mounted");
}

#[test]
fn names_that_cannot_be() {
    let rig = Rig::new();
    let mnt = rig.mnt.to_str().unwrap();
    for (url, code, said) in [
        ("ftp://host/x", 2, "scheme"),
        ("https://127.0.0.1:9000/bucket", 2, "AWS_ENDPOINT_URL"),
        ("s3://", 2, "bucket"),
        ("s3:///prefix", 2, "bucket"),
        ("s3://bucket/../x", 2, ".."),
        ("s3://key:hidden@bucket/x", 2, "environment"),
        ("s3://bucket/x?X-Amz-Signature=hidden", 2, "environment"),
        ("file://relative/x", 2, "file:///DIRECTORY"),
        ("file:///", 2, "root directory"),
    ] {
        for verb in [&["format", url][..], &["info", url], &["mount", url, mnt]] {
            let out = rig.run(verb).ends(code, said);
            assert!(!out.stderr.contains("hidden"), "{out:?}");
            assert_eq!(out.stderr.lines().count(), 1, "{out:?}");
        }
    }
    for verb in ["format", "info"] {
        rig.run(&[verb, rig.store.to_str().unwrap()]).ends(2, "s3://BUCKET/PREFIX");
        rig.run(&[verb]).ends(2, "<URL>");
    }
    rig.run(&["format", "--compress", "gzip", "s3://bucket/x"]).ends(2, "zstd");
    rig.run(&["format", "--size", "lots", "s3://bucket/x"]).ends(2, "`lots` is not a size");
    assert!(!rig.is_mounted());
    assert!(!rig.runtime.exists(), "a runtime directory was made for nothing");
}

#[test]
fn what_is_no_volume_is_not_mounted() {
    let rig = Rig::new();
    let empty = rig.root.join("empty");
    fs::create_dir(&empty).unwrap();
    for path in [&empty, &rig.root.join("missing")] {
        let url = format!("file://{}", path.display());
        for verb in [&["info", &url][..], &["mount", &url, rig.mnt.to_str().unwrap()]] {
            rig.run(verb).ends(1, "there is no volume").ends(1, &format!("`watertight format {url}`"));
        }
    }
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "something was made there");
    assert!(!rig.root.join("missing").exists());
    assert!(!rig.is_mounted());
    rig.is_quiet();
}

#[test]
fn key_files_that_cannot_be_and_the_right_one() {
    let Some(rig) = Rig::mounting() else { return };
    let file = |name: &str, content: &str, mode: u32| {
        let path = rig.root.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (key, other) = (file("key", &"a1".repeat(32), 0o600), file("other-key", &"b2".repeat(32), 0o600));
    let (open, short) = (file("open", &"a1".repeat(32), 0o644), file("short", "a1", 0o600));
    let missing = rig.root.join("none").to_str().unwrap().to_owned();
    let wrong = [(&missing, "none"), (&open, "chmod 600"), (&short, "64 hexadecimal digits")];
    let bucket = format!("file://{}/bucket", rig.root.display());
    for (file, said) in wrong {
        rig.run(&["format", "--encrypt-key-file", file, &bucket]).ends(2, said);
        assert!(!rig.root.join("bucket").exists(), "something was made there");
    }
    let mut world = World::of(rig, &["--encrypt-key-file", &key]);
    assert_eq!((&world.info()["encrypted"], &world.info()["bytes"]), (&true.into(), &Value::Null));
    for (file, said) in wrong {
        world.mount_elsewhere(&world.url, &format!("encrypt-key-file={file}")).ends(2, said);
    }
    let refused = world.mount_elsewhere(&world.url, &format!("encrypt-key-file={other}"));
    assert!(refused.code == Some(1) && refused.stderr.contains("key"), "{refused:?}");
    let refused = world.mount_elsewhere(&world.url, "");
    assert!(refused.code != Some(0) && refused.stderr.contains("encrypt-key-file"), "{refused:?}");
    world.mount_elsewhere(&world.url, "encrypt-key-file=key").ends(2, "an absolute path");

    let daemon = world.mount(&format!("encrypt-key-file={key}"));
    fs::write(world.path("a-name-that-nobody-reads"), "words that nobody reads").unwrap();
    world.umount(&daemon);
    assert_nowhere(&world.rig.root.join("bucket"), "that-nobody-reads");
    assert_nowhere(&world.rig.root.join("bucket"), "that nobody reads");
    let daemon = world.mount(&format!("encrypt-key-file={key}"));
    let text = fs::read_to_string(world.path("a-name-that-nobody-reads")).unwrap();
    assert_eq!(text, "words that nobody reads");
    world.umount(&daemon);
}

/// No file below `dir`, and no name there, has these words.
#[track_caller]
fn assert_nowhere(dir: &Path, words: &str) {
    let has = |bytes: &[u8]| bytes.windows(words.len()).any(|window| window == words.as_bytes());
    let (mut dirs, mut files) = (vec![dir.to_owned()], 0);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            assert!(!has(path.to_str().unwrap().as_bytes()), "{}", path.display());
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() {
                files += 1;
                assert!(!has(&fs::read(&path).unwrap()), "{words:?} in {}", path.display());
            }
        }
    }
    assert!(files > 0, "there is nothing to look through");
}

#[test]
fn options_of_object_storage_are_for_nothing_else() {
    let rig = Rig::new();
    let (store, mnt) = (rig.store.to_str().unwrap(), rig.mnt.to_str().unwrap());
    for option in ["takeover", "abandon=host", "encrypt-key-file=/key"] {
        let said = format!("option {option} is for volumes on object storage");
        for source in [store, "mem:", &format!("fault:,{store}")] {
            rig.run(&["mount", "-o", option, source, mnt]).ends(2, &said);
        }
        let file = rig.root.join("volumes.toml");
        let text =
            format!("[[volume]]\nsource = \"{store}\"\nmountpoint = \"{mnt}\"\noptions = \"{option}\"\n");
        fs::write(&file, text).unwrap();
        rig.run(&["serve", "--check", file.to_str().unwrap()]).ends(2, &format!("volumes.toml:4: {said}"));
    }
    assert!(!rig.is_mounted());
}

#[test]
fn a_volume_in_memory_needs_no_format() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_source("memory://scratch/a", "");
    fs::write(rig.mnt.join("a"), pattern(LARGE)).unwrap();
    assert_eq!(fs::read(rig.mnt.join("a")).unwrap(), pattern(LARGE));
    assert_eq!(rig.volume()["source"], "memory://scratch/a");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn the_url_names_the_volume_for_every_verb() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("dirty_after=1h");
    fs::write(world.path("a"), "a").unwrap();
    let urls = [world.url.clone(), format!("{}/", world.url)];
    for url in &urls {
        world.rig.run(&["sync", url]).ok();
        let status: Value =
            serde_json::from_str(&world.rig.run(&["status", "--json", url]).ok().stdout).unwrap();
        assert_eq!(status["volumes"][0]["source"], world.url.as_str());
        world.rig.run(&["limit", "--show", url]).ok();
        world.rig.run(&["events", "--once", url]).ok().says("mounted");
    }
    world.rig.run(&["umount", &urls[1]]).ok().says("everything is on");
    assert_eq!(daemon.end(), Some(0));
    world.rig.run(&["wait", &urls[0]]).ok().says("free");
    let unknown = format!("{}-b", world.url);
    world.rig.run(&["wait", &unknown]).ends(2, &format!("`watertight info {unknown}`"));
}

#[test]
fn a_store_that_fails_by_rules_may_be_one_of_these() {
    let Some(mut world) = World::new() else { return };
    let source = format!("fault:write:hang,{}/", world.url);
    let daemon = world.rig.mount_source(&source, "dirty_after=1h");
    assert_eq!(world.rig.volume()["source"], format!("fault:write:hang,{}", world.url));
    fs::write(world.path("b"), "lost!").unwrap();
    world.rig.verb("umount", &["--force"]).ends(1, "b: 5 bytes");
    daemon.end();
    world
        .rig
        .run(&["mount", &format!("fault:wirte:hang,{}", world.url), world.rig.mnt.to_str().unwrap()])
        .ends(2, "wirte");
}

#[test]
fn a_mountpoint_lies_apart_from_the_directory_of_the_bucket() {
    let Some(world) = World::new() else { return };
    let mount = |mountpoint: &Path| world.rig.run(&["mount", &world.url, mountpoint.to_str().unwrap()]);
    let inside = world.rig.root.join("bucket/inside");
    fs::create_dir(&inside).unwrap();
    mount(&inside).ends(2, "lies inside the source");
    fs::remove_dir(&inside).unwrap();
    // And a directory store does not show the bucket of a volume that is mounted.
    let mut world = world;
    let daemon = world.mount("");
    let around = world.rig.root.to_str().unwrap();
    world.mount_elsewhere_here(around).ends(2, "lies inside the source");
    let bucket = world.rig.root.join("bucket/log");
    if bucket.is_dir() {
        world.mount_elsewhere_here(bucket.to_str().unwrap()).ends(1, "lies inside");
    }
    world.umount(&daemon);
}

impl World {
    /// Tries to mount a source beside the volume, on this host.
    fn mount_elsewhere_here(&self, source: &str) -> Out {
        let other = self.rig.root.join("other");
        let _there_already = fs::create_dir(&other);
        self.rig.run(&["mount", source, other.to_str().unwrap()])
    }
}

#[test]
fn it_is_attached_in_a_mounted_volume_and_goes_with_it() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.rig.mount("");
    for dir in ["x", "y"] {
        fs::create_dir(world.path(dir)).unwrap();
    }
    let (x, y) = (world.path("x"), world.path("y"));
    let (x, y) = (x.to_str().unwrap(), y.to_str().unwrap());
    let plain = world.rig.root.join("plain");
    fs::create_dir(&plain).unwrap();
    let refused = world.rig.run(&["attach", "-o", "takeover", plain.to_str().unwrap(), x]);
    refused.ends(2, "option takeover is for volumes on object storage");
    world.rig.run(&["attach", &world.url, x]).ok().says("is attached at");
    fs::write(world.path("x/a"), "a").unwrap();
    // By the same name, or another one of it, it is the same volume.
    world.rig.run(&["attach", &format!("{}/", world.url), y]).ok();
    assert_eq!(fs::read_to_string(world.path("y/a")).unwrap(), "a");
    world.rig.run(&["detach", y]).ok();
    world.mount_elsewhere(&world.url, "").ends(1, "held by").ends(1, x);
    world.umount(&daemon);
    assert_eq!(world.info()["holder"], Value::Null);
    let daemon = world.mount("");
    assert_eq!(fs::read_to_string(world.path("a")).unwrap(), "a");
    world.umount(&daemon);
}

#[test]
fn serve_mounts_it_and_refuses_two_lines_of_one() {
    let Some(mut world) = World::new() else { return };
    let file = world.rig.root.join("volumes.toml");
    let volume =
        |url: &str, at: &Path| format!("[[volume]]\nsource = \"{url}\"\nmountpoint = \"{}\"\n", at.display());
    let one = volume(&world.url, &world.rig.mnt);
    fs::write(&file, format!("{one}{}", volume(&format!("{}/", world.url), &world.rig.root.join("other"))))
        .unwrap();
    let file = file.to_str().unwrap().to_owned();
    world.rig.run(&["serve", "--check", &file]).ends(2, "is that of line 2 already");
    fs::write(&file, &one).unwrap();
    world.rig.run(&["serve", "--check", &file]).ok();
    let command = world.rig.command(&["serve", &file]);
    let daemon = world.rig.start(command);
    eventually("it is mounted", || world.rig.is_mounted());
    fs::write(world.path("a"), "a").unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(world.info()["holder"], Value::Null);
}

#[test]
fn an_entry_of_fstab_may_name_it() {
    let Some(world) = World::new() else { return };
    let fstab =
        format!("{}/ {} fuse.watertight defaults,nofail,_netdev 0 0\n", world.url, world.rig.mnt.display());
    fs::write(world.rig.root.join("fstab"), fstab).unwrap();
    let text = r#"
trap '"$PROGRAM" umount --force "$MNT" >/dev/null 2>&1 || true' EXIT
mount --bind "$ROOT/fstab" /etc/fstab
export AWS_PROFILE=of-the-caller
mount "$MNT"
grep -q "TARGET=$MNT " /run/mount/utab
# Again by `mount -a`: it is there, which is no failure.
mount -a
echo hello > "$MNT/a"
pid=$("$PROGRAM" status --json "$MNT" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | head -n 1)
grep -qz AWS_PROFILE=of-the-caller "/proc/$pid/environ"
umount -v "$MNT"
if mountpoint -q "$MNT"; then exit 1; fi
mount -a
test "$(cat "$MNT/a")" = hello
umount "$MNT"
"#;
    let Some(out) = namespace::script(&world.rig, text) else { return };
    out.ok().says("everything is on").says(&world.url);
    world.rig.is_quiet();
}

#[test]
fn a_user_without_rights_mounts_it_too() {
    let Some(rig) = Rig::mounting().filter(|_| has("unshare") && has("setpriv") && has("fusermount3")) else {
        return;
    };
    let out = as_nobody(
        &rig,
        "u=file://$HOME/bucket
         $W format $u
         $W mount -d $u $M
         echo hello > $M/a
         $W info $u
         $W umount $u
         $W mount -d $u $M
         cat $M/a
         $W umount $M",
    )
    .ok();
    for what in ["a volume is there now", "ready: file://", "holder     host", "everything is on", "hello"] {
        assert!(out.stdout.contains(what), "no {what:?} in {}", out.stdout);
    }
}

/// The mount process keeps the caller's environment, whose secrets appear nowhere else.
#[test]
fn credentials_stay_in_the_environment() {
    const SECRET: &str = "wJalrXUtnFEMI-nobody-shall-read-this";
    let Some(world) = World::new() else { return };
    let log = world.rig.root.join("log");
    let with_secret = |arguments: &[&str]| -> Command {
        let mut command = world.rig.command(arguments);
        command.env("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE").env("AWS_SECRET_ACCESS_KEY", SECRET);
        command.env("AWS_SESSION_TOKEN", SECRET).env("AWS_REGION", "eu-north-1");
        command
    };
    let (log_file, mnt) = (log.to_str().unwrap(), world.rig.mnt.to_str().unwrap());
    let mount = ["--log-level", "trace", "mount", "-d", "--log-file", log_file, &world.url, mnt];
    let out = run(with_secret(&mount)).ok();
    let pid = world.rig.volume()["pid"].as_u64().unwrap();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let kept = format!("AWS_SECRET_ACCESS_KEY={SECRET}\0");
    assert!(environment.windows(kept.len()).any(|window| window == kept.as_bytes()));
    fs::write(world.path("a"), "a").unwrap();
    let status = world.rig.run(&["status", "--json"]).ok().stdout;
    let events = world.rig.run(&["events", "--once", "--json", mnt]).ok().stdout;
    world.rig.verb("umount", &[]).ok();

    // A server that nobody has, so that requests are signed and fail.
    let mut failing = with_secret(&["--log-level", "trace", "info", "s3://bucket/prefix"]);
    failing.env("AWS_ENDPOINT_URL", "http://127.0.0.1:9").env("AWS_ALLOW_HTTP", "true");
    let failed = run(failing);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    for text in [&out.stdout, &out.stderr, &status, &events, &failed.stdout, &failed.stderr] {
        assert!(!text.contains(SECRET), "{text}");
    }
    assert!(fs::read_to_string(&log).unwrap().to_lowercase().contains("trace"), "nothing was logged");
    assert_nowhere(&world.rig.runtime, SECRET);
    assert_nowhere(&world.rig.root.join("bucket"), SECRET);
    assert!(!fs::read_to_string(&log).unwrap().contains(SECRET));
}
