//! The experiments of this build.

use crate::experiment::Experiment;
use crate::{disk_cache, drain, eventpoll, isolation, mounts, objects, rcu, scale, sync, volumes};

/// All of them, in the order of the help.
pub(crate) static ALL: [&Experiment; 12] = [
    &disk_cache::EXPERIMENT,
    &drain::EXPERIMENT,
    &eventpoll::EXPERIMENT,
    &isolation::EXPERIMENT,
    &scale::EXPERIMENT,
    &mounts::EXPERIMENT,
    &objects::EXPERIMENT,
    &objects::cost::EXPERIMENT,
    &objects::stress::EXPERIMENT,
    &rcu::EXPERIMENT,
    &sync::EXPERIMENT,
    &volumes::EXPERIMENT,
];

/// The experiment of this name.
pub(crate) fn named(name: &str) -> Option<&'static Experiment> {
    ALL.into_iter().find(|experiment| experiment.name == name)
}
