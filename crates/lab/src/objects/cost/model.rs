//! The formulas: requests of an operation, and what they cost.

use std::time::Duration;

use super::super::requests::Requests;

/// Bytes of the files that are written in sequence.
pub(super) const SMALLER: u64 = 64 << 20;
pub(super) const LARGER: u64 = 256 << 20;
/// Numbers of small files, and their bytes.
pub(super) const FEWER: u64 = 1000;
pub(super) const MORE: u64 = 4000;
pub(super) const SMALL: usize = 4096;
/// Fsyncs.
pub(super) const SYNCS: u64 = 100;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Format,
    FirstMount,
    Fsyncs,
    WriteSmaller,
    WriteLarger,
    CreateFewer,
    CreateMore,
    Umount,
    Mount,
    List,
    Stat,
    ReadSmall,
    ReadLarge,
    Idle,
    Snapshot,
    Clone,
    Takeover,
    Gc,
}

impl Operation {
    pub(super) const ALL: [Self; 18] = [
        Self::Format,
        Self::FirstMount,
        Self::Fsyncs,
        Self::WriteSmaller,
        Self::WriteLarger,
        Self::CreateFewer,
        Self::CreateMore,
        Self::Umount,
        Self::Mount,
        Self::List,
        Self::Stat,
        Self::ReadSmall,
        Self::ReadLarge,
        Self::Idle,
        Self::Snapshot,
        Self::Clone,
        Self::Takeover,
        Self::Gc,
    ];

    /// Their names, in this order.
    pub(super) const NAMES: [&'static str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = Self::ALL[at].name();
            at += 1;
        }
        names
    };

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::FirstMount => "mount-first",
            Self::Fsyncs => "fsync-100",
            Self::WriteSmaller => "write-64M",
            Self::WriteLarger => "write-256M",
            Self::CreateFewer => "create-1000",
            Self::CreateMore => "create-4000",
            Self::Umount => "umount",
            Self::Mount => "mount",
            Self::List => "list-1000",
            Self::Stat => "stat-1000",
            Self::ReadSmall => "read-1000",
            Self::ReadLarge => "read-64M",
            Self::Idle => "idle-60s",
            Self::Snapshot => "snapshot",
            Self::Clone => "clone",
            Self::Takeover => "takeover",
            Self::Gc => "gc-64M",
        }
    }

    /// What is done.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Format => "`watertight format`, with its probe of the bucket",
            Self::FirstMount => "the first mount of a new volume",
            Self::Fsyncs => "100 times 4 KiB written and synced",
            Self::WriteSmaller => "64 MiB written in sequence, and synced",
            Self::WriteLarger => "256 MiB written in sequence, and synced",
            Self::CreateFewer => "1,000 files of 4 KiB made, and synced together",
            Self::CreateMore => "4,000 files of 4 KiB made, and synced together",
            Self::Umount => "an unmount after that",
            Self::Mount => "the next mount",
            Self::List => "a directory of 1,000 listed, cold",
            Self::Stat => "1,000 files of it looked at",
            Self::ReadSmall => "1,000 files of 4 KiB read, cold",
            Self::ReadLarge => "64 MiB read in sequence, cold",
            Self::Idle => "60 s without any use",
            Self::Snapshot => "a snapshot made of a mounted volume",
            Self::Clone => "a clone made of that",
            Self::Takeover => "a mount with `-o takeover`, of a process that does not answer",
            Self::Gc => "`watertight gc` after 64 MiB were replaced",
        }
    }

    /// What the formulas say of it, if it took so long: what changes is on its way after 5 s, and
    /// the lease is asked for each 5 s.
    pub(super) fn predicted(self, took: Duration) -> Requests {
        let ticks = took.as_secs() / COMMIT_SECONDS;
        let one = |[puts, gets, lists, deletes]: [u64; 4]| Requests { puts, gets, lists, deletes };
        match self {
            Self::Format => one(FORMAT),
            Self::FirstMount => one(FIRST_MOUNT),
            Self::Fsyncs => one([SYNCS, ticks, 0, 0]),
            Self::WriteSmaller => one([puts_of_write(SMALLER, ticks), ticks, 0, 0]),
            Self::WriteLarger => one([puts_of_write(LARGER, ticks), ticks, 0, 0]),
            Self::CreateFewer => one([puts_of_files(FEWER, SMALL as u64, ticks), ticks, 0, 0]),
            Self::CreateMore => one([puts_of_files(MORE, SMALL as u64, ticks), ticks, 0, 0]),
            Self::Umount => one(UMOUNT),
            Self::Mount => one(MOUNT),
            Self::List => one([0, LIST_GETS + ticks, 0, 0]),
            Self::Stat => one([0, STAT_GETS + ticks, 0, 0]),
            Self::ReadSmall => one([0, gets_of_files(FEWER, SMALL as u64) + ticks, 0, 0]),
            Self::ReadLarge => one([0, gets_of_read(SMALLER) + ticks, 0, 0]),
            Self::Idle => one([0, ticks, 0, 0]),
            Self::Snapshot => one(SNAPSHOT),
            Self::Clone => one(CLONE),
            Self::Takeover => one(TAKEOVER),
            Self::Gc => one(GC),
        }
    }
}

