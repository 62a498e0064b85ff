//! The owners of data, and the ownership switches that an unmount waits for.

pub(crate) mod cgroup;
pub(crate) mod domain;
pub(crate) mod drain;
pub(crate) mod foreign;
pub(crate) mod pending;
pub(crate) mod strategy;
pub(crate) mod switcher;
pub(crate) mod work_queue;
