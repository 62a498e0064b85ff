//! A store that is ill: nothing is lost, neighbours go on, and everything goes on by itself.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use super::naive_server::{Fault, NaiveServer};
use super::{LARGE, pattern};
use crate::rig::{Daemon, LONG, Rig, run};

const FAULTS: [Fault; 6] = [
    Fault::Status("429 Too Many Requests"),
    Fault::Status("500 Internal Server Error"),
    Fault::Status("503 Slow Down"),
    Fault::Half,
    Fault::Hangs,
    Fault::Closes,
];
/// Fsyncs of the neighbour beside each fault.
const BESIDE: usize = 20;

/// A volume on a server that may fail, and a neighbour attached in it.
struct World {
    rig: Rig,
    server: NaiveServer,
    daemon: Daemon,
}

impl World {
    fn new() -> Option<Self> {
        let mut rig = Rig::mounting()?;
        let server = NaiveServer::ignoring(&[]);
        let mut format = rig.command(&["format", "s3://b/v"]);
        server.for_program(&mut format);
        run(format).ok();
        let daemon = mount(&mut rig, &server);
        let beside = rig.mnt.join("beside");
        fs::create_dir(&beside).unwrap();
        let store = rig.store.to_str().unwrap();
        rig.run(&["attach", store, beside.to_str().unwrap()]).ok();
        Some(Self { rig, server, daemon })
    }

    /// Writes a file and syncs it, in a thread.
    fn write(&self, name: &str) -> Receiver<()> {
        let (done, is_done) = mpsc::channel();
        let path = self.rig.mnt.join(name);
        thread::spawn(move || {
            synced(&path, &pattern(LARGE));
            done.send(())
        });
        is_done
    }

    /// The neighbour writes and syncs, again and again.
    fn neighbour_goes_on(&self) {
        for number in 0..BESIDE {
            synced(&self.rig.mnt.join(format!("beside/{number}")), b"beside");
        }
    }
}

fn mount(rig: &mut Rig, server: &NaiveServer) -> Daemon {
    let mut command = rig.command(&["mount", "s3://b/v"]);
    command.arg(&rig.mnt);
    server.for_program(&mut command);
    rig.start(command)
}

fn synced(path: &Path, data: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(data).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn an_ill_store_loses_nothing_holds_up_no_neighbour_and_heals_by_itself() {
    let Some(mut world) = World::new() else { return };
    synced(&world.rig.mnt.join("before"), &pattern(LARGE));
    // As long as it is open, the kernel does not forget the file, however short of memory the host is.
    let open = File::open(world.rig.mnt.join("before")).unwrap();
    for (number, fault) in FAULTS.into_iter().enumerate() {
        world.server.fails(Some(fault));
        let is_done = world.write(&format!("file-{number}"));
        world.neighbour_goes_on();
        // What is cached can be read.
        assert_eq!(fs::read(world.rig.mnt.join("before")).unwrap(), pattern(LARGE), "{fault:?}");
        assert_eq!(is_done.try_recv(), Err(TryRecvError::Empty), "{fault:?}: it is not in the bucket");
        world.server.fails(None);
        is_done.recv_timeout(LONG).unwrap_or_else(|_| panic!("{fault:?}: it does not go on"));
    }
    drop(open);
    world.rig.verb("umount", &[]).ok().says("everything is on");
    assert_eq!(world.daemon.end(), Some(0));
    let daemon = mount(&mut world.rig, &world.server);
    for (number, fault) in FAULTS.iter().enumerate() {
        let path = world.rig.mnt.join(format!("file-{number}"));
        assert_eq!(fs::read(path).unwrap(), pattern(LARGE), "{fault:?}");
    }
    world.rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

/// A region that is away is not met by a storm of requests.
#[test]
fn an_outage_is_met_by_few_requests() {
    let Some(world) = World::new() else { return };
    let fault = Fault::Status("503 Service Unavailable");
    world.server.fails(Some(fault));
    let done: Vec<_> = (0..8).map(|n| world.write(&format!("file-{n}"))).collect();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        world.neighbour_goes_on();
    }
    let seconds = begun.elapsed().as_secs();
    let met = world.server.fails(None);
    // Eight segments at most are on their way, the lease and the log beside them; each waits five
    // seconds between two attempts once the budget of twenty quick ones is spent.
    assert!(met > 0 && met < 40 + 12 * (seconds / 2 + 1), "{met} requests in {seconds} s");
    done.iter().for_each(|done| done.recv_timeout(LONG).unwrap());
    world.rig.verb("umount", &[]).ok();
    assert_eq!(world.daemon.end(), Some(0));
}

/// The campaign: `cargo test -p watertight --test program -- ill_store --ignored`.
#[test]
#[ignore = "takes ten minutes"]
fn a_store_that_is_away_for_ten_minutes() {
    let Some(world) = World::new() else { return };
    world.server.fails(Some(Fault::Closes));
    let done: Vec<_> = (0..8).map(|n| world.write(&format!("file-{n}"))).collect();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(600) {
        world.neighbour_goes_on();
    }
    println!("{} requests in {:?}", world.server.fails(None), begun.elapsed());
    done.iter().for_each(|done| done.recv_timeout(LONG).unwrap());
    for number in 0..8 {
        let path = world.rig.mnt.join(format!("file-{number}"));
        assert_eq!(fs::read(path).unwrap(), pattern(LARGE));
    }
    world.rig.verb("umount", &[]).ok();
    assert_eq!(world.daemon.end(), Some(0));
}
