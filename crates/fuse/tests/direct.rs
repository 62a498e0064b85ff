//! O_DIRECT beside the kernel's page cache: later reads return what was written.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use common::hook::OpenAtEnd;
use common::{Setup, eventually, skipped};
use io_uring::{IoUring, opcode, types::Fd};
use watertight_fuse::{Mode, SessionOptions, Uring};

const LEN: usize = 4096;

/// An asynchronous write is under way while another thread reads through the cache: that brings the
/// old data there, which has to go when the write is done.
#[test]
fn a_read_during_an_asynchronous_direct_write_leaves_no_old_data_behind() {
    for uring in [Uring::Off, common::uring()] {
        for mode in [Mode::WriteThrough, Mode::KernelWriteback] {
            let (setup, gate) = Setup::hanging_in("attr");
            let session = SessionOptions { mode, ..SessionOptions::default() };
            let Some(mounted) = (Setup { session, uring, ..setup }).mount() else { return };
            let _opens = OpenAtEnd(gate.clone());
            let path = mounted.path().join("file");
            fs::write(&path, [b'a'; 4 * LEN]).unwrap();
            mounted.volume.sync_all().unwrap();
            let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
            let cached = File::options().read(true).write(true).open(&path).unwrap();
            cached.sync_all().unwrap();
            // Nothing of it is in the cache.
            rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            cached.metadata().unwrap();

            let Ok(mut ring) = IoUring::new(2) else { return skipped("no io_uring for programs here") };
            let data = vec![b'b'; LEN];
            let entry =
                opcode::Write::new(Fd(direct.as_raw_fd()), data.as_ptr(), u32::try_from(LEN).unwrap())
                    .offset(0);
            gate.shut();
            // Handed to a worker of the kernel's: the caller is free whether or not the file system
            // is.
            let entry = entry.build().flags(io_uring::squeue::Flags::ASYNC);
            // SAFETY: the data and the file live until the write has ended, which is waited for
            // below.
            unsafe { ring.submission().push(&entry).unwrap() };
            ring.submit().unwrap();
            eventually("the write is under way", || gate.waiting() > 0);
            let mut seen = [0; LEN];
            cached.read_exact_at(&mut seen, 0).unwrap();
            assert!(seen == [b'a'; LEN], "it is not written yet");
            gate.open();
            ring.submit_and_wait(1).unwrap();
            let done = ring.completion().next().unwrap().result();
            assert_eq!(done, i32::try_from(LEN).unwrap());
            cached.read_exact_at(&mut seen, 0).unwrap();
            assert!(seen == [b'b'; LEN], "{uring:?} {mode:?}: old data stays in the cache");
            drop((direct, cached));
            mounted.unmount();
        }
    }
}
