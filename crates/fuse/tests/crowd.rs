//! More clients of one volume than a mountpoint has threads, beside other volumes, over a store
//! that is silent without a check that has noticed it.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use common::hanging::{Hanging, Release, all_stalled};
use common::hook::OpenAtEnd;
use common::{Mounted, Setup, eventually, text};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use store::FaultOp;
use watertight_fuse::{Detach, SessionOptions, Uring};

/// The fewest that there are.
const PLACES: usize = 256;
/// A quarter of them, and the first.
const PART: usize = PLACES / 4 + 1;
const CLIENTS: usize = 600;

type Outcome = Result<(), Option<i32>>;

/// Over `/dev/fuse`, whatever else there is: there a request can wait without a place.
fn setup() -> Setup {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let session = SessionOptions { threads_max: PLACES, ..SessionOptions::default() };
    Setup { session, uring: Uring::Off, ..Setup::default() }
}

/// A volume with a file for each client.
fn with_files(mounted: &Mounted, rules: &str) -> Hanging {
    let it = Hanging::new(mounted, "x", rules);
    make_files(CLIENTS, it.dir.path(), &it.root);
    it
}

/// The kernel knows the names: a look-up of one takes its directory's lock.
fn make_files(count: usize, store: &Path, seen: &Path) {
    for n in 0..count {
        fs::write(store.join(n.to_string()), n.to_string()).unwrap();
        assert!(fs::metadata(seen.join(n.to_string())).unwrap().is_file());
    }
}

