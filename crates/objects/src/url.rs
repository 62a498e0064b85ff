//! Where a volume rests: `s3://bucket/prefix` and its like.
//!
//! Two spellings of one volume are one [`Url`]: equal, and displayed alike. A bucket's prefix is
//! taken as it is written, as every S3 tool does; the path of `file://` is percent-decoded.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use object_store::path::Path;
use store::{Error, ErrorKind, Result};

/// The longest prefix: with a volume's own names behind it, a key stays below S3's 1,024 bytes.
const MAX_PREFIX: usize = 512;
/// The longest name of a bucket.
const MAX_BUCKET: usize = 255;

/// The kind of object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon S3 and servers that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// A directory of this host.
    File,
    /// Memory of this process.
    Memory,
}

impl Scheme {
    const ALL: [Self; 5] = [Self::S3, Self::Gs, Self::Az, Self::File, Self::Memory];

    const fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gs => "gs",
            Self::Az => "az",
            Self::File => "file",
            Self::Memory => "memory",
        }
    }
}

/// Where a volume rests, without any secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    scheme: Scheme,
    bucket: String,
    prefix: Path,
}

impl Url {
    /// The kind of object store.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The bucket (Azure: the container; memory: the store's name; a file: nothing).
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The prefix in the bucket; a file's whole path.
    #[must_use]
    pub const fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// The directory of a `file://` URL.
    #[must_use]
    pub fn directory(&self) -> Option<PathBuf> {
        (self.scheme == Scheme::File).then(|| PathBuf::from(format!("/{}", self.prefix)))
    }

    /// Whether `text` begins as a URL does: a program tells by this a URL from a path.
    #[must_use]
    pub fn looks_like(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| {
            scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.bucket)?;
        match (self.scheme, self.prefix.is_root()) {
            (Scheme::File, _) => write!(f, "/{}", percent_encode(self.prefix.as_ref())),
            (_, true) => Ok(()),
            (_, false) => write!(f, "/{}", self.prefix),
        }
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) = split_scheme(text)?;
        refuse_query(scheme, rest)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(invalid(format!(
                "{}://: no user and password in a URL; credentials come from the environment or from \
                 ~/.aws/credentials",
                scheme.name()
            )));
        }
        match scheme {
            Scheme::File => from_file(authority, path),
            Scheme::S3 | Scheme::Gs | Scheme::Az | Scheme::Memory => from_bucket(scheme, authority, path),
        }
    }
}

fn invalid(detail: String) -> Error {
    Error::with(ErrorKind::Invalid, "url", detail)
}

fn split_scheme(text: &str) -> Result<(Scheme, &str)> {
    let known =
        "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:///DIRECTORY or memory://NAME";
    let Some((name, rest)) = text.split_once("://") else {
        return Err(invalid(format!("{}: not a URL; it has to be {known}", shown(text))));
    };
    let known_scheme = Scheme::ALL.into_iter().find(|scheme| scheme.name().eq_ignore_ascii_case(name));
    match known_scheme {
        Some(scheme) => Ok((scheme, rest)),
        None if name.eq_ignore_ascii_case("http") || name.eq_ignore_ascii_case("https") => Err(invalid(
            "a server's address belongs in AWS_ENDPOINT_URL, the URL is s3://BUCKET/PREFIX".to_owned(),
        )),
        None => Err(invalid(format!("{}://: unknown scheme; it has to be {known}", shown(name)))),
    }
}

/// A query or a fragment may hold a secret (`?X-Amz-Signature=`), so that neither is displayed.
fn refuse_query(scheme: Scheme, rest: &str) -> Result<()> {
    let instead = if scheme == Scheme::File {
        "in a file's name write %3F for `?` and %23 for `#`"
    } else {
        "options go into the environment (AWS_REGION, AWS_ENDPOINT_URL, …)"
    };
    for (sign, what) in [('?', "query"), ('#', "fragment")] {
        if rest.contains(sign) {
            return Err(invalid(format!(
                "{}://: a URL of a volume has no {what} (`{sign}`); {instead}",
                scheme.name()
            )));
        }
    }
    Ok(())
}

fn from_file(authority: &str, path: &str) -> Result<Url> {
    if !(authority.is_empty() || authority.eq_ignore_ascii_case("localhost")) {
        return Err(invalid(format!(
            "file://{}: the path is relative, or names a host; write file:///DIRECTORY, with three slashes",
            shown(authority)
        )));
    }
    let decoded = percent_decode(path).ok_or_else(|| {
        invalid("file://: after `%` come two hexadecimal digits, of UTF-8 in all".to_owned())
    })?;
    let prefix = to_path("file", &decoded, true)?;
    if prefix.is_root() {
        return Err(invalid(
            "file:///: the root directory holds no volume; write file:///DIRECTORY".to_owned(),
        ));
    }
    Ok(Url { scheme: Scheme::File, bucket: String::new(), prefix })
}

