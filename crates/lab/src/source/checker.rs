//! Which builds a piece of source is part of: what `cfg` attributes say of loom and shuttle.

use std::fmt;
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// What runs a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Checker {
    /// `--cfg loom`: every interleaving, with what the memory orderings allow.
    Loom,
    /// `--cfg shuttle`: random schedules.
    Shuttle,
    /// A build without a checker.
    Plain,
}

impl Checker {
    const ALL: [Self; 3] = [Self::Loom, Self::Shuttle, Self::Plain];

    /// Its name, for people and in the JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Loom => "loom",
            Self::Shuttle => "shuttle",
            Self::Plain => "plain",
        }
    }

    /// The variable of cargo, and its value, by which the build has its `--cfg`. Loom's own crate
    /// wants it too; for shuttle the workspace's crates are enough.
    pub(crate) fn variable(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Loom => Some(("RUSTFLAGS", "--cfg loom")),
            Self::Shuttle => Some(("RUSTC_WORKSPACE_WRAPPER", "tests/with-shuttle")),
            Self::Plain => None,
        }
    }

    /// The option for its profile, if it needs one: loom's search takes minutes without.
    pub(crate) fn profile(self) -> Option<&'static str> {
        (self == Self::Loom).then_some("--release")
    }

    /// The directory below `target` of its builds, if they have their own.
    pub(crate) fn directory(self) -> Option<&'static str> {
        (self != Self::Plain).then(|| self.name())
    }
}

impl fmt::Display for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The builds of tests that something is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Builds([bool; 3]);

impl Builds {
    /// What no attribute restricts.
    pub(crate) const ALL: Self = Self([true; 3]);

    /// These, as far as the `cfg` attributes among `attributes` allow them.
    pub(crate) fn restricted(self, attributes: &[Attribute]) -> Self {
        let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
        let conditions: Vec<Meta> =
            conditions.filter_map(|attribute| attribute.parse_args::<Meta>().ok()).collect();
        let mut builds = self.0;
        for (is_part, checker) in builds.iter_mut().zip(Checker::ALL) {
            *is_part &= conditions.iter().all(|condition| holds(condition, checker) != Some(false));
        }
        Self(builds)
    }

    /// The one that runs a test: without a checker, if that is possible; `None` if more than one
    /// checker could.
    pub(crate) fn checker(self) -> Option<Checker> {
        match self.0 {
            [_, _, true] => Some(Checker::Plain),
            [true, false, false] => Some(Checker::Loom),
            [false, true, false] => Some(Checker::Shuttle),
            _ => None,
        }
    }
}

/// Whether a condition holds in the build of `checker`; nothing is known of other names.
fn holds(condition: &Meta, checker: Checker) -> Option<bool> {
    let path = condition.path();
    let parts = || {
        let list = condition.require_list().ok()?;
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()
    };
    let each = |parts: Punctuated<Meta, Token![,]>| parts.iter().map(|part| holds(part, checker)).collect();
    if path.is_ident("loom") {
        Some(checker == Checker::Loom)
    } else if path.is_ident("shuttle") {
        Some(checker == Checker::Shuttle)
    } else if path.is_ident("test") {
        Some(true)
    } else if path.is_ident("not") {
        Some(!holds(parts()?.first()?, checker)?)
    } else if path.is_ident("all") {
        let each: Vec<Option<bool>> = each(parts()?);
        if each.contains(&Some(false)) {
            Some(false)
        } else {
            each.into_iter().collect::<Option<Vec<_>>>().map(|_| true)
        }
    } else if path.is_ident("any") {
        let each: Vec<Option<bool>> = each(parts()?);
        if each.contains(&Some(true)) {
            Some(true)
        } else {
            each.into_iter().collect::<Option<Vec<_>>>().map(|_| false)
        }
    } else {
        None
    }
}
