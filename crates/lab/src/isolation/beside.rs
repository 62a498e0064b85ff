//! The neighbours of the healthy volumes, by a scenario's name.

/// The behaviour of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// They are not used. Their stores lie where those of stalled ones do, and answer.
    Idle,
    /// Their stores do not answer.
    Stalled,
    /// Each has its cgroups with a process in each, which does nothing.
    Resting,
    /// A cgroup writes and syncs as fast as its limit lets it.
    Throttled,
    /// Many threads of one neighbour's cgroup write as fast as its limit lets them.
    Crowd,
    /// A crowd that writes through mapped memory.
    Mapping,
    /// Two cgroups write one file in turn, so that it changes its owner, and make and remove files.
    Churning,
}

/// Neighbours of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beside {
    pub(super) kind: Kind,
    pub(super) count: usize,
    /// Threads that write, in all of them together; the processes aside that each has.
    pub(super) crowd: usize,
}

impl Kind {
    const NAMES: [(&str, Self); 7] = [
        ("idle", Self::Idle),
        ("stalled", Self::Stalled),
        ("resting", Self::Resting),
        ("throttled", Self::Throttled),
        ("crowd", Self::Crowd),
        ("mapping", Self::Mapping),
        ("churning", Self::Churning),
    ];

    /// Whether each neighbour has cgroups of its own, with processes in them.
    pub(super) const fn has_tenants(self) -> bool {
        !matches!(self, Self::Idle | Self::Stalled)
    }

    /// Whether each neighbour's cgroup has a limit.
    pub(super) const fn is_limited(self) -> bool {
        matches!(self, Self::Throttled | Self::Crowd | Self::Mapping)
    }

    /// The control for neighbours of this kind: the same without the behaviour in question.
    const fn control(self) -> Option<&'static str> {
        match self {
            Self::Idle | Self::Resting => None,
            Self::Stalled => Some("idle"),
            Self::Throttled | Self::Churning | Self::Crowd | Self::Mapping => Some("resting"),
        }
    }
}

impl Beside {
    /// `alone` is beside none.
    pub(super) fn of(scenario: &str) -> Self {
        let (name, count) = scenario.rsplit_once('-').unwrap_or((scenario, "0"));
        let kind = Kind::NAMES.iter().find(|(known, _)| *known == name).map_or(Kind::Idle, |(_, kind)| *kind);
        let count = count.parse().unwrap_or(0);
        match kind {
            Kind::Crowd | Kind::Mapping => Self { kind, count: 1, crowd: count },
            _ => Self { kind, count, crowd: 0 },
        }
    }

    /// The scenario that this one is compared with, if not with itself.
    pub(super) fn control(self) -> Option<String> {
        self.kind.control().map(|name| format!("{name}-{}", self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenarios_name_says_who_is_beside_and_what_it_is_compared_with() {
        let of = |name: &str| {
            let beside = Beside::of(name);
            (beside.kind, beside.count, beside.control())
        };
        assert_eq!(of("alone"), (Kind::Idle, 0, None));
        assert_eq!(of("idle-100"), (Kind::Idle, 100, None));
        assert_eq!(of("stalled-10"), (Kind::Stalled, 10, Some("idle-10".to_owned())));
        assert_eq!(of("resting-4"), (Kind::Resting, 4, None));
        assert_eq!(of("throttled-64"), (Kind::Throttled, 64, Some("resting-64".to_owned())));
        assert_eq!(of("crowd-1000"), (Kind::Crowd, 1, Some("resting-1".to_owned())));
        assert_eq!(Beside::of("mapping-1000").crowd, 1000);
        assert_eq!(of("churning-16"), (Kind::Churning, 16, Some("resting-16".to_owned())));
    }
}