fn from_bucket(scheme: Scheme, bucket: &str, path: &str) -> Result<Url> {
    let name = scheme.name();
    if bucket.is_empty() {
        return Err(invalid(format!("{name}://: the bucket is missing; write {name}://BUCKET/PREFIX")));
    }
    if bucket.contains(':') {
        return Err(invalid(format!(
            "{name}://{}: a bucket, not a server with a port; a server's address belongs in AWS_ENDPOINT_URL",
            shown(bucket)
        )));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if bucket.len() > MAX_BUCKET || !bucket.bytes().all(allowed) || bucket == "." || bucket == ".." {
        return Err(invalid(format!(
            "{name}://{}: no name of a bucket; it has at most {MAX_BUCKET} letters, digits, `-`, `.`, `_`",
            shown(bucket)
        )));
    }
    let prefix = to_path(name, path, false)?;
    if prefix.as_ref().len() > MAX_PREFIX {
        return Err(invalid(format!("{name}://: the prefix is longer than {MAX_PREFIX} bytes")));
    }
    Ok(Url { scheme, bucket: bucket.to_owned(), prefix })
}

/// The path without empty parts; without `.` too, where that has a meaning.
fn to_path(scheme: &str, path: &str, has_dot: bool) -> Result<Path> {
    if path.chars().any(char::is_control) {
        return Err(invalid(format!("{scheme}://: no control characters in a path")));
    }
    let parts = path.split('/').filter(|part| !(part.is_empty() || (has_dot && *part == ".")));
    let parts: Vec<_> = parts.collect();
    if parts.iter().any(|part| *part == "." || *part == "..") {
        let instead = if has_dot { "write the path without it" } else { "a bucket has no directories" };
        return Err(invalid(format!("{scheme}://: no `.` or `..` in the path; {instead}")));
    }
    Path::parse(parts.join("/")).map_err(|error| invalid(format!("{scheme}://: {error}")))
}

/// `None`: no hexadecimal digits, or no UTF-8.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16)?).ok();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => (digit(bytes.next()?)? << 4) | digit(bytes.next()?)?,
            _ => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

/// What a URL's path cannot have as it is.
fn percent_encode(path: &str) -> String {
    path.replace('%', "%25").replace('?', "%3F").replace('#', "%23")
}

/// What the user wrote, as far as a message can take it.
fn shown(text: &str) -> String {
    // Whatever stands before an `@` may be a password.
    let text = text.rsplit('@').next().unwrap_or_default();
    text.chars().take(80).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        let error = text.parse::<Url>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        error.detail().unwrap().to_owned()
    }

    #[test]
    fn spellings_of_one_volume_are_equal_and_displayed_alike() {
        for (spelling, canonical) in [
            ("s3://bucket", "s3://bucket"),
            ("S3://bucket/", "s3://bucket"),
            ("s3://bucket//a///b/", "s3://bucket/a/b"),
            ("s3://bucket/a b/100%/ü", "s3://bucket/a b/100%/ü"),
            ("gs://bucket/a", "gs://bucket/a"),
            ("az://container/a", "az://container/a"),
            ("memory://name", "memory://name"),
            ("memory://name/a", "memory://name/a"),
            ("file:///srv/volume", "file:///srv/volume"),
            ("FILE://localhost//srv/./volume/", "file:///srv/volume"),
            ("file:///srv/a%20b%3F%25", "file:///srv/a b%3F%25"),
        ] {
            assert_eq!(url(spelling).to_string(), canonical);
            assert_eq!(url(spelling), url(canonical), "{spelling}");
        }
        assert_ne!(url("s3://bucket/a"), url("s3://bucket/A"));
        assert_ne!(url("s3://bucket/a"), url("gs://bucket/a"));
    }

    #[test]
    fn a_file_url_has_a_directory() {
        assert_eq!(url("file:///srv/a%20b").directory(), Some(PathBuf::from("/srv/a b")));
        assert_eq!(url("s3://bucket/a").directory(), None);
    }

    #[test]
    fn what_is_wrong_is_refused_with_what_would_be_right() {
        for (text, part) in [
            ("bucket/prefix", "not a URL"),
            ("ftp://bucket/prefix", "unknown scheme"),
            ("https://127.0.0.1:9000/bucket", "AWS_ENDPOINT_URL"),
            ("s3://", "the bucket is missing"),
            ("s3:///prefix", "the bucket is missing"),
            ("s3://host:9000/bucket", "AWS_ENDPOINT_URL"),
            ("s3://a b/c", "no name of a bucket"),
            ("s3://../c", "no name of a bucket"),
            ("s3://bucket/a/../b", "`..`"),
            ("s3://bucket/./b", "a bucket has no directories"),
            ("s3://bucket/a?region=x", "query"),
            ("s3://bucket/a#x", "fragment"),
            ("s3://bucket/a\nb", "control characters"),
            ("file://dir/volume", "three slashes"),
            ("file://./volume", "three slashes"),
            ("file:///", "root directory"),
            ("file:///srv/../etc", "`..`"),
            ("file:///srv/%2e%2e/etc", "`..`"),
            ("file:///srv/%0a", "control characters"),
            ("file:///srv/%zz", "hexadecimal"),
            ("file:///srv/%ff", "hexadecimal"),
            ("memory://", "the bucket is missing"),
        ] {
            let refusal = refusal(text);
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
        assert!(refusal(&format!("s3://bucket/{}", "a".repeat(513))).contains("longer than 512"));
    }

    #[test]
    fn a_password_is_refused_and_not_displayed() {
        for text in ["s3://user:password@bucket/a", "s3://user:password@bucket/a?x", "password@x"] {
            assert!(!refusal(text).contains("password@"), "{text}");
            assert!(!refusal(text).contains("user:"), "{text}");
        }
        assert!(!refusal("s3://bucket/a?X-Amz-Signature=secret").contains("secret"));
    }

    #[test]
    fn a_url_is_told_from_a_path() {
        for url in ["s3://bucket", "ftp://x", "file:///a"] {
            assert!(Url::looks_like(url), "{url}");
        }
        for path in ["/srv/volume", "volume", "./s3://bucket", "s3:bucket", "://x"] {
            assert!(!Url::looks_like(path), "{path}");
        }
    }
}
