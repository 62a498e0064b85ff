//! The size of the largest file that the medium takes.
//!
//! The host does not report it (`_PC_FILESIZEBITS` is rounded), so it is tried out on a file
//! without a name.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};

const LARGEST: u64 = i64::MAX.unsigned_abs();

/// The size of the largest file in `dir`, in bytes; where it cannot be tried, the largest there can
/// be.
pub(super) fn of(dir: BorrowedFd<'_>) -> u64 {
    // Beyond this process's own limit there is a signal, not an error.
    let most = getrlimit(Resource::Fsize).current.map_or(LARGEST, |limit| limit.min(LARGEST));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR) else { return most };
    largest(most, |size| rustix::fs::ftruncate(&file, size).is_ok())
}

/// The largest size up to `most` that `fits`; `most` itself if not even an empty file does.
fn largest(most: u64, mut fits: impl FnMut(u64) -> bool) -> u64 {
    if fits(most) || !fits(0) {
        return most;
    }
    let (mut good, mut bad) = (0, most);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        *if fits(middle) { &mut good } else { &mut bad } = middle;
    }
    good
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn finds_the_largest_that_fits() {
        for limit in [0, 1, 4095, (16 << 40) - 4096, LARGEST - 1, LARGEST] {
            assert_eq!(largest(LARGEST, |size| size <= limit), limit);
        }
        assert_eq!(largest(LARGEST, |_| false), LARGEST, "nothing is known");
    }

    #[test]
    fn a_file_of_that_size_can_be_made_and_no_larger() {
        let dir = tempfile::tempdir().unwrap();
        let most = of(std::fs::File::open(dir.path()).unwrap().as_fd());
        let file = tempfile::tempfile_in(dir.path()).unwrap();
        file.set_len(most).unwrap();
        assert!(most == LARGEST || file.set_len(most + 1).is_err());
    }
}
