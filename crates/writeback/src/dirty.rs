//! Which writer may dirty more: the hard bound on cached pages, and the dirty limits of cgroups.

pub(crate) mod budget;
pub(crate) mod limits;
