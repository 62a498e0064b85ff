//! `umount` of bind mounts of a volume, as containers have them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, mount_bind, mount_change};

use crate::namespace;
use crate::rig::{Daemon, Out, Rig, eventually, has, is_mounted, run, umount2, unshare};

/// A mounted volume with a file that is not on its store, and a directory for a bind mount.
struct World {
    rig: Rig,
    daemon: Daemon,
    bind: PathBuf,
}

impl World {
    fn new(rules: &str) -> Option<Self> {
        let mut rig = Rig::mounting()?;
        let daemon = if rules.is_empty() {
            rig.mount("dirty_after=1h")
        } else {
            rig.mount_faulty(rules, "dirty_after=1h")
        };
        let bind = rig.root.join("bind");
        fs::create_dir(&bind).unwrap();
        fs::create_dir(rig.mnt.join("sub")).unwrap();
        fs::write(rig.mnt.join("sub/a"), "hello").unwrap();
        Some(Self { rig, daemon, bind })
    }

    fn umount(&self, path: &Path, more: &[&str]) -> Out {
        run(self.command(path, more))
    }

    fn command(&self, path: &Path, more: &[&str]) -> Command {
        let mut command = self.rig.command(&["umount"]);
        command.arg(path).args(more);
        command
    }

    /// The last mount is at `path`; its unmount is the volume's end.
    fn ends_with(&self, path: &Path) {
        assert_eq!(self.rig.stored("sub/a").unwrap(), b"", "nothing was drained");
        assert_eq!(self.rig.volume()["state"], "active");
        self.umount(path, &[]).ok().says("everything is on");
        assert_eq!(self.rig.stored("sub/a").unwrap(), b"hello");
        assert_eq!(self.daemon.end(), Some(0));
    }
}

#[test]
fn one_of_several_bind_mounts_goes_alone_and_the_last_one_drains() {
    for how in [&[][..], &["--lazy"], &["--force"]] {
        for is_own_first in [false, true] {
            let Some(world) = World::new("") else { return };
            mount_bind(&world.rig.mnt, &world.bind).unwrap();
            let (first, last) = match is_own_first {
                true => (&world.rig.mnt, &world.bind),
                false => (&world.bind, &world.rig.mnt),
            };
            let said = format!("{}: unmounted; the volume goes on at {}", first.display(), last.display());
            world.umount(first, how).ok().says(&said);
            assert!(!is_mounted(first));
            assert_eq!(fs::read(last.join("sub/a")).unwrap(), b"hello", "{how:?}");
            world.ends_with(last);
        }
    }
}

#[test]
fn a_bind_mount_of_a_directory_goes_alone_and_may_be_the_last() {
    let Some(world) = World::new("") else { return };
    mount_bind(world.rig.mnt.join("sub"), &world.bind).unwrap();
    world.umount(&world.bind, &[]).ok().says("the volume goes on");
    mount_bind(world.rig.mnt.join("sub"), &world.bind).unwrap();
    world.umount(&world.rig.mnt, &[]).ok().says("the volume goes on");
    assert_eq!(fs::read(world.bind.join("a")).unwrap(), b"hello");
    world.ends_with(&world.bind);
}

#[test]
fn a_bind_mount_that_is_held_is_busy_and_names_only_its_own_holders() {
    let Some(world) = World::new("") else { return };
    mount_bind(&world.rig.mnt, &world.bind).unwrap();
    let elsewhere = File::open(world.rig.mnt.join("sub/a")).unwrap();
    world.umount(&world.bind, &[]).ok();
    mount_bind(&world.rig.mnt, &world.bind).unwrap();
    let held = File::open(world.bind.join("sub/a")).unwrap();
    let out = world.umount(&world.bind, &[]).ends(1, "is busy (EBUSY); it is held by");
    assert!(out.stderr.contains(&format!("open: {}", world.bind.join("sub/a").display())), "{}", out.stderr);
    assert!(!out.stderr.contains("also mounted") && !out.stderr.contains("mnt/sub/a"), "{}", out.stderr);
    world.umount(&world.bind, &["--lazy"]).ok().says("the volume goes on");
    drop((held, elsewhere));
    world.ends_with(&world.rig.mnt);
}

