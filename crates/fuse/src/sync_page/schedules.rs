//! A thread that changes something, a thread that syncs and the kernel's flusher, under many
//! schedules, with mutants that the tests catch.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use std::sync::Arc;

use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sync::{Condvar, model, mutant, thread};

use super::*;

/// The kernel's side: how many pages are dirty, and how many are being written.
#[derive(Debug, Default)]
struct Kernel {
    pages: Mutex<(usize, usize)>,
    written: Condvar,
    /// The device does one thing at a time.
    serving: Mutex<()>,
    /// Threads in a call that waits for the device.
    syncing: AtomicUsize,
    fails: AtomicBool,
    /// Changed through a mapping: the kernel keeps it until a sync.
    mapped: AtomicU64,
    is_open: AtomicBool,
    changed: AtomicU64,
    durable: AtomicU64,
    /// How often all was made durable.
    syncs: AtomicUsize,
}

#[derive(Debug)]
struct Below(Arc<Kernel>);

// ORDERING: SeqCst throughout: shuttle knows no other.
impl Device for Below {
    fn dirty_a_page(&mut self) -> io::Result<()> {
        thread::yield_now();
        self.0.pages.lock().0 += 1;
        Ok(())
    }
}

impl Volumes for Kernel {
    fn has_undurable(&self) -> bool {
        self.changed.load(Ordering::SeqCst) > self.durable.load(Ordering::SeqCst)
    }

    fn has_open_files(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn sync(&self) -> Result<(), Errno> {
        let changed = self.changed.load(Ordering::SeqCst);
        thread::yield_now();
        if self.fails.swap(false, Ordering::SeqCst) {
            return Err(Errno::IO);
        }
        self.syncs.fetch_add(1, Ordering::SeqCst);
        self.durable.fetch_max(changed, Ordering::SeqCst);
        Ok(())
    }
}

impl Kernel {
    /// Writes what is dirty when it is called, and waits for that and for what is being written, as
    /// sync_blockdev() does.
    fn write_pages(&self, page: &SyncPage) -> Result<(), Errno> {
        let taken = {
            let mut pages = self.pages.lock();
            let taken = std::mem::take(&mut pages.0);
            pages.1 += taken;
            taken
        };
        if taken > 0 {
            let outcome = {
                let _one_at_a_time = self.serving.lock();
                page.written(self)
            };
            self.pages.lock().1 -= taken;
            self.written.notify_all();
            outcome
        } else {
            let mut pages = self.pages.lock();
            while pages.1 > 0 {
                self.written.wait(&mut pages);
            }
            Ok(())
        }
    }

    fn syncfs(&self, page: &SyncPage) -> Result<(), Errno> {
        self.syncing.fetch_add(1, Ordering::SeqCst);
        // The kernel hands over what it has, and does not wait for the answer.
        self.changed.fetch_add(self.mapped.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        let outcome = self.write_pages(page);
        self.syncing.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    fn change(&self, page: &SyncPage) -> u64 {
        let changed = self.changed.fetch_add(1, Ordering::SeqCst) + 1;
        page.note_change();
        changed
    }
}

fn mounted() -> (Arc<Kernel>, Arc<SyncPage>) {
    let kernel = Arc::<Kernel>::default();
    let seen = Arc::clone(&kernel);
    let callers = Box::new(move |_| seen.syncing.load(Ordering::SeqCst) > 0);
    let page = Arc::new(SyncPage::new(Box::new(Below(Arc::clone(&kernel))), callers));
    (kernel, page)
}

/// A change that was made before a sync is durable when it returns, whatever other threads change
/// and sync, and whatever the flusher writes.
#[test]
fn a_sync_waits_for_what_was_changed_before_it() {
    model::check(|| {
        let (kernel, page) = mounted();
        let change_and_sync = {
            let (kernel, page) = (Arc::clone(&kernel), Arc::clone(&page));
            move || {
                for _ in 0..2 {
                    let changed = kernel.change(&page);
                    kernel.syncfs(&page).unwrap();
                    let durable = kernel.durable.load(Ordering::SeqCst);
                    assert!(durable >= changed, "a sync returned before its data was durable");
                }
            }
        };
        let other = thread::spawn(change_and_sync.clone());
        let flusher = {
            let (kernel, page) = (Arc::clone(&kernel), Arc::clone(&page));
            thread::spawn(move || {
                for _ in 0..2 {
                    kernel.write_pages(&page).unwrap();
                }
            })
        };
        change_and_sync();
        other.join().unwrap();
        flusher.join().unwrap();
    });
}

#[test]
fn a_sync_that_is_not_heard_is_caught() {
    let test = "sync_page::schedules::a_sync_waits_for_what_was_changed_before_it";
    let mutants =
        ["page-dirty-too-early", "page-written-meanwhile", "page-clean-after-sync", "page-asked-once"];
    mutant::assert_caught(test, &mutants, "before its data was durable");
}

/// A write that the flusher makes of its own accord has nothing written before it is due, and the
/// next sync is still noticed; so is one after a failure.
#[test]
fn the_flusher_is_not_a_sync_and_takes_none_away() {
    model::check(|| {
        let (kernel, page) = mounted();
        let changed = kernel.change(&page);
        let flusher = {
            let (kernel, page) = (Arc::clone(&kernel), Arc::clone(&page));
            thread::spawn(move || kernel.write_pages(&page).unwrap())
        };
        flusher.join().unwrap();
        assert_eq!(kernel.syncs.load(Ordering::SeqCst), 0, "it was taken for a sync");
        kernel.fails.store(true, Ordering::SeqCst);
        assert_eq!(kernel.syncfs(&page), Err(Errno::IO));
        assert_eq!(kernel.syncfs(&page), Ok(()));
        assert_eq!(
            kernel.durable.load(Ordering::SeqCst),
            changed,
            "a sync returned before its data was durable"
        );
        // No change is left to be reported.
        kernel.write_pages(&page).unwrap();
        assert_eq!(kernel.pages.lock().0, 0, "an idle volume's page is dirty for ever");
        kernel.change(&page);
        page.end();
        kernel.syncfs(&page).unwrap();
        assert_eq!(kernel.syncs.load(Ordering::SeqCst), 1, "after the end");
    });
}

/// A change that is made through a mapping, after one sync and before the next, is durable after
/// the next, although nothing reported the change.
#[test]
fn a_sync_waits_for_what_was_changed_through_a_mapping() {
    model::check(|| {
        let (kernel, page) = mounted();
        kernel.is_open.store(true, Ordering::SeqCst);
        page.note_change();
        let flusher = {
            let (kernel, page) = (Arc::clone(&kernel), Arc::clone(&page));
            thread::spawn(move || kernel.write_pages(&page).unwrap())
        };
        for n in 1..=2 {
            kernel.mapped.fetch_add(1, Ordering::SeqCst);
            kernel.syncfs(&page).unwrap();
            assert!(
                kernel.durable.load(Ordering::SeqCst) >= n,
                "a sync returned before its data was durable"
            );
        }
        flusher.join().unwrap();
    });
}

#[test]
fn a_page_that_is_clean_while_files_are_open_is_caught() {
    let test = "sync_page::schedules::a_sync_waits_for_what_was_changed_through_a_mapping";
    mutant::assert_caught(test, &["page-clean-while-open"], "before its data was durable");
}
