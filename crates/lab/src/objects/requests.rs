//! The requests of a volume, as its process counts them: while it serves, in its status; when it
//! has ended, in its log.

use std::ops::{Add, Sub};

use serde_json::Value;

/// What the program is to log, so that [`Requests::logged`] finds it.
pub(super) const LOG_FILTER: &str = "info,watertight_objects::requests=debug";
/// The message of [`objects`] in which they are.
const LOGGED: &str = "requests sent to a bucket, in all";

/// Requests by kind, each attempt counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Requests {
    pub(super) gets: u64,
    pub(super) puts: u64,
    pub(super) lists: u64,
    pub(super) deletes: u64,
}

impl Requests {
    pub(super) const fn all(self) -> u64 {
        self.gets + self.puts + self.lists + self.deletes
    }

    /// Those in the status of a volume; none if it is not on object storage.
    pub(super) fn of_status(status: &Value) -> Option<Self> {
        let kinds = status["store_requests"]["by_kind"].as_object()?;
        Some(Self::read(|kind| kinds.get(kind).and_then(|kind| kind["sent"].as_u64())))
    }

    /// Those of all buckets that a process has used until its end, by its log of JSON lines.
    pub(super) fn logged(log: &str) -> Option<Self> {
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines = lines.filter(|line| line["message"] == LOGGED);
        lines.map(|line| Self::read(|kind| line[kind].as_u64())).reduce(Add::add)
    }

    fn read(kind: impl Fn(&str) -> Option<u64>) -> Self {
        let sent = |name| kind(name).unwrap_or(0);
        Self { gets: sent("get"), puts: sent("put"), lists: sent("list"), deletes: sent("delete") }
    }
}

impl Add for Requests {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            gets: self.gets + other.gets,
            puts: self.puts + other.puts,
            lists: self.lists + other.lists,
            deletes: self.deletes + other.deletes,
        }
    }
}

impl Sub for Requests {
    type Output = Self;

    /// What came since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            gets: self.gets.saturating_sub(earlier.gets),
            puts: self.puts.saturating_sub(earlier.puts),
            lists: self.lists.saturating_sub(earlier.lists),
            deletes: self.deletes.saturating_sub(earlier.deletes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_the_requests_of_every_bucket() {
        let line = |get: u64, put: u64| serde_json::json!({ "message": LOGGED, "get": get, "put": put, "list": 1, "delete": 0 });
        let log = format!("no JSON\n{{\"message\":\"other\",\"get\":9}}\n{}\n{}\n", line(3, 4), line(10, 20));
        let sum = Requests::logged(&log).unwrap();
        assert_eq!(sum, Requests { gets: 13, puts: 24, lists: 2, deletes: 0 });
        assert_eq!((sum.all(), Requests::logged("{}\n")), (39, None));
    }

    #[test]
    fn a_status_has_them_if_the_volume_is_in_a_bucket() {
        let status = serde_json::json!({ "store_requests": { "by_kind": {
            "get": { "sent": 5 }, "put": { "sent": 2 }, "delete": { "sent": 1 } } } });
        let now = Requests::of_status(&status).unwrap();
        assert_eq!(now, Requests { gets: 5, puts: 2, lists: 0, deletes: 1 });
        assert_eq!(
            now - Requests { gets: 6, puts: 1, ..Requests::default() },
            Requests { puts: 1, deletes: 1, ..Requests::default() }
        );
        assert_eq!(Requests::of_status(&serde_json::json!({})), None);
    }
}
