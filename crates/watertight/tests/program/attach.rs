//! `attach`, `detach`, `move`: several volumes inside one mountpoint.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags, mount};
use serde_json::Value;

use crate::rig::{Daemon, Out, Rig, eventually, is_mounted, is_stalled_in, run, umount2, wait};

/// A mounted volume with a directory `x`, and another store.
struct World {
    rig: Rig,
    daemon: Daemon,
    other: PathBuf,
}

impl World {
    fn new(options: &str) -> Option<Self> {
        let mut rig = Rig::mounting()?;
        let daemon = rig.mount(options);
        fs::create_dir(rig.mnt.join("x")).unwrap();
        let other = rig.root.join("other");
        fs::create_dir(&other).unwrap();
        Some(Self { rig, daemon, other })
    }

    fn path(&self, path: &str) -> PathBuf {
        self.rig.mnt.join(path)
    }

    fn run(&self, verb: &str, arguments: &[&Path]) -> Out {
        let mut command = self.rig.command(&[verb]);
        command.args(arguments);
        run(command)
    }

    fn attach(&self) -> Out {
        self.run("attach", &[&self.other, &self.path("x")])
    }

    /// The `status` of the volume at a path of the mountpoint.
    fn status(&self, path: &str) -> Value {
        let status = self.rig.status();
        let at = self.path(path);
        let volumes = status["volumes"].as_array().unwrap();
        volumes.iter().find(|v| v["mountpoint"] == at.to_str().unwrap()).cloned().unwrap_or_default()
    }

    /// The status of the mounted volume.
    fn root(&self) -> Value {
        let status = self.rig.status();
        let volumes = status["volumes"].as_array().unwrap();
        volumes.iter().find(|v| v["attached_to"].is_null()).cloned().unwrap_or_default()
    }

    fn end(self) {
        self.rig.verb("umount", &[]).ok();
        assert_eq!(self.daemon.end(), Some(0));
        self.rig.is_quiet();
    }
}

#[test]
fn an_attached_volume_is_a_volume_like_any_other() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    world.attach().ok().says("is attached at");
    fs::write(world.path("x/file"), "content").unwrap();
    let status = world.status("x");
    assert_eq!(
        (&status["state"], &status["source"]),
        (&"active".into(), &format!("dir:{}", world.other.display()).into())
    );
    assert_eq!(status["attached_to"], world.root()["id"]);
    // By its mountpoint, its store, its id, and from inside.
    world.run("sync", &[&world.path("x/file")]).ok();
    assert_eq!(fs::read_to_string(world.other.join("file")).unwrap(), "content");
    let id = status["id"].as_str().unwrap();
    world.run("status", &[Path::new(id)]).ok().says("x");
    world.run("wait", &[Path::new("--timeout"), Path::new("0"), &world.other]).ends(1, "not yet: active");
    // Its store is in use: this means the volume, which can be in two places.
    fs::create_dir(world.path("y")).unwrap();
    world.run("attach", &[&world.other, &world.path("y")]).ok();
    assert_eq!(fs::read_to_string(world.path("y/file")).unwrap(), "content");
    world.run("detach", &[&world.path("y")]).ok().says("detached");
    assert_eq!(world.status("x")["state"], "active");

    fs::write(world.path("x/late"), "late").unwrap();
    world.run("detach", &[&world.path("x")]).ok().says("detached; everything is on dir:");
    assert_eq!(fs::read_to_string(world.other.join("late")).unwrap(), "late");
    assert!(!world.path("x/late").exists());
    world.run("wait", &[Path::new(id)]).ok().says("free; everything is on");
    // A volume that has ended cannot be asked: the mount reports how often they waited for
    // switches.
    assert_eq!(world.root()["drains"], 1);
    // The store is free, for any process: also for this place, again and again.
    for _ in 0..5 {
        world.attach().ok();
        // umount knows it, too.
        world.run("umount", &[&world.path("x")]).ok().says("detached");
    }
    world.end();
}

