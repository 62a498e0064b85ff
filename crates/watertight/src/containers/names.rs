//! The names of volumes, as a container engine may give them: they become names of files.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a name: with its suffixes it is a file's name.
const NAME_BYTES_MAX: usize = 200;

/// A volume's name: letters, digits, `_`, `.` and `-`, the first a letter or digit, as Docker has
/// them. So it is one part of a path, and neither `.` nor `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct VolumeName(String);

impl VolumeName {
    /// The name as text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VolumeName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if name.len() > NAME_BYTES_MAX {
            return Err(format!(
                "a volume's name has at most {NAME_BYTES_MAX} characters, this one {}",
                name.len()
            ));
        }
        if name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.bytes().all(is_part) {
            return Ok(Self(name));
        }
        Err(format!(
            "{name:?} is not a volume's name: it begins with a letter or digit, and has only letters, digits, `_`, `.` and `-`"
        ))
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> Self {
        name.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_part_of_a_path_or_refused() {
        let longest = "a".repeat(NAME_BYTES_MAX);
        for name in ["a", "0", "project_data-1.2", &"f".repeat(64), &longest] {
            assert_eq!(VolumeName::try_from(name.to_owned()).unwrap().as_str(), name);
        }
        for name in ["", ".", "..", ".a", "-a", "_a", "a/b", "../a", "a b", "a\n", "a\0", "ä", "a\u{202e}"] {
            let wrong = VolumeName::try_from(name.to_owned()).unwrap_err();
            assert!(wrong.contains("not a volume's name") && !wrong.contains('\n'), "{wrong}");
        }
        let wrong = VolumeName::try_from(longest + "a").unwrap_err();
        assert!(wrong.contains("at most 200 characters, this one 201"), "{wrong}");
    }
}
