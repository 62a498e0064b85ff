//! stress-ng's fanotify, alone: a program of its own, so that nothing else runs beside it.
//!
//! It watches every mount of the machine and opens each file that is touched anywhere, also those
//! on the mounts of other tests, which could not be unmounted meanwhile. That is why it is not
//! among the stressors of `posix.rs`; it hangs neither on ext4 nor on a mount of ours.

use watertight_acceptance::program::have;
use watertight_acceptance::scratch::Scratch;
use watertight_acceptance::stress::{Verdict, judge, run};
use watertight_acceptance::subject::need_root;
use watertight_acceptance::{Subject, note};

/// Events of a file system that the watching process must open while the file system serves its
/// users.
#[test]
fn events_of_all_mounts() {
    let name = "fanotify";
    if !have(name, &["stress-ng"]) || !need_root(name) {
        return;
    }
    let Some(mut subject) = Subject::start(name) else { return };
    let host = Scratch::new(name);
    let verdict = judge(name, run(name, subject.path()), || run(name, host.path()), &[]);
    match &verdict {
        Verdict::Passed => note(name, "passed"),
        Verdict::SkippedOnBoth(why) | Verdict::FailsOnBoth(why) => {
            watertight_acceptance::skip(name, &format!("not on the host's file system either: {why}"));
        }
        Verdict::Excepted(why) | Verdict::Worse(why) => panic!("{why}"),
    }
    assert!(subject.is_alive());
    subject.close();
}
