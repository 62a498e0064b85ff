//! Stores by name.

use std::sync::Arc;

use crate::{DirOptions, DirStore, Error, ErrorKind, FaultStore, MemStore, Result, Store};

/// A memory store that is smaller has no room for a handful of files: a user that names such a size
/// forgot its unit.
const MEM_BYTES_MIN: u64 = 1 << 20;

/// Opens the store that `spec` names.
///
/// | spec | store |
/// |---|---|
/// | `dir:PATH`, or a path alone | a directory of the host; see [`DirStore`] |
/// | `mem:`, `mem:size=1G` | memory; see [`MemStore`]. Half of the machine's memory at most, or what `size` says: bytes, or K, M, G or T (powers of 1024), 1M at least |
/// | `fault:RULES,SPEC` | for tests: the store that `SPEC` names, failing by [`FaultStore`]'s rules |
///
/// # Errors
/// [`ErrorKind::Invalid`] if it names no store; the errors of the store's own opening.
pub fn open(spec: &str) -> Result<Arc<dyn Store>> {
    open_with(spec, DirOptions::default())
}

/// [`open`] with options for the directory, if it is one.
///
/// # Errors
/// As [`open`].
pub fn open_with(spec: &str, options: DirOptions) -> Result<Arc<dyn Store>> {
    let (scheme, rest) = match spec.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
        _ => ("dir", spec),
    };
    match scheme {
        "dir" if rest.is_empty() => Err(bad(spec, "no path is given")),
        "dir" => Ok(DirStore::open_with(rest, options)?),
        "mem" if rest.is_empty() => Ok(MemStore::with_default_capacity()),
        "mem" => {
            let size = rest.strip_prefix("size=").and_then(parse_size);
            let size = size.ok_or_else(|| {
                bad(spec, "expected `mem:` or `mem:size=1G` (a number of bytes, or one with K, M, G or T)")
            })?;
            if size < MEM_BYTES_MIN {
                return Err(bad(
                    spec,
                    &format!("{size} bytes are too few: give 1M at least, such as `mem:size=1G`"),
                ));
            }
            Ok(MemStore::new(size))
        }
        "fault" => {
            let (rules, inner) =
                rest.split_once(',').ok_or_else(|| bad(spec, "expected `fault:RULES,SPEC`"))?;
            // The rules first: a store is not opened for nothing.
            FaultStore::new(MemStore::new(0), rules)?;
            Ok(FaultStore::new(open_with(inner, options)?, rules)?)
        }
        _ => Err(bad(
            spec,
            &format!(
                "no store is called `{scheme}:` (there are dir:, mem:, fault:); a path can be given as `dir:{spec}`"
            ),
        )),
    }
}

fn bad(spec: &str, why: &str) -> Error {
    Error::with(ErrorKind::Invalid, "open store", format!("`{spec}`: {why}"))
}

/// A word of lower-case letters and digits: anything else before a colon is a path.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// A number of bytes with K, M, G or T behind it, or nothing.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(spec: &str) -> String {
        let error = open(spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    }

    #[test]
    fn opens_what_it_documents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        for spec in [path.to_owned(), format!("dir:{path}"), format!("fault:write:hang,dir:{path}")] {
            let store = open(&spec).unwrap();
            assert!(store.describe().ends_with(&format!("dir:{path}")), "{}", store.describe());
            store.close();
        }
        assert_eq!(open("mem:").unwrap().describe(), "mem:");
        let small = open("mem:size=8M").unwrap().statfs().unwrap();
        assert_eq!(small.blocks * u64::from(small.frsize), 8 << 20);
        assert_eq!(open("fault:,fault:sync:fail=EIO,mem:").unwrap().describe(), "fault:fault:mem:");
    }

    #[test]
    fn says_what_is_wrong() {
        assert!(why("").contains("no path"));
        assert!(why("dir:").contains("no path"));
        assert!(why("mem:1G").contains("mem:size=1G"));
        assert!(why("mem:size=").contains("mem:size=1G"));
        assert!(why("mem:size=10").contains("10 bytes are too few"));
        assert!(why("mem:size=1023K").contains("1M at least"));
        assert!(open("mem:size=1M").is_ok());
        assert!(why("mem:size=99999999999T").contains("mem:size=1G"));
        assert!(why("fault:write:hang").contains("fault:RULES,SPEC"));
        assert!(why("fault:wirte:hang,mem:").contains("wirte"));
        assert!(why("s3:bucket").contains("no store is called `s3:`"));
    }

    #[test]
    fn a_colon_in_a_path_is_no_scheme() {
        for path in ["/no/such:dir", "./mem:x", "A:b"] {
            assert_eq!(open(path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        }
    }
}