#[test]
fn a_stalled_one_is_named_and_forced_away_beside_others_that_go_on() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    let source = format!("fault:write:hang,dir:{}", world.other.display());
    let options = [Path::new("-o"), Path::new("stall_after=300ms,dirty_after=10ms")];
    let (x, source) = (world.path("x"), Path::new(&source));
    world.run("attach", &[options[0], options[1], source, &x]).ok();
    fs::write(world.path("x/file"), "content").unwrap();
    let mut listener = world.rig.command(&["events", "--json"]);
    listener.arg(&x).stdout(Stdio::piped());
    let mut listener = listener.spawn().unwrap();
    let mut heard = BufReader::new(listener.stdout.take().unwrap());
    let mut events = String::new();
    heard.read_line(&mut events).unwrap();
    eventually("it is called stalled", || is_stalled_in(&world.status("x"), "write"));
    assert_eq!(world.root()["state"], "active");
    // The log names the call that was late first, which may be another one.
    world.daemon.says(&format!("{} is stalled: the store has not answered `", x.display()));
    let metrics = world.rig.run(&["status", "--metrics"]).ok().stdout;
    let stalled = format!(r#"mountpoint="{}",state="stalled"}} 1"#, x.display());
    assert!(metrics.contains(&stalled), "{metrics}");
    // The mountpoint's own volume goes on.
    fs::write(world.path("own"), "own").unwrap();
    File::open(world.path("own")).unwrap().sync_all().unwrap();

    let out = world.run("detach", &[Path::new("--force"), &x]).ends(1, "7 bytes");
    println!("detach --force of a stalled volume took {:?}", out.took);
    assert!(!world.path("x/file").exists());
    assert!(wait(&mut listener, crate::rig::LONG).is_some());
    heard.read_to_string(&mut events).unwrap();
    assert!(events.contains("stall"), "{events}");
    // Requests that hang in the store belong to no process any more; the process itself ends.
    world.rig.verb("umount", &["--force"]);
    assert!(world.daemon.end().is_some());
}

/// A store that is slow, and not known to stall, is waited for: the volume that was at the path before
/// a rename is not the one that is meant.
#[test]
fn force_takes_no_volume_that_was_at_the_path_before() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("lookup:delay=100ms", "");
    let (other, old) = (rig.root.join("other"), rig.mnt.join("above/here"));
    fs::create_dir(&other).unwrap();
    fs::create_dir_all(&old).unwrap();
    rig.run(&["attach", other.to_str().unwrap(), old.to_str().unwrap()]).ok();
    fs::rename(rig.mnt.join("above"), rig.mnt.join("renamed")).unwrap();
    let file = rig.mnt.join("renamed/here/file");
    fs::write(&file, "x").unwrap();
    fs::create_dir_all(&old).unwrap();
    rig.run(&["detach", "--force", old.to_str().unwrap()]).ends(1, "nothing is attached");
    assert_eq!(fs::read(file).unwrap(), b"x");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(fs::read(other.join("file")).unwrap(), b"x");
}

#[test]
fn an_attached_volume_says_so_and_where_it_is_after_a_rename_above_it() {
    let Some(world) = World::new("") else { return };
    fs::create_dir_all(world.path("above/here")).unwrap();
    world.run("attach", &[&world.other, &world.path("above/here")]).ok();
    let out =
        world.run("events", &[Path::new("--json"), Path::new("--once"), &world.path("above/here")]).ok();
    let told: Vec<Value> = out.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let attached: Vec<&Value> = told.iter().filter(|event| event["state"] == "attached").collect();
    assert_eq!(attached.len(), 1, "{told:?}");
    assert!(attached[0].to_string().contains(world.path("above/here").to_str().unwrap()), "{attached:?}");
    fs::rename(world.path("above"), world.path("renamed")).unwrap();
    fs::write(world.path("renamed/here/file"), "x").unwrap();
    // The directory that has its old path now is not the volume.
    fs::create_dir_all(world.path("above/here")).unwrap();
    let old = world.path("above/here");
    world.run("detach", &[Path::new("--force"), &old]).ends(1, "nothing is attached");
    world.run("attach", &[Path::new("mem:"), &old]).ok();
    world.run("detach", &[&world.other]).ok().says("everything is on dir:");
    assert_eq!(fs::read_to_string(world.other.join("file")).unwrap(), "x");
    fs::write(old.join("new"), "").unwrap();
    world.run("detach", &[&old]).ok();
    // By its new path, whichever verb asks first.
    world.run("attach", &[&world.other, &old]).ok();
    fs::rename(world.path("above"), world.path("again")).unwrap();
    let again = world.path("again/here");
    world.run("wait", &[Path::new("--timeout"), Path::new("0"), &again]).ends(1, "not yet: active");
    world.run("umount", &[&again]).ok().says("detached; everything is on dir:");
    world.run("attach", &[&world.other, &again]).ok();
    fs::rename(world.path("again"), world.path("above")).unwrap();
    assert_eq!(world.status("above/here")["state"], "active");
    world.end();
}

