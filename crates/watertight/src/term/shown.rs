//! Names as people see them: on a terminal, in a table, in an error, in the log.
//!
//! A file, a mountpoint, a cgroup or a process has the name that its owner chose: it may hold the
//! end of a line, a sequence that a terminal obeys, letters that turn the text around, bytes that
//! are no letters. Its printed form is one line without effect on a terminal, from which the name
//! can be recovered: the escapes of Rust's string literals.
//!
//! | in the name | shown |
//! |---|---|
//! | printable characters | as they are |
//! | `\` | `\\` |
//! | end of line, carriage return, tab, NUL | `\n`, `\r`, `\t`, `\0` |
//! | other characters that cannot be seen: control (ESC, DEL, C1), format (those that change the direction), separators but the space, unassigned ones; a mark that would join the text before the name | `\u{1b}`, `\u{202e}` |
//! | a byte that is not UTF-8 | `\xff` |
//!
//! So a name is printed as [`Shown`], by [`Show::shown`], or kept as a [`Name`], whose `Display`
//! shows it and which is exact in JSON. A message of another process is [`Words`], or goes through
//! [`in_one_line`]. `std::path::Path::display` and the lossy conversions are lints here
//! (`clippy.toml`), and [`Console`](crate::term::console::Console) and the log escape any text all the
//! same.
//!
//! Machine formats have rules of their own, and are exact: JSON ([`in_json`]), Prometheus' labels
//! (`metrics`), mountinfo and utab (`mountinfo`, `utab`).

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Prints a name; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(&'a [u8]);

impl Shown<'_> {
    /// The name itself, for programs and for the fields of the log, whose formatter shows it.
    #[must_use]
    pub fn exact(&self) -> String {
        String::from_utf8_lossy(self.0).into_owned()
    }
}

/// Types that have a name.
pub trait Show {
    /// The name, to be printed.
    fn shown(&self) -> Shown<'_>;
}

impl Show for Path {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_os_str().as_bytes())
    }
}

impl Show for OsStr {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_bytes())
    }
}

impl Show for str {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_bytes())
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            for (at, c) in chunk.valid().char_indices() {
                match c {
                    '\\' => text.push_str(r"\\"),
                    _ if !is_printable(c) || (at == 0 && is_mark(c)) => text.extend(c.escape_debug()),
                    _ => text.push(c),
                }
            }
            for byte in chunk.invalid() {
                write!(text, "\\x{byte:02x}")?;
            }
        }
        f.pad(&text)
    }
}

/// Whether it can be seen, and does nothing else: as the standard library judges it in a string.
pub(crate) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // Behind a letter: where a mark may stand.
    let mut text = [b'a', 0, 0, 0, 0];
    let len = c.encode_utf8(&mut text[1..]).len();
    std::str::from_utf8(&text[..=len]).is_ok_and(|text| text.escape_debug().count() == 2)
}

/// Whether it joins what stands before it.
fn is_mark(c: char) -> bool {
    !c.is_ascii() && c.escape_debug().count() > 1
}

/// A message of another process, in one line without effect on a terminal. Existing escapes in it
/// stay as they are.
#[must_use]
pub fn in_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_printable(c) { line.push(c) } else { line.extend(c.escape_debug()) }
    }
    line
}

/// JSON without effect on a terminal, with the same value: the ends of lines between values are
/// left, all other invisible characters can only be in a string.
#[must_use]
pub fn in_json(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| is_printable(c) || c == '\n') {
        return Cow::Borrowed(text);
    }
    let mut json = String::with_capacity(text.len());
    for c in text.chars() {
        if is_printable(c) || c == '\n' {
            json.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _cannot_fail = write!(json, "\\u{unit:04x}");
            }
        }
    }
    Cow::Owned(json)
}

/// A name of a file, a mountpoint, a store, a cgroup or a process. Exact where it is compared or
/// serialized, and [`Shown`] where it is printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// A path as the control API has it: of bytes that are no letters it has the replacement
    /// character.
    #[must_use]
    pub fn of(path: impl AsRef<OsStr>) -> Self {
        Self(exact(path.as_ref()))
    }

    /// Itself: not to be printed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Itself, as a path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A path for programs, and for the fields of the log, whose formatter shows it.
#[must_use]
pub fn exact(name: impl AsRef<OsStr>) -> String {
    name.as_ref().shown().exact()
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.shown().fmt(f)
    }
}

