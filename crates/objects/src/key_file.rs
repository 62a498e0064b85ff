//! The file with the user's key.
//!
//! Its content is 32 bytes, or 64 hexadecimal digits and possibly a newline. A file of the caller's
//! own that others may read is refused. Links are followed: it is the caller's own path, and where
//! containers get their secrets it is one.

use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use store::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

use crate::crypto::{KEY_LEN, KeyBytes, UserKey};
use crate::hex;

const OP: &str = "key file";
/// Bytes of the longest content.
const CONTENT_MAX: usize = 2 * KEY_LEN + 1;

/// Reads the key file `path`. It blocks.
///
/// # Errors
/// With what would be right: there is no such file, it is not a regular file, others may read it, or
/// its content is not a key.
pub fn read(path: &Path) -> Result<UserKey> {
    let name = path.display();
    let failed = |errno: Errno| Error::with(kind(errno), OP, format!("{name}: {errno}"));
    let invalid = |what: String| Error::with(ErrorKind::Invalid, OP, what);
    // NONBLOCK: the opening of a named pipe would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(invalid(format!("{name} is not a regular file; a key file has {RIGHT}")));
    }
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    if is_ours && stat.st_mode & 0o077 != 0 {
        let what =
            format!("{name} is open to other users (mode {:03o}): chmod 600 {name}", stat.st_mode & 0o777);
        return Err(Error::with(ErrorKind::AccessDenied, OP, what));
    }
    // One byte more than fits tells a longer file.
    let mut content = Zeroizing::new([0; CONTENT_MAX + 1]);
    let mut len = 0;
    while len < content.len() {
        match rustix::io::read(&file, &mut content[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    parse(&content[..len]).ok_or_else(|| {
        let found =
            if len > CONTENT_MAX { "more bytes".to_owned() } else { format!("{len} bytes that are neither") };
        invalid(format!("a key file has {RIGHT}; {name} has {found}"))
    })
}

/// What a key file has.
const RIGHT: &str = "32 bytes (head -c 32 /dev/urandom) or 64 hexadecimal digits (openssl rand -hex 32)";

fn parse(content: &[u8]) -> Option<UserKey> {
    let mut key = KeyBytes::default();
    if content.len() == KEY_LEN {
        key.copy_from_slice(content);
        return Some(UserKey(key));
    }
    let digits = content.strip_suffix(b"\n").unwrap_or(content);
    hex::decode(digits, key.as_mut_slice()).then_some(UserKey(key))
}

fn kind(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::ACCESS | Errno::PERM => ErrorKind::AccessDenied,
        Errno::NOTDIR => ErrorKind::NotDirectory,
        Errno::LOOP => ErrorKind::Loop,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const DIGITS: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";

    /// What reading a file with this content and mode says.
    fn read_file(content: &[u8], mode: u32) -> Result<Vec<u8>, (ErrorKind, String)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        read_path(&path)
    }

    fn read_path(path: &Path) -> Result<Vec<u8>, (ErrorKind, String)> {
        let read = read(path).map(|key| key.0.to_vec());
        read.map_err(|error| (error.kind(), error.detail().unwrap_or_default().to_owned()))
    }

    #[test]
    fn bytes_and_digits_are_a_key() {
        let key: Vec<u8> = (0..32).collect();
        assert_eq!(read_file(&key, 0o600), Ok(key.clone()));
        assert_eq!(read_file(DIGITS.as_bytes(), 0o400), Ok(key.clone()));
        assert_eq!(read_file(format!("{DIGITS}\n").as_bytes(), 0o600), Ok(key));
        let newlines = vec![b'\n'; 32];
        assert_eq!(read_file(&newlines, 0o600), Ok(newlines));
    }

    #[test]
    fn any_other_content_is_refused_with_what_would_be_right() {
        let wrong = [
            String::new(),
            "short".to_owned(),
            DIGITS[1..].to_owned(),
            format!("{DIGITS}\n\n"),
            format!("{DIGITS}\r\n"),
            format!("\n{DIGITS}"),
            DIGITS.replace('0', "x"),
            format!("{DIGITS}{DIGITS}"),
            "long".repeat(1 << 20),
        ];
        for content in wrong {
            let (kind, what) = read_file(content.as_bytes(), 0o600).unwrap_err();
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(what.contains("32 bytes") && what.contains("64 hexadecimal digits"), "{what}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_with_the_chmod() {
        for mode in [0o640, 0o604, 0o660, 0o644, 0o777] {
            let (kind, what) = read_file(DIGITS.as_bytes(), mode).unwrap_err();
            assert_eq!(kind, ErrorKind::AccessDenied);
            assert!(what.contains(&format!("{mode:03o}")) && what.contains("chmod 600 /"), "{what}");
        }
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in [dir.path(), &pipe, Path::new("/dev/zero")] {
            let (kind, what) = read_path(path).unwrap_err();
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(what.contains("is not a regular file"), "{what}");
        }
        assert_eq!(read_path(&dir.path().join("none")).unwrap_err().0, ErrorKind::NotFound);
    }

    #[test]
    fn a_link_to_a_key_file_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("key"), dir.path().join("link"));
        fs::write(&path, DIGITS).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_path(&link), Ok((0..32).collect()));
    }
}
