//! The server that goes on with a mount whose server has died.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;

use handover::Incoming;
use recovery::{Journal, Link, Recovery, keeper};
use rustix::fs::OFlags;
use rustix::process::Signal;

use super::serve;
use crate::cli::MountArgs;
use crate::cli::kept::Kept;
use crate::cli::opts::MountOptions;
use crate::daemon::mount::supervise;
use crate::daemon::upgrade::resume;
use crate::daemon::upgrade::state::State;
use crate::host::{mount_agent, notify};
use crate::term::problem::{Problem, Result};

/// Takes the mount over, and serves it until it is unmounted.
///
/// # Errors
/// As those of a mount; and where the state or the journal is not whole.
pub(crate) fn run(args: &MountArgs, kept: &Kept) -> Result<ExitCode> {
    let failed = |error: &dyn std::fmt::Display| {
        Problem::failure(format!("the mount of a server that has died cannot be taken over: {error}"))
    };
    // The kernel names the process after the descriptor's number.
    let _only_a_name = rustix::thread::set_name(c"watertight");
    let mut incoming = Incoming::open(serve::STATE).map_err(|error| failed(&error))?;
    let mut state = State::parse(incoming.content()).map_err(|error| failed(&error))?;
    let held: Vec<i32> = kept.held.iter().map(|(_, number)| *number).collect();
    incoming.list(&[state.kept.as_slice(), &held].concat()).map_err(|error| failed(&error))?;
    let journal = keeper::take(serve::JOURNAL).map_err(|error| failed(&error))?;
    // Whoever kills a server says nothing about its requests.
    let is_crash = kept.signal != Signal::KILL.as_raw();
    let journal = Journal::recover(journal, is_crash).map_err(|error| failed(&error))?;
    let link = Link::new(keeper::take(keeper::LINK).map_err(|error| failed(&error))?);
    if !journal.is_complete() {
        let _keeper_is_gone = link.end();
        return Err(failed(&"not everything was noted that the kernel knew: there were too many files"));
    }
    let nodes = journal.nodes();
    let mut newest: HashMap<u64, u64> = HashMap::new();
    for (_, node) in &nodes {
        // An object that is gone may have left its number to another one, which was given an id that is
        // counted up then.
        let id = newest.entry(node.key.ino).or_default();
        *id = node.id.max(*id);
    }
    for (_, node) in &nodes {
        if newest.get(&node.key.ino) != Some(&node.id) {
            state.volume.store.add_gone(store::ObjectId(node.id));
            continue;
        }
        let held = kept.held.iter().find(|(held, _)| *held == node.id);
        let held = held.map(|(_, number)| {
            let flags = incoming.take(*number).and_then(|fd| Ok(rustix::fs::fcntl_getfl(&fd)?));
            let writes = flags.is_ok_and(|flags| flags.intersects(OFlags::RDWR | OFlags::WRONLY));
            (*number, true, writes)
        });
        state.volume.store.add(store::ObjectId(node.id), &node.key, held);
    }
    let recovery = Arc::new(Recovery { journal, link });
    notify::through(&recovery);
    let options = MountOptions::parse(&args.options)?;
    let resumed = resume::resume(&options, &state, &incoming, None, Some(&recovery));
    let (mut up, directory) = resumed.inspect_err(|_| drop(recovery.link.end()))?;
    incoming.commit();
    up.registration.settle();
    directory.settle();
    drop(directory);
    up.mounted.volume.mark_held(kept.held.iter().map(|(node, _)| *node));
    mount_agent::start().unwrap_or_else(|problem| tracing::warn!("{problem}"));
    serve::ready(Some(&recovery));
    let (nodes, opens) = (recovery.journal.nodes().len(), recovery.journal.opens().len());
    let volume = up.mounted.volume.name();
    tracing::warn!(
        volume,
        deaths = kept.deaths,
        nodes,
        opens,
        "this server has taken over from one that died"
    );
    supervise(up)
}