#[test]
fn bind_mounts_go_beside_a_store_that_hangs_and_by_its_id_the_volume_is_meant() {
    let Some(world) = World::new("write:hang") else { return };
    mount_bind(&world.rig.mnt, &world.bind).unwrap();
    world.umount(&world.bind, &[]).ok().says("the volume goes on");
    mount_bind(&world.rig.mnt, &world.bind).unwrap();
    world.umount(&world.rig.mnt, &["--force"]).ok().says("the volume goes on");
    assert_eq!(fs::read(world.bind.join("sub/a")).unwrap(), b"hello");
    mount_bind(&world.bind, &world.rig.mnt).unwrap();
    let id = world.rig.volume()["id"].as_str().unwrap().to_owned();
    world.umount(Path::new(&id), &[]).ends(1, "also mounted at");
    world.umount(Path::new(&id), &["--force"]).ends(1, "sub/a: 5 bytes");
    assert!(!is_mounted(&world.bind) && !is_mounted(&world.rig.mnt));
    assert!(world.daemon.end().is_some());
}

#[test]
fn stacked_and_propagated_mounts_count_as_what_they_are() {
    let Some(world) = World::new("") else { return };
    // On top of itself.
    mount_bind(&world.rig.mnt, &world.rig.mnt).unwrap();
    world.umount(&world.rig.mnt, &[]).ok().says("the volume goes on");
    assert!(is_mounted(&world.rig.mnt));
    // A directory that is shown twice and shared: a mount in one goes with its copy in the other.
    let (shared, twin) = (world.rig.root.join("shared"), world.rig.root.join("twin"));
    fs::create_dir(&shared).unwrap();
    fs::create_dir(&twin).unwrap();
    mount_bind(&shared, &shared).unwrap();
    let flags = rustix::mount::MountPropagationFlags::SHARED;
    mount_change(&shared, flags).unwrap();
    mount_bind(&shared, &twin).unwrap();
    fs::create_dir(shared.join("v")).unwrap();
    mount_bind(&world.rig.mnt, shared.join("v")).unwrap();
    assert!(is_mounted(&twin.join("v")));
    world.umount(&world.rig.mnt, &[]).ok().says("the volume goes on");
    world.ends_with(&shared.join("v"));
    assert!(!is_mounted(&twin.join("v")));
    for path in [&twin, &shared] {
        umount2(path, UnmountFlags::DETACH);
    }
}

#[test]
fn sigterm_takes_all_of_them_and_what_is_mapped_is_written() {
    let Some(world) = World::new("") else { return };
    mount_bind(&world.rig.mnt, &world.bind).unwrap();
    umount2(&world.rig.mnt, UnmountFlags::empty());
    fs::write(world.bind.join("b"), "more").unwrap();
    world.daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(world.daemon.end(), Some(0));
    assert_eq!(world.rig.stored("b").unwrap(), b"more");
    eventually("the path is gone", || !is_mounted(&world.bind));
}

#[test]
fn the_last_mount_of_a_clone_ends_it_though_its_own_mountpoint_went_first() {
    let Some(world) = World::new("") else { return };
    let (second, other) = (world.rig.root.join("second"), world.rig.root.join("other"));
    fs::create_dir(&second).unwrap();
    fs::create_dir(&other).unwrap();
    let run_verb = |verb: &str, arguments: &[&Path]| {
        let mut command = world.rig.command(&[verb]);
        command.args(arguments);
        run(command)
    };
    run_verb("clone", &[Path::new("--propagation=private"), &world.rig.mnt, &second]).ok();
    run_verb("attach", &[&other, &second.join("sub")]).ok();
    mount_bind(&second, &world.bind).unwrap();
    world.umount(&second, &[]).ok().says("the volume goes on");
    fs::write(world.bind.join("sub/of-other"), "kept").unwrap();
    assert_eq!(fs::read(other.join("of-other")).unwrap(), b"");
    world.umount(&world.bind, &[]).ok().says("the volume goes on");
    // The volume that was attached only there has ended.
    assert_eq!(fs::read(other.join("of-other")).unwrap(), b"kept");
    world.umount(&world.rig.mnt, &[]).ok().says("everything is on");
    assert_eq!(world.daemon.end(), Some(0));
}

