//! The id of a volume: a short word of letters and digits, and nothing else.
//!
//! An id comes from file names, records, answers, requests and the command line, and becomes part
//! of a path. So it is parsed where it comes in, into a type that cannot hold `/`, `.`, NUL or a
//! blank, and whose length is bounded: a path made from a [`VolumeId`] always has it as one name in
//! a directory.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest id, in bytes. Those that are made have eight.
pub const LEN_MAX: usize = 32;

/// The id of a volume: 1 to [`LEN_MAX`] ASCII letters and digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(String);

/// A text that is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a volume's id has 1 to {LEN_MAX} letters and digits, and nothing else")]
pub struct NotAnId;

impl VolumeId {
    /// The id with this number, in eight hexadecimal digits.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self(format!("{number:08x}"))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The id that no volume has, as a UUID of zeros is no one's.
impl Default for VolumeId {
    fn default() -> Self {
        Self::from_number(0)
    }
}

impl FromStr for VolumeId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let is_id = (1..=LEN_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if is_id { Ok(Self(text.to_owned())) } else { Err(NotAnId) }
    }
}

impl TryFrom<String> for VolumeId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, NotAnId> {
        text.parse()
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> Self {
        id.0
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for VolumeId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for VolumeId {
    fn eq(&self, text: &str) -> bool {
        self.0 == text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_is_one_name_of_bounded_length() {
        for id in ["a", "1f00ba47", "Z9", &"x".repeat(LEN_MAX)] {
            assert_eq!(id.parse::<VolumeId>().unwrap().as_str(), id);
        }
        let wrong = [
            "",
            ".",
            "..",
            "/",
            "a/b",
            "/tmp/x",
            "../x",
            "a.json",
            "a\0",
            "a b",
            "a\n",
            "-x",
            "_",
            "ä",
            &"x".repeat(LEN_MAX + 1),
        ];
        for text in wrong {
            assert_eq!(text.parse::<VolumeId>(), Err(NotAnId), "{text:?}");
            let json = serde_json::to_string(text).unwrap();
            assert!(serde_json::from_str::<VolumeId>(&json).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_an_id_is_one_plain_component_of_a_path(text in ".{0,40}|[a-zA-Z0-9./\\x00-]{0,40}") {
            if let Ok(id) = text.parse::<VolumeId>() {
                let name = format!("{id}.json");
                let parts: Vec<_> = std::path::Path::new(&name).components().collect();
                prop_assert_eq!(parts, [std::path::Component::Normal(name.as_ref())]);
                prop_assert!(name.len() <= LEN_MAX + 5 && !name.contains('\0') && !name.starts_with('-'));
                prop_assert_eq!(id.as_str(), &text);
                let json = serde_json::to_string(&id).unwrap();
                prop_assert_eq!(serde_json::from_str::<VolumeId>(&json).unwrap(), id);
            }
        }
    }
}
