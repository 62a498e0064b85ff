//! Which fault a request meets: by a seed and the number of the request; and outages by the clock.

use std::time::Duration;

use crate::random::Random;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing: it is passed on, and so is its answer.
    None,
    /// It is not passed on, and answered by this status.
    Refused(&'static str),
    /// It is passed on, and its answer replaced by a 500.
    AnswerReplaced,
    /// It is not passed on, and the connection is reset.
    Reset,
    /// It is passed on, and then the connection is reset.
    AnswerLost,
    /// Half of its answer comes, and then the end of the connection.
    Half,
    /// It is passed on late.
    Stalled(Duration),
    /// Its answer comes late.
    HeldBack(Duration),
}

/// The kinds, as the results count them.
pub(super) const KINDS: [&str; 8] =
    ["passed", "refused", "answer_replaced", "reset", "answer_lost", "half_answer", "stalled", "held_back"];

impl Fault {
    /// Its place in [`KINDS`].
    pub(super) const fn kind(self) -> usize {
        match self {
            Self::None => 0,
            Self::Refused(_) => 1,
            Self::AnswerReplaced => 2,
            Self::Reset => 3,
            Self::AnswerLost => 4,
            Self::Half => 5,
            Self::Stalled(_) => 6,
            Self::HeldBack(_) => 7,
        }
    }
}

/// What a server says that is too busy, or broken.
const REFUSALS: [&str; 4] =
    ["503 Slow Down", "500 Internal Server Error", "429 Too Many Requests", "503 Service Unavailable"];
/// Of a thousand requests, how many meet a fault.
const FAULTY: u64 = 40;
/// How late a request or an answer may be.
const STALL_MAX_MS: u64 = 8_000;
const HELD_BACK_MAX_MS: u64 = 3_000;

/// Outages: how long one lasts, and the least and the greatest time from one to the next.
const OUTAGE: Duration = Duration::from_secs(60);
const OUTAGE_AFTER_S: (u64, u64) = (480, 960);

/// The faults of a seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Faults(u64);

/// What an outage does to all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outage {
    /// Connections are reset at once.
    Resetting,
    /// Nothing is answered until it is over, when the connections are reset.
    Hanging,
    /// All requests are answered by 503.
    Refusing,
}

impl Faults {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// What the request with this number meets.
    pub(super) fn of_request(self, number: u64) -> Fault {
        let mut random = Random::new(self.0.rotate_left(32) ^ number);
        // The first numbers of seeds that are neighbours are alike.
        let _first = random.next();
        if random.next() % 1000 >= FAULTY {
            return Fault::None;
        }
        let late = |random: &mut Random, most| Duration::from_millis(1 + random.next() % most);
        match random.next() % 100 {
            0..40 => Fault::Refused(REFUSALS[usize::try_from(random.next() % 4).unwrap_or(0)]),
            40..50 => Fault::AnswerReplaced,
            50..60 => Fault::Reset,
            60..70 => Fault::AnswerLost,
            70..80 => Fault::Half,
            80..90 => Fault::Stalled(late(&mut random, STALL_MAX_MS)),
            _ => Fault::HeldBack(late(&mut random, HELD_BACK_MAX_MS)),
        }
    }

    /// The outage that there is so long after the beginning, and what is left of it.
    pub(super) fn outage_at(self, at: Duration) -> Option<(Outage, Duration)> {
        let mut random = Random::new(self.0 ^ 0x6F75_7461_6765);
        let mut begins = Duration::ZERO;
        loop {
            let (least, most) = OUTAGE_AFTER_S;
            begins += Duration::from_secs(least + random.next() % (most - least));
            let kind = [Outage::Resetting, Outage::Hanging, Outage::Refusing]
                [usize::try_from(random.next() % 3).unwrap_or(0)];
            if at < begins {
                return None;
            }
            if at < begins + OUTAGE {
                return Some((kind, begins + OUTAGE - at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_faults_and_has_all_of_them() {
        let of = |seed| (0..20_000).map(|n| Faults::new(seed).of_request(n)).collect::<Vec<_>>();
        let faults = of(7);
        assert_eq!(faults, of(7));
        assert_ne!(faults, of(8));
        let mut counts = [0_u32; KINDS.len()];
        faults.iter().for_each(|fault| counts[fault.kind()] += 1);
        assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
        let faulty = f64::from(20_000 - counts[0]) / 20.0;
        assert!((30.0..50.0).contains(&faulty), "{faulty} of a thousand");
    }

    #[test]
    fn outages_last_a_minute_and_come_now_and_then() {
        let faults = Faults::new(1);
        let seconds: Vec<bool> =
            (0..7200).map(|s| faults.outage_at(Duration::from_secs(s)).is_some()).collect();
        let before = usize::try_from(OUTAGE_AFTER_S.0).unwrap();
        assert!(!seconds[..before].iter().any(|is_out| *is_out));
        let outages = seconds.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len);
        let lengths: Vec<usize> = outages.collect();
        assert!(
            lengths.len() >= 6 && lengths[..lengths.len() - 1].iter().all(|len| *len == 60),
            "{lengths:?}"
        );
    }
}