#[test]
fn held_means_busy_by_name_and_lazy_tells_what_it_waits_for() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    world.attach().ok();
    let file = world.path("x/held");
    fs::write(&file, "x").unwrap();
    let mut holder =
        Command::new("sleep").arg("1000").stdin(Stdio::from(File::open(&file).unwrap())).spawn().unwrap();
    let who = format!("sleep (pid {}), open: {}", holder.id(), file.display());
    world.run("detach", &[&world.path("x")]).ends(1, "is busy (EBUSY)").ends(1, &who);
    assert!(file.exists());

    let out =
        world.run("detach", &[Path::new("--lazy"), &world.path("x")]).ok().says("still held by").says(&who);
    assert!(!file.exists());
    let id = out.stdout.split("watertight wait ").nth(1).unwrap().split('`').next().unwrap().to_owned();
    let status = world.status("x");
    assert_eq!((&status["state"], &status["id"]), (&"detached".into(), &id.as_str().into()));
    assert!(status["holders"]["found"][0]["name"] == "sleep", "{status}");
    world.run("wait", &[Path::new("--timeout"), Path::new("0"), Path::new(&id)]).ends(1, "not yet: detached");
    holder.kill().unwrap();
    wait(&mut holder, crate::rig::LONG).unwrap();
    world.run("wait", &[Path::new(&id)]).ok().says("free");
    world.end();
}

#[test]
fn one_that_is_held_joins_the_tree_again_and_what_is_written_there_is_its_own() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    world.attach().ok();
    fs::write(world.path("x/file"), "one").unwrap();
    let id = world.status("x")["id"].clone();
    let open = File::options().append(true).open(world.path("x/file")).unwrap();
    let lazy = Path::new("--lazy");
    world.run("detach", &[lazy, &world.path("x")]).ok().says("still held by");
    assert_eq!(world.status("x")["state"], "detached");
    // By its store or id it is detached already, whatever is at its last place.
    let below = world.rig.root.join("below");
    fs::create_dir(&below).unwrap();
    world.run("attach", &[&below, &world.path("x")]).ok();
    world.run("detach", &[&world.other]).ends(1, "is already detached, and still held");
    world
        .run("attach", &[Path::new("-o"), Path::new("cache=64M"), &world.other, &world.path("x")])
        .ends(1, "is still held");
    fs::write(world.path("x/beside"), "").unwrap();
    world.run("detach", &[&world.path("x")]).ok().says("everything is on");
    assert!(below.join("beside").exists());

    world.attach().ok().says("is attached at");
    let status = world.status("x");
    assert_eq!((&status["state"], &status["id"]), (&"active".into(), &id));
    (&open).write_all(b" and more").unwrap();
    assert_eq!(fs::read_to_string(world.path("x/file")).unwrap(), "one and more");
    fs::write(world.path("x/two"), "two").unwrap();
    world.run("sync", &[&world.path("x")]).ok();
    assert_eq!(fs::read_to_string(world.other.join("two")).unwrap(), "two");
    assert!(!world.rig.store.join("x/two").exists());
    // Where it is already, nothing changes: one detach takes it away.
    world.attach().ok();
    drop(open);
    world.run("detach", &[&world.path("x")]).ok().says("everything is on");
    assert!(!world.path("x/two").exists());

    // By its id, and elsewhere.
    world.attach().ok();
    let id = world.status("x")["id"].as_str().unwrap().to_owned();
    let open = File::open(world.path("x/file")).unwrap();
    world.run("detach", &[lazy, &world.path("x")]).ok();
    fs::create_dir(world.path("y")).unwrap();
    world.run("attach", &[Path::new(&id), &world.path("y")]).ok();
    assert_eq!(world.status("y")["state"], "active");
    assert_eq!(fs::read_to_string(world.path("y/two")).unwrap(), "two");
    drop(open);
    world.run("detach", &[&world.path("y")]).ok().says("everything is on");
    world.end();
}

#[test]
fn detach_takes_the_place_that_was_named_and_no_other_of_the_same_volume() {
    let Some(world) = World::new("") else { return };
    world.attach().ok();
    fs::write(world.path("x/file"), "one").unwrap();
    fs::create_dir(world.path("y")).unwrap();
    world.run("attach", &[&world.other, &world.path("y")]).ok();
    world.run("detach", &[Path::new("--force"), &world.path("y")]).ok();
    assert!(world.path("x/file").exists() && !world.path("y/file").exists());
    world.run("detach", &[&world.path("x")]).ok().says("everything is on");
    world.end();
}

