//! What a keeper tells the server that it starts.

use std::str::FromStr;

/// The server is kept by another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// How many servers have died before it.
    pub deaths: u32,
    /// The signal that ended the last one.
    pub signal: i32,
    /// Nodes whose data has no name any more, and the descriptors of it.
    pub held: Vec<(u64, i32)>,
}

impl FromStr for Kept {
    type Err = String;

    /// `first`, or as in `2,9,17:906,23:907`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "first" {
            return Ok(Self { deaths: 0, signal: 0, held: Vec::new() });
        }
        let wrong = || format!("{text:?} is not what a keeper says");
        let mut parts = text.split(',');
        let deaths = parts.next().and_then(|deaths| deaths.parse().ok()).ok_or_else(wrong)?;
        let signal = parts.next().and_then(|signal| signal.parse().ok()).ok_or_else(wrong)?;
        let held = parts
            .map(|part| {
                let (node, number) = part.split_once(':')?;
                Some((node.parse().ok()?, number.parse().ok()?))
            })
            .collect::<Option<_>>();
        Ok(Self { deaths, signal, held: held.ok_or_else(wrong)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_keeper_says_is_understood_and_nothing_else() {
        assert_eq!("first".parse(), Ok(Kept { deaths: 0, signal: 0, held: Vec::new() }));
        assert_eq!("2,9,17:906".parse(), Ok(Kept { deaths: 2, signal: 9, held: vec![(17, 906)] }));
        for bad in ["", "second", "1", "1,", "1,2,3", "1,2,a:b", "-1,2"] {
            assert!(bad.parse::<Kept>().is_err(), "{bad}");
        }
    }
}
