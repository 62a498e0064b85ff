//! Rows with one tag, in their keys' order, a page in memory at a time.

use std::collections::VecDeque;

use bytes::Bytes;
use store::Result;

use crate::engine::Engine;
use crate::rows;

/// Rows that are read at a time.
const PAGE: usize = 2048;

/// A place among the rows with one tag.
pub(super) struct Cursor<'a> {
    engine: &'a dyn Engine,
    tag: u8,
    from: Vec<u8>,
    page: VecDeque<(u64, Bytes, Bytes)>,
    is_at_end: bool,
    /// The keys that are none of this tag's, and were left out.
    bad: Vec<Vec<u8>>,
}

/// A row: its inode, the rest of its key, its value.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) ino: u64,
    pub(super) key: Bytes,
    pub(super) value: Bytes,
}

impl Row {
    pub(super) fn rest(&self) -> &[u8] {
        rows::rest_of(&self.key)
    }
}

fn fits(tag: u8, key: &[u8]) -> bool {
    match tag {
        b'I' | b'O' => key.len() == 9,
        b'E' => key.len() == 17,
        _ => key.len() >= 9,
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn new(engine: &'a dyn Engine, tag: u8) -> Self {
        let from = rows::all_keys(tag).start;
        Self { engine, tag, from, page: VecDeque::new(), is_at_end: false, bad: Vec::new() }
    }

    /// The inode of the next row.
    pub(super) async fn ino(&mut self) -> Result<Option<u64>> {
        while self.page.is_empty() && !self.is_at_end {
            let found = self.engine.scan(self.from.clone()..rows::all_keys(self.tag).end, PAGE).await?;
            self.is_at_end = found.len() < PAGE;
            if let Some((last, _)) = found.last() {
                self.from = [&last[..], &[0]].concat();
            }
            for (key, value) in found {
                match rows::ino_of(&key) {
                    Ok(ino) if fits(self.tag, &key) => self.page.push_back((ino, key, value)),
                    _ => self.bad.push(key.to_vec()),
                }
            }
        }
        Ok(self.page.front().map(|(ino, ..)| *ino))
    }

    /// The key of the next row.
    pub(super) async fn key(&mut self) -> Result<Option<Bytes>> {
        self.ino().await?;
        Ok(self.page.front().map(|(_, key, _)| key.clone()))
    }

    pub(super) async fn next(&mut self) -> Result<Option<Row>> {
        self.ino().await?;
        Ok(self.page.pop_front().map(|(ino, key, value)| Row { ino, key, value }))
    }

    /// The next row, if it is of this inode.
    pub(super) async fn next_of(&mut self, ino: u64) -> Result<Option<Row>> {
        if self.ino().await? == Some(ino) { self.next().await } else { Ok(None) }
    }

    /// The keys that were left out since the last call.
    pub(super) fn take_bad(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.bad)
    }
}
