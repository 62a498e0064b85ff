//! Names, options, keys, servers and buckets that are not what they should be: each has an error
//! that says what is wrong, where, and what would be right; nothing is made in the bucket, and
//! nothing is lost.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use super::naive_server::NaiveServer;
use super::{LARGE, World, pattern};
use crate::rig::{Out, Rig, run};

/// The names of all objects below a directory, in order.
pub(super) fn names(bucket: &Path) -> Vec<String> {
    let (mut dirs, mut names) = (vec![bucket.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                names.push(path.strip_prefix(bucket).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    names.sort();
    names
}

/// The objects whose names begin so, in order.
fn objects(bucket: &Path, start: &str) -> Vec<PathBuf> {
    names(bucket).iter().filter(|name| name.starts_with(start)).map(|name| bucket.join(name)).collect()
}

/// Changes bytes of an object, at an offset from its beginning or, negative, its end.
fn scratch(object: &Path, at: i64) {
    let mut file = OpenOptions::new().read(true).write(true).open(object).unwrap();
    let from = if at < 0 { SeekFrom::End(at) } else { SeekFrom::Start(at.unsigned_abs()) };
    let at = file.seek(from).unwrap();
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes).unwrap();
    file.write_all_at(&bytes.map(|byte| !byte), at).unwrap();
}

fn truncate(object: &Path, less: u64) {
    let file = OpenOptions::new().write(true).open(object).unwrap();
    file.set_len(file.metadata().unwrap().len() - less).unwrap();
}

/// Changes a text in an object.
fn edit(object: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(object).unwrap();
    assert!(text.contains(from), "no {from} in {text}");
    fs::write(object, text.replacen(from, to, 1)).unwrap();
}

fn copy(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    command.arg("-a").arg(from).arg(to);
    run(command).ok();
}

/// The commits of the log that no table has.
fn commits(bucket: &Path) -> Vec<PathBuf> {
    let is_commit = |object: &PathBuf| fs::read(object).unwrap()[6..8] == [0, 0];
    objects(bucket, "log/").into_iter().filter(is_commit).collect()
}

/// What is done to a volume that makes it impossible to mount.
struct Damage {
    what: &'static str,
    /// Of a volume whose holder was killed, so that the next one reads the log.
    is_killed: bool,
    harm: fn(&Path),
    /// What is said of it.
    said: &'static [&'static str],
    /// The engine notices it when it has opened its manifest already, of which it makes a new one.
    is_late: bool,
}

const DAMAGES: &[Damage] = &[
    Damage {
        what: "a format of a later version",
        harm: |bucket| edit(&bucket.join("format"), "\"version\": 1", "\"version\": 7"),
        said: &["the volume has version 7", "this program knows 2", "a later one"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "a format that is no JSON",
        harm: |bucket| fs::write(bucket.join("format"), "hello").unwrap(),
        said: &["the object `format` is not that of a volume", "is the prefix right?"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "a format with a value that cannot be",
        harm: |bucket| edit(&bucket.join("format"), "\"none\"", "\"rot13\""),
        said: &["the object `format` is damaged", "rot13", "put it back"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "a format that is too large",
        harm: |bucket| fs::write(bucket.join("format"), vec![b' '; 70_000]).unwrap(),
        said: &["/format: the object is corrupted", "larger than 65536 bytes"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "no format",
        harm: |bucket| fs::remove_file(bucket.join("format")).unwrap(),
        said: &["there is no volume", "`watertight format file://"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "no lease",
        harm: |bucket| fs::remove_file(bucket.join("lease")).unwrap(),
        said: &["the lease is missing", "`watertight format`", "the same command again makes it"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "a lease that is garbage",
        harm: |bucket| fs::write(bucket.join("lease"), "\u{1b}[2Jgarbage").unwrap(),
        said: &[
            "the lease (object `lease`) is damaged",
            "put it back",
            "`watertight format` again makes a new one",
        ],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "a lease of a later version",
        harm: |bucket| edit(&bucket.join("lease"), "\"version\":1", "\"version\":2"),
        said: &["the lease has version 2", "update it"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "a lease of a later writer than the metadata",
        harm: |bucket| edit(&bucket.join("lease"), "\"engine_epoch\":0", "\"engine_epoch\":9"),
        said: &[
            "/meta: its newest manifest is of writer 1",
            "later one than 9",
            "put the objects below meta/ back",
        ],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "an object of the log that is corrupted",
        harm: |bucket| scratch(&commits(bucket)[1], -9),
        said: &["/log/0000000000000000001", "corrupted: its checksum differs", "put the object back"],
        is_killed: true,
        is_late: false,
    },
    Damage {
        what: "an object of the log whose header is corrupted",
        harm: |bucket| scratch(&commits(bucket)[1], 20),
        said: &["/log/0000000000000000001", "its header's checksum is wrong", "put the object back"],
        is_killed: true,
        is_late: false,
    },
    Damage {
        what: "an object of the log that is cut off",
        harm: |bucket| truncate(&commits(bucket)[1], 5),
        said: &["/log/0000000000000000001", "it is cut off", "put the object back"],
        is_killed: true,
        is_late: false,
    },
    Damage {
        what: "an empty object of the log",
        harm: |bucket| fs::write(&commits(bucket)[1], "").unwrap(),
        said: &["/log/0000000000000000001", "it is too short", "put the object back"],
        is_killed: true,
        is_late: false,
    },
    Damage {
        what: "an object of the log in the place of another one",
        harm: |bucket| assert!(fs::copy(&commits(bucket)[2], &commits(bucket)[1]).unwrap() > 0),
        said: &["/log/0000000000000000001", "it is another object's content", "put the object back"],
        is_killed: true,
        is_late: false,
    },
    Damage {
        what: "an object of the log that is missing between others",
        harm: |bucket| fs::remove_file(&commits(bucket)[1]).unwrap(),
        said: &["/log/0000000000000000001", "this object of the log is missing", "put the object back"],
        is_killed: true,
        is_late: false,
    },
    Damage {
        what: "no manifests",
        harm: |bucket| fs::remove_dir_all(bucket.join("meta/manifest")).unwrap(),
        said: &["/meta: there is no manifest", "put the objects below meta/ back"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "a manifest that is cut off",
        harm: |bucket| truncate(objects(bucket, "meta/manifest/").last().unwrap(), 90),
        said: &["the newest object below meta/manifest/ is damaged", "put the object back"],
        is_killed: false,
        is_late: false,
    },
    Damage {
        what: "a table that is missing",
        harm: |bucket| fs::remove_file(&objects(bucket, "meta/compacted/")[0]).unwrap(),
        said: &["the volume's metadata is damaged", "/meta/compacted/", "not found", "put the object back"],
        is_killed: false,
        is_late: true,
    },
    Damage {
        what: "a table that is corrupted",
        harm: |bucket| scratch(&objects(bucket, "meta/compacted/")[0], 60),
        said: &[
            "the volume's metadata is damaged",
            "checksum mismatch",
            "/meta/compacted/",
            "put the object back",
        ],
        is_killed: false,
        is_late: true,
    },
    Damage {
        what: "a table that is cut off",
        harm: |bucket| truncate(&objects(bucket, "meta/compacted/")[0], 700),
        said: &["the volume's metadata is damaged", "meta/compacted/", "is too short", "put the object back"],
        is_killed: false,
        is_late: true,
    },
];

/// Volumes with the same files: one that was unmounted, and one whose holder was killed.
struct Volumes {
    world: World,
    unmounted: PathBuf,
    killed: PathBuf,
    bucket: PathBuf,
}

impl Volumes {
    /// In a directory, since the objects are changed there.
    fn new() -> Option<Self> {
        let rig = Rig::mounting()?;
        let bucket = rig.root.join("bucket");
        let url = format!("file://{}", bucket.display());
        let mut world = World { rig, url };
        // As it is, so that what is changed is the data.
        world.format(&["--compress", "none"]).ok();
        let daemon = world.mount("dirty_after=1h");
        for name in ["a", "b", "c", "d"] {
            fs::write(world.path(name), format!("the file {name}")).unwrap();
            fs::File::open(world.path(name)).unwrap().sync_all().unwrap();
        }
        fs::write(world.path("large"), pattern(LARGE)).unwrap();
        fs::File::open(world.path("large")).unwrap().sync_all().unwrap();
        let (unmounted, killed) = (world.rig.root.join("unmounted"), world.rig.root.join("killed"));
        copy(&bucket, &killed);
        world.umount(&daemon);
        copy(&bucket, &unmounted);
        assert!(commits(&killed).len() >= 5, "{:?}", names(&killed));
        Some(Self { world, unmounted, killed, bucket })
    }

    /// Puts one of them in the place of the other.
    fn put(&self, volume: &Path) {
        fs::remove_dir_all(&self.bucket).unwrap();
        copy(volume, &self.bucket);
    }

    fn try_mount(&self) -> Out {
        self.world.mount_elsewhere(&self.world.url, "")
    }

    /// Mounts the volume, which has everything.
    fn is_whole(&mut self, what: &str) {
        let daemon = self.world.mount("");
        for name in ["a", "b", "c", "d"] {
            let text = fs::read_to_string(self.world.path(name)).unwrap();
            assert_eq!(text, format!("the file {name}"), "{what}");
        }
        assert!(fs::read(self.world.path("large")).unwrap() == pattern(LARGE), "{what}");
        self.world.umount(&daemon);
    }
}

#[test]
fn a_damaged_volume_is_not_mounted_and_when_it_is_whole_again_it_has_everything() {
    let Some(mut volumes) = Volumes::new() else { return };
    for damage in DAMAGES {
        let what = damage.what;
        let whole = if damage.is_killed { &volumes.killed } else { &volumes.unmounted };
        volumes.put(whole);
        (damage.harm)(&volumes.bucket);
        let before = names(&volumes.bucket);
        let out = volumes.try_mount();
        assert_eq!(out.code, Some(1), "{what}: {out:?}");
        let last = out.stderr.lines().last().unwrap_or_default();
        for words in [&["watertight: ", &volumes.world.url], damage.said].concat() {
            assert!(last.contains(words), "{what}: no {words:?} in {last}");
        }
        assert!(!out.stderr.contains('\u{1b}'), "{what}: {out:?}");
        let mut after = names(&volumes.bucket);
        if damage.is_late {
            after.retain(|name| before.contains(name) || !name.starts_with("meta/manifest/"));
            after.retain(|name| before.contains(name) || !name.starts_with("log/"));
        }
        assert_eq!(after, before, "{what}");
        // What is missing is put back; what is damaged, too.
        copy(&whole.join("."), &volumes.bucket);
        volumes.is_whole(what);
    }
    volumes.world.rig.is_quiet();
}

/// What the last object of the log was cannot be known without it; what was there before it is.
#[test]
fn without_the_last_object_of_the_log_the_rest_is_there() {
    let Some(mut volumes) = Volumes::new() else { return };
    volumes.put(&volumes.killed);
    let commits = commits(&volumes.bucket);
    fs::remove_file(commits.last().unwrap()).unwrap();
    let daemon = volumes.world.mount("");
    assert_eq!(fs::read_to_string(volumes.world.path("d")).unwrap(), "the file d");
    volumes.world.umount(&daemon);
}

#[test]
fn a_lease_that_was_deleted_is_made_anew_by_the_same_format() {
    let Some(mut volumes) = Volumes::new() else { return };
    volumes.put(&volumes.unmounted);
    fs::remove_file(volumes.bucket.join("lease")).unwrap();
    let before = names(&volumes.bucket);
    volumes.world.format(&["--compress", "none"]).ends(1, "its lease was missing and has been made anew");
    let mut after = names(&volumes.bucket);
    after.retain(|name| name != "lease");
    assert_eq!(after, before);
    volumes.is_whole("a new lease");
}

/// Corruption that is found while the volume is mounted.
#[test]
fn a_range_that_is_damaged_is_an_error_of_this_range_alone_with_the_names_of_file_and_object() {
    let Some(mut volumes) = Volumes::new() else { return };
    let small = |bucket: &Path| {
        commits(bucket)
            .into_iter()
            .find(|log| fs::read(log).unwrap().windows(10).any(|text| text == b"the file b"))
    };
    let small = small(&volumes.unmounted).unwrap();
    let small = small.strip_prefix(&volumes.unmounted).unwrap().to_str().unwrap().to_owned();
    let large = names(&volumes.unmounted).into_iter().find(|name| name.starts_with("seg/")).unwrap();
    // The object, what is done to it, the file, the range that cannot be read, one that can be.
    type Harm = fn(&Path);
    let cases: [(&str, Harm, &str, u64, Option<u64>); 5] = [
        (&large, |object| scratch(object, 2_000_000), "large", 2_000_000, Some(0)),
        (&large, |object| truncate(object, 600_000), "large", LARGE as u64 - 4096, Some(0)),
        (&large, |object| fs::remove_file(object).unwrap(), "large", 0, None),
        (&small, |object| scratch(object, 66), "b", 0, None),
        (&small, |object| fs::remove_file(object).unwrap(), "b", 0, None),
    ];
    for (object, harm, file, bad, good) in cases {
        volumes.put(&volumes.unmounted);
        harm(&volumes.bucket.join(object));
        let daemon = volumes.world.mount("");
        let open = fs::File::open(volumes.world.path(file)).unwrap();
        let mut bytes = [0; 4096];
        let error = open.read_at(&mut bytes, bad).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc_eio()), "{object}: {error}");
        if let Some(good) = good {
            assert_eq!(open.read_at(&mut bytes, good).unwrap(), 4096, "{object}");
            assert!(bytes[..] == pattern(LARGE)[usize::try_from(good).unwrap()..][..4096], "{object}");
        }
        let other = if file == "b" { "c" } else { "b" };
        assert_eq!(fs::read_to_string(volumes.world.path(other)).unwrap(), format!("the file {other}"));
        daemon.says(&volumes.bucket.join(object).display().to_string());
        let log = daemon.stderr();
        let line = log.lines().find(|line| line.contains("a read failed")).unwrap();
        assert!(line.contains(file) && line.contains(object) && line.contains("ERROR"), "{line}");
        assert!(volumes.world.rig.volume()["read_errors"].as_u64().unwrap() > 0, "{object}");
        drop(open);
        volumes.world.umount(&daemon);
        copy(&volumes.unmounted.join(object), &volumes.bucket.join(object));
        volumes.is_whole(object);
    }
}

fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

#[test]
fn a_server_that_ignores_conditions_gets_no_volume() {
    let rig = Rig::new();
    let format = |server: &NaiveServer| {
        let mut command = rig.command(&["format", "s3://b/volume"]);
        server.for_program(&mut command);
        run(command)
    };
    for (ignored, said) in [
        (&["if-none-match"][..], "a second create (If-None-Match: *) of an object succeeded"),
        (&["if-match"], "a replace (If-Match) of an older version succeeded"),
        (&["if-match", "if-none-match"], "a second create (If-None-Match: *) of an object succeeded"),
    ] {
        let server = NaiveServer::ignoring(ignored);
        let out = format(&server).ends(1, said).ends(1, "s3://b/volume");
        assert!(out.stderr.contains("does not keep conditional writes"), "{out:?}");
        assert_eq!(server.names(), Vec::<String>::new(), "{ignored:?}");
    }
    let server = NaiveServer::ignoring(&[]);
    format(&server).ok();
    assert_eq!(server.names(), ["volume/format", "volume/lease"]);
}

/// Variables, the exit code, what is said.
type Case<'a> = (&'a [(&'a str, &'a str)], i32, &'a [&'a str]);

#[test]
fn servers_and_credentials_that_cannot_be_used() {
    let rig = Rig::new();
    let server = NaiveServer::ignoring(&[]);
    let mnt = rig.mnt.to_str().unwrap();
    let cases: [Case<'_>; 5] = [
        (&[("AWS_ENDPOINT_URL", "http://127.0.0.1:9")], 1, &["no connection to the server"]),
        (
            &[("AWS_ENDPOINT_URL", "127.0.0.1:9000")],
            2,
            &["AWS_ENDPOINT_URL", "http://HOST:PORT or https://HOST"],
        ),
        (
            &[("AWS_ENDPOINT_URL", "https://HERE")],
            2,
            &["does not speak TLS", "write http:// in AWS_ENDPOINT_URL"],
        ),
        (&[("AWS_SECRET_ACCESS_KEY", "")], 2, &["AWS_SECRET_ACCESS_KEY", "takes both, or neither"]),
        (
            &[("AWS_SECRET_ACCESS_KEY", ""), ("AWS_ACCESS_KEY_ID", "")],
            1,
            &["no credentials were found", "AWS_ACCESS_KEY_ID", "profile `default`"],
        ),
    ];
    for (set, code, said) in cases {
        for verb in [&["format", "s3://b/v"][..], &["info", "s3://b/v"], &["mount", "s3://b/v", mnt]] {
            let mut command = rig.command(verb);
            server.for_program(&mut command);
            let here = server.host();
            command.env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", &rig.root);
            command.envs(set.iter().map(|(name, value)| (name, value.replace("HERE", &here))));
            let out = run(command);
            assert_eq!(out.code, Some(code), "{set:?} {verb:?}: {out:?}");
            for words in said {
                assert!(out.stderr.contains(words), "{set:?} {verb:?}: no {words:?} in {}", out.stderr);
            }
        }
        assert_eq!(server.names(), Vec::<String>::new(), "{set:?}");
    }
    assert!(!rig.is_mounted());
}

#[test]
fn a_prefix_with_other_objects_gets_no_volume() {
    let rig = Rig::new();
    let bucket = rig.root.join("bucket");
    fs::create_dir(&bucket).unwrap();
    fs::write(bucket.join("photo.jpg"), "x").unwrap();
    let url = format!("file://{}", bucket.display());
    rig.run(&["format", &url]).ends(1, "other objects are here (photo.jpg").ends(1, "a prefix that is empty");
    rig.run(&["mount", &url, rig.mnt.to_str().unwrap()]).ends(1, "there is no volume");
    assert_eq!(names(&bucket), ["photo.jpg"]);
}

#[test]
fn of_formats_at_once_one_makes_the_volume() {
    let rig = Rig::new();
    let url = format!("file://{}/bucket", rig.root.display());
    let outs = thread::scope(|scope| {
        let format = || rig.run(&["format", &url]);
        let running: Vec<_> = (0..4).map(|_| scope.spawn(format)).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    let (made, others): (Vec<_>, Vec<_>) = outs.into_iter().partition(|out| out.code == Some(0));
    assert_eq!(made.len(), 1, "{made:?}");
    for out in others {
        out.ends(1, "there is a volume already").ends(1, &url);
    }
    rig.run(&["info", &url]).ok().says("nobody: it can be mounted");
    let left = names(&rig.root.join("bucket"));
    assert!(!left.iter().any(|name| name.starts_with("probe")), "{left:?}");
}

#[test]
fn a_key_for_a_volume_without_one_and_options_that_cannot_be() {
    let rig = Rig::new();
    let bucket = rig.root.join("bucket");
    let url = format!("file://{}", bucket.display());
    for (options, said) in [
        (&["--compress", "rot13"][..], "possible values: zstd, lz4, none"),
        (&["--size", "1Q"], "`1Q` is not a size"),
        (&["--encrypt-key-file"], "--encrypt-key-file"),
        (&["--surprise"], "--surprise"),
    ] {
        rig.run(&[&["format", &url], options].concat()).ends(2, said);
        assert!(!bucket.exists(), "{options:?}");
    }
    for source in ["", "s3:", "s3://b/\u{1}x", "gs://", "az:///x"] {
        let out = rig.run(&["format", source]);
        assert!(out.code == Some(2) && !out.stderr.is_empty(), "{source:?}: {out:?}");
    }
    rig.run(&["format", &url]).ok();
    let before = names(&bucket);
    let key = super::key_file(&rig, "key", "a1");
    let mount = |option: &str| rig.run(&["mount", "-o", option, &url, rig.mnt.to_str().unwrap()]);
    mount(&format!("encrypt-key-file={key}")).ends(2, "the volume is not encrypted: it takes no key file");
    for (option, said) in [
        ("takeover=yes", "takeover"),
        ("abandon=", "abandon"),
        ("encrypt-key-file=", "encrypt-key-file"),
        ("surprise", "surprise"),
    ] {
        mount(option).ends(2, said);
    }
    assert_eq!(names(&bucket), before);
    assert!(!rig.is_mounted());
}
