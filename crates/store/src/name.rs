//! A name that may be an entry of a directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::{Error, ErrorKind, Result};

/// The longest name, in bytes.
const NAME_MAX: usize = 255;

/// One component of a path: not empty, not `.` or `..`, without `/` and NUL, 255 bytes at most.
///
/// A store that takes a `Name` need not check it again: this keeps paths from escaping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a OsStr);

impl<'a> Name<'a> {
    /// Checks `name`.
    ///
    /// # Errors
    /// [`ErrorKind::NameTooLong`] over 255 bytes, [`ErrorKind::Invalid`] for what is no component.
    pub fn new(name: &'a OsStr) -> Result<Self> {
        let bytes = name.as_bytes();
        if bytes.len() > NAME_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "name"));
        }
        let reserved = bytes.is_empty() || bytes == b"." || bytes == b"..";
        if reserved || bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(Error::new(ErrorKind::Invalid, "name"));
        }
        Ok(Self(name))
    }

    /// The name itself.
    #[must_use]
    pub const fn as_os_str(self) -> &'a OsStr {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_odd_bytes_and_rejects_what_could_escape() {
        for good in [&b"a"[..], b"...", b" ", b"\n", b"\xff\xfe", &[b'x'; 255]] {
            assert_eq!(Name::new(OsStr::from_bytes(good)).unwrap().as_os_str().as_bytes(), good);
        }
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert_eq!(Name::new(OsStr::from_bytes(bad)).unwrap_err().kind(), ErrorKind::Invalid);
        }
        let long = [b'x'; 256];
        assert_eq!(Name::new(OsStr::from_bytes(&long)).unwrap_err().kind(), ErrorKind::NameTooLong);
    }
}
