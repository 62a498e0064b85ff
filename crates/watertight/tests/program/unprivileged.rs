//! Without root: `fusermount3`, mount type `fuse`, the owner's own volumes only.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;

use crate::rig::{Out, PROGRAM, Rig, copy_program, has, run, unshare};

/// Runs a shell script as user 65534 in a mount namespace where every user may open `/dev/fuse`.
pub(crate) fn as_nobody(rig: &Rig, script: &str) -> Out {
    as_nobody_with(rig, "666", script)
}

/// Like [`as_nobody`], where `/dev/fuse` has this mode, and belongs to root.
fn as_nobody_with(rig: &Rig, mode: &str, script: &str) -> Out {
    // The program may lie where only its builder can reach it.
    let program = rig.root.join("watertight");
    if !program.exists() {
        copy_program(PROGRAM, &program);
    }
    let (home, dev) = (rig.root.join("home"), rig.root.join(format!("fuse-{mode}")));
    if !home.exists() {
        fs::create_dir(&home).unwrap();
        for dir in [&home, &rig.store, &rig.mnt] {
            chown(dir, Some(65534), Some(65534)).unwrap();
        }
        fs::set_permissions(&home, Permissions::from_mode(0o700)).unwrap();
    }
    let outer = format!(
        "mknod -m {mode} {dev} c 10 229 2>/dev/null || true; mount --bind {dev} /dev/fuse; \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -ec \"$SCRIPT\"",
        dev = dev.display()
    );
    let (_alone, mut command) = unshare();
    command
        .args(["--mount", "sh", "-ec", &outer])
        .env("SCRIPT", script)
        .env("WATERTIGHT_RUNTIME_DIR", home.join("run"))
        .env("HOME", &home)
        .env("W", &program)
        .env("S", &rig.store)
        .env("M", &rig.mnt)
        .current_dir("/");
    run(command)
}

fn rig() -> Option<Rig> {
    Rig::mounting().filter(|_| has("unshare") && has("setpriv") && has("mknod") && has("fusermount3"))
}

#[test]
fn a_user_mounts_and_unmounts() {
    let Some(rig) = rig() else { return };
    let out = as_nobody(
        &rig,
        "$W mount -d -o dirty_after=1h fault:write:delay=200ms,dir:$S $M
         echo hello > $M/a
         $W status
         (cd $M && ! $W umount $M)
         mkdir $HOME/second
         ! $W clone $M $HOME/second
         $W umount $M
         cat $S/a
         $W wait $M",
    )
    .ok();
    for what in ["ready: ", "fuse", "mounted without root", "everything is on", "hello", "free"] {
        assert!(out.stdout.contains(what), "no {what:?} in {}", out.stdout);
    }
    for what in ["is busy (EBUSY)", "working directory", "only root may show a volume at a second mountpoint"]
    {
        assert!(out.stderr.contains(what), "no {what:?} in {}", out.stderr);
    }
}

#[test]
fn roots_volume_is_neither_taken_for_a_dead_one_nor_for_none() {
    let Some(mut rig) = rig() else { return };
    let daemon = rig.mount("");
    for verb in ["wait", "status", "sync", "umount", "umount --lazy", "umount --force"] {
        let out = as_nobody(&rig, &format!("$W {verb} $M"));
        out.ends(1, "a process that only its own user and root may ask");
    }
    assert!(rig.is_mounted());
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn signals_unmount_without_root_too() {
    let Some(rig) = rig() else { return };
    let out = as_nobody(
        &rig,
        "$W mount -o dirty_after=1h fault:write:delay=200ms,dir:$S $M > out & pid=$!
         while ! grep -q ready out; do sleep 0.05; done
         echo hello > $M/a
         kill -TERM $pid
         wait $pid
         cat $S/a"
            .replace("out", "$WATERTIGHT_RUNTIME_DIR.out")
            .as_str(),
    );
    assert!(out.ok().stdout.contains("hello"));
}

#[test]
fn force_without_root() {
    let Some(rig) = rig() else { return };
    let out = as_nobody(
        &rig,
        "$W mount -d -o dirty_after=1h fault:write:hang,dir:$S $M
         echo hello > $M/a
         $W umount --force $M && exit 3
         ! mountpoint -q $M",
    );
    out.ok().ends(0, "6 bytes");
}

#[test]
fn fuseblk_and_missing_programs_are_refused_in_words() {
    let Some(rig) = rig() else { return };
    as_nobody(&rig, "$W mount -o type=fuseblk $S $M").ends(2, "it needs root");
    as_nobody(&rig, "export PATH=/nonexistent; $W mount $S $M").ends(1, "fusermount3 is not installed");
}

#[test]
fn roots_mounts_let_others_in_unless_told_not_to() {
    let Some(mut rig) = rig() else { return };
    for (options, may) in [("", true), ("noallow_other", false)] {
        let daemon = rig.mount(options);
        fs::write(rig.mnt.join("a"), "a").unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]).arg(rig.mnt.join("a"));
        assert_eq!(run(command).code == Some(0), may, "{options}");
        // Others may not unmount it, nor see it.
        let out = as_nobody(&rig, "$W status --json; ! $W umount $M").ok();
        let status: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
        assert_eq!(status["volumes"].as_array().unwrap().len(), 0, "{status}");
        assert!(rig.is_mounted());
        rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0));
    }
}

