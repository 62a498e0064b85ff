//! Searches, and their output for a person.

use std::os::unix::fs::MetadataExt;

use super::*;

fn mount_of(path: &Path) -> Mount {
    let device = fs::metadata(path).unwrap().dev();
    let device = Device { major: rustix::fs::major(device), minor: rustix::fs::minor(device) };
    let stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).unwrap();
    MountTable::read()
        .of_device(device)
        .find(|mount| mount.id == stat.stx_mnt_id)
        .cloned()
        .expect("the mount of an existing path")
}

#[test]
fn an_open_file_names_this_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("held");
    let file = fs::File::create(&path).unwrap();
    let mine = |holders: &Holders| {
        holders.direct().any(|h| {
            h.pid == Some(std::process::id()) && h.how == HoldKind::OpenFile && Path::new(&h.file) == path
        })
    };
    let mount = mount_of(&path);
    assert!(mine(&of(&mount).unwrap()));
    drop(file);
    assert!(!mine(&of(&mount).unwrap()));
}

#[test]
fn those_who_opened_it_are_all_only_if_each_holds_something() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("held");
    let file = fs::File::create(&path).unwrap();
    let mount = mount_of(&path);
    let own = rustix::thread::gettid().as_raw_pid().unsigned_abs();
    // Started before anything is looked for, and has nothing open there.
    let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let find = |openers: &[u32]| of_openers(openers, &mount, &path);
    let named = pids(&find(&[own]).expect("it holds the file"));
    assert_eq!(named, [std::process::id()], "the process, not the thread");
    assert_eq!(find(&[own, other.id()]), None);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(find(&[own, other.id()]), None, "one that is gone");
    assert_eq!(find(&[]), None, "nobody is known");
    drop(file);
    assert_eq!(find(&[own]), None);
}

#[test]
fn who_serves_a_mount_is_not_looked_into() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("held");
    let _open = fs::File::create(&path).unwrap();
    let all = of_served(&mount_of(&path)).unwrap();
    assert!(!pids(&all).contains(&std::process::id()));
}

/// Hours, except the last ones.
fn patient(last_ones: Duration) -> Times {
    Times { search_max: Duration::from_secs(3600), last_ones, ..TIMES }
}

/// Tests of calls that hang cannot wait for these. On a slow machine a thread may seem to hang:
/// they wait longer then.
fn in_longer_and_longer(is_done: impl Fn(Duration) -> bool) {
    let times = [50, 500, 5000, 20_000].map(Duration::from_millis);
    assert!(times.into_iter().any(is_done), "not with {times:?} either");
}

fn one(pid: u32) -> Holders {
    let (how, file) = (HoldKind::OpenFile, "/mnt/x".to_owned());
    let holder =
        Holder { pid: Some(pid), name: "sleep".into(), how, file: file.into(), direct: true, pod: None };
    Holders { found: vec![holder], ..Holders::default() }
}

/// Of no use to other tests; a few for each run of the tests.
fn searches() -> &'static Searches {
    Box::leak(Box::new(Searches(AtomicUsize::new(0))))
}

fn pids(holders: &Holders) -> Vec<u32> {
    let mut pids: Vec<u32> = holders.found.iter().filter_map(|holder| holder.pid).collect();
    pids.sort_unstable();
    pids
}

#[test]
fn processes_that_hang_hold_up_no_search_and_are_named() {
    in_longer_and_longer(|last_ones| {
        let searches = searches();
        let (end, hangs) = channel::<()>();
        let hangs = Arc::new(std::sync::Mutex::new(hangs));
        let search = |pids: Vec<u32>, times| {
            let hangs = Arc::clone(&hangs);
            let look = move |pid: u32, _: &Beats| {
                if pid.is_multiple_of(2) {
                    let _hung = hangs.lock().unwrap().recv();
                }
                one(pid)
            };
            searches.in_time(pids, look, times).unwrap()
        };
        // Before the others, between them and after them.
        let holders = search(vec![2, 1, 4, 3, 6], patient(last_ones));
        if pids(&holders) != [1, 3] {
            return false;
        }
        assert_eq!((&*holders.hung, holders.unseen), (&[2, 4, 6][..], 3));
        let lines = holders.lines();
        assert!(lines.iter().any(|line| line.ends_with("hangs: pid 2 and 2 more")), "{lines:?}");
        // As many as may hang; then others are not looked into, for as long as a search may take.
        let more = (0..SEARCHES_MAX).map(|n| 2 * u32::try_from(n).unwrap()).collect();
        assert_eq!(search(more, patient(last_ones)).found, []);
        let short = Times { search_max: Duration::from_millis(50), ..TIMES };
        assert_eq!(search(vec![1, 3], short).hung, [1, 3], "all hang, and another began");
        drop(end);
        while search(vec![1, 3], TIMES).found.len() < 2 {
            thread::yield_now();
        }
        true
    });
}

#[test]
fn who_has_very_many_descriptors_is_waited_for_beside_one_that_hangs() {
    in_longer_and_longer(|last_ones| {
        let (end, hangs) = channel::<()>();
        let hangs = std::sync::Mutex::new(hangs);
        let look = move |pid: u32, beats: &Beats| {
            if pid == 2 {
                let _hung = hangs.lock().unwrap().recv();
            }
            // One after the other, for twice as long as may pass with nothing looked at.
            let begun = Instant::now();
            while pid == 1 && begun.elapsed() < 2 * last_ones {
                beats.beat();
                thread::sleep(last_ones / 50);
            }
            one(pid)
        };
        let holders = searches().in_time(vec![2, 1], look, patient(last_ones)).unwrap();
        drop(end);
        pids(&holders) == [1] && holders.hung == [2]
    });
}

#[test]
fn lists_for_people_are_short() {
    let holder = |pid| Holder {
        pid: Some(pid),
        name: "sleep".into(),
        how: HoldKind::WorkingDirectory,
        file: "/mnt/x".into(),
        direct: true,
        pod: None,
    };
    let holders = Holders { found: (1..=10).map(holder).collect(), ..Holders::default() };
    let lines = holders.lines();
    assert_eq!(lines.len(), 9);
    assert_eq!(lines[0], "sleep (pid 1), working directory: /mnt/x");
    assert_eq!(lines[8], "and 2 more");
    assert_eq!(Holders { unseen: 3, ..Holders::default() }.lines().len(), 1);
}
