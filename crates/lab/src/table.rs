//! The scenarios of an experiment, by name.

/// Scenarios with their names, in the order of the experiment's tables.
pub(crate) struct Table<S, const N: usize>(pub(crate) [(&'static str, S); N]);

impl<S: Copy + PartialEq, const N: usize> Table<S, N> {
    /// All names.
    pub(crate) const fn names(&self) -> [&'static str; N] {
        let mut names = [""; N];
        let mut at = 0;
        while at < N {
            names[at] = self.0[at].0;
            at += 1;
        }
        names
    }

    /// The scenario of this name.
    pub(crate) fn named(&self, name: &str) -> Option<S> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, scenario)| *scenario)
    }

    /// Those that the command line names.
    pub(crate) fn chosen(&self, names: &[&str]) -> Vec<S> {
        names.iter().filter_map(|name| self.named(name)).collect()
    }

    /// The name of a scenario.
    pub(crate) fn name(&self, scenario: S) -> &'static str {
        self.0.iter().find(|(_, known)| *known == scenario).map_or("", |(name, _)| name)
    }
}
