//! How much and how long: one set of sizes for all targets of a run, so that memory that was
//! touched once is used again.

use crate::experiment::Settings;
use anyhow::ensure;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The sizes of a run.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Rounds of all targets.
    pub(crate) runs: usize,
    /// How long a slice is measured.
    pub(crate) slice: Duration,
    /// How long clients run before they are measured.
    pub(crate) warm_up: Duration,
    /// The file that is written from start to end, bytes.
    pub(crate) sequential_bytes: u64,
    /// The laid-out file of each client, bytes.
    pub(crate) random_bytes: u64,
    /// Files of the tree that is unpacked.
    pub(crate) tar_files: u32,
    /// Files of the repository that is cloned.
    pub(crate) git_files: u32,
}

impl Sizes {
    /// The sizes for a quick or a full run; smaller files on a machine with little memory.
    ///
    /// # Errors
    /// If there is not even memory for the smallest files.
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Self> {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let available = available_bytes(&meminfo).unwrap_or(u64::MAX);
        let mut sizes = if settings.quick { Self::quick() } else { Self::full() };
        sizes.runs = settings.runs.unwrap_or(sizes.runs);
        while sizes.memory_bytes() > available && sizes.random_bytes > 16 * MIB {
            sizes.random_bytes /= 2;
            sizes.sequential_bytes /= 2;
        }
        ensure!(
            sizes.memory_bytes() <= available,
            "too little memory: about {} MiB are needed, {} MiB are available",
            sizes.memory_bytes() / MIB,
            available / MIB
        );
        Ok(sizes)
    }

    fn full() -> Self {
        Self {
            runs: 5,
            slice: Duration::from_secs(1),
            warm_up: Duration::from_millis(100),
            sequential_bytes: GIB,
            random_bytes: 256 * MIB,
            tar_files: 2_000,
            git_files: 600,
        }
    }

    fn quick() -> Self {
        Self {
            runs: 1,
            slice: Duration::from_millis(200),
            warm_up: Duration::from_millis(30),
            sequential_bytes: 128 * MIB,
            random_bytes: 32 * MIB,
            tar_files: 200,
            git_files: 60,
        }
    }

    /// Memory that all targets of a run take together, about: each has the files of two clients in
    /// its store and in the kernel's cache, ours in their own cache too; the sequential file is
    /// there once, in three places.
    fn memory_bytes(&self) -> u64 {
        const TARGETS: u64 = 12;
        self.random_bytes * 2 * (TARGETS * 2 + 4) + self.sequential_bytes * 3
    }

    /// The time of mounting a target and laying out its files, about.
    pub(crate) fn layout_expected(&self) -> Duration {
        Duration::from_millis(200)
            + Duration::from_secs_f64((self.random_bytes * 2 + self.sequential_bytes) as f64 / 500e6)
    }

    /// For the reader of the result.
    pub(crate) fn note(&self) -> String {
        format!(
            "{} {}, interleaved, slices of {} ms after {} ms of warm-up; sequential file {} MiB, laid-out file {} MiB \
             for each client, {} files to unpack, {} to clone.",
            self.runs,
            if self.runs == 1 { "round" } else { "rounds" },
            self.slice.as_millis(),
            self.warm_up.as_millis(),
            self.sequential_bytes / MIB,
            self.random_bytes / MIB,
            self.tar_files,
            self.git_files
        )
    }
}

/// MemAvailable of /proc/meminfo, in bytes.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        let meminfo = "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available_bytes(meminfo), Some(2 * MIB));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn a_quick_run_is_smaller_in_everything() {
        let (quick, full) = (Sizes::quick(), Sizes::full());
        assert!(quick.runs < full.runs && quick.slice < full.slice);
        assert!(quick.memory_bytes() < full.memory_bytes());
        assert!(quick.tar_files < full.tar_files && quick.git_files < full.git_files);
    }
}