/// The constants of `objects` that decide: a segment, an object of the log, a GET of a table at most.
const SEGMENT: u64 = 8 << 20;
const LOG_OBJECT: u64 = 8 << 20;
const GET: u64 = 4 << 20;
/// What was changed is on its way after so long; the lease is asked for as often.
const COMMIT_SECONDS: u64 = 5;
/// The manifest is looked for as often, with one GET.
const MANIFEST_SECONDS: u64 = 3600;
const MANIFEST_GETS: u64 = 1;
/// An estimate: rows of a small file in the log: its entry, its inode several times, its extent, sums.
const ROWS_OF_FILE: u64 = 700;

/// Operations whose requests depend on nothing: PUTs, GETs, LISTs, DELETEs. A race of 16 creates is
/// part of the first.
const FORMAT: [u64; 4] = [39, 6, 2, 1];
const FIRST_MOUNT: [u64; 4] = [4, 4, 4, 0];
const MOUNT: [u64; 4] = [3, 9, 2, 0];
const UMOUNT: [u64; 4] = [3, 0, 0, 0];
const SNAPSHOT: [u64; 4] = [1, 3, 2, 0];
const CLONE: [u64; 4] = [4, 3, 3, 0];
const TAKEOVER: [u64; 4] = [4, 25, 2, 0];
const GC: [u64; 4] = [7, 13, 15, 1];
/// Blocks of tables with the names of a directory of 1,000 and with its inodes, which a listing reads, too.
const LIST_GETS: u64 = 17;
const STAT_GETS: u64 = 0;
/// GETs of a cold read in sequence beside one for each segment.
const FIRST_GETS: u64 = 2;

/// Segments, and each 5 s one that is not full and an object of the log; and the sync's.
const fn puts_of_write(bytes: u64, ticks: u64) -> u64 {
    bytes.div_ceil(SEGMENT) + 2 * ticks + 1
}

/// Objects of the log: full ones, or one each 5 s if that is more; and the sync's.
fn puts_of_files(files: u64, bytes: u64, ticks: u64) -> u64 {
    (files * (bytes + ROWS_OF_FILE) / LOG_OBJECT).max(ticks) + 1
}

/// What is read in sequence from its beginning comes in whole segments, but for the first, of which the
/// windows that open have parts.
const fn gets_of_read(bytes: u64) -> u64 {
    bytes.div_ceil(SEGMENT) + FIRST_GETS
}

/// Files that were written together lie side by side, with their rows between them.
fn gets_of_files(files: u64, bytes: u64) -> u64 {
    gets_of_read(files * (bytes + ROWS_OF_FILE))
}

/// What a service charges, in $ for each request and each GB (10⁹ bytes) in a month.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prices {
    pub(super) put: f64,
    pub(super) list: f64,
    pub(super) get: f64,
    pub(super) delete: f64,
    pub(super) gigabyte_month: f64,
}

/// S3 Standard in us-east-1, first 50 TB, as publicly listed in June 2026.
pub(super) const PRICES: Prices =
    Prices { put: 0.005e-3, list: 0.005e-3, get: 0.000_4e-3, delete: 0.0, gigabyte_month: 0.023 };

/// Requests, of which there may be very many.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    pub(super) puts: f64,
    pub(super) gets: f64,
    pub(super) lists: f64,
    pub(super) deletes: f64,
}

impl Cost {
    /// PUTs, GETs, LISTs, DELETEs.
    pub(super) const fn of([puts, gets, lists, deletes]: [f64; 4]) -> Self {
        Self { puts, gets, lists, deletes }
    }

    /// With others.
    fn and(self, other: Self) -> Self {
        Self {
            puts: self.puts + other.puts,
            gets: self.gets + other.gets,
            lists: self.lists + other.lists,
            deletes: self.deletes + other.deletes,
        }
    }

