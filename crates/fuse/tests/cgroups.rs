//! Which cgroup owns data, on a mounted volume with real cgroups and real processes.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cgroups::{Choice, Hierarchy};
use common::hook::{Gate, OpenAtEnd};
use common::{Mounted, Setup, eventually};
use store::Store;
use testing::cgroup::Cgroup;
use volume::{CgroupPath, Tenants};
use watertight_fuse::{SessionOptions, Uring};

/// A volume in memory that tells tenants apart, and writes nothing by itself; each megabyte that it
/// writes takes `delay`.
fn mounted(delay: Duration) -> Option<Mounted> {
    let slow = Setup::with_hook(move |op| {
        if op == "write" {
            std::thread::sleep(delay);
        }
    });
    let wrap = slow.wrap;
    let wrap = Box::new(move |_: Arc<dyn Store>| wrap(store::open("mem:").unwrap()));
    Setup { volume: options(), wrap, ..Setup::default() }.mount()
}

fn options() -> volume::Options {
    let tree = Hierarchy::find(&Choice::Auto).unwrap();
    let tenants = tree.map_or_else(Arc::default, |tree| Tenants::of(tree).unwrap());
    volume::Options { tenants, dirty_after: Duration::from_secs(3600), ..volume::Options::default() }
}

/// The volume's figures of a cgroup.
fn figures(mounted: &Mounted, cgroup: &Path) -> Option<volume::WbStatus> {
    mounted.volume.status().switching.wbs.into_iter().find(|wb| wb.path == cgroup && !wb.is_dying)
}

fn owned(mounted: &Mounted, cgroup: &Cgroup) -> usize {
    figures(mounted, cgroup.path()).map_or(0, |wb| wb.owned)
}

/// Writes `count` blocks in one process of `by`, and waits until they are on the store.
fn write(by: &Cgroup, file: &Path, block: &str, count: u32) {
    let file = format!("of={}", file.display());
    let (block, count) = (format!("bs={block}"), format!("count={count}"));
    by.run("dd", &["if=/dev/zero", &file, &block, &count, "conv=notrunc,fsync"]);
}

#[test]
fn of_two_cgroups_that_write_one_file_in_turn_the_ninth_short_foreign_round_wins_it() {
    let (Some(a), Some(b)) = (Cgroup::make(), Cgroup::make()) else { return };
    let Some(mounted) = mounted(Duration::ZERO) else { return };
    let file = mounted.path().join("file");
    write(&a, &file, "4096", 1);
    assert_eq!((owned(&mounted, &a), owned(&mounted, &b)), (1, 0));
    for number in 1..=8 {
        write(&b, &file, "4096", 1);
        assert_eq!(owned(&mounted, &a), 1, "after the {number}th");
    }
    write(&b, &file, "4096", 1);
    eventually("the inode is the other cgroup's", || owned(&mounted, &b) == 1);
    assert_eq!(owned(&mounted, &a), 0);
    assert_eq!(figures(&mounted, b.path()).unwrap().switched, 1);
    mounted.unmount();
}

#[test]
fn of_two_cgroups_that_write_one_file_in_turn_two_long_foreign_rounds_win_it() {
    let (Some(a), Some(b)) = (Cgroup::make(), Cgroup::make()) else { return };
    // 50 MB/s: 64 MiB are more than a second's worth.
    let Some(mounted) = mounted(Duration::from_millis(20)) else { return };
    let file = mounted.path().join("file");
    write(&a, &file, "4096", 1);
    write(&b, &file, "1M", 64);
    assert_eq!((owned(&mounted, &a), owned(&mounted, &b)), (1, 0));
    write(&b, &file, "1M", 64);
    eventually("the inode is the other cgroup's", || owned(&mounted, &b) == 1);
    mounted.unmount();
}

#[test]
fn what_a_removed_cgroup_owned_is_its_parents_when_it_is_written() {
    let Some(parent) = Cgroup::make() else { return };
    let Some(mounted) = mounted(Duration::ZERO) else { return };
    let child = parent.child("child");
    write(&child, &mounted.path().join("synced"), "4096", 4);
    let dirty = format!("of={}", mounted.path().join("dirty").display());
    child.run("dd", &["if=/dev/zero", &dirty, "bs=4096", "count=8"]);
    let wb = figures(&mounted, child.path()).unwrap();
    assert_eq!((wb.owned, wb.dirty, wb.writeback), (2, 8 * 4096, 0));
    let path = child.path().to_owned();
    child.remove();
    eventually("what is clean is the parent's", || owned(&mounted, &parent) == 1);
    let dying = mounted.volume.status().switching.wbs.into_iter().find(|wb| wb.path == path).unwrap();
    assert!(dying.is_dying);
    assert_eq!((dying.owned, dying.dirty), (1, 8 * 4096), "its data is still the removed cgroup's");
    parent.run("sync", &[mounted.path().join("dirty")]);
    eventually("the rest is the parent's", || owned(&mounted, &parent) == 2);
    let wbs = mounted.volume.status().switching.wbs;
    assert!(!wbs.iter().any(|wb| wb.path == path), "the wb is given back: {wbs:?}");
    mounted.unmount();
}

