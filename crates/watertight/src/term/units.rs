//! Sizes and durations as people write and read them.

use std::time::Duration;

/// Parses a size: a whole number of bytes, or of K, M, G or T (powers of 1024; `KiB` and `KB` mean
/// the same).
///
/// # Errors
/// A sentence that describes a valid size.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a size: give a number of bytes, or one with K, M, G or T, such as 256M");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Parses a duration: a number of seconds, or one with `ms`, `s`, `m` or `h`.
///
/// # Errors
/// A sentence that describes a valid duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("`{text}` is not a duration: give seconds, or a number with ms, s, m or h, such as 500ms");
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// A size for a person: three digits or so and a unit.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure for a person")]
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A size that a person can compare exactly: in bytes, behind a figure that is easier to read where
/// there is one.
#[must_use]
pub fn exactly(n: u64) -> String {
    let exact = count(n, "byte", "bytes");
    if n < 1024 { exact } else { format!("{} ({exact})", bytes(n)) }
}

/// A duration for a person.
#[must_use]
pub fn duration(d: Duration) -> String {
    let seconds = d.as_secs();
    match seconds {
        0 => format!("{} ms", d.as_millis()),
        1..60 => format!("{:.1} s", d.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A latency for a person: like a duration, but with microseconds.
#[must_use]
pub fn latency(d: Duration) -> String {
    match d.as_micros() {
        us @ 0..1000 => format!("{us} us"),
        1000..10_000 => format!("{:.1} ms", d.as_secs_f64() * 1000.0),
        _ => duration(d),
    }
}

/// A time since the epoch for a person: `2026-11-22T14:05:09.123Z`.
#[must_use]
pub fn utc(ms: u64) -> String {
    let (days, ms) = (ms / 86_400_000, ms % 86_400_000);
    // Years from March to February, so that the leap day is the last one; 400 of them have 146 097
    // days.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = year + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}Z", ms % 1000)
}

/// `1 file`, `2 files`.
#[must_use]
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, value) in
            [("0", 0), ("4096", 4096), ("1k", 1024), ("256M", 256 << 20), ("1GiB", 1 << 30), ("2tb", 2 << 40)]
        {
            assert_eq!(parse_bytes(text), Ok(value), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "12Q", "99999999999999T", "1 M"] {
            assert!(parse_bytes(text).unwrap_err().contains("is not a size"), "{text}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in
            [("0", 0), ("1", 1000), ("1.5s", 1500), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1d", "1..2", "99999999999999999999999h"] {
            assert!(parse_duration(text).unwrap_err().contains("is not a duration"), "{text}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (1_795_356_309_123, "2026-11-22T14:05:09.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(ms), text);
        }
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
        assert_eq!(exactly(1), "1 byte");
        assert_eq!(exactly(1023), "1023 bytes");
        assert_eq!(exactly(1536), "1.5 KiB (1536 bytes)");
        assert_eq!(duration(Duration::from_millis(12)), "12 ms");
        assert_eq!(duration(Duration::from_millis(2340)), "2.3 s");
        let latencies = [0, 999, 1000, 9949, 12_345, 4_100_000].map(|us| latency(Duration::from_micros(us)));
        assert_eq!(latencies, ["0 us", "999 us", "1.0 ms", "9.9 ms", "12 ms", "4.1 s"]);
        assert_eq!(duration(Duration::from_secs(61)), "1 min 1 s");
        assert_eq!(duration(Duration::from_secs(7260)), "2 h 1 min");
        assert_eq!(count(1, "file", "files"), "1 file");
        assert_eq!(count(0, "file", "files"), "0 files");
    }
}
