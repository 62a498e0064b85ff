//! Lists in pages: where the next one begins, which a caller gives back as a token.

use csi_proto::tonic::Code;
use serde::{Deserialize, Serialize};

use super::failure::{Failure, Result};
use super::step::Snapshot;

/// Entries of an answer, where the caller names no number, and at most.
const ENTRIES_MAX: usize = 500;
/// Bytes of a token.
const TOKEN_BYTES_MAX: usize = 4 << 10;
/// Snapshots in earlier pages of the volumes that a page begins with: more than can be.
const SKIP_MAX: usize = 1 << 30;

/// A page that is being filled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Page {
    /// Which of the driver's prefixes.
    pub(super) prefix: usize,
    /// The volume behind which it begins.
    pub(super) after: Option<String>,
    /// How many snapshots behind that are in earlier pages.
    skip: usize,
    #[serde(skip)]
    pub(super) most: usize,
}

impl Page {
    /// The page that a caller asks for, of a driver with so many prefixes.
    ///
    /// # Errors
    /// `ABORTED`: this is no token of ours.
    pub(super) fn parse(most: i32, token: &str, prefixes: usize) -> Result<Self> {
        let most = usize::try_from(most).map_err(|_| Failure::invalid("max_entries is negative"))?;
        let most = if most == 0 { ENTRIES_MAX } else { most.min(ENTRIES_MAX) };
        let first = Self { prefix: 0, after: None, skip: 0, most };
        if token.is_empty() {
            return Ok(first);
        }
        let wrong = || Failure::new(Code::Aborted, "starting_token: it is none of this driver's; begin anew");
        if token.len() > TOKEN_BYTES_MAX {
            return Err(wrong());
        }
        let page: Self = serde_json::from_str(token).map_err(|_| wrong())?;
        let is_name = |after: &str| !after.is_empty() && !after.contains('/');
        if page.after.as_deref().is_some_and(|after| !is_name(after))
            || page.prefix >= prefixes.max(1)
            || page.skip > SKIP_MAX
        {
            return Err(wrong());
        }
        Ok(Self { most, ..page })
    }

    /// Goes on behind this volume, or with the next prefix.
    pub(super) fn go_on(&mut self, next: Option<String>) {
        self.skip = 0;
        match next {
            Some(_) => self.after = next,
            None => (self.prefix, self.after) = (self.prefix.saturating_add(1), None),
        }
    }

    /// Takes snapshots as far as the page has room, and notes where the next begins.
    pub(super) fn take(&mut self, all: Vec<Snapshot>, next: Option<String>, into: &mut Vec<Snapshot>) {
        let count = all.len();
        let room = self.most.saturating_sub(into.len());
        let end = self.skip.saturating_add(room);
        into.extend(all.into_iter().skip(self.skip).take(room));
        if count > end {
            self.skip = end;
        } else {
            self.go_on(next);
        }
    }

    /// The token of the next page; empty: there is none.
    pub(super) fn token(&self, prefixes: usize) -> String {
        if self.prefix >= prefixes { String::new() } else { serde_json::to_string(self).unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshots(count: usize) -> Vec<Snapshot> {
        let one = |n: usize| Snapshot {
            volume: "s3://b/v".to_owned(),
            name: n.to_string(),
            created: String::new(),
            bytes: 0,
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn pages_have_everything_once() {
        let (mut token, mut seen) = (String::new(), Vec::new());
        for _ in 0..3 {
            let mut page = Page::parse(2, &token, 1).unwrap();
            let mut found = Vec::new();
            while page.prefix < 1 && found.len() < page.most {
                page.take(snapshots(5), None, &mut found);
            }
            seen.extend(found);
            token = page.token(1);
        }
        assert_eq!((seen, token.as_str()), (snapshots(5), ""));
    }

    #[test]
    fn a_token_of_somebody_else_s_is_refused() {
        for token in [
            "1",
            "none",
            "{}",
            r#"{"prefix":0,"after":"a/../b","skip":0}"#,
            r#"{"prefix":0,"after":"","skip":0}"#,
            r#"{"prefix":2,"after":null,"skip":0}"#,
            r#"{"prefix":18446744073709551615,"after":null,"skip":0}"#,
            r#"{"prefix":0,"after":null,"skip":18446744073709551615}"#,
            r#"{"prefix":-1,"after":null,"skip":0}"#,
            &"a".repeat(5000),
        ] {
            assert_eq!(Page::parse(0, token, 2).unwrap_err().code, Code::Aborted, "{token}");
        }
        assert_eq!(Page::parse(-1, "", 1).unwrap_err().code, Code::InvalidArgument);
        assert_eq!(Page::parse(i32::MAX, "", 0).unwrap().most, ENTRIES_MAX);
        assert_eq!(Page::parse(1, r#"{"prefix":1,"after":"a","skip":3}"#, 2).unwrap().skip, 3);
    }
}