#[test]
fn the_end_of_a_cgroup_with_a_thousand_inodes_holds_up_nobody() {
    const FILES: usize = 1000;
    let (Some(parent), Some(victim)) = (Cgroup::make(), Cgroup::make()) else { return };
    let Some(mounted) = mounted(Duration::ZERO) else { return };
    let child = parent.child("child");
    let script = "n=0; until [ $n = 1000 ]; do n=$((n + 1)); echo > $0/$n; done";
    child.run("sh", &["-c".as_ref(), script.as_ref(), mounted.path().as_os_str()]);
    assert_eq!(owned(&mounted, &child), FILES);
    mounted.volume.sync_all().unwrap();
    // A process writes all the time, and stops when the inodes have moved: each of its writes has
    // ended then.
    let script = "n=0; until [ -e $0/stop ]; do echo >> $0/victim; n=$((n + 1)); done; echo $n";
    let mut writer = victim.command("sh");
    writer.args(["-c", script]).arg(mounted.path()).stdout(Stdio::piped());
    let writer = writer.spawn().unwrap();
    eventually("the victim writes", || owned(&mounted, &victim) == 1);
    child.remove();
    eventually("all inodes are the parent's", || owned(&mounted, &parent) == FILES);
    std::fs::write(mounted.path().join("stop"), "").unwrap();
    let out = writer.wait_with_output().unwrap();
    let written: u64 = String::from_utf8_lossy(&out.stdout).trim().parse().unwrap();
    assert_eq!(std::fs::metadata(mounted.path().join("victim")).unwrap().len(), written);
    let switching = mounted.volume.status().switching;
    assert_eq!((switching.switches_in_flight, switching.switched), (0, FILES as u64));
    mounted.unmount();
}

#[test]
fn a_thread_that_goes_to_another_cgroup_counts_for_it_soon() {
    let (Some(a), Some(b)) = (Cgroup::make(), Cgroup::make()) else { return };
    let Some(mounted) = mounted(Duration::ZERO) else { return };
    // One shell writes as a member of A, becomes one of B, and writes again. A file appears for
    // each attempt.
    let script = "echo > $0/a; echo 0 > $1; n=0; until [ -e $0/stop ]; do n=$((n + 1)); echo > $0/b$n; done";
    let tree = Hierarchy::find(&Choice::Auto).unwrap().unwrap();
    let b_procs = tree.mountpoint().join(b.path().strip_prefix("/").unwrap()).join("cgroup.procs");
    let mut shell = a.command("sh").args(["-c", script]).arg(mounted.path()).arg(b_procs).spawn().unwrap();
    eventually("the shell's files are the other cgroup's", || owned(&mounted, &b) > 0);
    std::fs::write(mounted.path().join("stop"), "").unwrap();
    assert!(shell.wait().unwrap().success());
    assert!(owned(&mounted, &a) >= 1);
    mounted.unmount();
}

#[test]
fn a_mapping_counts_for_who_opened_the_file() {
    const SCRIPT: &str =
        "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nm[0:4]=b'test'\nm.flush()";
    const PYTHON: &str = "/usr/bin/python3";
    let Some(a) = Cgroup::make() else { return };
    if !Path::new(PYTHON).exists() {
        return common::skipped("python3 is not installed");
    }
    let Some(mounted) = (Setup { volume: options(), ..Setup::default() }).mount() else { return };
    std::fs::write(mounted.store_path().join("file"), [0; 8192]).unwrap();
    a.run(PYTHON, &["-c", SCRIPT, mounted.path().join("file").to_str().unwrap()]);
    assert_eq!(owned(&mounted, &a), 1, "the kernel names no thread for what is written through a mapping");
    assert_eq!(&std::fs::read(mounted.store_path().join("file")).unwrap()[..4], b"test");
    mounted.unmount();
}