/// The kernel forgets the directory where it was seen before: its number stays.
#[test]
fn a_directory_of_a_volume_is_shown_in_a_second_place_also_when_the_first_is_gone() {
    let Some(world) = World::new("") else { return };
    world.attach().ok();
    fs::create_dir(world.path("x/in")).unwrap();
    fs::write(world.path("x/in/mark"), "in").unwrap();
    fs::create_dir(world.path("y")).unwrap();
    // In its own volume's place: that is covered then.
    for place in ["y", "x"] {
        world.run("attach", &[&world.path("x/in"), &world.path(place)]).ok();
        assert_eq!(fs::read(world.path(place).join("mark")).unwrap(), b"in", "{place}");
    }
    world.run("detach", &[&world.path("x")]).ok();
    world.run("detach", &[&world.path("x")]).ok();
    assert!(!world.path("x/in").exists());
    assert_eq!(fs::read(world.path("y/mark")).unwrap(), b"in");
    world.run("detach", &[&world.path("y")]).ok().says("everything is on");
    world.end();
}

#[test]
fn who_detaches_from_inside_is_named_and_the_verb_is_not() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    world.attach().ok();
    let shell = |script: &str| {
        let command = world.rig.command(&["detach"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(command.get_program()).current_dir(world.path("x"));
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run(shell)
    };
    fs::write(world.path("x/file"), "x").unwrap();
    let out = shell("exec 3<file; \"$1\" detach ../x 3<&-; exit $?").ends(1, "is busy (EBUSY)");
    assert!(out.stderr.contains("sh (pid "), "{}", out.stderr);
    assert!(!out.stderr.contains("watertight (pid "), "{}", out.stderr);
    shell("exec \"$1\" detach .").ok().says("detached; everything is on");
    world.end();
}

#[test]
fn a_store_that_cannot_be_written_stays_attached_and_force_names_what_is_lost() {
    let Some(world) = World::new("") else { return };
    let source = format!("fault:write:fail=EIO,dir:{}", world.other.display());
    world
        .run(
            "attach",
            &[
                Path::new("-o"),
                Path::new("dirty_after=1h,drain_timeout=1s"),
                Path::new(&source),
                &world.path("x"),
            ],
        )
        .ok();
    fs::write(world.path("x/lost"), "gone").unwrap();
    world.run("detach", &[&world.path("x")]).ends(1, "stays attached");
    assert_eq!(fs::read_to_string(world.path("x/lost")).unwrap(), "gone");
    world
        .run("detach", &[Path::new("--force"), &world.path("x")])
        .ends(1, "not everything is on")
        .ends(1, "lost");
    assert!(!world.path("x/lost").exists());
    // The mountpoint's own volume lost nothing, but its end reports all.
    world.rig.verb("umount", &[]).ends(1, "x/lost");
    assert_eq!(world.daemon.end(), Some(1));
}

#[test]
fn the_mountpoint_takes_all_along() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    world.attach().ok();
    fs::create_dir(world.path("x/y")).unwrap();
    world.run("attach", &[Path::new("mem:"), &world.path("x/y")]).ok();
    fs::write(world.path("x/file"), "x").unwrap();
    world.run("detach", &[&world.path("x")]).ends(1, "1 mount(s) on it");
    let World { rig, daemon, other } = world;
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "x");
    rig.is_quiet();
}

