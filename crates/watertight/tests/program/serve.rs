//! `serve`: the volumes of a file, watched, reloaded and ended.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Daemon, Rig, eventually, is_mounted, run, tool};

/// Volumes by name, each with a directory for its store and one for its mountpoint.
pub(crate) struct Served {
    pub(crate) rig: Rig,
    file: PathBuf,
}

impl Served {
    pub(crate) fn new() -> Option<Self> {
        let rig = Rig::mounting()?;
        let file = rig.root.join("volumes.toml");
        Some(Self { rig, file })
    }

    pub(crate) fn mnt(&self, name: &str) -> PathBuf {
        self.rig.root.join(format!("mnt-{name}"))
    }

    pub(crate) fn store(&self, name: &str) -> PathBuf {
        self.rig.root.join(format!("store-{name}"))
    }

    /// Writes the file: name, how the source begins, options.
    fn write(&self, volumes: &[(&str, &str, &str)]) {
        let mut text = "[defaults]\noptions = \"cache=16M\"\n".to_owned();
        for (name, fault, options) in volumes {
            for dir in [self.mnt(name), self.store(name)] {
                let _ = fs::create_dir(dir);
            }
            text.push_str(&format!(
                "[[volume]]\nsource = \"{fault}dir:{}\"\nmountpoint = \"{}\"\noptions = \"{options}\"\n",
                self.store(name).display(),
                self.mnt(name).display()
            ));
        }
        fs::write(&self.file, text).unwrap();
    }

    pub(crate) fn start(&mut self) -> Daemon {
        let mut command = self.rig.command(&["serve"]);
        command.arg(&self.file);
        self.rig.start(command)
    }

