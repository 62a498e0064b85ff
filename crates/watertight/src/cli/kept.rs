//! What a keeper tells the server that it starts.

use std::str::FromStr;

use recovery::{Held, HoldId};

/// The server is kept by another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// How many servers have died before it.
    pub deaths: u32,
    /// The last one crashed by itself: no other process has killed it.
    pub is_crash: bool,
    /// What the keeper holds, whose data has no name any more, and the descriptors of it.
    pub held: Vec<(Held, i32)>,
}

impl FromStr for Kept {
    type Err = String;

    /// `first`, or as in `2,killed,17:0:906,23:4:907`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "first" {
            return Ok(Self { deaths: 0, is_crash: false, held: Vec::new() });
        }
        let wrong = || format!("{text:?} is not what a keeper says");
        let mut parts = text.split(',');
        let deaths = parts.next().and_then(|deaths| deaths.parse().ok()).ok_or_else(wrong)?;
        let is_crash = match parts.next() {
            Some("crashed") => true,
            Some("killed") => false,
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
        Ok(Self { deaths, is_crash, held: held.ok_or_else(wrong)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_keeper_says_is_understood_and_nothing_else() {
        assert_eq!("first".parse(), Ok(Kept { deaths: 0, is_crash: false, held: Vec::new() }));
        let held = vec![(Held { id: HoldId(3), node: 17 }, 906)];
        assert_eq!("2,killed,17:3:906".parse(), Ok(Kept { deaths: 2, is_crash: false, held }));
        assert_eq!("1,crashed".parse(), Ok(Kept { deaths: 1, is_crash: true, held: Vec::new() }));
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
