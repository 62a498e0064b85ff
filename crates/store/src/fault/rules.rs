//! Rules for faults, as text.

use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// The calls that rules can name.
macro_rules! ops {
    ($($op:ident $name:literal,)*) => {
        /// A call of [`Store`](crate::Store), [`File`](crate::File) or [`Dir`](crate::Dir).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "named after the methods")]
        #[non_exhaustive]
        pub enum FaultOp { $($op,)* }

        impl FaultOp {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$op,)*];

            /// Its name in a rule.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$op => $name,)* }
            }
        }
    };
}

ops! {
    Lookup "lookup",
    Attr "attr",
    SetAttr "set_attr",
    Create "create",
    Tmpfile "tmpfile",
    Make "make",
    Link "link",
    Unlink "unlink",
    Rmdir "rmdir",
    Rename "rename",
    ReadLink "read_link",
    Open "open",
    OpenDir "open_dir",
    SyncDir "sync_dir",
    CopyRange "copy_range",
    GetXattr "get_xattr",
    SetXattr "set_xattr",
    ListXattr "list_xattr",
    RemoveXattr "remove_xattr",
    Statfs "statfs",
    StoreSync "store.sync",
    Read "read",
    Write "write",
    Allocate "allocate",
    Seek "seek",
    FileSync "file.sync",
    List "list",
    FileClose "file.close",
    DirClose "dir.close",
}

impl FaultOp {
    /// The one that a call of a store counts as.
    pub(super) fn of(call: &str) -> Self {
        let name = match call {
            "recall" | "recall_parent" => "lookup",
            "sync" | "sync_everything" => "store.sync",
            "read_at" => "read",
            "file_sync" => "file.sync",
            "close_file" => "file.close",
            "close_dir" => "dir.close",
            name => name,
        };
        Self::named(name).unwrap_or_else(|| unreachable!("rules have no name for {call}"))
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| op.name() == name)
    }
}

/// Which of the matching calls a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// Only the n-th, from 1.
    Nth(u64),
    /// The n-th and all later ones.
    From(u64),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// `None`: every call.
    ops: Option<Vec<FaultOp>>,
    pub(crate) when: When,
    pub(crate) delay: Duration,
    pub(crate) hangs: bool,
    pub(crate) panics: bool,
    pub(crate) is_torn: bool,
    pub(crate) fail: Option<ErrorKind>,
}

impl Rule {
    pub(crate) fn is_for(&self, op: FaultOp) -> bool {
        let is_end = matches!(op, FaultOp::FileClose | FaultOp::DirClose);
        self.ops.as_ref().map_or(!is_end, |ops| ops.contains(&op))
    }
}

/// Reads rules: `op:what:what`, joined by `;`.
pub(crate) fn parse(text: &str) -> Result<Vec<Rule>> {
    text.split(';').map(str::trim).filter(|rule| !rule.is_empty()).map(parse_rule).collect()
}

fn bad(rule: &str, why: &str) -> Error {
    Error::with(ErrorKind::Invalid, "fault rule", format!("`{rule}`: {why}"))
}

fn parse_rule(text: &str) -> Result<Rule> {
    let mut parts = text.split(':');
    let op = parts.next().unwrap_or_default();
    let ops = parse_ops(op).ok_or_else(|| bad(text, &format!("no call is named `{op}`")))?;
    let mut rule = Rule {
        ops,
        when: When::Always,
        delay: Duration::ZERO,
        hangs: false,
        panics: false,
        is_torn: false,
        fail: None,
    };
    let mut does_something = false;
    for part in parts {
        let (key, value) = part.split_once('=').map_or((part, None), |(k, v)| (k, Some(v)));
        let number = || {
            value
                .and_then(|v| v.parse::<u64>().ok())
                .filter(|&n| n > 0)
                .ok_or_else(|| bad(text, &format!("`{key}` needs a number from 1 on")))
        };
        match (key, value) {
            ("nth", _) => rule.when = When::Nth(number()?),
            ("from", _) => rule.when = When::From(number()?),
            ("fail", Some(name)) => {
                let known = ErrorKind::NAMES.iter().find(|(n, _)| *n == name);
                let (_, kind) = known.ok_or_else(|| bad(text, &format!("no error is named `{name}`")))?;
                rule.fail = Some(*kind);
            }
            ("delay", Some(value)) => {
                rule.delay = parse_duration(value)
                    .ok_or_else(|| bad(text, "`delay` needs a time such as 20ms, 500us or 1s"))?;
            }
            ("hang", None) => rule.hangs = true,
            ("panic", None) => rule.panics = true,
            ("torn", None) if rule.ops.as_deref() == Some(&[FaultOp::Write]) => rule.is_torn = true,
            ("torn", None) => return Err(bad(text, "only a write can be torn")),
            _ => return Err(bad(text, &format!("`{part}` is not understood"))),
        }
        does_something |= !matches!(key, "nth" | "from");
    }
    if does_something { Ok(rule) } else { Err(bad(text, "it does nothing")) }
}

fn parse_ops(name: &str) -> Option<Option<Vec<FaultOp>>> {
    let one = |op| Some(Some(vec![op]));
    match name {
        "*" => Some(None),
        // One word for both of them.
        "sync" => Some(Some(vec![FaultOp::StoreSync, FaultOp::FileSync])),
        "read_at" => one(FaultOp::Read),
        "write_at" => one(FaultOp::Write),
        _ => one(FaultOp::named(name)?),
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number = text[..digits].parse::<u64>().ok()?;
    Some(match &text[digits..] {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_documentation_shows() {
        let rules =
            parse("write:nth=3:fail=ENOSPC; write:delay=20ms;sync:hang;write:nth=5:torn;*:delay=5us;")
                .unwrap();
        assert_eq!(rules.len(), 5);
        assert_eq!((rules[0].when, rules[0].fail), (When::Nth(3), Some(ErrorKind::NoSpace)));
        assert!(rules[0].is_for(FaultOp::Write) && !rules[0].is_for(FaultOp::Read));
        assert_eq!(rules[1].delay, Duration::from_millis(20));
        assert!(rules[2].hangs && rules[2].is_for(FaultOp::FileSync) && rules[2].is_for(FaultOp::StoreSync));
        assert!(!rules[2].is_for(FaultOp::SyncDir));
        assert!(rules[3].is_torn);
        let others: Vec<_> = FaultOp::ALL.iter().filter(|&&op| !rules[4].is_for(op)).collect();
        assert_eq!(others, [&FaultOp::FileClose, &FaultOp::DirClose]);
        assert!(parse("").unwrap().is_empty());
        assert_eq!(parse("read:from=2:fail=EIO").unwrap()[0].when, When::From(2));
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, why) in [
            ("wirte:hang", "no call is named `wirte`"),
            ("write:nth=0:hang", "needs a number"),
            ("write:nth=x:hang", "needs a number"),
            ("write:fail=EWHAT", "no error is named `EWHAT`"),
            ("write:delay=20", "needs a time"),
            ("read:torn", "only a write"),
            ("write:explode", "`explode` is not understood"),
            ("write:nth=3", "it does nothing"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn every_call_has_a_name_of_its_own() {
        for op in FaultOp::ALL {
            assert_eq!(FaultOp::ALL.iter().filter(|o| o.name() == op.name()).count(), 1, "{op:?}");
            assert!(parse(&format!("{}:hang", op.name())).is_ok());
        }
    }
}
