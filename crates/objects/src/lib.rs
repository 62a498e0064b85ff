//! A store on object storage: a volume that rests in a bucket, log-structured.
//!
//! ```text
//!  store        the `Store` trait: each call runs on the process's runtime until it has ended;
//!   |           `open_dir` lists directories, in the order of `listing` where it can
//!  mount        opens and closes a volume: format, lease, engine, log, in this order
//!   |   \
//!   |    lease  who holds the volume, by conditional requests
//!  tree         names, attributes, references; `moves`, `xattrs` and `acl` belong to it; `quotas` are
//!   |           held to before anything is accepted
//!   |
//!  data         what was written waits in `pieces` and gets `extents`; `ranges`: holes, copies;
//!               `sizes`: truncation
//!   |
//!  engine       rows: a narrow key-value trait, over SlateDB
//!   |
//!  log          the commit log, the engine's write-ahead log: rows and small data in one object
//!   |
//!  read_ahead   files that are read in sequence; `reading`: which GETs are sent, `blocks`: what
//!   |           they brought, in memory, `disk_cache`: and on this host's disk
//!  journal      what an fsync with `fsync_to=host` waits for, on a disk of this host
//!   |
//!  segments     bulk data, written once; `garbage`: objects that nobody needs are removed, `work` and
//!   |           `readers` say who may; `repacking` takes what is in use out of those mostly dead
//!   |
//!  rows, codec  how a row, and how data, is written
//!   |
//!  follow       shows a reader what the log says as it grows
//!   |
//!  bucket       requests: bounded, retried, counted
//!   |
//!  open, url    the bucket that a URL names, with its credentials (`aws`, `profile`); `format` and
//!               `probe` say what is in it and what it keeps, `make` makes a volume; `clone_volume`
//!               makes one of a snapshot, of whose `parents` it reads
//! ```
//!
//! Read `log` first: what is durable is decided there.

#![forbid(unsafe_code)]

mod acl;
mod api;
mod awaitable;
mod aws;
mod blocks;
pub mod bucket;
mod buffers;
mod bulk;
mod change_key;
mod charges;
mod chunk_table;
mod client;
mod clone_volume;
pub mod codec;
mod compression;
mod counter;
pub mod crypto;
mod data;
mod directory;
mod disk_cache;
mod engine;
pub mod engine_blocks;
mod engine_store;
mod extent_cache;
mod extents;
mod find_snapshot;
mod follow;
pub mod format;
mod fsck;
mod garbage;
mod hex;
mod journal;
pub mod key_file;
pub mod lease;
mod limited;
mod listing;
mod log;
mod make;
mod mount;
mod moves;
mod newest_manifest;
mod node;
mod object_names;
pub mod open;
mod open_dir;
mod parents;
mod pending;
mod pieces;
pub mod probe;
mod problem;
mod profile;
mod quota_attribute;
mod quota_walks;
mod quotas;
mod ranges;
mod read_ahead;
mod readers;
mod reading;
mod repacking;
mod requests;
mod rows;
mod runtime;
#[cfg(test)]
mod scripted;
mod segment_queue;
mod segments;
#[cfg(test)]
mod simulation;
mod sizes;
pub mod stats;
mod store;
mod tree;
mod turns;
pub mod url;
mod utc;
mod uuid;
mod wait;
mod warm;
mod work;
pub mod wrapped_key;
mod xattr_sizes;
mod xattrs;

pub use api::{
    Cloned, Collected, Compression, FormatOptions, Formatted, Holder, Info, JournalOptions, LeftJournal,
    OpenOptions, QuotaCall, SCHEMES, SnapshotInfo, canonical, check_key, clone_volume, collect_garbage,
    create_snapshot, delete_snapshot, delete_volume, directory, format, info, is_url, nested_volume, open,
    open_unheld, quotas, snapshots, volumes,
};
pub use change_key::{KeyChange, change_key};
pub use disk_cache::{DiskCache, DiskCacheOptions};
pub use find_snapshot::check_name as check_snapshot_name;
pub use fsck::{Checked, Finding, FsckOptions, Progress, Repair, Unneeded, fsck};
pub use quota_attribute::{QUOTA_ATTRIBUTE, QUOTAS_ATTRIBUTE, QuotaPage};
pub use quota_walks::QuotaInfo;
pub use quotas::{QUOTAS_MAX, QuotaLimits};
pub use rows::Object;
pub use runtime::tasks;