    pub(crate) fn pid_of(&self, name: &str) -> Option<u32> {
        let path = self.mnt(name);
        let status = self.rig.status();
        let volumes = status["volumes"].as_array()?;
        let volume = volumes.iter().find(|volume| volume["mountpoint"] == path.to_str().unwrap())?;
        volume["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
    }
}

#[test]
fn what_the_file_has_and_is_not_mounted_is_told_by_name_and_counted() {
    let Some(mut it) = Served::new() else { return };
    it.write(&[("a", "", ""), ("b", "", "")]);
    fs::write(it.mnt("b").join("in-its-way"), "").unwrap();
    let daemon = it.start();
    let missing = |it: &Served| it.rig.status()["missing"].as_array().unwrap().clone();
    let (a, b) = (it.mnt("a").display().to_string(), it.mnt("b").display().to_string());
    let is = |missing: &[serde_json::Value], at: &str, why: &str| {
        missing.len() == 1
            && missing[0]["mountpoint"] == at
            && missing[0]["why"].as_str().unwrap().contains(why)
    };
    eventually("b is missing", || is(&missing(&it), &b, "exit status: 2"));
    it.rig
        .run(&["status"])
        .ok()
        .says(&format!("{b}: not mounted, though a file of `watertight serve` has it"));
    let page = it.rig.run(&["status", "--metrics"]).ok().stdout;
    assert!(page.contains("\nwatertight_missing_volumes 1\n"), "{page}");
    let sample =
        format!("watertight_missing{{mountpoint=\"{b}\",source=\"dir:{}\"}} 1", it.store("b").display());
    assert!(page.lines().any(|line| line == sample), "{page}");
    if let Some(promtool) = tool("promtool") {
        let file = it.rig.root.join("page");
        fs::write(&file, &page).unwrap();
        let mut check = std::process::Command::new("sh");
        check.args(["-c", "exec \"$0\" check metrics < \"$1\""]).arg(promtool).arg(&file);
        run(check).ok();
    }

    // It is tried again; a user unmounts another one.
    fs::remove_file(it.mnt("b").join("in-its-way")).unwrap();
    eventually("all are there", || missing(&it).is_empty());
    it.rig.run(&["umount", &a]).ok();
    eventually("a is missing", || is(&missing(&it), &a, "was unmounted"));
    // A list of one that was killed is no news.
    let pid = Pid::from_raw(daemon.pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    daemon.end();
    assert_eq!(missing(&it), Vec::<serde_json::Value>::new());
    it.rig.run(&["umount", &b]).ok();
    let left = fs::read_dir(&it.rig.runtime).unwrap().map(|entry| entry.unwrap().path());
    assert!(left.into_iter().all(|path| path.extension().is_none_or(|ext| ext != "serve")));
}

#[test]
fn volumes_come_and_go_with_the_file() {
    let Some(mut it) = Served::new() else { return };
    it.write(&[("a", "", "dirty_after=1h"), ("b", "", "dirty_after=1h")]);
    let daemon = it.start();
    let (a, b) = (it.pid_of("a").unwrap(), it.pid_of("b").unwrap());
    assert!(a != b && a != daemon.pid);
    fs::write(it.mnt("a").join("f"), "in a").unwrap();
    fs::write(it.mnt("b").join("f"), "in b").unwrap();

    // One goes, with its data written; one comes; one has changed and stays as it is.
    it.write(&[("b", "", "dirty_after=2h"), ("c", "", "")]);
    daemon.signal(Signal::HUP);
    daemon.says("unmounted, everything is on");
    assert!(!is_mounted(&it.mnt("a")));
    eventually("c is there", || it.pid_of("c").is_some());
    assert_eq!(fs::read(it.store("a").join("f")).unwrap(), b"in a");
    daemon.says("cannot be changed while it is mounted");
    assert_eq!(it.pid_of("b"), Some(b));

    // A file that is wrong changes nothing.
    let right = fs::read_to_string(&it.file).unwrap();
    fs::write(&it.file, right.replace("mountpoint", "mountpiont")).unwrap();
    daemon.signal(Signal::HUP);
    daemon.says("did you mean `mountpoint`?");
    assert_eq!(it.pid_of("b"), Some(b));

    // A reload mounts again a volume that a user unmounted, as the file has it now.
    fs::write(&it.file, right).unwrap();
    it.rig.run(&["umount", it.mnt("b").to_str().unwrap()]).ok();
    assert_eq!(fs::read(it.store("b").join("f")).unwrap(), b"in b");
    daemon.says("unmounted, everything is on");
    daemon.signal(Signal::HUP);
    eventually("b is back", || it.pid_of("b").is_some_and(|pid| pid != b));

    fs::write(it.mnt("b").join("g"), "last").unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(fs::read(it.store("b").join("g")).unwrap(), b"last");
    it.rig.is_quiet();
}

#[test]
fn limits_are_the_files_and_change_with_it_while_volumes_are_mounted() {
    let Some(mut it) = Served::new() else { return };
    let with_limits = |it: &Served, limits: &str| {
        it.write(&[("a", "", ""), ("b", "", "")]);
        let text = fs::read_to_string(&it.file).unwrap();
        fs::write(&it.file, format!("{text}{limits}")).unwrap();
    };
    let a = it.mnt("a").display().to_string();
    let shown = |it: &Served, name: &str| {
        let mnt = it.mnt(name).display().to_string();
        it.rig.run(&["limit", "--show", &mnt]).ok().stdout
    };
    with_limits(
        &it,
        &format!(
            "[[limit]]\ncgroup = \"/wt/x\"\nvolume = \"{a}\"\nwbps = \"1M\"\nwiops = 9\n[[limit]]\ncgroup = \"/wt/y\"\n\
             sync_isolation = true\n"
        ),
    );
    let daemon = it.start();
    let isolated = "/wt/y rbps=max wbps=max riops=max wiops=max dirty_max=max sync_isolation=1\n";
    let x = "/wt/x rbps=max wbps=1048576 riops=max wiops=9 dirty_max=max sync_isolation=0\n";
    // At once, not a moment after the mount.
    assert_eq!(shown(&it, "a"), format!("{x}{isolated}"));
    assert_eq!(shown(&it, "b"), isolated);
    let pid = it.pid_of("a").unwrap();
    // By hand, which the file does not know.
    it.rig.run(&["limit", "/wt/hand", &a, "rbps=5M"]).ok();

    // Limits that the file no longer has are lifted, and so are all of a cgroup that is gone.
    with_limits(&it, "[[limit]]\ncgroup = \"/wt/x\"\nwbps = 4096\ndirty_max = \"64M\"\n");
    daemon.signal(Signal::HUP);
    let hand = "/wt/hand rbps=5242880 wbps=max riops=max wiops=max dirty_max=max sync_isolation=0\n";
    let x = "/wt/x rbps=max wbps=4096 riops=max wiops=max dirty_max=67108864 sync_isolation=0\n";
    eventually("a has other limits", || shown(&it, "a") == format!("{hand}{x}"));
    eventually("so has b", || shown(&it, "b") == x);
    assert_eq!(it.pid_of("a"), Some(pid), "it was not mounted again");

    // A wrong one changes nothing.
    with_limits(&it, "[[limit]]\ncgroup = \"/wt/x\"\nwbps = \"fast\"\n");
    daemon.signal(Signal::HUP);
    daemon.says("wbps=fast");
    assert_eq!(shown(&it, "b"), x);

    // Taken over by the next `serve`, whose file has changed meanwhile.
    daemon.kill();
    with_limits(&it, "[[limit]]\ncgroup = \"/wt/x\"\nwbps = \"2M\"\n");
    let daemon = it.start();
    daemon.says("is taken over");
    let x = "/wt/x rbps=max wbps=2097152 riops=max wiops=max dirty_max=max sync_isolation=0\n";
    eventually("b has its limits", || shown(&it, "b") == x);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
}

#[test]
fn a_volume_that_dies_is_mounted_again_and_one_that_runs_is_taken_over() {
    let Some(mut it) = Served::new() else { return };
    it.write(&[("a", "", "")]);
    let daemon = it.start();
    let first = it.pid_of("a").unwrap();
    kill_process(Pid::from_raw(first.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("it is mounted again", || it.pid_of("a").is_some_and(|pid| pid != first));
    let second = it.pid_of("a").unwrap();

    // Without the one that watches it goes on, and the next one takes it over.
    daemon.kill();
    fs::write(it.mnt("a").join("f"), "alone").unwrap();
    let daemon = it.start();
    daemon.says("is taken over");
    assert_eq!(it.pid_of("a"), Some(second));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(fs::read(it.store("a").join("f")).unwrap(), b"alone");
    assert!(!is_mounted(&it.mnt("a")));
}

#[test]
fn a_stalled_volume_does_not_keep_the_others_from_ending_and_is_named() {
    let Some(mut it) = Served::new() else { return };
    it.write(&[
        ("hung", "fault:write:hang,", "dirty_after=1h,drain_timeout=500ms"),
        ("well", "", "dirty_after=1h"),
    ]);
    let daemon = it.start();
    fs::write(it.mnt("hung").join("f"), "lost").unwrap();
    fs::write(it.mnt("well").join("f"), "kept").unwrap();
    daemon.signal(Signal::TERM);
    eventually("the other is unmounted", || !is_mounted(&it.mnt("well")));
    eventually("its data is there", || {
        fs::read(it.store("well").join("f")).is_ok_and(|data| data == b"kept")
    });
    assert_eq!(daemon.end(), Some(1));
    let said = daemon.stderr();
    let last = said.split("not everything is written:").nth(1).unwrap_or_else(|| panic!("{said}"));
    assert!(last.contains(it.mnt("hung").to_str().unwrap()), "{said}");
    assert!(!last.contains(it.mnt("well").to_str().unwrap()), "{said}");
}

#[test]
fn a_file_that_is_wrong_is_refused_with_its_line() {
    let rig = Rig::new();
    let file = rig.root.join("volumes.toml");
    let path = file.to_str().unwrap();
    rig.run(&["serve"]).ends(2, "--example");
    rig.run(&["serve", "--check", path]).ends(2, "No such file");
    let example = rig.run(&["serve", "--example"]).ok();
    fs::write(&file, &example.stdout).unwrap();
    // Its stores are not there.
    rig.run(&["serve", "--check", path]).ends(2, "source /srv/data does not exist; make the directory first");
    let here = rig.store.to_str().unwrap();
    for store in ["data", "stores/project"] {
        fs::create_dir_all(rig.store.join(store)).unwrap();
    }
    fs::write(&file, example.stdout.replace("\"/srv/", &format!("\"{here}/"))).unwrap();
    rig.run(&["serve", "--check", path]).ok().says("3 volumes, no errors");
    fs::write(&file, "").unwrap();
    rig.run(&["serve", "--check", path]).ends(2, &format!("{path}:1: there is no [[volume]]"));
    rig.run(&["serve", path]).ends(2, "there is no [[volume]]");
    fs::write(&file, example.stdout.replacen("cache=1G", "cahce=1G", 1)).unwrap();
    let line = 1 + example.stdout.lines().position(|line| line.contains("cache=1G")).unwrap();
    let out = rig.run(&["serve", path]).ends(2, &format!("{path}:{line}: there is no mount option cahce=1G"));
    assert!(out.stderr.contains("did you mean cache=SIZE?"), "{}", out.stderr);
}

#[test]
fn a_service_of_which_nothing_can_be_mounted_fails_and_one_of_which_something_can_says_how_much() {
    let Some(it) = Served::new() else { return };
    it.write(&[("a", "", ""), ("b", "", "")]);
    for name in ["a", "b"] {
        fs::write(it.mnt(name).join("in-its-way"), "").unwrap();
    }
    let path = it.file.to_str().unwrap().to_owned();
    let out = it.rig.run(&["serve", &path]).ends(1, "0 of 2 volumes mounted, so nothing is served:");
    assert!(!out.stdout.contains("ready"), "{out:?}");
    // The last event of the log has the reason.
    let last: serde_json::Value = serde_json::from_str(out.stderr.lines().last().unwrap()).unwrap();
    let text = last["message"].as_str().unwrap();
    for name in ["a", "b"] {
        let why = text.lines().find(|line| line.starts_with(&format!("  {}: ", it.mnt(name).display())));
        assert!(why.is_some_and(|why| why.contains("exit status: 2")), "{}", out.stderr);
    }
    // The processes have said why.
    assert!(out.stderr.contains("in-its-way"), "{}", out.stderr);
    // A volume that fails takes nothing from the others, and is tried again.
    fs::remove_file(it.mnt("a").join("in-its-way")).unwrap();
    let daemon = Daemon::start({
        let mut command = it.rig.command(&["serve"]);
        command.arg(&it.file);
        command
    });
    assert_eq!(daemon.line(crate::rig::LONG).as_deref(), Some("ready: 1 of 2 volumes mounted"));
    fs::remove_file(it.mnt("b").join("in-its-way")).unwrap();
    eventually("the other is there", || it.pid_of("b").is_some());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    it.rig.is_quiet();
}

/// A file with one mountpoint and volumes inside of it: name, options.
pub(crate) fn inside(it: &Served, names: &[String]) {
    let (root, mnt) = (it.store("root"), it.mnt("root"));
    for dir in [&root, &mnt] {
        let _ = fs::create_dir(dir);
    }
    let mut text = format!(
        "[defaults]\noptions = \"cache=16M,uring=off\"\n[[volume]]\nsource = \"{}\"\nmountpoint = \"{}\"\n",
        root.display(),
        mnt.display()
    );
    // From the inside out: the order of the file does not matter.
    for name in names.iter().rev() {
        let store = it.store(&name.replace('/', "-"));
        let _ = fs::create_dir(&store);
        text.push_str(&format!(
            "[[volume]]\nsource = \"{}\"\nattach = \"{}\"\noptions = \"dirty_after=1s\"\n",
            store.display(),
            mnt.join(name).display()
        ));
    }
    fs::write(&it.file, text).unwrap();
}

pub(crate) fn attached(it: &Served) -> Vec<String> {
    let status = it.rig.status();
    let volumes = status["volumes"].as_array().unwrap();
    let mnt = it.mnt("root");
    let inside = volumes.iter().filter(|volume| !volume["attached_to"].is_null());
    let mut paths: Vec<String> = inside
        .map(|volume| {
            let path = PathBuf::from(volume["mountpoint"].as_str().unwrap());
            path.strip_prefix(&mnt).unwrap().to_str().unwrap().to_owned()
        })
        .collect();
    paths.sort();
    paths
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn volumes_are_attached_and_detached_with_the_file() {
    let Some(mut it) = Served::new() else { return };
    inside(&it, &names(&["a", "a/in", "b"]));
    for dir in [it.store("root").join("a"), it.store("root").join("b"), it.store("a").join("in")] {
        fs::create_dir(dir).unwrap();
    }
    let daemon = it.start();
    assert_eq!(attached(&it), ["a", "a/in", "b"]);
    let mnt = it.mnt("root");
    for name in ["a", "a/in", "b"] {
        fs::write(mnt.join(name).join("file"), name).unwrap();
    }
    let held = fs::File::open(mnt.join("b/file")).unwrap();

    // Volumes that leave are detached from the inside out, with their data written; a held one
    // stays until it is released.
    fs::create_dir(it.store("root").join("c")).unwrap();
    inside(&it, &names(&["c"]));
    daemon.signal(Signal::HUP);
    daemon.says("stays attached as long as it is held");
    eventually("c has come and a is gone", || attached(&it) == ["b", "c"]);
    assert_eq!(fs::read(it.store("a").join("file")).unwrap(), b"a");
    assert_eq!(fs::read(it.store("a-in").join("file")).unwrap(), b"a/in");
    drop(held);
    eventually("b is gone", || attached(&it) == ["c"]);
    assert_eq!(fs::read(it.store("b").join("file")).unwrap(), b"b");

    // A volume that a user detached comes back with a reload; a directory that does not exist is
    // tried again.
    it.rig.run(&["detach", mnt.join("c").to_str().unwrap()]).ok();
    inside(&it, &names(&["c", "late"]));
    daemon.signal(Signal::HUP);
    daemon.says("late");
    fs::create_dir(mnt.join("late")).unwrap();
    eventually("both are there", || attached(&it) == ["c", "late"]);

    // A mount process that dies comes back with all that was inside.
    let root = it.pid_of("root").unwrap();
    kill_process(Pid::from_raw(root.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("all are back", || {
        it.pid_of("root").is_some_and(|pid| pid != root) && attached(&it) == ["c", "late"]
    });

    // A `serve` that takes over finds them as they are.
    daemon.kill();
    let daemon = it.start();
    daemon.says("is taken over");
    assert_eq!(attached(&it), ["c", "late"]);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    it.rig.is_quiet();
}

#[test]
fn what_was_detached_by_hand_is_not_counted_at_the_end() {
    let Some(mut it) = Served::new() else { return };
    inside(&it, &names(&["a", "b", "c"]));
    for name in ["a", "b", "c", "elsewhere"] {
        fs::create_dir(it.store("root").join(name)).unwrap();
    }
    let daemon = it.start();
    assert_eq!(attached(&it), ["a", "b", "c"]);
    let path = |name: &str| it.mnt("root").join(name).to_str().unwrap().to_owned();
    it.rig.run(&["detach", &path("a")]).ok();
    // This one is in another place, and there.
    it.rig.run(&["move", &path("b"), &path("elsewhere")]).ok();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    daemon.says("SIGTERM: unmounting 3 of 4 volumes mounted, 2 of them inside others' mountpoints");
    it.rig.is_quiet();
}

#[test]
fn a_volume_that_was_moved_stays_where_it_is_and_is_detached_there() {
    let Some(mut it) = Served::new() else { return };
    let all = names(&["up/a", "b"]);
    inside(&it, &all);
    fs::create_dir_all(it.store("root").join("up/a")).unwrap();
    fs::create_dir(it.store("root").join("b")).unwrap();
    let daemon = it.start();
    assert_eq!(attached(&it), ["b", "up/a"]);
    let mnt = it.mnt("root");
    fs::rename(mnt.join("up"), mnt.join("down")).unwrap();
    fs::create_dir_all(mnt.join("up/a")).unwrap();
    fs::create_dir(mnt.join("c")).unwrap();
    it.rig.run(&["move", mnt.join("b").to_str().unwrap(), mnt.join("c").to_str().unwrap()]).ok();
    assert_eq!(attached(&it), ["c", "down/a"]);
    fs::write(mnt.join("down/a/file"), "a").unwrap();
    fs::write(mnt.join("c/file"), "b").unwrap();

    daemon.signal(Signal::HUP);
    for (from, to) in [("up/a", "down/a"), ("b", "c")] {
        let (from, to) = (mnt.join(from), mnt.join(to));
        daemon.says(&format!("{} stays attached at {}", from.display(), to.display()));
    }
    assert_eq!(attached(&it), ["c", "down/a"]);
    assert!(fs::read_dir(mnt.join("up/a")).unwrap().next().is_none(), "it is in one place");

    inside(&it, &[]);
    daemon.signal(Signal::HUP);
    eventually("both are gone", || attached(&it).is_empty());
    assert_eq!(fs::read(it.store("up-a").join("file")).unwrap(), b"a");
    assert_eq!(fs::read(it.store("b").join("file")).unwrap(), b"b");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    it.rig.is_quiet();
}

/// A process that is stopped until this is dropped.
pub(crate) struct Stopped(Pid);

impl Stopped {
    pub(crate) fn new(pid: u32) -> Self {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let stopped = Self(pid);
        // Each of its threads stops for itself.
        let stands = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
        };
        let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
        eventually("it stands still", || fs::read_dir(&tasks).unwrap().flatten().all(stands));
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn status_names_who_does_not_answer_and_shows_the_others() {
    let Some(mut it) = Served::new() else { return };
    it.write(&[("hung", "", ""), ("well", "", "")]);
    let daemon = it.start();
    let stopped = Stopped::new(it.pid_of("hung").unwrap());
    let page = it.rig.run(&["status", "--metrics"]).ends(1, "no answer from the process of ").stdout;
    let up = |name: &str, value: u8| {
        let end = format!("mountpoint=\"{}\"}} {value}", it.mnt(name).display());
        page.lines().any(|line| line.starts_with("watertight_up{") && line.ends_with(&end))
    };
    assert!(up("hung", 0) && up("well", 1), "{page}");
    let out = it.rig.run(&["status", "--json"]).ends(1, "no answer from the process of ");
    // A verb that goes on waits, and prints for which process.
    let waiting = Daemon::start(it.rig.command(&["umount", it.mnt("hung").to_str().unwrap()]));
    waiting.says(", which does not answer");
    drop(stopped);
    assert_eq!(waiting.end(), Some(0), "{}", waiting.stderr());
    let status: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    let only = |what: &str, name: &str| {
        let found = status[what].as_array().unwrap();
        assert_eq!(found.len(), 1, "{status}");
        assert_eq!(found[0]["mountpoint"], it.mnt(name).to_str().unwrap());
    };
    only("volumes", "well");
    only("silent", "hung");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
}
