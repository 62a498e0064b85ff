//! What a keeper tells the server that it starts.

use std::str::FromStr;

use recovery::{Held, HoldId, LastEnd};

/// The server is kept by another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// How many servers there were before it.
    pub servers: u32,
    /// How the last one ended.
    pub last: LastEnd,
    /// What the keeper holds, whose data has no name any more, and the descriptors of it.
    pub held: Vec<(Held, i32)>,
}

impl FromStr for Kept {
    type Err = String;

    /// `first`, or as in `2,killed,17:0:906,23:4:907`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "first" {
            return Ok(Self { servers: 0, last: LastEnd::Killed, held: Vec::new() });
        }
        let wrong = || format!("{text:?} is not what a keeper says");
        let mut parts = text.split(',');
        let servers = parts.next().and_then(|servers| servers.parse().ok()).ok_or_else(wrong)?;
        let last = match parts.next() {
            Some("crashed") => LastEnd::Crashed,
            Some("killed") => LastEnd::Killed,
            Some("upgraded") => LastEnd::Upgraded,
            Some("given-back") => LastEnd::GivenBack,
            Some("unready") => LastEnd::Unready,
            _ => return Err(wrong()),
        };
        let held = parts
            .map(|part| {
                let mut words = part.split(':');
                let node = words.next()?.parse().ok()?;
                let id = HoldId(words.next()?.parse().ok()?);
                let number = words.next()?.parse().ok()?;
                words.next().is_none().then_some((Held { id, node }, number))
            })
            .collect::<Option<_>>();
        Ok(Self { servers, last, held: held.ok_or_else(wrong)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_keeper_says_is_understood_and_nothing_else() {
        let kept = |servers, last, held| Ok(Kept { servers, last, held });
        assert_eq!("first".parse(), kept(0, LastEnd::Killed, Vec::new()));
        let held = vec![(Held { id: HoldId(3), node: 17 }, 906)];
        assert_eq!("2,killed,17:3:906".parse(), kept(2, LastEnd::Killed, held));
        assert_eq!("1,crashed".parse(), kept(1, LastEnd::Crashed, Vec::new()));
        assert_eq!("1,upgraded".parse(), kept(1, LastEnd::Upgraded, Vec::new()));
        assert_eq!("3,given-back".parse(), kept(3, LastEnd::GivenBack, Vec::new()));
        for bad in [
            "",
            "second",
            "1",
            "1,",
            "1,9",
            "1,killed,3",
            "1,crashed,a:b:1",
            "1,killed,1:2",
            "1,killed,1:2:3:4",
            "-1,killed",
        ] {
            assert!(bad.parse::<Kept>().is_err(), "{bad}");
        }
    }
}