#[test]
fn a_mapping_whose_openers_cgroup_was_removed_counts_for_that_ones_parent() {
    // Maps the file, goes to another cgroup, and writes when its input ends.
    const SCRIPT: &str = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\n\
        open(sys.argv[2],'w').write('0')\nprint('gone',flush=True)\nsys.stdin.readline()\nm[0:4]=b'test'\nm.flush()";
    const PYTHON: &str = "/usr/bin/python3";
    let (Some(parent), Some(other)) = (Cgroup::make(), Cgroup::make()) else { return };
    if !Path::new(PYTHON).exists() {
        return common::skipped("python3 is not installed");
    }
    let Some(mounted) = (Setup { volume: options(), ..Setup::default() }).mount() else { return };
    std::fs::write(mounted.store_path().join("file"), [0; 8192]).unwrap();
    let child = parent.child("child");
    // Shows when the volume has noticed the removal.
    write(&child, &mounted.path().join("clean"), "4096", 1);
    let (file, procs) = (mounted.path().join("file"), other.directory().join("cgroup.procs"));
    let mut python = child.command(PYTHON);
    python.args(["-c", SCRIPT]).arg(file).arg(procs).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(python.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "gone\n");
    child.remove();
    eventually("the volume hears of the removal", || owned(&mounted, &parent) == 1);
    // The process ends its line, and writes.
    drop(python.stdin.take());
    assert!(python.wait().unwrap().success());
    assert_eq!((owned(&mounted, &parent), owned(&mounted, &other)), (2, 0));
    assert_eq!(&std::fs::read(mounted.store_path().join("file")).unwrap()[..4], b"test");
    mounted.unmount();
}

/// A volume whose store takes nothing while the gate is shut.
fn hanging(mut volume: volume::Options, cache: u64) -> Option<(Mounted, Arc<Gate>)> {
    volume.cache_bytes_max = cache;
    let (setup, gate) = Setup::hanging_in("write");
    let mounted = Setup { volume, ..setup }.mount()?;
    gate.shut();
    Some((mounted, gate))
}

/// Bytes of a cgroup that are not on the store.
fn unwritten(mounted: &Mounted, of: &Cgroup) -> u64 {
    figures(mounted, of.path()).map_or(0, |wb| wb.dirty + wb.writeback)
}

/// One cgroup writes 16 MiB to a store that takes nothing, in files of a megabyte; then another one
/// writes 64 KiB. Returns how much the first was allowed.
fn beside_one_at_its_limit(mounted: &Mounted, gate: &Arc<Gate>, limit: u64) -> u64 {
    let _open = OpenAtEnd(Arc::clone(gate));
    let (Some(a), Some(b)) = (Cgroup::make(), Cgroup::make()) else { return limit };
    let script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do dd if=/dev/zero of=$0/a$n bs=1M count=1 2>/dev/null; done";
    let mut writer = a.command("sh").args(["-c", script]).arg(mounted.path()).spawn().unwrap();
    eventually("the writer waits", || {
        mounted.volume.status().writer_waits > 0 && unwritten(mounted, &a) >= limit / 2
    });
    // The other's write ends while the first writer waits; were it held up this would never return.
    let file = format!("of={}", mounted.path().join("b").display());
    b.run("dd", &["if=/dev/zero", &file, "bs=64k", "count=1"]);
    assert_eq!(unwritten(mounted, &b), 65536);
    assert!(writer.try_wait().unwrap().is_none(), "the first writer waits for the store");
    let most = unwritten(mounted, &a);
    gate.open();
    assert!(writer.wait().unwrap().success());
    most
}

#[test]
fn who_reaches_its_dirty_limit_waits_and_no_other_cgroup() {
    const LIMIT: u64 = 4 << 20;
    let options = volume::Options { dirty_bytes_max: Some(LIMIT), ..options() };
    let Some((mounted, gate)) = hanging(options, 64 << 20) else { return };
    let most = beside_one_at_its_limit(&mounted, &gate, LIMIT);
    assert!((LIMIT / 2..=LIMIT).contains(&most), "{most}");
    mounted.unmount();
}

#[test]
fn who_fills_the_cache_with_many_files_leaves_room_for_another_cgroup() {
    let Some((mounted, gate)) = hanging(options(), 8 << 20) else { return };
    let most = beside_one_at_its_limit(&mounted, &gate, 7 << 20);
    assert!(((4 << 20)..=(7 << 20)).contains(&most), "{most}");
    mounted.unmount();
}

