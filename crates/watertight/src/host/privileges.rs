//! The privileges of the mount process, and those that it gives up.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Gives up the right to exceed quotas, and the space that a file system reserves for root: data
/// must not go where its owner's own write would have been refused. For the calling thread and the
/// threads that it starts.
pub fn respect_quotas() {
    let without = |set: CapabilitySet| set - CapabilitySet::SYS_RESOURCE;
    let given_up = capabilities(None).and_then(|mut sets| {
        sets.effective = without(sets.effective);
        sets.permitted = without(sets.permitted);
        sets.inheritable = without(sets.inheritable);
        set_capabilities(None, sets)
    });
    if let Err(error) = given_up {
        tracing::warn!(%error, "the right to exceed quotas could not be given up");
    }
}
