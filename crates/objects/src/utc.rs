//! Times for a person.

/// Seconds since 1970, in UTC by RFC 3339.
pub(crate) fn in_utc(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0));
    time.map(|time| time.format("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
}
