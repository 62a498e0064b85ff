//! mount(8), umount(8) and fstab by way of the helpers.
//!
//! Each test works in a mount namespace of its own (module `namespace`).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::namespace;
use crate::rig::{Out, Rig, run};

/// The beginning of each script.
const PREAMBLE: &str = r#"
trap '"$PROGRAM" umount --force "$MNT" >/dev/null 2>&1 || true' EXIT
# Somebody who holds the volume.
hold() { exec 9>"$MNT/held"; }
"#;

/// Runs a script as root in a namespace of its own; none where that is not possible here.
fn script(rig: &Rig, text: &str) -> Option<Out> {
    namespace::script(rig, &format!("{PREAMBLE}{text}"))
}

#[test]
fn mount_and_umount_call_the_helpers() {
    for kind in ["auto", "fuse"] {
        let Some(rig) = Rig::mounting() else { return };
        let text = format!(
            r#"
mount -t fuse.watertight -o "cache=64M,dirty_after=1h,type={kind}" "fault:write:delay=100ms,dir:$STORE" "$MNT"
echo hello > "$MNT/a"
test ! -s "$STORE/a"
grep -q "TARGET=$MNT " /run/mount/utab
# By its plain absolute path, as root: without our entry in utab the helper would not be called.
umount -v "$MNT"
test "$(cat "$STORE/a")" = hello
if mountpoint -q "$MNT"; then exit 1; fi
if grep -q "$MNT" /run/mount/utab; then exit 1; fi
echo done
"#
        );
        let Some(out) = script(&rig, &text) else { return };
        // The helper prints this, umount2(2) prints nothing.
        out.ok().says("unmounted; everything is on").says("done");
        rig.is_quiet();
    }
}

#[test]
fn umount_with_l_and_f_is_lazy_and_force() {
    let Some(rig) = Rig::mounting() else { return };
    let text = r#"
mount -t fuse.watertight -o dirty_after=1h "$STORE" "$MNT"
hold
echo hello >&9
if umount "$MNT" 2>"$ROOT/said"; then exit 1; else test $? = 32; fi
grep -q "held by" "$ROOT/said"
umount -l "$MNT"
if mountpoint -q "$MNT"; then exit 1; fi
exec 9>&-
"$PROGRAM" wait "$STORE"
test "$(cat "$STORE/held")" = hello
mount -t fuse.watertight -o dirty_after=1h "$STORE" "$MNT"
hold
umount -v -l "$MNT"
exec 9>&-
"$PROGRAM" wait "$STORE"
mount -t fuse.watertight -o dirty_after=1h "fault:write:hang,dir:$STORE" "$MNT"
echo lost > "$MNT/b"
if umount -f "$MNT" 2>"$ROOT/said"; then exit 1; else test $? = 32; fi
cat "$ROOT/said"
if mountpoint -q "$MNT"; then exit 1; fi
"#;
    let Some(out) = script(&rig, text) else { return };
    out.ok().says("its data is being written").says("b: 5 bytes");
}

#[test]
fn an_entry_of_fstab_is_mounted_and_unmounted() {
    let Some(rig) = Rig::mounting() else { return };
    let fstab = format!(
        "{} {} fuse.watertight defaults,cache=64M,nofail,x-systemd.device-timeout=5 0 0\n",
        rig.store.display(),
        rig.mnt.display()
    );
    fs::write(rig.root.join("fstab"), fstab).unwrap();
    let text = r#"
mount --bind "$ROOT/fstab" /etc/fstab
mount "$MNT"
mountpoint -q "$MNT"
# Again by `mount -a`: it is there, which is no failure.
mount -a
echo hello > "$MNT/a"
umount "$MNT"
test "$(cat "$STORE/a")" = hello
mount -a
umount "$MNT"
if mountpoint -q "$MNT"; then exit 1; fi
"#;
    let Some(out) = script(&rig, text) else { return };
    out.ok();
    rig.is_quiet();
}

#[test]
fn what_is_wrong_is_said_in_the_words_of_the_verb() {
    let Some(rig) = Rig::mounting() else { return };
    let text = r#"
said() {
    code=0
    "$@" 2>"$ROOT/said" || code=$?
    echo "exit $code"
    cat "$ROOT/said"
    test "$code" = "$want"
}
want=1 said mount -t fuse.watertight /does/not/exist "$MNT"
want=1 said mount -t fuse.watertight -o frobnicate "$STORE" "$MNT"
mount -f -t fuse.watertight "$STORE" "$MNT"
mount -s -t fuse.watertight -o frobnicate "$STORE" "$MNT"
mount -t fuse.watertight "$STORE" "$MNT"
want=1 said mount.fuse.watertight "$STORE" "$MNT" -o remount,frobnicate
umount "$MNT"
want=1 said mount.fuse.watertight "$STORE" "$MNT" -o remount,ro
want=1 said umount.fuse.watertight /does/not/exist
"#;
    let Some(out) = script(&rig, text) else { return };
    out.ok()
        .says("there is no /does/not/exist")
        .says("source /does/not/exist does not exist")
        .says("no mount option frobnicate")
        .says("is not a mountpoint of a volume: it cannot be remounted");
}

