//! How long a caller waits for its answer.

use std::time::Duration;

use csi_proto::tonic::metadata::MetadataMap;
use tokio::time::Instant;

/// Where a caller names no deadline, as Kubernetes' sidecars do by default for some calls, and at
/// most.
const LONGEST: Duration = Duration::from_secs(110);
/// What an answer may take on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// How long a call may take until it is answered.
pub(super) fn patience(metadata: &MetadataMap) -> Duration {
    let given = metadata.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(parse);
    given.map_or(LONGEST, |given| given.saturating_sub(ON_ITS_WAY.min(given / 4)).min(LONGEST))
}

/// When a call is to be answered, however many steps it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    begun: Instant,
    until: Instant,
}

impl Deadline {
    /// That of a call that comes now.
    pub(super) fn of(metadata: &MetadataMap) -> Self {
        Self::within(patience(metadata))
    }

    pub(super) fn within(patience: Duration) -> Self {
        let begun = Instant::now();
        Self { begun, until: begun + patience }
    }

    /// What is left for its next step.
    pub(super) fn left(self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Whether a list ends its page here, rather than begin a step that may come too late.
    pub(super) fn is_half_over(self) -> bool {
        self.begun.elapsed() >= self.left()
    }
}

/// A number of at most eight digits, and its unit.
fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&number.len()) || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(timeout: &str) -> Duration {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", timeout.parse().unwrap());
        patience(&metadata)
    }

    #[test]
    fn an_answer_comes_before_the_caller_s_deadline() {
        assert_eq!(of("10S"), Duration::from_millis(9_750));
        assert_eq!(of("1000000u"), Duration::from_millis(750));
        assert_eq!(of("100m"), Duration::from_millis(75));
        for endless in ["99999999H", "3M", "", "S", "10", "10s", "-1S", "1.5S", "123456789S"] {
            assert_eq!(of(endless), LONGEST, "{endless}");
        }
        assert_eq!(patience(&MetadataMap::new()), LONGEST);
    }

    #[test]
    fn the_steps_of_a_call_share_its_time() {
        let deadline = Deadline::within(Duration::from_secs(60));
        assert!(!deadline.is_half_over() && deadline.left() > Duration::from_secs(30));
        let over = Deadline::within(Duration::ZERO);
        assert!(over.is_half_over() && over.left().is_zero());
    }
}
