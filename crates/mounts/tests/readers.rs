//! A walk writes nothing that other threads read: all memory of a namespace is made read-only, and
//! walks go on.
//!
//! The namespace is built in an arena of its own. A thread that is made later, and so has its own
//! memory elsewhere, walks while the arena cannot be written: a lock, a count or a mark anywhere in
//! it would end the process by SIGSEGV. Walks that do count show that the test detects this. The
//! thread's own slot of its domain and statics are not in the arena.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Fs, namespace};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use watertight_mounts::{Base, FinalSymlink, Namespace};

const ARENA: usize = 32 << 20;
/// The child's task, and whether it may write meanwhile.
const TASK: &str = "WATERTIGHT_TEST_READER";
const PROTECTED: &str = "WATERTIGHT_TEST_READ_ONLY";
const SIGSEGV: i32 = 11;

/// Gives memory from the arena while that is open, and never takes such memory back.
struct Arena {
    start: AtomicPtr<u8>,
    used: AtomicUsize,
    is_open: AtomicBool,
}

#[global_allocator]
static MEMORY: Arena =
    Arena { start: AtomicPtr::new(null_mut()), used: AtomicUsize::new(0), is_open: AtomicBool::new(false) };

impl Arena {
    fn has(&self, at: *mut u8) -> bool {
        // ORDERING: SeqCst throughout this file: a test should be simple.
        let start = self.start.load(Ordering::SeqCst).addr();
        start != 0 && (start..start + ARENA).contains(&at.addr())
    }

    fn open(&self) {
        // SAFETY: new memory at an address of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(null_mut(), ARENA, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        self.start.store(start.unwrap().cast(), Ordering::SeqCst);
        self.is_open.store(true, Ordering::SeqCst);
    }

    fn protect(&self, flags: MprotectFlags) {
        let start = self.start.load(Ordering::SeqCst).cast();
        // SAFETY: the arena's own mapping; a thread that writes to it while it is read-only ends
        // the process, which is what the test checks.
        unsafe { mprotect(start, ARENA, flags) }.unwrap();
    }
}

// SAFETY: memory is either the system's, passed on to it, or a piece of the arena that no other
// caller gets.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.is_open.load(Ordering::SeqCst) {
            // SAFETY: as the caller promises.
            return unsafe { System.alloc(layout) };
        }
        let room = layout.size() + layout.align();
        let at = self.used.fetch_add(room, Ordering::SeqCst);
        if at + room > ARENA {
            return null_mut();
        }
        let start = self.start.load(Ordering::SeqCst).wrapping_add(at);
        start.wrapping_add(start.align_offset(layout.align()))
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !self.has(at) {
            // SAFETY: as the caller promises; it is the system's.
            unsafe { System.dealloc(at, layout) }
        }
    }
}

/// Runs a child that does `task`; returns how it ended.
fn child(task: &str, is_protected: bool) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "reader", "--ignored", "--nocapture", "--test-threads=1"]).env(TASK, task);
    if is_protected {
        child.env(PROTECTED, "1");
    }
    child.output().unwrap()
}

#[test]
fn a_walk_writes_nothing_that_others_read() {
    let walked = child("walk", true);
    assert!(walked.status.success(), "a walk has written to the namespace's memory: {walked:?}");
    // Walks that do write: one that keeps its place, and one that goes on with references, because
    // it has to wait for a superblock. Both end well where they may write, and are detected where
    // they may not.
    for task in ["pin", "wait"] {
        let free = child(task, false);
        assert!(free.status.success(), "{task}: {free:?}");
        let seen = child(task, true);
        assert_eq!(seen.status.signal(), Some(SIGSEGV), "{task} counts, and nobody saw it: {seen:?}");
    }
}

/// The child's part.
#[test]
#[ignore = "run by a_walk_writes_nothing_that_others_read, in processes of its own"]
fn reader() {
    let task = std::env::var(TASK).unwrap();
    MEMORY.open();
    let (ns, inner) =
        (namespace(&["a/b/", "f", "c/d/e/", "up -> a/b/d"]).0, Fs::new(&["d/e/f", "g"]).mountable().1);
    ns.attach(Base::Root, "a/b", &inner).unwrap();
    ns.attach(Base::Root, "a/b/d/e", &Fs::new(&["g"]).mountable().1).unwrap();
    ns.attach(Base::Root, "c", &Fs::new(&["slow"]).uncached().mountable().1).unwrap();
    until_nobody_is_at_work(&ns);
    MEMORY.is_open.store(false, Ordering::SeqCst);

    let (step, ns) = (&AtomicUsize::new(0), &ns);
    std::thread::scope(|scope| {
        let walker = scope.spawn(move || {
            let walks = || {
                for path in ["a/b/d/e/g", "f", "a/b/d/../../b/g", "/up/e/..", "..", "a/b/d/e/../../.."] {
                    ns.resolve(Base::Root, path, FinalSymlink::Follow).unwrap();
                }
                ns.resolve(Base::Root, "a/b/none", FinalSymlink::Follow).unwrap_err();
            };
            // The first ones give the thread its slot.
            walks();
            step.store(1, Ordering::SeqCst);
            wait_for(step, 2);
            (0..10_000).for_each(|_| walks());
            match task.as_str() {
                "walk" => {}
                "pin" => drop(ns.pin(Base::Root, "a/b/d/e/g", FinalSymlink::Follow, "who is named")),
                "wait" => assert!(ns.resolve(Base::Root, "c/slow", FinalSymlink::Follow).is_ok()),
                _ => panic!("what is {task}?"),
            }
            step.store(3, Ordering::SeqCst);
            // The end of a thread does write: it gives its slot back.
            wait_for(step, 4);
        });
        let walker_reaches = |value| {
            while step.load(Ordering::SeqCst) < value {
                assert!(!walker.is_finished(), "a walk has failed");
                std::thread::yield_now();
            }
        };
        walker_reaches(1);
        if std::env::var_os(PROTECTED).is_some() {
            MEMORY.protect(MprotectFlags::READ);
        }
        step.store(2, Ordering::SeqCst);
        walker_reaches(3);
        MEMORY.protect(MprotectFlags::READ | MprotectFlags::WRITE);
        step.store(4, Ordering::SeqCst);
    });
    let is_slow = u64::from(std::env::var(TASK).unwrap() == "wait");
    assert_eq!((ns.stats().restarts, ns.stats().ref_walks), (0, is_slow));
    // The test's own threads would go on with memory of two kinds.
    std::process::exit(0);
}

fn wait_for(step: &AtomicUsize, value: usize) {
    while step.load(Ordering::SeqCst) < value {
        std::thread::yield_now();
    }
}

/// Waits until the old tables are freed, and the domain's thread, which writes to its domain, has
/// gone.
fn until_nobody_is_at_work(ns: &Namespace) {
    (0..2).for_each(|_| ns.domain().barrier());
    let is_worker = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm"))
            .is_ok_and(|name| name.trim() == "rcu-worker")
    };
    let begun = Instant::now();
    while std::fs::read_dir("/proc/self/task").unwrap().any(is_worker) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the domain's thread does not end");
        std::thread::yield_now();
    }
}