#[test]
fn root_sees_the_volumes_of_others_when_asked_to() {
    let Some(rig) = rig() else { return };
    let dir = std::path::Path::new("/tmp/watertight-65534");
    let was_there = dir.exists();
    let out = as_nobody(
        &rig,
        "unset WATERTIGHT_RUNTIME_DIR XDG_RUNTIME_DIR
         $W mount -d $S $M > /dev/null
         $W status --json",
    )
    .ok();
    let status: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    let id = status["volumes"][0]["id"].as_str().unwrap();
    let look = |more: &[&str]| {
        let mut command = rig.command(&[&["status", "--json"], more].concat());
        command.env_remove("WATERTIGHT_RUNTIME_DIR");
        serde_json::from_str::<serde_json::Value>(&run(command).ok().stdout).unwrap()
    };
    let own = look(&[]);
    assert!(!own["volumes"].as_array().unwrap().iter().any(|volume| volume["id"] == id), "{own}");
    let all = look(&["--all-users"]);
    let seen = all["volumes"].as_array().unwrap().iter().find(|volume| volume["id"] == id);
    assert_eq!(seen.unwrap()["uid"], 65534);
    // The mount is in another namespace; the process can be signalled all the same.
    let pid = i32::try_from(seen.unwrap()["pid"].as_u64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut command = rig.command(&["wait", "--all-users", id]);
    command.env_remove("WATERTIGHT_RUNTIME_DIR");
    run(command).ok();
    let _ = fs::remove_file(dir.join(format!("{id}.json")));
    if !was_there {
        // Unless another test run uses it.
        let _ = fs::remove_dir(dir);
    }
}

#[test]
fn volumes_of_others_are_counted() {
    let tools = ["unshare", "setpriv", "mknod"];
    let Some(mut rig) = Rig::mounting().filter(|_| tools.iter().all(|tool| has(tool))) else { return };
    let daemon = rig.mount("");
    let out = as_nobody(&rig, "$W status; $W status --json").ok();
    assert!(out.stdout.contains("no volumes are mounted that"), "{out:?}");
    assert!(out.stdout.contains("only their users and root may ask their processes"), "{out:?}");
    let status: serde_json::Value =
        serde_json::from_str(&out.stdout[out.stdout.find("\n{").unwrap()..]).unwrap();
    // Tests beside this one have theirs.
    assert!(status["of_others"].as_u64().unwrap() >= 1, "{status}");
    assert_eq!(status["unknown"], 0, "{status}");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_user_sees_and_acts_on_no_volume_of_others() {
    let Some(mut rig) = rig() else { return };
    let mnt = rig.root.join("roots");
    fs::create_dir(&mnt).unwrap();
    let mut command = rig.command(&["mount", "mem:"]);
    command.arg(&mnt);
    let daemon = rig.start(command);
    fs::write(mnt.join("a"), "a").unwrap();
    let script = format!(
        r#"$W mount -d $S $M > /dev/null
           try() {{ if "$@" > /dev/null 2>&1; then echo "DONE: $*"; fi; }}
           for runtime in $WATERTIGHT_RUNTIME_DIR {runtime}; do
               export WATERTIGHT_RUNTIME_DIR=$runtime
               $W status --json || true
               for path in {mnt} {id} {mnt}/in; do
                   for verb in umount "umount --lazy" "umount --force" detach "limit --show" "wait --timeout 0"; do
                       try $W $verb $path
                   done
                   try $W attach mem: $path
                   try $W limit / $path wbps=1
               done
               try $W sync {id}
           done
           export WATERTIGHT_RUNTIME_DIR=$HOME/run
           $W umount $M > /dev/null"#,
        runtime = rig.runtime.display(),
        mnt = mnt.display(),
        id = rig.volume()["id"].as_str().unwrap(),
    );
    let out = as_nobody(&rig, &script).ok();
    assert!(!out.stdout.contains("DONE"), "{out:?}");
    let seen: Vec<serde_json::Value> =
        serde_json::Deserializer::from_str(&out.stdout).into_iter().map(Result::unwrap).collect();
    // Once by their own directory, once by root's, which is not used.
    let uids: Vec<Vec<Option<u64>>> = seen
        .iter()
        .map(|status| {
            status["volumes"].as_array().unwrap().iter().map(|volume| volume["uid"].as_u64()).collect()
        })
        .collect();
    assert_eq!(uids, [vec![Some(65534)], vec![]], "{out:?}");
    // Nothing has happened to it.
    assert_eq!(rig.volume()["state"], "active");
    assert_eq!(fs::read(mnt.join("a")).unwrap(), b"a");
    let limits = run(rig.command(&["limit", "--show", mnt.to_str().unwrap()])).ok();
    assert!(!limits.stdout.contains("wbps"), "{limits:?}");
    rig.run(&["umount", mnt.to_str().unwrap()]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn no_permission_for_the_device() {
    let Some(rig) = rig() else { return };
    as_nobody_with(&rig, "600", "$W mount $S $M").ends(1, "ermission denied");
}

#[test]
fn no_permission_for_the_store() {
    let Some(rig) = rig() else { return };
    let foreign = rig.root.join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::set_permissions(&foreign, Permissions::from_mode(0o700)).unwrap();
    // Root's own, and one that cannot even be reached.
    let inside = foreign.join("inside");
    fs::create_dir(&inside).unwrap();
    for source in [&foreign, &inside] {
        let source = source.to_str().unwrap();
        let out = as_nobody(&rig, &format!("$W mount {source} $M")).ends(1, "no permission to use the store");
        assert!(out.stderr.contains(source), "the store is not named: {}", out.stderr);
        assert!(!out.stdout.contains("ready"), "{out:?}");
    }
    // The user has nothing of it afterwards: neither a mount nor a process that goes on.
    let out = as_nobody(&rig, "! mountpoint -q $M; $W status --json").ok();
    let status: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(status["volumes"].as_array().unwrap().len(), 0, "{status}");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1, "nothing was put into it");
}

#[test]
fn descriptors_are_left_for_the_program_itself() {
    let Some(rig) = rig() else { return };
    // Each file that the kernel knows takes a descriptor of a process that is not root's; there
    // cannot be more than the limit.
    let out = as_nobody(
        &rig,
        "ulimit -n 256
         $W mount -d -o dirty_after=1h dir:$S $M
         for n in $(seq 300); do (echo $n > $M/$n) 2>>$HOME/refused || true; done
         grep -q 'Too many open files in system' $HOME/refused
         $W status
         $W umount $M
         for n in $(seq 100); do grep -qx $n $S/$n || echo $n is wrong; done",
    )
    .ok();
    assert!(out.stdout.contains("active"), "{out:?}");
    assert!(!out.stdout.contains("is wrong"), "{out:?}");
}

#[test]
fn the_demo_is_for_any_user() {
    let Some(rig) = rig() else { return };
    let out = as_nobody(
        &rig,
        "TMPDIR=$HOME $W demo
         ls -A $HOME | sed 's/^/left: /'
         grep $HOME /proc/self/mountinfo | sed 's/^/left: /'",
    )
    .ok();
    assert!(!out.stdout.contains("left: "), "{}", out.stdout);
    let table = out.stdout.split("watertight\n").last().unwrap();
    let row = |name: &str| {
        let row = table.lines().find_map(|line| line.strip_prefix(name));
        row.unwrap_or_else(|| panic!("no row {name:?} in {}", out.stdout)).trim().to_owned()
    };
    let is_time = |text: &str| [" us", " ms", " s"].iter().any(|unit| text.ends_with(unit));
    for name in [
        "umount returns after",
        "sync and umount, all stores answering",
        "sync and umount beside a stalled one",
        "stalled store reported after",
        "umount --force of the stalled one",
        "200000 events received after",
    ] {
        assert!(is_time(&row(name)), "{name}: {}", row(name));
    }
    assert!(row("  files not on the store then").ends_with("0 of 48"), "{table}");
    assert!(row("stalled store reported after").starts_with("not in "), "{table}");
    // Its limit cannot be shown without a cgroup, and that is said, in one line, instead of a
    // figure.
    let throttled: Vec<&str> = table.lines().filter(|line| line.contains("throttled tenant")).collect();
    assert_eq!(throttled.len(), 1, "{table}");
    assert!(throttled[0].contains("not shown") && throttled[0].len() <= 80, "{throttled:?}");
}
