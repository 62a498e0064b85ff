//! For tests: a disk in memory that loses power, is full, or breaks. It needs time, which a crash
//! may come between.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use store::{Error, ErrorKind, Result};

use super::disk::Disk;

/// Bytes that are written to a disk together.
const BLOCK: usize = 512;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct MemoryDisk {
    files: Mutex<BTreeMap<u64, File>>,
    fault: Mutex<Option<ErrorKind>>,
    /// Files that were put out of the way.
    pub(crate) aside: Mutex<Vec<String>>,
}

#[derive(Debug, Default, Clone)]
struct File {
    bytes: Vec<u8>,
    /// What is on the disk.
    synced: Vec<u8>,
}

impl MemoryDisk {
    /// From now on writes fail, or not any more.
    pub(crate) fn set_fault(&self, fault: Option<ErrorKind>) {
        *self.fault.lock() = fault;
    }

    /// Of each block that was written and not synced, `below(2)` says whether it is on the disk.
    pub(crate) fn lose_power(&self, mut below: impl FnMut(usize) -> usize) {
        for file in self.files.lock().values_mut() {
            let mut left = file.synced.clone();
            left.resize(file.bytes.len(), 0);
            for (block, written) in left.chunks_mut(BLOCK).zip(file.bytes.chunks(BLOCK)) {
                if block != written && below(2) == 0 {
                    block.copy_from_slice(written);
                }
            }
            *file = File { bytes: left.clone(), synced: left };
        }
    }

    /// Changes a file behind the journal's back; `None`: there is none any more.
    pub(crate) fn change(&self, file: u64, change: impl FnOnce(&mut Vec<u8>) -> bool) {
        let mut files = self.files.lock();
        let found = files.get_mut(&file).expect("it is there");
        if change(&mut found.bytes) {
            found.synced = found.bytes.clone();
        } else {
            files.remove(&file);
        }
    }

    /// The bytes of a file.
    pub(crate) fn bytes(&self, file: u64) -> Vec<u8> {
        self.files.lock()[&file].bytes.clone()
    }

    pub(crate) fn copy(&self) -> Self {
        Self { files: Mutex::new(self.files.lock().clone()), ..Self::default() }
    }

    async fn pause(&self) -> Result<()> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        match *self.fault.lock() {
            Some(kind) => Err(Error::with(kind, "journal", "the disk fails")),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Disk for MemoryDisk {
    async fn files(&self) -> Result<Vec<u64>> {
        Ok(self.files.lock().keys().copied().collect())
    }

    async fn create(&self, file: u64, header: Bytes, _room: u64) -> Result<()> {
        let made = self.files.lock().insert(file, File::default());
        assert!(made.is_none(), "file {file} is made twice");
        if let Err(error) = self.pause().await {
            self.files.lock().remove(&file);
            return Err(error);
        }
        let header = header.to_vec();
        self.files.lock().insert(file, File { bytes: header.clone(), synced: header });
        Ok(())
    }

    async fn write(&self, file: u64, at: u64, parts: Vec<Bytes>, is_synced: bool) -> Result<()> {
        let at = usize::try_from(at).expect("small");
        self.pause().await?;
        {
            let mut files = self.files.lock();
            let file = files.get_mut(&file).expect("it was made");
            let new = parts.concat();
            file.bytes.resize(file.bytes.len().max(at + new.len()), 0);
            file.bytes[at..at + new.len()].copy_from_slice(&new);
        }
        if is_synced {
            self.pause().await?;
            let mut files = self.files.lock();
            let file = files.get_mut(&file).expect("it was made");
            file.synced = file.bytes.clone();
        }
        Ok(())
    }

    async fn read(&self, file: u64, at: u64, len: u64) -> Result<Bytes> {
        let files = self.files.lock();
        let Some(file) = files.get(&file) else {
            return Err(Error::with(ErrorKind::NotFound, "journal", "the file is gone"));
        };
        let at = usize::try_from(at).expect("small").min(file.bytes.len());
        let end = at.saturating_add(usize::try_from(len).expect("small")).min(file.bytes.len());
        Ok(Bytes::copy_from_slice(&file.bytes[at..end]))
    }

    async fn remove(&self, file: u64) -> Result<()> {
        self.files.lock().remove(&file);
        Ok(())
    }

    async fn set_aside(&self, word: &str) -> Result<String> {
        self.files.lock().clear();
        self.aside.lock().push(word.to_owned());
        Ok(format!("memory.{word}"))
    }

    fn unlock(&self) {}
}