/// A raw umount2(2) of the mountpoint, which asks no program of ours: on `fuseblk` all stores are
/// free on return; on `fuse`, which the kernel unmounts without a request, when `wait` reports it.
/// Files that are open inside stay usable after a lazy unmount, and their close ends all.
#[test]
fn a_raw_umount2_takes_all_along() {
    for kind in ["fuse", "fuseblk"] {
        for is_held in [false, true] {
            let Some(world) = World::new(&format!("dirty_after=1h,type={kind}")) else { return };
            let is_waiting = world.root()["mount_type"] == "fuseblk";
            world.attach().ok();
            fs::create_dir(world.path("x/y")).unwrap();
            let below = world.rig.root.join("below");
            fs::create_dir(&below).unwrap();
            world.run("attach", &[&below, &world.path("x/y")]).ok();
            let ids = ["x", "x/y"].map(|path| world.status(path)["id"].as_str().unwrap().to_owned());
            for path in ["file", "x/file", "x/y/file"] {
                fs::write(world.path(path), path).unwrap();
            }
            let held = is_held.then(|| File::open(world.path("x/y/file")).unwrap());
            let World { rig, daemon, other } = world;
            umount2(&rig.mnt, if is_held { UnmountFlags::DETACH } else { UnmountFlags::empty() });
            if let Some(held) = held {
                rig.run(&["wait", "--timeout", "0", &ids[1]]).ends(1, "not yet");
                let mut content = String::new();
                (&held).read_to_string(&mut content).unwrap();
                assert_eq!(content, "x/y/file", "{kind}");
                drop(held);
            }
            // On `fuseblk` umount2(2) has waited for all of them, or the last close has: which may be
            // that of a child of another test's, for it has this process's open files until its exec.
            if is_held || !is_waiting {
                ids.iter().for_each(|id| drop(rig.run(&["wait", id]).ok().says("free; everything is on")));
            }
            let stored = |dir: &Path| fs::read_to_string(dir.join("file")).unwrap_or_default();
            assert_eq!((stored(&other), stored(&below)), ("x/file".into(), "x/y/file".into()), "{kind}");
            for id in &ids {
                rig.run(&["wait", "--timeout", "0", id]).ok().says("free");
            }
            rig.verb("wait", &[]).ok().says("free");
            assert_eq!(rig.stored("file").as_deref(), Some(b"file".as_slice()), "{kind}");
            assert_eq!(daemon.end(), Some(0), "{kind}");
            rig.is_quiet();
        }
    }
}

/// Of several volumes that were at a path, one after the other, the last one is somewhere else now.
#[test]
fn who_waits_at_a_place_that_was_left_is_told_where_its_store_is() {
    let Some(world) = World::new("") else { return };
    fs::create_dir(world.path("z")).unwrap();
    world.attach().ok();
    world.run("detach", &[&world.path("x")]).ok();
    world.run("wait", &[&world.path("x")]).ok().says("free");
    let out = world.attach().ok();
    let id = out.stdout.split("(volume ").nth(1).unwrap().split(')').next().unwrap().to_owned();
    world.run("move", &[&world.path("x"), &world.path("z")]).ok();
    let there = format!("is in use again, at {} (volume {id})", world.path("z").display());
    world.run("wait", &[&world.path("x")]).ends(1, &there);
    assert_eq!(world.status("x"), Value::Null);
    world.run("detach", &[&world.path("z")]).ok();
    world.run("wait", &[&world.path("x")]).ok().says("free");
    world.end();
}

#[test]
fn directories_are_shown_twice_and_volumes_moved() {
    let Some(world) = World::new("") else { return };
    world.attach().ok();
    fs::create_dir(world.path("second")).unwrap();
    fs::create_dir_all(world.path("x/docs")).unwrap();
    fs::write(world.path("x/docs/page"), "1").unwrap();
    world.run("attach", &[&world.path("x/docs"), &world.path("second")]).ok();
    fs::write(world.path("second/page"), "22").unwrap();
    assert_eq!(fs::read_to_string(world.path("x/docs/page")).unwrap(), "22");
    fs::create_dir(world.path("z")).unwrap();
    world.run("move", &[&world.path("x"), &world.path("z")]).ok().says("now");
    assert_eq!(world.status("z")["state"], "active");
    assert!(world.path("z/docs/page").exists() && !world.path("x/docs").exists());
    world.run("detach", &[&world.path("second")]).ok().says("detached");
    world.run("detach", &[&world.path("z")]).ok().says("everything is on");
    world.end();
}