#[test]
fn in_another_mount_namespace_a_bind_mount_goes_alone() {
    let Some(world) = World::new("").filter(|_| has("unshare")) else { return };
    let (alone, mut command) = unshare();
    let text = r#"mount --bind "$MNT/sub" "$BIND" && umount -i "$MNT" && "$PROGRAM" umount "$BIND" && ! mountpoint -q "$BIND""#;
    command.args(["--mount", "--propagation", "private", "sh", "-c", text]);
    command.env("MNT", &world.rig.mnt).env("BIND", &world.bind).env("PROGRAM", crate::rig::PROGRAM);
    command.env("WATERTIGHT_RUNTIME_DIR", &world.rig.runtime);
    run(command).ok().says(&format!("goes on at {} in another mount namespace", world.rig.mnt.display()));
    drop(alone);
    world.ends_with(&world.rig.mnt);
}

#[test]
fn two_callers_that_take_the_last_two_away_wait_for_the_end() {
    for _ in 0..5 {
        let Some(world) = World::new("write:delay=50ms") else { return };
        mount_bind(&world.rig.mnt, &world.bind).unwrap();
        let said = std::thread::scope(|scope| {
            let both = [&world.bind, &world.rig.mnt].map(|path| world.command(path, &[]));
            let both = both.map(|command| scope.spawn(|| run(command)));
            both.map(|one| one.join().unwrap().ok().stdout)
        });
        assert_eq!(world.rig.stored("sub/a").unwrap(), b"hello");
        assert!(said.iter().any(|said| said.contains("everything is on")), "{said:?}");
        assert_eq!(world.daemon.end(), Some(0));
    }
}

#[test]
fn a_bind_mount_of_a_dead_volume_is_cleared_alone() {
    let Some(world) = World::new("") else { return };
    mount_bind(&world.rig.mnt, &world.bind).unwrap();
    world.daemon.kill();
    let out = world.umount(&world.bind, &[]).ends(1, "what was not fsynced before may be lost");
    assert!(!out.stderr.contains("held by"), "{}", out.stderr);
    assert!(!is_mounted(&world.bind) && is_mounted(&world.rig.mnt));
    world.umount(&world.rig.mnt, &[]).ends(1, "died before everything was written");
}

#[test]
fn umount8_takes_one_of_several_away_as_containers_do() {
    for kind in ["auto", "fuse"] {
        let Some(rig) = Rig::mounting() else { return };
        let text = format!(
            r#"
trap '"$PROGRAM" umount --force "$MNT" >/dev/null 2>&1 || true' EXIT
mkdir "$ROOT/a" "$ROOT/b" "$ROOT/c"
mount -t fuse.watertight -o "dirty_after=1h,type={kind}" "$STORE" "$MNT"
mkdir "$MNT/sub"
echo hello > "$MNT/sub/f"
mount --bind "$MNT" "$ROOT/a"
mount --bind "$MNT/sub" "$ROOT/b"
mount --bind "$ROOT/a" "$ROOT/c"
mount -o remount,bind,ro "$ROOT/c"
umount "$MNT"
umount.fuse.watertight "$ROOT/b"
umount -f "$ROOT/c"
test ! -s "$STORE/sub/f"
test "$(cat "$ROOT/a/sub/f")" = hello
umount.fuse.watertight "$ROOT/a"
test "$(cat "$STORE/sub/f")" = hello
if grep -q "$ROOT" /run/mount/utab; then exit 1; fi
"#
        );
        let Some(out) = namespace::script(&rig, &text) else { return };
        let out = out.ok();
        assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", ""));
    }
}