/// A process of the cgroup makes calls of many kinds; each of them returns.
fn reads_and_writes(mounted: &Mounted, who: &Cgroup) {
    let script = "cat $0/b && echo 3 > $0/w && sync $0/w && ls $0 > /dev/null && rm $0/w";
    let mut who = who.command("sh");
    let mut who = who.args(["-c", script]).arg(mounted.path()).stdout(Stdio::null()).spawn().unwrap();
    let mut status = None;
    eventually("it has read and written", || {
        status = who.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
}

/// While at least `wait` requests of the crowd wait at their limits, the neighbour's calls return.
/// Then the limits are lifted, and the crowd ends well.
fn neighbour_goes_on(
    (mounted, neighbour): (Mounted, &Cgroup),
    (mut crowd, at_least): (Child, usize),
    lift: impl FnOnce(&Mounted),
) {
    let waiting = || mounted.view.under_way();
    eventually("the crowd waits", || waiting() >= at_least);
    reads_and_writes(&mounted, neighbour);
    assert!(crowd.try_wait().unwrap().is_none() && waiting() >= at_least, "they wait still: {}", waiting());
    lift(&mounted);
    assert!(crowd.wait().unwrap().success());
    mounted.unmount();
}

fn limit(mounted: &Mounted, of: &Cgroup, limits: &str) {
    mounted.volume.limit(&CgroupPath::from(of.path()), &limits.parse().unwrap());
}

/// A cgroup that may read and write a byte a second has `CROWD` processes wait, each for a read
/// that the kernel does as reading ahead, for one that it does not, or for an fsync. Meanwhile
/// another one reads and writes.
fn beside_a_crowd_at_its_limits(uring: Uring) {
    const CROWD: usize = 360;
    /// More than the capacity once was, of any kind: 64 for the kernel's own requests, 256 in
    /// all, each kind a third of these.
    const WAIT: usize = 330;
    let (Some(a), Some(b)) = (Cgroup::make(), Cgroup::make()) else { return };
    let session = SessionOptions { threads_max: 1024, ..SessionOptions::default() };
    let Some(mounted) = (Setup { volume: options(), session, uring, ..Setup::default() }).mount() else {
        return;
    };
    for n in 0..CROWD {
        std::fs::write(mounted.store_path().join(format!("a{n}")), [1; 4096]).unwrap();
    }
    std::fs::write(mounted.store_path().join("b"), [2; 4096]).unwrap();
    limit(&mounted, &a, "rbps=1 wbps=1");
    let script = "n=0; while [ $n -lt $1 ]; do
        cat $0/a$n > /dev/null & n=$((n + 1))
        dd if=$0/a$n of=/dev/null iflag=direct bs=4096 2> /dev/null & n=$((n + 1))
        dd if=/dev/zero of=$0/w$n conv=fsync bs=4096 count=1 2> /dev/null & n=$((n + 1))
    done; wait";
    let mut crowd = a.command("sh");
    let crowd = crowd.args(["-c", script]).arg(mounted.path()).arg(CROWD.to_string()).spawn().unwrap();
    // The first of each kind may not wait.
    neighbour_goes_on((mounted, &b), (crowd, WAIT), |mounted| limit(mounted, &a, "rbps=max wbps=max"));
}

#[test]
fn who_waits_at_its_limits_by_the_hundred_keeps_no_neighbour_from_reading_and_writing() {
    beside_a_crowd_at_its_limits(common::uring());
}

#[test]
fn nor_does_it_without_io_uring() {
    beside_a_crowd_at_its_limits(Uring::Off);
}

#[test]
fn who_maps_and_waits_at_its_limit_keeps_no_neighbour_from_calls() {
    const CROWD: usize = 64;
    /// Requests that wait at least; the kernel chooses how many it sends at a time.
    const WAIT: usize = 16;
    // A process for each file: threads of one interpreter would wait for each other.
    const SCRIPT: &str = "import mmap,os,sys\n\
        for n in range(int(sys.argv[2])):\n  if os.fork()==0:\n\
        \x20   f=open(f'{sys.argv[1]}/m{n}','r+b')\n    m=mmap.mmap(f.fileno(),0)\n\
        \x20   for at in range(0,1<<20,4096): m[at:at+4]=b'test'\n    m.flush()\n    os._exit(0)\n\
        for n in range(int(sys.argv[2])): assert os.wait()[1]==0";
    const PYTHON: &str = "/usr/bin/python3";
    let (Some(a), Some(b)) = (Cgroup::make(), Cgroup::make()) else { return };
    if !Path::new(PYTHON).exists() {
        return common::skipped("python3 is not installed");
    }
    let Some(mounted) = (Setup { volume: options(), ..Setup::default() }).mount() else { return };
    for n in 0..CROWD {
        let file = std::fs::File::create(mounted.store_path().join(format!("m{n}"))).unwrap();
        file.set_len(1 << 20).unwrap();
    }
    std::fs::write(mounted.store_path().join("b"), [2; 4096]).unwrap();
    limit(&mounted, &a, "wbps=1 dirty_max=1M");
    let mut crowd = a.command(PYTHON);
    let crowd = crowd.args(["-c", SCRIPT]).arg(mounted.path()).arg(CROWD.to_string()).spawn().unwrap();
    neighbour_goes_on((mounted, &b), (crowd, WAIT), |mounted| limit(mounted, &a, "wbps=max dirty_max=max"));
}
