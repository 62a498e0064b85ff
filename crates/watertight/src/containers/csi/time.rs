//! Times for answers.

use csi_proto::Timestamp;

/// The time that RFC 3339 text in UTC names; the epoch's beginning, where it is none.
pub(super) fn timestamp(text: &str) -> Timestamp {
    Timestamp { seconds: seconds(text).unwrap_or_default(), nanos: 0 }
}

fn seconds(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, between: char| -> Option<Vec<i64>> {
        text.split(between).map(|part| part.parse().ok()).collect()
    };
    let (date, time) = (numbers(date, '-')?, numbers(time.split('.').next()?, ':')?);
    let (&[year, month, day], &[hour, minute, second]) = (date.as_slice(), time.as_slice()) else {
        return None;
    };
    let is_time = (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    // Years begin in March here, so that a leap day is a year's last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    is_time.then_some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utc_becomes_seconds() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2024-02-29T12:34:56Z", 1_709_210_096),
            ("2000-03-01T00:00:00.5Z", 951_868_800),
            ("2026-11-27T13:00:00Z", 1_795_784_400),
            ("today", 0),
            ("2026-13-01T00:00:00Z", 0),
        ] {
            assert_eq!(timestamp(text).seconds, seconds, "{text}");
        }
    }
}
