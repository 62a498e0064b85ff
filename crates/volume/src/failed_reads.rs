//! Which failed reads have a line in the log: a caller that reads a damaged file could fill the
//! log.

use std::time::Duration;

use store::ObjectId;
use sync::Mutex;

/// Lines that may follow each other without a pause.
const BURST: u32 = 20;

/// After so long a line may be written again.
const EACH: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct FailedReads(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: Option<(ObjectId, u64)>,
    /// Lines of late, one fewer after each [`EACH`], and when one was last taken off.
    lines: u32,
    since: Duration,
    left_out: u64,
}

impl FailedReads {
    /// Notes a read that failed `now`. If it is to have a line, returns how many reads have failed
    /// without one since the last; a range that is read several times in a row has one.
    pub(crate) fn note(&self, id: ObjectId, offset: u64, now: Duration) -> Option<u64> {
        let mut told = self.0.lock();
        if told.last.replace((id, offset)) == Some((id, offset)) {
            return None;
        }
        let passed = now.saturating_sub(told.since).as_nanos() / EACH.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        told.since = if passed < told.lines { told.since + EACH * passed } else { now };
        told.lines = told.lines.saturating_sub(passed);
        if told.lines == BURST {
            told.left_out += 1;
            return None;
        }
        told.lines += 1;
        Some(std::mem::take(&mut told.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_of_a_damaged_file_has_a_bounded_number_of_lines() {
        let (reads, id) = (FailedReads::default(), ObjectId(1));
        let start = Duration::from_secs(5);
        assert_eq!(reads.note(id, 0, start), Some(0));
        assert_eq!(reads.note(id, 0, start), None, "the same again");
        let told = (1..1000).filter(|at| reads.note(id, *at, start).is_some()).count();
        assert_eq!(told, 19);
        assert_eq!(reads.note(id, 0, start + EACH), Some(980));
        assert_eq!(reads.note(id, 1, start + EACH), None);
        let later = start + EACH * 100;
        let told = (0..1000).filter(|at| reads.note(ObjectId(2), *at, later).is_some()).count();
        assert_eq!(told, 20);
    }
}
