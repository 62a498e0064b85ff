//! Any bytes as a runtime directory: a name in it and in its index, and what is in the record and
//! in the list of `serve` of that name.
//!
//! They are read or left out, and nothing outside of the directory is changed by looking at them;
//! nor in it, where it is checked as another user's.
#![no_main]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use watertight::control::api::Missing;
use watertight::control::volume_id::VolumeId;
use watertight::registry::{DIR_VARIABLE, Record, RuntimeDir, missing};

/// The directory that everything is in, the file that must stay as it is, and the runtime
/// directory.
static PLACES: LazyLock<(PathBuf, PathBuf, RuntimeDir)> = LazyLock::new(|| {
    let root = std::env::temp_dir().join(format!("watertight-fuzz.{}", std::process::id()));
    fs::create_dir_all(&root).expect("a directory");
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).expect("a mode");
    let beside = root.join("beside");
    fs::write(&beside, "beside").expect("a file");
    // SAFETY: no other thread runs yet that looks at the environment.
    unsafe { std::env::set_var(DIR_VARIABLE, root.join("run")) };
    let dir = RuntimeDir::own().unwrap_or_else(|problem| panic!("{problem}"));
    (root, beside, dir)
});

fuzz_target!(|input: &[u8]| {
    let (root, beside, dir) = &*PLACES;
    let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let (name, text) = input.split_at(end);
    let text = text.strip_prefix(b"\n").unwrap_or(text);
    let name = String::from_utf8_lossy(name);

    let id = name.parse::<VolumeId>();
    let known = id.clone().unwrap_or_default();
    if let Ok(record) = Record::parse(text, &known) {
        assert_eq!(record.id, known);
        assert!(Path::new(&record.mountpoint).is_absolute());
        let again = serde_json::to_vec(&record).expect("a record can be written");
        assert_eq!(Record::parse(&again, &known).expect("and read"), record);
    }

    // A name can hold all but these.
    if name.is_empty() || name.len() > 200 || name.contains(['/', '\0']) || name == "." || name == ".." {
        return;
    }
    let index = dir.path().join("index");
    let places = ["index/mounts", "index/ended", "index/places/srv/=", "index/stores/srv/="];
    for place in places {
        fs::create_dir_all(dir.path().join(place)).expect("a directory");
    }
    let linked = index.join("ended").join(format!("00000000000000000007-{name}"));
    let _there = std::os::unix::fs::symlink(beside, &linked);
    for file in [
        dir.path().join(format!("{name}.json")),
        index.join("mounts").join(&*name),
        index.join("places/srv/=").join(format!("{name}.volume")),
        index.join("stores/srv/=").join(format!("{name}.volume")),
    ] {
        fs::write(file, text).expect("a file");
    }
    let srv = Path::new("/srv");
    let socket = dir.path().join(format!("{name}.sock"));
    fs::write(&socket, "").expect("a file");
    let list = dir.path().join(format!("{name}.serve"));
    fs::write(&list, text).expect("a file");
    // As long as its process lives.
    let locked = File::open(&list).expect("it is there");
    locked.lock().expect("nobody else has it");
    let foreign = dir.as_foreign();
    let found = [foreign.volumes(), foreign.mounts(), foreign.at(&name, Some(srv)), foreign.around(srv)];
    for one in found.iter().flatten() {
        assert!(one.client.is_none() && Ok(&one.record.id) == id.as_ref());
    }
    let told: Vec<Missing> = serde_json::from_slice(text).unwrap_or_default();
    assert_eq!(missing::in_dir(&foreign), told);
    assert_eq!(missing::in_dir(dir), told);
    drop(locked);
    missing::in_dir(&foreign);
    assert!(socket.exists() && list.exists());
    missing::in_dir(dir);
    assert!(!list.exists());

    let found = [dir.volumes(), dir.mounts(), dir.at(&name, Some(srv)), dir.around(srv), dir.nested(srv)];
    for one in found.iter().flatten() {
        assert!(one.client.is_none() && Ok(&one.record.id) == id.as_ref());
    }
    assert_eq!(fs::read(beside).expect("it is there"), b"beside");
    assert_eq!(fs::read_dir(root).expect("it is there").count(), 2);
    fs::remove_dir_all(&index).expect("it can be removed");
    for suffix in ["json", "sock"] {
        let _not_made = fs::remove_file(dir.path().join(format!("{name}.{suffix}")));
    }
});