#[test]
fn what_is_attached_below_goes_along_with_a_move_and_a_lazy_detach() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    world.attach().ok();
    let below = world.rig.root.join("below");
    for dir in [&below, &world.path("x/y"), &world.path("z")] {
        fs::create_dir(dir).unwrap();
    }
    world.run("attach", &[&below, &world.path("x/y")]).ok();
    fs::write(world.path("x/y/file"), "below").unwrap();
    let mut open = File::open(world.path("x/y/file")).unwrap();
    world.run("move", &[&world.path("x"), &world.path("z")]).ok();
    assert_eq!(fs::read_to_string(world.path("z/y/file")).unwrap(), "below");
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "below", "what was open before");
    drop(open);

    world.run("detach", &[Path::new("--lazy"), &world.path("z")]).ok();
    assert!(!world.path("z/y").exists());
    for store in [&world.other, &below] {
        world.run("wait", &[store]).ok().says("free");
    }
    assert_eq!(fs::read_to_string(below.join("file")).unwrap(), "below");
    world.end();
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    let Some(world) = World::new("") else { return };
    let (x, other) = (world.path("x"), world.other.clone());
    world.run("attach", &[&other, &world.path("none")]).ends(1, "none");
    fs::write(world.path("file"), "").unwrap();
    world.run("attach", &[&other, &world.path("file")]).ends(1, "is not a directory");
    world.run("attach", &[&other, &world.rig.mnt]).ends(2, "is the mountpoint itself");
    world.run("attach", &[&other, &world.rig.root]).ends(2, "is not inside a mounted Watertight volume");
    world.run("attach", &[Path::new("/nowhere"), &x]).ends(2, "does not exist");
    let own = world.rig.store.clone();
    let whose = format!("is the volume of the mountpoint {} itself", world.rig.mnt.display());
    world.run("attach", &[&own, &x]).ends(2, &whose);
    let mnt = world.rig.mnt.clone();
    world.run("attach", &[&mnt, &x]).ends(2, &whose);
    world
        .run("attach", &[Path::new("-o"), Path::new("uring=off"), &other, &x])
        .ends(2, "is the mountpoint's");
    world.run("attach", &[Path::new("-o"), Path::new("frob"), &other, &x]).ends(2, "no mount option frob");
    world.run("detach", &[&x]).ends(1, "nothing is attached");
    world.run("move", &[&x, &x]).ends(1, "nothing is attached");
    world.attach().ok();
    world.run("move", &[&x, &x]).ends(1, "into itself");
    world.run("detach", &[&x]).ok();
    world.end();
}

#[test]
fn a_kernels_mount_keeps_its_place_from_being_changed_and_goes_with_a_lazy_detach() {
    let Some(world) = World::new("") else { return };
    world.attach().ok();
    let mounted = |path: &str| {
        let path = world.path(path);
        fs::create_dir_all(&path).unwrap();
        mount("none", &path, "tmpfs", MountFlags::empty(), None).unwrap();
        path
    };
    let (inside, beside) = (mounted("x/below"), mounted("y/below"));
    let busy = |out: Out, path: &Path| {
        let out = out.ends(1, "is busy (EBUSY)");
        assert!(out.stderr.contains(path.to_str().unwrap()), "{}", out.stderr);
    };
    busy(world.run("detach", &[&world.path("x")]), &inside);
    fs::create_dir(world.path("z")).unwrap();
    busy(world.run("move", &[&world.path("x"), &world.path("z")]), &inside);
    busy(world.run("attach", &[Path::new("mem:"), &world.path("y")]), &beside);
    umount2(&beside, UnmountFlags::empty());
    busy(world.run("move", &[&world.path("x"), &world.path("y")]), &inside);
    assert!(is_mounted(&inside));
    assert_eq!(world.status("x")["state"], "active");

    world.run("detach", &[Path::new("--lazy"), &world.path("x")]).ok();
    assert!(!is_mounted(&inside), "it has gone along");
    assert!(!world.path("x/below").exists());
    world.run("wait", &[&world.other]).ok().says("free");
    world.end();
}

#[test]
fn statfs_tells_of_the_volume_that_a_path_is_in_and_syncfs_makes_all_durable() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    world.run("attach", &[Path::new("mem:size=8M"), &world.path("x")]).ok();
    let bytes = |path: &Path| {
        let told = rustix::fs::statvfs(path).unwrap();
        told.f_blocks * told.f_frsize
    };
    assert_eq!(bytes(&world.path("x")), 8 << 20);
    assert_eq!(bytes(&world.rig.mnt), bytes(&world.rig.store), "its own store's");
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_eq!(device(&world.path("x")), device(&world.rig.mnt));
    world.run("detach", &[&world.path("x")]).ok();

    if world.root()["syncfs"] == true {
        let options = [Path::new("-o"), Path::new("dirty_after=1h"), &world.other, &world.path("x")];
        world.run("attach", &options).ok();
        for path in ["file", "x/file"] {
            fs::write(world.path(path), path).unwrap();
        }
        let stored =
            || [&world.rig.store, &world.other].map(|dir| fs::read_to_string(dir.join("file")).unwrap());
        assert_eq!(stored(), ["", ""], "nobody has asked for it yet");
        rustix::fs::syncfs(File::open(&world.rig.mnt).unwrap()).unwrap();
        assert_eq!(stored(), ["file", "x/file"]);
    } else {
        crate::rig::skipped("the kernel does not pass syncfs(2) on for this mount");
    }
    world.end();
}