#[test]
fn options_that_fstab_has_for_all_file_systems_are_left_out_kept_or_refused() {
    let Some(rig) = Rig::mounting() else { return };
    let text = r#"
echo target > "$STORE/target"
ln -s target "$STORE/link"
mount -t fuse.watertight -o user,exec,_netdev,nofail,lazytime,nodiratime,relatime,iversion,silent,nosymfollow "$STORE" "$MNT"
findmnt -n -o OPTIONS "$MNT"
test "$(cat "$MNT/target")" = target
if cat "$MNT/link" 2>"$ROOT/said"; then exit 1; fi
cat "$ROOT/said"
umount "$MNT"
# mount(8) keeps `suid` and `dev` for itself, as it does `defaults`.
for options in defaults suid,dev allow_suid,allow_dev; do
    mount -v -t fuse.watertight -o "$options" "$STORE" "$MNT"
    echo "$options: $(findmnt -n -o OPTIONS "$MNT")"
    umount "$MNT"
done
mount -t fuse.watertight "$STORE" "$MNT"
mount -o remount,allow_suid,noatime "$MNT"
echo "remounted: $(findmnt -n -o VFS-OPTIONS "$MNT")"
"$PROGRAM" status --json | tr -d ' \n' | grep -o '"privileges":.*"started_ms"'
mount -o remount,nosuid "$MNT"
echo "again: $(findmnt -n -o VFS-OPTIONS "$MNT")"
umount "$MNT"
# Also with -s, which is for options that nobody knows.
for option in sync dirsync mand; do
    for sloppy in "" -s; do
        if mount $sloppy -t fuse.watertight -o "$option" "$STORE" "$MNT"; then exit 1; else test $? = 1; fi
        if mountpoint -q "$MNT"; then exit 1; fi
    done
done
"#;
    let Some(out) = script(&rig, text) else { return };
    let out = out.ok().says("nosymfollow").says("nosuid,nodev").says("Too many levels of symbolic links");
    let out = out.says("defaults: rw,nosuid,nodev").says("suid,dev: rw,nosuid,nodev");
    let out =
        out.says("remounted: rw,nodev,").says("again: rw,nosuid,nodev,").says(r#""privileges":["suid"],"#);
    assert!(!out.stdout.contains("allow_dev: rw,nosuid") && out.stderr.contains("mounted with suid,dev: "));
    for (option, why) in [("sync", "O_SYNC"), ("dirsync", "fsync of the directory"), ("mand", "mandatory")] {
        let refused = out.stderr.matches(&format!("option {option}: ")).count();
        assert!(refused == 2 && out.stderr.contains(why), "{option}: {}", out.stderr);
    }
}

#[test]
fn what_goes_well_is_done_in_silence_unless_it_is_asked_for() {
    let Some(rig) = Rig::mounting() else { return };
    let text = r#"
echo "$STORE $MNT fuse.watertight defaults 0 0" > "$ROOT/fstab"
mount --bind "$ROOT/fstab" /etc/fstab
mkdir "$ROOT/bind"
silent() {
    "$@" >"$ROOT/said" 2>&1
    if test -s "$ROOT/said"; then echo "$* says:"; cat "$ROOT/said"; exit 1; fi
}
for kind in auto fuse; do
    silent mount -t fuse.watertight -o "type=$kind" "$STORE" "$MNT"
    silent mount -a
    echo hello > "$MNT/a"
    silent mount --bind "$MNT" "$ROOT/bind"
    silent umount "$ROOT/bind"
    silent mount --bind "$MNT" "$ROOT/bind"
    silent umount "$MNT"
    silent umount -i "$ROOT/bind"
    "$PROGRAM" wait "$STORE"
    silent mount "$MNT"
    hold
    silent umount -l "$MNT"
    exec 9>&-
    "$PROGRAM" wait "$STORE"
    silent mount "$MNT"
    silent umount -f "$MNT"
    silent mount -f -t fuse.watertight "$STORE" "$MNT"
done
mount -v "$MNT" | grep -q "^ready: "
umount -v "$MNT" | grep -q "unmounted; everything is on"
"#;
    let Some(out) = script(&rig, text) else { return };
    out.ok();
}

#[test]
fn a_volume_is_remounted_read_only_and_back() {
    for kind in ["auto", "fuse"] {
        let Some(rig) = Rig::mounting() else { return };
        let text = format!(
            r#"
mkdir "$ROOT/bind"
refused() {{ if "$@" 2>"$ROOT/said"; then exit 1; fi; cat "$ROOT/said"; }}
flags() {{ findmnt -n -o VFS-OPTIONS "$MNT" | sed 's/^r[ow],//'; }}
shown() {{ "$PROGRAM" status --json | grep -o '"read_only": *[a-z]*'; }}
mount -t fuse.watertight -o "dirty_after=1h,noexec,type={kind}" "$STORE" "$MNT"
mount --bind "$MNT" "$ROOT/bind"
before=$(flags)
hold
echo hello >&9
refused mount -o remount,ro "$MNT"
echo more >&9
exec 9>&-
shown
mount -o remount,ro "$MNT"
test "$(cat "$STORE/held")" = "$(printf 'hello
more')"
shown
refused touch "$MNT/new"
refused sh -c 'echo x >> "$ROOT/bind/held"'
test ! -e "$STORE/new"
cat "$MNT/held"
test "$before" = "$(flags)"
mount -o remount,rw "$MNT"
test "$before" = "$(flags)"
shown
echo again > "$MNT/held"
# One mount only.
mount -o remount,bind,ro "$ROOT/bind"
refused touch "$ROOT/bind/new"
touch "$MNT/new"
shown
umount "$ROOT/bind"
umount "$MNT"
test "$(cat "$STORE/held")" = again
# What was read-only from the beginning.
mount -t fuse.watertight -o "ro,type={kind}" "$STORE" "$MNT"
shown
refused touch "$MNT/later"
mount -o remount,rw "$MNT"
touch "$MNT/later"
umount "$MNT"
"#
        );
        let Some(out) = script(&rig, &text) else { return };
        let out = out.ok().says("is busy (EBUSY): files are open for writing").says("Read-only file system");
        let shown: Vec<bool> = out
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix("\"read_only\":"))
            .map(|value| value.trim() == "true")
            .collect();
        assert_eq!(shown, [false, true, false, false, true], "{}", out.stdout);
        assert_eq!(out.stderr, "");
    }
}