    /// At [`PRICES`].
    pub(super) fn dollars(self) -> f64 {
        self.puts * PRICES.put
            + self.gets * PRICES.get
            + self.lists * PRICES.list
            + self.deletes * PRICES.delete
    }
}

/// Something that somebody may want to know the price of.
#[derive(Debug)]
pub(super) struct Example {
    pub(super) words: String,
    pub(super) cost: Cost,
    /// What is in the bucket then.
    pub(super) bytes: f64,
}

/// Seconds of a month of 30 days.
const MONTH: f64 = 30.0 * 24.0 * 3600.0;
/// An estimate: bytes in a table of a file with one extent: an inode, an entry, an extent.
const ROWS_STORED: f64 = 250.0;
/// A table of metadata; and, an estimate, how often merges write each row, with as many reads.
const TABLE: f64 = (32 << 20) as f64;
const MERGES: f64 = 3.0;

/// Writing and merging of the tables that so many files need.
fn tables(files: f64) -> Cost {
    let tables = (files * ROWS_STORED / TABLE).ceil();
    // A table and its manifest; a merge reads a table in parts.
    Cost::of([2.0 * tables * (1.0 + MERGES), tables * MERGES * TABLE / GET as f64, 0.0, 0.0])
}

#[allow(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn examples() -> Vec<Example> {
    let idle = |volumes: f64| {
        let gets = MONTH / COMMIT_SECONDS as f64 + MONTH / MANIFEST_SECONDS as f64 * MANIFEST_GETS as f64;
        Cost::of([0.0, gets * volumes, 0.0, 0.0])
    };
    let (terabyte, rate) = (1e12, 100e6);
    let ticks = terabyte / rate / COMMIT_SECONDS as f64;
    let written = Cost::of([terabyte / SEGMENT as f64 + 2.0 * ticks, ticks, 0.0, 0.0]);
    let read = Cost::of([0.0, terabyte / SEGMENT as f64, 0.0, 0.0]);
    let (files, small) = (1e9, SMALL as f64);
    let logged = files * (small + ROWS_OF_FILE as f64);
    let made = Cost::of([logged / LOG_OBJECT as f64, 0.0, 0.0, 0.0]).and(tables(files));
    let mounts = 10_000.0 * 30.0;
    let each = |of: [u64; 4]| Cost::of(of.map(|count| count as f64 * mounts));
    [
        ("1 TB written in sequence at 100 MB/s, in large files", written, terabyte),
        ("1 TB read in sequence, cold", read, 0.0),
        ("10⁹ files of 4 KiB made, tables merged", made, files * (small + ROWS_STORED)),
        ("one mounted volume that is idle for a month", idle(1.0), 0.0),
        ("10,000 mounted volumes that are idle for a month", idle(10_000.0), 0.0),
        ("10,000 volumes made", Cost::of(FORMAT.map(|count| count as f64 * 10_000.0)), 0.0),
        ("10,000 volumes mounted and unmounted each day of a month", each(MOUNT).and(each(UMOUNT)), 0.0),
        ("100 fsyncs a second for a month, each alone", Cost::of([MONTH * 100.0, 0.0, 0.0, 0.0]), 0.0),
    ]
    .map(|(words, cost, bytes)| Example { words: words.to_owned(), cost, bytes })
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_apart() {
        assert_eq!(Operation::NAMES.len(), Operation::ALL.len());
        for (at, name) in Operation::NAMES.iter().enumerate() {
            assert_eq!(Operation::NAMES.iter().position(|other| other == name), Some(at));
        }
    }

    #[test]
    fn writes_cost_a_put_for_a_segment_and_more_by_time() {
        let quick = Operation::WriteSmaller.predicted(Duration::from_secs(1));
        assert_eq!((quick.puts, quick.gets), (9, 0));
        let slow = Operation::WriteSmaller.predicted(Duration::from_secs(11));
        assert_eq!((slow.puts, slow.gets), (13, 2));
        assert_eq!(Operation::Idle.predicted(Duration::from_secs(60)).gets, 12);
    }

    #[test]
    fn requests_have_their_price() {
        let thousand = Cost::of([1000.0, 0.0, 1000.0, 1e9]).and(Cost::of([0.0, 1000.0, 0.0, 0.0]));
        assert!((thousand.dollars() - 0.0104).abs() < 1e-9, "{thousand:?}");
        let all = examples();
        let idle = all.iter().find(|example| example.words.contains("one mounted")).unwrap();
        // 12 GETs a minute.
        assert!((0.2..0.22).contains(&idle.cost.dollars()), "{idle:?}");
        assert!(all.iter().all(|example| example.cost.dollars() > 0.0));
    }
}
