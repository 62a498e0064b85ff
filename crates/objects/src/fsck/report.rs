//! What a check found and a repair did, for people and programs.

use std::path::Path;

use serde::Serialize;

use super::damage::Damage;

/// Findings that are shown; the others are counted.
pub(super) const SHOWN_MAX: usize = 1000;

/// A volume that was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Its canonical name.
    pub url: String,
    /// Whether nothing is wrong with it, or any more.
    pub whole: bool,
    /// What was found, as much of it as is shown.
    pub findings: Vec<Finding>,
    /// How many findings are not shown.
    pub more: u64,
    /// Its files, directories and links, with the root.
    pub inodes: u64,
    /// Their names.
    pub names: u64,
    /// Parts of files that have data or reserved space.
    pub extents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects with data in the bucket.
    pub objects: u64,
    /// Snapshots whose objects were looked for.
    pub snapshots: u64,
    /// Bytes of files that were read and compared with their checksums; none: that was not asked
    /// for.
    pub bytes_read: Option<u64>,
    /// What nobody needs, and `gc` would remove; none where that is not known.
    pub unneeded: Option<Unneeded>,
    /// The host that held the volume meanwhile: what it had committed was checked.
    pub holder: Option<String>,
    /// What was mended; none: that was not asked for.
    pub repair: Option<Repair>,
}

/// Something that is wrong, or was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of thing is damaged, in a word.
    pub what: String,
    /// The file that it is about, from the volume's root.
    pub path: Option<String>,
    /// Its inode.
    pub inode: Option<u64>,
    /// The object in the bucket.
    pub object: Option<String>,
    /// What is wrong, in plain words.
    pub detail: String,
    /// Whether it was mended.
    pub mended: bool,
}

/// What nobody needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Unneeded {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Repair {
    /// Damages that were mended.
    pub mended: u64,
    /// What was replaced or given up for that, in plain words.
    pub notes: Vec<String>,
    /// Why nothing was touched, and what is left to do.
    pub refused: Option<String>,
}

impl Finding {
    pub(super) fn new(damage: &Damage, path: Option<&Path>, mended: bool) -> Self {
        Self {
            what: damage.word().to_owned(),
            path: path.map(|path| path.to_string_lossy().into_owned()),
            inode: damage.place().map(|(ino, _)| ino),
            object: damage.object(),
            detail: damage.words(),
            mended,
        }
    }
}
