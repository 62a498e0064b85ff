//! Facts about the kernel on which the product builds and which the other tests cannot see.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use common::eventually;
use common::raw::{RawServer, is_from_cache};
use watertight_fuse::abi::{InitFlags, Opcode};
use watertight_fuse::mount::Wanted;

const COMMON: InitFlags = InitFlags::BIG_WRITES.union(InitFlags::MAX_PAGES).union(InitFlags::ASYNC_READ);

fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

#[test]
fn mapping_client() {
    common::mapping::client();
}

#[test]
fn syncfs_comes_with_its_callers_number() {
    if !testing::kernel_sends_syncfs() {
        return common::skipped("this kernel does not pass syncfs(2) on");
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = RawServer::mount(dir.path(), Wanted::FuseBlk, COMMON) else { return };
    let root = File::open(dir.path()).unwrap();
    rustix::fs::syncfs(&root).unwrap();
    let seen = server.of(Opcode::SyncFs);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].pid, thread_id());
    // Another process, whose number the kernel sends.
    let mut child = Command::new("sync").arg("-f").arg(dir.path()).stdin(Stdio::null()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(server.of(Opcode::SyncFs)[1].pid, child.id());
}

/// So an unmount is no sync by its caller, and waits for no limit of that caller.
#[test]
fn an_unmount_sends_destroy_and_no_syncfs() {
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = RawServer::mount(dir.path(), Wanted::FuseBlk, COMMON) else { return };
    std::fs::write(dir.path().join("f"), "x").unwrap();
    let seen = std::sync::Arc::clone(&server.seen);
    drop(server);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.last().unwrap().op, Opcode::Destroy);
    assert!(seen.iter().all(|seen| seen.op != Opcode::SyncFs), "{seen:?}");
}

#[test]
fn requests_carry_the_number_of_the_calling_thread() {
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = RawServer::mount(dir.path(), Wanted::Fuse, COMMON) else { return };
    let path = dir.path().join("f");
    let caller = std::thread::spawn(move || {
        let file = File::options().read(true).write(true).open(path).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        file.sync_all().unwrap();
        thread_id()
    })
    .join()
    .unwrap();
    assert_ne!(caller, thread_id());
    for op in [Opcode::Open, Opcode::Write, Opcode::FSync] {
        let seen = server.of(op);
        assert_eq!(seen.len(), 1, "{op:?}");
        assert_eq!(seen[0].pid, caller, "{op:?}");
    }
    // A child that another test starts meanwhile has the file, too, until it executes its program.
    assert!(server.of(Opcode::Flush).iter().any(|seen| seen.pid == caller));
    eventually("RELEASE", || !server.of(Opcode::Release).is_empty());
    assert!([0, caller].contains(&server.of(Opcode::Release)[0].pid), "since Linux 7.2 a number");
}

#[test]
fn mapped_pages_are_written_as_the_kernels_and_before_flush() {
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = RawServer::mount(dir.path(), Wanted::Fuse, COMMON) else { return };
    let path = dir.path().join("f");
    common::mapping::change(&path, true);
    let writes = server.of(Opcode::Write);
    assert_eq!(writes.len(), 1);
    assert!(is_from_cache(&writes[0]), "its number, since Linux 7.2, says nothing");
    let syncs = server.of(Opcode::FSync);
    assert_eq!((syncs.len(), syncs[0].fsync_flags & 1), (1, 1), "msync is WRITE and then FSYNC of the data");
    // Not synced: written before the FLUSH of a close.
    common::mapping::change(&path, false);
    eventually("FLUSH", || !server.of(Opcode::Flush).is_empty());
    let order: Vec<_> = server.seen.lock().unwrap().iter().map(|seen| seen.op).collect();
    let last_write = order.iter().rposition(|op| *op == Opcode::Write).unwrap();
    let flush = order.iter().rposition(|op| *op == Opcode::Flush).unwrap();
    assert_eq!(server.of(Opcode::Write).len(), 2);
    assert!(last_write < flush, "{order:?}");
}

#[test]
fn kernel_write_back_writes_as_the_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let flags = COMMON | InitFlags::WRITEBACK_CACHE;
    let Some(server) = RawServer::mount(dir.path(), Wanted::Fuse, flags) else { return };
    let file = File::options().read(true).write(true).open(dir.path().join("f")).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(server.of(Opcode::Write).len(), 0);
    file.sync_all().unwrap();
    let writes = server.of(Opcode::Write);
    assert_eq!(writes.len(), 1);
    // Since Linux 7.2: of the thread that has it written.
    assert!([0, thread_id()].contains(&writes[0].pid));
    assert!(is_from_cache(&writes[0]));
}

#[test]
fn capabilities_are_asked_for_at_each_write_unless_killpriv_is_negotiated() {
    for (flags, expected) in [(COMMON, 20..=20), (COMMON | InitFlags::HANDLE_KILLPRIV_V2, 0..=1)] {
        let dir = tempfile::tempdir().unwrap();
        let Some(server) = RawServer::mount(dir.path(), Wanted::Fuse, flags) else { return };
        let file = File::options().read(true).write(true).open(dir.path().join("f")).unwrap();
        for _ in 0..20 {
            file.write_all_at(b"x", 0).unwrap();
        }
        assert_eq!(server.of(Opcode::Write).len(), 20);
        let asked = server.of(Opcode::GetXattr).len();
        assert!(expected.contains(&asked), "{asked} instead of {expected:?}");
    }
}
