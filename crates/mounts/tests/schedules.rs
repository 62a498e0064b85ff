//! Unmounts of whole namespaces beside readers and grace periods, under many schedules, with
//! mutants that the same tests catch.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-mounts --test schedules`
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::sync::Arc;

use common::{Fs, namespace_ended_by};
use sync::atomic::{AtomicUsize, Ordering};
use sync::{model, mutant, thread};
use watertight_mounts::teardown::{Teardown, UmountReason, UmountedMount};
use watertight_mounts::{Base, FinalSymlink, Namespace, Umount, VfsPath};

const ROOT: Base<'static> = Base::Root;

/// Waits for each mount's stamp, and for nothing else; then no thread that found it may be inside.
#[derive(Debug, Default)]
struct ByStamps {
    inside: Arc<AtomicUsize>,
    ended: AtomicUsize,
}

impl Teardown for ByStamps {
    fn finish(&self, gone: Vec<UmountedMount>, _: UmountReason) {
        for gone in gone {
            gone.domain().cond_synchronize_expedited(gone.stamp());
            // ORDERING: SeqCst here and below, the model's own.
            assert_eq!(self.inside.load(Ordering::SeqCst), 0, "stamped before it had left");
            self.ended.fetch_add(1, Ordering::SeqCst);
            gone.put().unwrap().clean_up();
        }
    }
}

/// Enters a section, and is inside for as long as that lasts if it finds the mount.
fn look(ns: &Namespace, place: VfsPath, teardown: &ByStamps) {
    let section = ns.domain().read();
    if ns.resolve(place, "", FinalSymlink::Follow).is_ok() {
        teardown.inside.fetch_add(1, Ordering::SeqCst);
        thread::yield_now();
        teardown.inside.fetch_sub(1, Ordering::SeqCst);
    }
    drop(section);
}

fn stamped(flags: Option<Umount>) {
    model::check(move || {
        let teardown = Arc::new(ByStamps::default());
        let (_, root) = Fs::new(&["v/"]).mountable();
        let ns = Arc::new(namespace_ended_by(&root, Arc::clone(&teardown) as _));
        ns.attach(ROOT, "v", &Fs::new(&["f"]).mountable().1).unwrap();
        let place = ns.resolve(ROOT, "v", FinalSymlink::Follow).unwrap().0;
        let reader = thread::spawn({
            let (ns, teardown) = (Arc::clone(&ns), Arc::clone(&teardown));
            move || look(&ns, place, &teardown)
        });
        let other = thread::spawn({
            let ns = Arc::clone(&ns);
            move || ns.domain().synchronize_expedited()
        });
        match flags {
            Some(flags) => ns.umount(ROOT, "v", flags).unwrap(),
            None => ns.shut().unwrap(),
        }
        let expected = if flags.is_some() { 1 } else { 2 };
        assert_eq!(teardown.ended.load(Ordering::SeqCst), expected);
        reader.join().unwrap();
        other.join().unwrap();
        ns.shut().unwrap();
        ns.domain().barrier();
    });
}

/// MN-R5: a mount is stamped after it has left its namespace, by a synchronous unmount.
#[test]
fn mn_r5_a_synchronous_unmount_is_stamped_after_it_left() {
    stamped(Some(Umount::empty()));
}

/// MN-R5: a mount is stamped after it has left its namespace, by a lazy unmount.
#[test]
fn mn_r5_a_lazy_unmount_is_stamped_after_it_left() {
    stamped(Some(Umount::DETACH));
}

/// MN-R5: a mount is stamped after it has left its namespace, by the end of that.
#[test]
fn mn_r5_the_end_of_a_namespace_is_stamped_after_it_left() {
    stamped(None);
}

#[test]
fn mistakes_are_caught() {
    let early = ["mounts-stamp-before-unhash"];
    mutant::assert_caught(
        "mn_r5_a_synchronous_unmount_is_stamped_after_it_left",
        &early,
        "stamped before it had left",
    );
    mutant::assert_caught(
        "mn_r5_a_lazy_unmount_is_stamped_after_it_left",
        &early,
        "stamped before it had left",
    );
    mutant::assert_caught(
        "mn_r5_the_end_of_a_namespace_is_stamped_after_it_left",
        &early,
        "stamped before it had left",
    );
}