impl Show for Name {
    fn shown(&self) -> Shown<'_> {
        self.0.shown()
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl From<&Path> for Name {
    fn from(path: &Path) -> Self {
        Self::of(path)
    }
}

impl AsRef<OsStr> for Name {
    fn as_ref(&self) -> &OsStr {
        OsStr::new(&self.0)
    }
}

impl From<Name> for PathBuf {
    fn from(name: Name) -> Self {
        name.0.into()
    }
}

impl From<Name> for OsString {
    fn from(name: Name) -> Self {
        name.0.into()
    }
}

impl PartialEq<Name> for String {
    fn eq(&self, other: &Name) -> bool {
        *self == other.0
    }
}

impl PartialEq<Name> for str {
    fn eq(&self, other: &Name) -> bool {
        *self == other.0
    }
}

impl<T: AsRef<str> + ?Sized> PartialEq<T> for Name {
    fn eq(&self, other: &T) -> bool {
        self.0 == other.as_ref()
    }
}

/// A message of a process: that of another process may be any text. Exact where it is serialized,
/// and [`in_one_line`] where it is printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Words(String);

impl Words {
    /// Themselves: not to be printed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&in_one_line(&self.0))
    }
}

impl From<String> for Words {
    fn from(words: String) -> Self {
        Self(words)
    }
}

impl From<&str> for Words {
    fn from(words: &str) -> Self {
        Self(words.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> String {
        Shown(bytes).to_string()
    }

    /// The name that is shown so.
    fn read(shown: &str) -> Vec<u8> {
        let (mut name, mut rest) = (Vec::new(), shown);
        while let Some(c) = rest.chars().next() {
            let mut take = |n: usize| {
                let (taken, left) = rest.split_at(n);
                rest = left;
                taken
            };
            if c != '\\' {
                name.extend(take(c.len_utf8()).as_bytes());
                continue;
            }
            match take(2) {
                r"\\" => name.push(b'\\'),
                r"\n" => name.push(b'\n'),
                r"\r" => name.push(b'\r'),
                r"\t" => name.push(b'\t'),
                r"\0" => name.push(0),
                r"\x" => name.push(u8::from_str_radix(take(2), 16).unwrap()),
                r"\u" => {
                    let end = rest.find('}').unwrap();
                    let c = char::from_u32(u32::from_str_radix(&rest[1..end], 16).unwrap()).unwrap();
                    name.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
                    rest = &rest[end + 1..];
                }
                other => panic!("{other}"),
            }
        }
        name
    }

    #[test]
    fn names_are_shown_in_one_line_that_does_nothing() {
        for (name, there) in [
            ("plain name.txt", "plain name.txt"),
            ("\u{e9}\u{6f22}\u{1f600} 'a' \"b\"", "\u{e9}\u{6f22}\u{1f600} 'a' \"b\""),
            ("e\u{301}", "e\u{301}"),
            ("\u{301}e", r"\u{301}e"),
            ("a\nb\r\tc\0", r"a\nb\r\tc\0"),
            ("a\\x2db", r"a\\x2db"),
            ("\x1b[2J\x7f\u{9b}31m\x1b[31m", r"\u{1b}[2J\u{7f}\u{9b}31m\u{1b}[31m"),
            ("\u{202e}txt.exe\u{2066}\u{200f}\u{61c}", r"\u{202e}txt.exe\u{2066}\u{200f}\u{61c}"),
            ("a\u{2028}b\u{feff}\u{fdd1}\u{a0}", r"a\u{2028}b\u{feff}\u{fdd1}\u{a0}"),
        ] {
            assert_eq!(shown(name.as_bytes()), there);
        }
        assert_eq!(shown(b"a\xff\xc3(\xe2\x80"), r"a\xff\xc3(\xe2\x80");
        assert_eq!(format!("{:6}|", "a\n".shown()), r"a\n   |");
        assert_eq!(Name::from("a\nb").to_string(), r"a\nb");
        assert_eq!(serde_json::to_string(&Name::from("a\nb")).unwrap(), r#""a\nb""#);
    }

    #[test]
    fn every_name_can_be_read_again_and_no_two_look_the_same() {
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut next = |max: u64| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) % max
            };
            let mut name = Vec::new();
            for _ in 0..next(12) {
                match next(5) {
                    0 => name.push(u8::try_from(next(256)).unwrap()),
                    1 => name.extend(b"\\xun{}01"[usize::try_from(next(8)).unwrap()..].iter().take(1)),
                    2 => name.push(u8::try_from(next(32)).unwrap()),
                    _ => {
                        let c = char::from_u32(u32::try_from(next(0x11_0000)).unwrap()).unwrap_or('a');
                        name.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                }
            }
            let there = shown(&name);
            assert_eq!(read(&there), name, "{there}");
            assert!(there.chars().all(is_printable), "{there:?}");
            assert_eq!(in_one_line(&there), there);
        }
    }

    #[test]
    fn json_has_the_same_value_and_does_nothing() {
        let value =
            serde_json::json!({ "a": "\u{1b}[2J\u{9b}\u{7f}\u{202e}\n\u{e0001}\u{e9}", "b": [1, "\\"] });
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let json = in_json(&pretty);
        assert!(json.chars().all(|c| is_printable(c) || c == '\n'));
        assert!(
            json.contains(r"\u009b\u007f\u202e")
                && json.contains(r"\udb40\udc01\u{e9}".trim_end_matches(r"\u{e9}"))
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        assert!(matches!(in_json("{}"), Cow::Borrowed(_)));
    }
}
