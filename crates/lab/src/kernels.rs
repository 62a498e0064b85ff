//! `lab kernels`: the kernels that the four mechanisms come from, measured beside ours.
//!
//! The other experiments compare variants of this project with each other, on the kernel that
//! happens to run. This one boots kernels ([`boots`]), and in each of them the kernel and the
//! product do the same work, in turn ([`inside`]). The work has four parts:
//! [`crate::drain::kernel`], [`unmount`], [`crate::sync::kernel`] and the scenarios of
//! [`crate::eventpoll`].
//!
//! Rows are named like those of the experiments, with the kernel after a slash: `drain-idle/6.12`.
//! Their variants are `kernel` and, with a setting, `kernel-…`; `default` is the product.

mod boots;
mod document;
mod inside;
mod namespace;
mod unmount;

pub(crate) use boots::{COMMAND, main};
pub(crate) use inside::{COMMAND as INSIDE, main as main_inside};
pub(crate) use namespace::{COMMAND as NAMESPACE, main as main_namespace};

use anyhow::Context as _;

/// The name in the JSON.
const EXPERIMENT: &str = "kernels";

/// A part of the measurements of each kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The wait of an unmount while inodes change owners.
    Drain,
    /// The wait of an unmount of an unused mount.
    Unmount,
    /// Which callers wait for which limits.
    Sync,
    /// How many events get through, and which threads hold up which.
    Epoll,
}

impl Part {
    const ALL: [(&str, Self); 4] =
        [("s1", Self::Drain), ("s2", Self::Unmount), ("s3", Self::Sync), ("s4", Self::Epoll)];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, part)| *part == self).map_or("", |(name, _)| name)
    }

    /// The named ones, in their own order; all, if none is named.
    fn chosen(names: &[String]) -> anyhow::Result<Vec<Self>> {
        for name in names {
            let is_known = Self::ALL.iter().any(|(known, _)| known == name);
            is_known
                .then_some(())
                .with_context(|| format!("there is no part `{name}`; there are: s1, s2, s3, s4"))?;
        }
        let is_chosen = |name: &str| names.is_empty() || names.iter().any(|chosen| chosen == name);
        Ok(Self::ALL.into_iter().filter(|(name, _)| is_chosen(name)).map(|(_, part)| part).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_name_in_their_own_order() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(Part::chosen(&names(&["s3", "s1"])).unwrap(), [Part::Drain, Part::Sync]);
        assert_eq!(Part::chosen(&[]).unwrap().len(), 4);
        assert!(Part::chosen(&names(&["s5"])).is_err());
    }
}
