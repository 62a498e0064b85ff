//! Archives that are unpacked.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

/// Files of an archive, in a hundred directories, and their sizes in turn.
struct Files {
    number: u32,
    sizes: &'static [u64],
}

/// By scenario. The first as sources have them; the last is 20 MB.
const ARCHIVES: [(&str, Files); 3] = [
    ("untar-1000", Files { number: 1000, sizes: &[120, 900, 2_100, 3_300, 4_096, 7_000, 14_000, 61_440] }),
    ("untar-128M", Files { number: 32, sizes: &[4 << 20] }),
    ("untar-10000", Files { number: 10_000, sizes: &[120, 400, 900, 1_300, 2_100, 3_300, 4_096, 4_096] }),
];

/// A tree, and an archive of it.
pub(super) struct Archive {
    pub(super) tree: PathBuf,
    pub(super) file: PathBuf,
}

impl Archive {
    /// The archive of a scenario, which is made if it is not there; none of a scenario without one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn of(kind: &str, scratch: &Path) -> anyhow::Result<Option<Self>> {
        let Some((name, files)) = ARCHIVES.iter().find(|(name, _)| *name == kind) else { return Ok(None) };
        let (tree, file) = (scratch.join(format!("{name}.d")), scratch.join(format!("{name}.tar")));
        if !file.exists() {
            plant(&tree, files)?;
            // Without the tree's root, whose owner and mode not every peer lets be set.
            let names = fs::read_dir(&tree)?.map(|entry| Ok(entry?.file_name()));
            let names = names.collect::<std::io::Result<Vec<_>>>()?;
            let made = Command::new("tar").arg("-cf").arg(&file).arg("-C").arg(&tree).args(names).status()?;
            ensure!(made.success(), "tar: {made}");
        }
        Ok(Some(Self { tree, file }))
    }

    /// Unpacks it.
    ///
    /// # Errors
    /// If tar fails.
    pub(super) fn unpack(&self, into: &Path) -> anyhow::Result<()> {
        let unpacked = Command::new("tar").arg("-xf").arg(&self.file).arg("-C").arg(into).status()?;
        ensure!(unpacked.success(), "tar: {unpacked}");
        Ok(())
    }
}

fn plant(tree: &Path, files: &Files) -> anyhow::Result<()> {
    for number in 0..files.number {
        let directory = tree.join(format!("d{:02}", number % 100));
        fs::create_dir_all(&directory)?;
        // Nothing that a program could make smaller.
        let mut data = Vec::new();
        let len = files.sizes[number as usize % files.sizes.len()];
        File::open("/dev/urandom")?.take(len).read_to_end(&mut data)?;
        fs::write(directory.join(format!("file-{number:04}")), data)?;
    }
    Ok(())
}
