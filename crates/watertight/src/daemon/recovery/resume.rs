//! The server that goes on with a mount whose server has died.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use handover::Incoming;
use recovery::{Journal, LastEnd, Link, NodeKey, Recovery, keeper};
use rustix::fs::OFlags;
use store::{DirStore, StoreState};

use super::serve;
use crate::cli::MountArgs;
use crate::cli::kept::Kept;
use crate::cli::opts::MountOptions;
use crate::daemon::mount::supervise;
use crate::daemon::upgrade::resume::{self, Follower, is_aborted};
use crate::daemon::upgrade::state::State;
use crate::host::{mount_agent, notify};
use crate::term::problem::{Problem, Result};

/// Adds the objects that the journal knows to the state.
///
/// The host may have given the inode number of an object that is gone to another one. One of those
/// with one number is there: the one that its handle leads to, or that the keeper holds.
fn add_objects(state: &mut State, journal: &Journal, kept: &Kept, medium: &OwnedFd, incoming: &Incoming) {
    let nodes = journal.nodes();
    let store = match &mut state.volume.store {
        StoreState::Dir(store) => store,
        StoreState::Numbered(numbered) => {
            nodes.iter().for_each(|(_, node)| numbered.add(store::ObjectId(node.id), node.key.as_ref()));
            return;
        }
    };
    let held = |id: u64| kept.held.iter().find(|(held, _)| held.node == id).map(|(_, number)| *number);
    let mut sharers: HashMap<u64, usize> = HashMap::new();
    for key in nodes.iter().filter_map(|(_, node)| node.key.as_ref()) {
        *sharers.entry(key.ino).or_default() += 1;
    }
    let is_alone = |key: &NodeKey| sharers.get(&key.ino) == Some(&1);
    for (_, node) in &nodes {
        let (id, held) = (store::ObjectId(node.id), held(node.id));
        match &node.key {
            Some(key) if is_alone(key) || held.is_some() || DirStore::has(medium.as_fd(), key) => {
                let held = held.map(|number| {
                    let flags = incoming.take(number).and_then(|fd| Ok(rustix::fs::fcntl_getfl(&fd)?));
                    let writes = flags.is_ok_and(|flags| flags.intersects(OFlags::RDWR | OFlags::WRONLY));
                    (number, true, writes)
                });
                store.add(id, key, held);
            }
            _ => store.add_gone(id),
        }
    }
}

/// What a server ends with that cannot take the mount over, and that another one may follow.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "75")]
const CANNOT_YET: u8 = keeper::CANNOT_YET as u8;

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
    // Before there is a second thread.
    fuse::register_process();
    let mut incoming = Incoming::open(serve::STATE).map_err(|error| failed(&error))?;
    let mut state = State::parse(incoming.content()).map_err(|error| failed(&error))?;
    let (held, numbers): (Vec<_>, Vec<i32>) = kept.held.iter().copied().unzip();
    incoming.list(&[state.kept.as_slice(), &numbers].concat()).map_err(|error| failed(&error))?;
    let journal = keeper::take(serve::JOURNAL).map_err(|error| failed(&error))?;
    let journal = Journal::recover(journal, kept.last).map_err(|error| failed(&error))?;
    let link = Link::new(keeper::take(keeper::LINK).map_err(|error| failed(&error))?, &held);
    if !journal.is_complete() {
        let _keeper_is_gone = link.end();
        return Err(failed(&"not everything was noted that the kernel knew: there were too many files"));
    }
    let medium = incoming.take(serve::LOCK).map_err(|error| failed(&error))?;
    add_objects(&mut state, &journal, kept, &medium, &incoming);
    let recovery = Arc::new(Recovery { journal, link, held });
    notify::through(&recovery);
    let options = MountOptions::parse(&args.options)?;
    let (reason, upgraded) = match kept.last {
        LastEnd::Killed | LastEnd::Crashed | LastEnd::Unready => (None, false),
        LastEnd::Upgraded => (None, true),
        LastEnd::GivenBack => (Some("it ended before it served; its log says why"), false),
    };
    let follower = Follower { recovery: &recovery, upgraded };
    let resumed = resume::resume(&options, &state, &incoming, reason, Some(follower));
    let resumed = match resumed {
        Ok(resumed) => resumed,
        // Nobody can: a forced unmount has ended it.
        Err(problem) if is_aborted(&incoming, state.session.device) => {
            let _keeper_is_gone = recovery.link.end();
            return Err(problem);
        }
        Err(problem) => {
            tracing::error!("the mount of the server before cannot be taken over: {problem}");
            return Ok(ExitCode::from(CANNOT_YET));
        }
    };
    incoming.commit();
    let up = resumed.settle();
    mount_agent::start().unwrap_or_else(|problem| tracing::warn!("{problem}"));
    let (nodes, opens) = (recovery.journal.nodes().len(), recovery.journal.opens().len());
    let volume = up.mounted.volume.name();
    match kept.last {
        LastEnd::Upgraded => {
            let version = up.mounted.upgrader.past().version;
            tracing::info!(volume, nodes, opens, version = version.as_str(), "this program has taken over");
        }
        LastEnd::GivenBack => {
            tracing::error!(volume, nodes, opens, "the new program could not take over, this one goes on");
        }
        LastEnd::Killed | LastEnd::Crashed | LastEnd::Unready => {
            let deaths = recovery.journal.deaths();
            tracing::warn!(volume, deaths, nodes, opens, "this server has taken over from one that died");
        }
    }
    supervise(up)
}