fn client(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> JoinHandle<Outcome> {
    let work = move || work().map_err(|error| error.raw_os_error());
    std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap()
}

/// Each reads its own file.
fn readers(count: usize, of: &Path) -> Vec<JoinHandle<Outcome>> {
    let read = |n: usize| {
        let file = of.join(n.to_string());
        client(move || fs::read(file).map(|data| assert_eq!(data, n.to_string().as_bytes())))
    };
    (0..count).map(read).collect()
}

fn under_way(mounted: &Mounted, n: usize) {
    eventually("all have asked", || mounted.view.under_way() >= n);
}

/// All have asked, and those that have a thread are in the store.
fn all_wait(mounted: &Mounted, it: &Hanging) {
    under_way(mounted, CLIENTS);
    it.is_hanging(PART);
}

/// A volume whose store hangs when a file is opened, and its clients, all of which wait. (The store
/// is released before the rest is dropped.)
fn crowd() -> Option<(Mounted, Hanging, Release, Vec<JoinHandle<Outcome>>)> {
    let mounted = setup().mount()?;
    let it = with_files(&mounted, "open:hang");
    let release = Release(vec![Arc::clone(&it.store)]);
    let clients = readers(CLIENTS, &it.root);
    all_wait(&mounted, &it);
    Some((mounted, it, release, clients))
}

/// One more client, which waits as well.
fn one_that_makes_a_directory(mounted: &Mounted, it: &Hanging) -> JoinHandle<Outcome> {
    let new = it.root.join("new");
    let maker = client(move || fs::create_dir(new));
    under_way(mounted, CLIENTS + 1);
    maker
}

/// Everything that the neighbours of a crowd do, a volume's whole life among it, in its own time.
fn a_neighbour_lives(mounted: &Mounted) {
    works_and_ends(mounted, &Hanging::new(mounted, "other", "read:delay=0ms"));
}

fn works_and_ends(mounted: &Mounted, other: &Hanging) {
    // Enough data for the kernel to read ahead, and so many files that they would take each other's
    // threads.
    fs::write(other.dir.path().join("large"), vec![b'y'; 1 << 20]).unwrap();
    let clients: Vec<_> = (0..8)
        .map(|n| {
            let root = other.root.clone();
            client(move || {
                let mut file = fs::File::create(root.join(n.to_string()))?;
                file.write_all(b"new")?;
                file.sync_all()?;
                assert_eq!(fs::read(root.join("large"))?.len(), 1 << 20);
                fs::create_dir(root.join(format!("dir-{n}")))?;
                fs::read_dir(&root).map(|entries| assert!(entries.count() > 2))
            })
        })
        .collect();
    clients.into_iter().for_each(|client| assert_eq!(client.join().unwrap(), Ok(())));
    assert_eq!(text(&other.dir.path().join("7")), "new");
    // The kernel reports a close a little after close(2).
    let detach = || mounted.tree.detach(Path::new("other"), Detach::Sync);
    eventually("nothing is open", || detach().is_ok());
    assert!(other.volume.report().unwrap().is_complete());
}

fn ends_with(clients: Vec<JoinHandle<Outcome>>, outcome: &Outcome) {
    clients.into_iter().for_each(|client| assert_eq!(client.join().unwrap(), *outcome));
}

fn unmount(mounted: Mounted) {
    let unmounting = std::thread::spawn(move || mounted.unmount());
    eventually("the mountpoint's end", || unmounting.is_finished());
    unmounting.join().unwrap();
}

#[test]
fn more_clients_than_places_hold_up_no_neighbour_and_all_are_served_when_the_store_answers() {
    let Some((mounted, it, _release, clients)) = crowd() else { return };
    a_neighbour_lives(&mounted);
    assert_eq!(it.store.hanging(), PART, "its part of the places, and no more");
    assert!(mounted.view.threads() < PLACES / 2, "{} threads", mounted.view.threads());
    assert!(clients.iter().all(|client| !client.is_finished()), "the store is silent");
    it.store.release();
    ends_with(clients, &Ok(()));
    eventually("nothing is under way", || mounted.view.under_way() == 0);
    unmount(mounted);
}

/// The data that the callers wrote is then only in the room's copies.
#[test]
fn what_waits_with_its_data_is_written_as_it_was() {
    const BYTES: usize = 128 << 10;
    let Some(mounted) = setup().mount() else { return };
    // Each file is read where it is not written whole.
    let it = with_files(&mounted, "read:hang");
    let _release = Release(vec![Arc::clone(&it.store)]);
    let write = |n: usize| {
        let file = it.root.join(n.to_string());
        client(move || {
            let mut file = fs::File::options().write(true).open(file)?;
            let data = vec![u8::try_from(n % 251).unwrap(); BYTES];
            std::os::unix::fs::FileExt::write_all_at(&file, &data, 1)?;
            file.flush()
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(write).collect();
    all_wait(&mounted, &it);
    a_neighbour_lives(&mounted);
    it.store.release();
    ends_with(clients, &Ok(()));
    for n in 0..CLIENTS {
        let data = fs::read(it.root.join(n.to_string())).unwrap();
        assert_eq!(data[..1], n.to_string().as_bytes()[..1], "file {n}");
        assert_eq!(data.len(), BYTES + 1);
        assert!(data[1..].iter().all(|byte| usize::from(*byte) == n % 251), "file {n}");
    }
    unmount(mounted);
}

#[test]
fn nor_does_a_crowd_at_the_mountpoints_own_volume() {
    let (hanging, gate) = Setup::hanging_in("open");
    let Some(mounted) = (Setup { wrap: hanging.wrap, ..setup() }).mount() else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    let other = Hanging::new(&mounted, "other", "read:delay=0ms");
    make_files(CLIENTS, &mounted.store_path(), &mounted.path());
    assert!(fs::metadata(&other.root).unwrap().is_dir());
    gate.shut();
    let clients = readers(CLIENTS, &mounted.path());
    under_way(&mounted, CLIENTS);
    eventually("its part hangs", || gate.waiting() == PART);
    works_and_ends(&mounted, &other);
    assert_eq!(gate.waiting(), PART);
    gate.open();
    ends_with(clients, &Ok(()));
    unmount(mounted);
}

fn program(name: &str, file: &Path) -> Child {
    let mut command = Command::new(name);
    command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn who_is_killed_while_waiting_ends_at_once_and_nothing_of_it_happens() {
    let Some((mounted, it, _release, clients)) = crowd() else { return };
    // One that reads, and one that changes something: once begun, it could not be abandoned.
    let mut waiting = vec![program("cat", &it.root.join("0")), program("mkdir", &it.root.join("new"))];
    under_way(&mounted, CLIENTS + 2);
    for child in &mut waiting {
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
    eventually("they are gone", || mounted.view.under_way() == CLIENTS);
    assert_eq!(it.store.hanging(), PART, "the store is silent");
    it.store.release();
    ends_with(clients, &Ok(()));
    assert!(!it.root.join("new").exists() && !it.dir.path().join("new").exists());
    unmount(mounted);
}

#[test]
fn who_waits_for_a_volume_that_is_given_up_gets_an_error_at_once() {
    let Some((mounted, it, _release, clients)) = crowd() else { return };
    let maker = one_that_makes_a_directory(&mounted, &it);
    let (tree, attached) = (mounted.tree.clone(), it.attached.clone());
    let force = std::thread::spawn(move || tree.detach_by_force(&attached));
    ends_with(clients, &Err(Some(libc::EIO)));
    ends_with(vec![maker], &Err(Some(libc::EIO)));
    assert_eq!(it.store.hanging(), PART, "the store is silent");
    a_neighbour_lives(&mounted);
    it.store.release();
    force.join().unwrap().unwrap();
    assert!(!it.dir.path().join("new").exists());
    unmount(mounted);
}

#[test]
fn when_the_stall_is_noticed_who_waits_beyond_the_share_gets_an_error() {
    // See
    // `F interrupt::tests::of_each_stalled_volume_the_first_request_waits_and_they_share_a_quarter`.
    const SHARE: usize = PLACES / 8 + 1;
    let Some((mounted, it, _release, clients)) = crowd() else { return };
    let maker = one_that_makes_a_directory(&mounted, &it);
    assert!(clients.iter().all(|client| !client.is_finished()), "nobody has noticed");
    all_stalled(&mounted, std::slice::from_ref(&it));
    ends_with(vec![maker], &Err(Some(libc::EIO)));
    let failed = || clients.iter().filter(|client| client.is_finished()).count();
    eventually("the others fail", || failed() == CLIENTS - SHARE);
    it.store.release();
    let outcomes: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), SHARE);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Err(Some(libc::EIO))).count(), CLIENTS - SHARE);
    assert!(!it.dir.path().join("new").exists());
    unmount(mounted);
}

/// No process waits for the answers, but the kernel has a bound for such requests, together with
/// reading ahead.
#[test]
fn more_files_than_places_that_are_closed_hold_up_no_neighbour_before_anybody_notices() {
    let Some(mounted) = setup().mount() else { return };
    let it = with_files(&mounted, "file.close:hang;dir.close:hang");
    let _release = Release(vec![Arc::clone(&it.store)]);
    let open = |n: usize| fs::File::open(it.root.join(n.to_string())).unwrap();
    let files: Vec<_> = (0..CLIENTS).map(open).collect();
    let dirs: Vec<_> = (0..CLIENTS).map(|_| fs::File::open(&it.root).unwrap()).collect();
    let close = |open| {
        client(move || {
            drop::<(fs::File, fs::File)>(open);
            Ok(())
        })
    };
    let clients: Vec<_> = files.into_iter().zip(dirs).map(close).collect();
    it.is_hanging(PART);
    a_neighbour_lives(&mounted);
    let closed = it.store.calls(FaultOp::FileClose);
    assert!(closed < CLIENTS as u64, "the store is silent");
    it.store.release();
    ends_with(clients, &Ok(()));
    eventually("all are closed", || it.store.calls(FaultOp::FileClose) == CLIENTS as u64);
    let detach = || mounted.tree.detach(Path::new("x"), Detach::Sync);
    eventually("nothing is open", || detach().is_ok());
    unmount(mounted);
}

/// Several such crowds, together of three times as many clients as there are threads.
#[test]
fn many_crowds_hold_up_no_neighbour() {
    const VOLUMES: usize = 20;
    const EACH: usize = 40;
    let Some(mounted) = setup().mount() else { return };
    let volumes: Vec<_> =
        (0..VOLUMES).map(|n| Hanging::new(&mounted, &format!("x{n}"), "open:hang")).collect();
    let _release = Release(volumes.iter().map(|one| Arc::clone(&one.store)).collect());
    let mut clients = Vec::new();
    for one in &volumes {
        make_files(EACH, one.dir.path(), &one.root);
        clients.extend(readers(EACH, &one.root));
    }
    under_way(&mounted, VOLUMES * EACH);
    volumes.iter().for_each(|one| one.is_hanging(1));
    a_neighbour_lives(&mounted);
    assert!(mounted.view.threads() < PLACES, "{} threads", mounted.view.threads());
    assert!(clients.iter().all(|client| !client.is_finished()), "the stores are silent");
    volumes.iter().for_each(|one| one.store.release());
    ends_with(clients, &Ok(()));
    unmount(mounted);
}
