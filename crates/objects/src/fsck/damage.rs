//! What can be wrong with a volume, and what is said of it.

use std::collections::BTreeSet;
use std::ffi::OsString;

use store::{Error, ErrorKind, Result};

use crate::bucket::Bucket;
use crate::format;
use crate::object_names::{log_name, object_name};
use crate::quotas::VOLUME;
use crate::rows::{Kind, Object, Totals};

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The lease is missing, or cannot be read.
    Lease { why: String },
    /// An object of the log that is replayed is missing, or cannot be read.
    Log { number: u64, why: String },
    /// The newest manifest or a table of it is missing, or cannot be read.
    Metadata { why: String },
    /// A snapshot's manifest or a table of it is missing, or cannot be read.
    Snapshot { name: String, why: String },
    /// A row that cannot be read, and without which more can be.
    Row { key: Vec<u8> },
    /// There is no row of an inode that has extents or names, or it cannot be read.
    NoInode { ino: u64, kind: Kind },
    /// A name of an inode that is not there.
    NameOfMissing { dir: u64, name: OsString, ino: u64 },
    /// A name that no call can make.
    BadName { dir: u64, name: OsString },
    /// A name in something that is no directory.
    NameOutside { dir: u64, name: OsString },
    /// A directory has more than one name: this is not the one that it keeps.
    SecondName { dir: u64, name: OsString, ino: u64 },
    /// A name says that the inode is of another kind.
    NameKind { dir: u64, name: OsString, ino: u64, right: Kind },
    /// An inode without a name that nobody removes.
    NoName { ino: u64 },
    /// An inode is to be removed, and has a name.
    Orphan { ino: u64 },
    /// Rows of an inode that is not there.
    RowsOfMissing { ino: u64, tag: u8 },
    /// A directory from which no way leads to the root.
    Unreachable { ino: u64 },
    /// How many names an inode has.
    Links { ino: u64, is: u32, right: u32 },
    /// The directory that a directory is in.
    Parent { ino: u64, is: u64, right: u64 },
    /// Two extents of a file have the same bytes of it: they end here.
    Overlap { ino: u64, first: u64, second: u64 },
    /// The bytes that a file's extents hold.
    Allocated { ino: u64, is: u64, right: u64 },
    /// A row of an extent that cannot be read: its bytes are lost.
    Extent { ino: u64 },
    /// What the volume holds.
    Totals { bytes: i64, inodes: i64, right_bytes: i64, right_inodes: i64 },
    /// What is used of a directory's quota, or with 0 of the volume's.
    Quota { dir: u64, is: Option<Totals>, right: Totals },
    /// How much of an object is in use.
    Usage { object: Object, is: Option<i64>, right: i64 },
    /// Data of a file that is missing or damaged; of a snapshot, where one is named.
    Data { ino: u64, object: Object, why: String, snapshot: Option<String> },
}

/// In which round something is mended: what a later one finds rests on what earlier ones mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Round {
    /// Inodes that are missing are made, rows that say nothing go.
    Inodes,
    /// Names and marks that are wrong go.
    Names,
    /// What has no name gets one, and directories know where they are.
    Places,
    /// Names are counted, and extents cut.
    Links,
    /// What is a sum.
    Sums,
}

impl Damage {
    /// When it is mended; `None`: no change of rows mends it.
    pub(crate) const fn round(&self) -> Option<Round> {
        match self {
            Self::Lease { .. }
            | Self::Log { .. }
            | Self::Metadata { .. }
            | Self::Snapshot { .. }
            | Self::Extent { .. }
            | Self::Data { .. } => None,
            Self::Row { .. } | Self::NoInode { .. } => Some(Round::Inodes),
            Self::NameOfMissing { .. }
            | Self::BadName { .. }
            | Self::NameOutside { .. }
            | Self::SecondName { .. }
            | Self::NameKind { .. }
            | Self::Orphan { .. }
            | Self::RowsOfMissing { .. } => Some(Round::Names),
            Self::NoName { .. } | Self::Parent { .. } => Some(Round::Places),
            Self::Unreachable { .. } | Self::Links { .. } | Self::Overlap { .. } => Some(Round::Links),
            Self::Allocated { .. } | Self::Totals { .. } | Self::Quota { .. } | Self::Usage { .. } => {
                Some(Round::Sums)
            }
        }
    }