#[test]
fn a_volume_whose_store_fails_is_not_remounted_read_only() {
    let Some(rig) = Rig::mounting() else { return };
    let text = r#"
mount -t fuse.watertight -o dirty_after=1h "fault:write:fail=EIO,dir:$STORE" "$MNT"
echo hello > "$MNT/a"
if mount -o remount,ro "$MNT" 2>"$ROOT/said"; then exit 1; else test $? = 32; fi
cat "$ROOT/said"
touch "$MNT/b"
"#;
    let Some(out) = script(&rig, text) else { return };
    out.ok().says("is not remounted, its data could not be written");
}

#[test]
fn helpers_are_installed_and_removed_by_a_verb() {
    let rig = Rig::new();
    let dir = rig.root.join("sbin");
    let directory = format!("--directory={}", dir.display());
    rig.run(&["install-helpers", &directory]).ends(2, "is not a directory");
    rig.run(&["install-helpers", "--directory=sbin"]).ends(2, "is not the absolute path of a directory");
    fs::create_dir(&dir).unwrap();
    for _ in 0..2 {
        rig.run(&["install-helpers", &directory]).ok().says("umount.fuseblk.watertight -> ");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 4);
    }
    let helper = dir.join("umount.fuse.watertight");
    let mut command = Command::new(&helper);
    command.arg("--version");
    run(command).ok().says("umount.fuse.watertight ");
    rig.run(&["install-helpers", &directory, "--remove"]).ok();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    fs::write(&helper, "somebody else's").unwrap();
    let out = rig.run(&["install-helpers", &directory]).ends(2, "nothing is changed; remove first:");
    assert!(out.stderr.contains("umount.fuse.watertight is not a symbolic link"), "{}", out.stderr);
    assert_eq!(fs::read(&helper).unwrap(), b"somebody else's");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn helpers_that_are_links_to_other_programs_stay() {
    let rig = Rig::new();
    let dir = rig.root.join("sbin");
    let directory = format!("--directory={}", dir.display());
    fs::create_dir(&dir).unwrap();
    rig.run(&["install-helpers", &directory]).ok();
    let helper = |name: &str| dir.join(name);
    let point = |name: &str, target: &str| {
        fs::remove_file(helper(name)).unwrap();
        symlink(target, helper(name)).unwrap();
    };
    // The package's, and one of a version that is there no more.
    point("mount.fuse.watertight", "../bin/watertight");
    point("umount.fuse.watertight", "/opt/older/watertight");
    point("mount.fuseblk.watertight", "/bin/true");
    let said = "mount.fuseblk.watertight is a link to /bin/true, not to this program";
    rig.run(&["install-helpers", &directory]).ends(2, "nothing is changed").ends(2, said);
    assert_eq!(fs::read_link(helper("umount.fuse.watertight")).unwrap(), Path::new("/opt/older/watertight"));
    rig.run(&["install-helpers", &directory, "--remove"]).ends(2, "left as it is").ends(2, said);
    assert_eq!(fs::read_link(helper("mount.fuseblk.watertight")).unwrap(), Path::new("/bin/true"));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    fs::remove_file(helper("mount.fuseblk.watertight")).unwrap();
    rig.run(&["install-helpers", &directory]).ok();
    rig.run(&["install-helpers", &directory, "--remove"]).ok();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}
