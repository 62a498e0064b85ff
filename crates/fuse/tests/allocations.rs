//! The requests that come most are served without allocating memory.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicU64, Ordering};

use common::Setup;
use rustix::fs::{AtFlags, CWD, StatxFlags};

/// An allocator that counts.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // ORDERING: Relaxed throughout this file: a count; the kernel's answer orders what a
        // request's threads added before its caller's load.
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(start, layout, new) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this process for each of many calls, in the round that had fewest: threads that
/// come and go, flushers and the like allocate now and then, on a busy machine between few calls.
fn per_call(mut call: impl FnMut(u64)) -> f64 {
    const CALLS: u64 = 50;
    const ROUNDS: u64 = 40;
    // The threads, buffers and pages exist after that.
    (0..200).for_each(&mut call);
    let mut round = |number: u64| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (number * CALLS..(number + 1) * CALLS).for_each(&mut call);
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    (0..ROUNDS).map(&mut round).min().unwrap() as f64 / CALLS as f64
}

#[test]
fn attributes_reads_and_writes_allocate_nothing() {
    let setup = Setup { wrap: Box::new(|_| store::open("mem:").unwrap()), ..Setup::default() };
    let Some(mounted) = setup.mount() else { return };
    let path = mounted.path().join("file");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    mounted.volume.sync_all().unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();

    let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let attrs = per_call(|_| {
        rustix::fs::statx(CWD, &c_path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
    });
    // Before the writes: a read of unwritten data has the volume collect pages.
    let mut buffer = [0; 8192];
    let aligned = buffer.as_ptr().align_offset(4096);
    let reads = per_call(|n| {
        direct.read_exact_at(&mut buffer[aligned..][..4096], n % 64 * 4096).unwrap();
    });
    let data = [1; 4096];
    let writes = per_call(|n| file.write_all_at(&data, n % 64 * 4096).unwrap());
    eprintln!("allocations per GETATTR {attrs}, WRITE {writes}, READ {reads}");
    assert!(attrs < 0.05, "{attrs} per GETATTR");
    assert!(writes < 0.05, "{writes} per WRITE");
    assert!(reads < 0.05, "{reads} per READ");
    drop((file, direct));
    mounted.unmount();
}