    /// A word for programs.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Lease { .. } => "lease",
            Self::Log { .. } => "log",
            Self::Metadata { .. } => "metadata",
            Self::Snapshot { .. } => "snapshot",
            Self::Row { .. } => "row",
            Self::NoInode { .. } => "inode",
            Self::NameOfMissing { .. }
            | Self::BadName { .. }
            | Self::NameOutside { .. }
            | Self::SecondName { .. }
            | Self::NameKind { .. } => "name",
            Self::NoName { .. } => "unnamed",
            Self::Orphan { .. } => "orphan",
            Self::RowsOfMissing { .. } => "rows",
            Self::Unreachable { .. } => "unreachable",
            Self::Links { .. } => "links",
            Self::Parent { .. } => "parent",
            Self::Overlap { .. } => "overlap",
            Self::Allocated { .. } => "allocated",
            Self::Extent { .. } => "extent",
            Self::Totals { .. } => "totals",
            Self::Quota { .. } => "quota",
            Self::Usage { .. } => "usage",
            Self::Data { .. } => "data",
        }
    }

    /// The inode that it is about, and the name in it if it is about one.
    pub(crate) const fn place(&self) -> Option<(u64, Option<&OsString>)> {
        match self {
            Self::NameOfMissing { dir, name, .. }
            | Self::BadName { dir, name }
            | Self::NameOutside { dir, name }
            | Self::SecondName { dir, name, .. }
            | Self::NameKind { dir, name, .. } => Some((*dir, Some(name))),
            Self::NoInode { ino, .. }
            | Self::NoName { ino }
            | Self::Orphan { ino }
            | Self::RowsOfMissing { ino, .. }
            | Self::Unreachable { ino }
            | Self::Links { ino, .. }
            | Self::Parent { ino, .. }
            | Self::Overlap { ino, .. }
            | Self::Allocated { ino, .. }
            | Self::Extent { ino }
            | Self::Data { ino, .. } => Some((*ino, None)),
            Self::Quota { dir, .. } if *dir != VOLUME => Some((*dir, None)),
            Self::Lease { .. }
            | Self::Log { .. }
            | Self::Metadata { .. }
            | Self::Snapshot { .. }
            | Self::Row { .. }
            | Self::Totals { .. }
            | Self::Quota { .. }
            | Self::Usage { .. } => None,
        }
    }

    /// The object of the bucket that it is about.
    pub(crate) fn object(&self) -> Option<String> {
        match self {
            Self::Lease { .. } => Some("lease".to_owned()),
            Self::Log { number, .. } => Some(log_name(*number)),
            Self::Usage { object, .. } | Self::Data { object, .. } => Some(object_name(*object)),
            _ => None,
        }
    }

    /// What is wrong, in plain words that come behind its path or its inode.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Lease { why } | Self::Metadata { why } => why.clone(),
            Self::Log { number, why } => format!("{}: {why}", log_name(*number)),
            Self::Snapshot { name, why } => format!("the snapshot `{name}` cannot be read: {why}"),
            Self::Row { key } => {
                let shown: String =
                    key.iter().take(40).flat_map(|b| b.escape_ascii()).map(char::from).collect();
                format!("the row {shown} cannot be read")
            }
            Self::NoInode { kind, .. } => {
                let has = if *kind == Kind::Directory { "names" } else { "data" };
                format!("its inode is missing or damaged, and it has {has}")
            }
            Self::NameOfMissing { ino, .. } => format!("the name leads to inode {ino}, which is not there"),
            Self::BadName { .. } => "nothing can have this name".to_owned(),
            Self::NameOutside { .. } => "the name is in something that is no directory".to_owned(),
            Self::SecondName { ino, .. } => format!("a second name of the directory with inode {ino}"),
            Self::NameKind { .. } => "the name says that it is of another kind than it is".to_owned(),
            Self::NoName { .. } => "it has no name".to_owned(),
            Self::Orphan { .. } => "it is marked to be removed, and has a name".to_owned(),
            Self::RowsOfMissing { tag, .. } => {
                let what = if *tag == b'X' { "extended attributes" } else { "a mark to be removed" };
                format!("{what} of an inode that is not there")
            }
            Self::Unreachable { .. } => "no way leads from this directory to the root".to_owned(),
            Self::Links { is, right, .. } => format!("its number of links is {is}, and should be {right}"),
            Self::Parent { is, right, .. } => {
                format!("the directory above it is inode {is}, and should be {right}")
            }
            Self::Overlap { first, second, .. } => {
                format!("its extents that end at {first} and at {second} overlap")
            }
            Self::Allocated { is, right, .. } => {
                format!("it is said to hold {is} bytes, and holds {right}")
            }
            Self::Extent { .. } => {
                "a part of it is lost: the row that says where it is cannot be read".to_owned()
            }
            Self::Totals { bytes, inodes, right_bytes, right_inodes } => format!(
                "the volume is said to hold {bytes} bytes in {inodes} inodes, and holds {right_bytes} in \
                 {right_inodes}"
            ),
            Self::Quota { is, right, .. } => {
                let is = is.map_or_else(|| "an unknown part".to_owned(), |is| used(&is));
                format!("{is} of its quota is said to be used, and {} is", used(right))
            }
            Self::Usage { object, is, right } => {
                let is = is.map_or_else(|| "an unknown number of".to_owned(), |is| is.to_string());
                let name = object_name(*object);
                format!("{is} bytes of {name} are said to be in use, and {right} are")
            }
            Self::Data { object, why, snapshot, .. } => {
                let of =
                    snapshot.as_ref().map(|name| format!(" of the snapshot `{name}`")).unwrap_or_default();
                format!("data{of} in {} is lost: {why}", object_name(*object))
            }
        }
    }
}

fn used(totals: &Totals) -> String {
    format!("{} bytes in {} inodes", totals.bytes, totals.inodes)
}

/// What was found: the first of each kind, by its word, and of the others as much as is kept.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) kept: Vec<Damage>,
    /// How many more there were.
    pub(crate) more: u64,
    words: BTreeSet<&'static str>,
    max: usize,
}

impl Findings {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    pub(crate) fn add(&mut self, damage: Damage) {
        let is_first = self.words.insert(damage.word());
        if is_first || self.kept.len() < self.max {
            self.kept.push(damage);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

/// What an error says is damaged; or the error, if the bucket is why.
pub(super) async fn damage_of(bucket: &Bucket, error: Error) -> Result<String> {
    if error.kind() != ErrorKind::Io {
        return Err(error);
    }
    bucket.get_range(format::NAME, 0..1).await?;
    Ok(error.detail().unwrap_or("it cannot be read").to_owned())
}
