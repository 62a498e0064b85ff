//! `csi`: the driver of Kubernetes and other orchestrators, by the Container Storage Interface 1.13.
//!
//! | module | purpose |
//! |---|---|
//! | `server` | gRPC over a unix socket |
//! | `identity`, `controller`, `snapshots`, `node` | the three services: what is asked for, checked, and answered |
//! | `ids`, `capability`, `deadline`, `pages`, `time` | what is in calls and answers, parsed into types |
//! | `failure` | codes that orchestrators act on, with words for people |
//! | `locks` | a turn for each volume and each path; a call that is late goes on |
//! | `held` | a staging path is locked while a mount or an unmount there goes on; what is known of it |
//! | `staged`, `bind`, `place` | what a node does: mounting, bind mounts, what is there |
//! | `targets` | which ephemeral volume a pod's path shows, until who unmounts knows how that ended |
//! | `unmounting` | an unmount that outlives the driver, and its result: `csi-unmount` |
//! | `pod_limits` | what a class or a volume lets each pod do |
//! | `allowed` | options that authors of classes and volumes may give |
//! | `bucket`, `step` | what the controller does, in processes of their own: `csi-step` |
//! | `launch` | where mount processes run, and how a driver leaves its container |
//! | `outside` | runs a mount process outside of the driver's cgroups: `csi-outside` |
//!
//! The driver keeps next to nothing: the kernel's mount table, the registry of mount processes and the
//! buckets say what there is; notes in its state directory say what is still to be told. So it may be
//! killed at any point, and the next call goes on from what it finds. Mounts are served by processes in
//! the background, which no end of the driver touches.
//!
//! # Deadlines
//! A call that does not end in its caller's time goes on, keeps its turn, and is answered with
//! `ABORTED`; orchestrators ask again, and the next call for the same finds what it did. How an
//! unmount ended that lost data, and that nobody waited for, is the next call's answer.

mod allowed;
mod bind;
mod bucket;
mod capability;
mod controller;
mod deadline;
mod failure;
mod held;
mod identity;
mod ids;
mod launch;
mod locks;
mod node;
pub mod outside;
mod pages;
mod place;
mod pod_limits;
mod server;
mod snapshots;
mod staged;
pub mod step;
mod targets;
mod time;
pub mod unmounting;

use std::fs;
use std::path::Path;
use std::sync::Arc;

pub use super::credentials::KNOWN as SECRETS;
use super::listener::{self, Listener};
use super::records::own_dir;
use crate::cli::CsiArgs;
use crate::registry::RuntimeDir;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use allowed::NodeOptions;
pub use allowed::check_mount_options;
use controller::ControllerService;
pub use controller::PARAMETERS;
use identity::IdentityService;
use ids::Prefixes;
use locks::Locks;
use node::NodeService;
pub use pod_limits::POD_LIMITS;
use server::Services;
pub use staged::ATTRIBUTES;
use staged::Host;
use targets::Targets;

/// Calls that wait for processes or the disk, each on a thread.
const THREADS_MAX: usize = 4096;
/// Bytes of a node's name.
const NODE_BYTES_MAX: usize = 192;

/// Runs the verb, until a signal ends it. Mounts stay.
///
/// # Errors
/// When an argument, the socket or a directory cannot be used.
pub fn run(args: &CsiArgs) -> Result<()> {
    if args.in_host {
        launch::enter_host(&args.state)?;
    }
    let state = std::path::absolute(&args.state)
        .map_err(|error| Problem::usage(format!("--state {}: {error}", args.state.shown())))?;
    let socket = socket_path(&args.endpoint)?;
    let is_name =
        |name: &str| !name.is_empty() && name.len() <= NODE_BYTES_MAX && !name.chars().any(char::is_control);
    let prefixes = Prefixes::parse(&args.url_prefix).map_err(Problem::usage)?;
    // An error of it is one of the driver, and not of the first mount.
    let _made = RuntimeDir::own()?;
    let _own = own_dir(&state)?;
    let locks = Arc::new(Locks::default());
    let identity = IdentityService { name: args.driver_name.clone(), has_controller: args.controller };
    let controller =
        args.controller.then(|| ControllerService { prefixes: prefixes.clone(), locks: Arc::clone(&locks) });
    let node = match &args.node_id {
        Some(name) if is_name(name) => {
            let host = Arc::new(host(args, &state, prefixes)?);
            Some(Arc::new(NodeService { node_id: name.clone(), locks, host }))
        }
        Some(_) => {
            return Err(Problem::usage(format!(
                "--node-id: a name of at most {NODE_BYTES_MAX} bytes without control characters is needed"
            )));
        }
        None if args.controller => None,
        None => return Err(Problem::usage("give --node-id NAME, --controller or both")),
    };
    listener::run(("csi-call", THREADS_MAX), async |stop| {
        if let Some(node) = &node {
            node.release_unused();
        }
        let services = Services::new(identity, controller, node);
        let listener = Listener::open(&socket)?;
        server::serve(&listener, &services, &stop).await;
        Ok(())
    })
}

fn host(args: &CsiArgs, state: &Path, prefixes: Prefixes) -> Result<Host> {
    let root = std::path::absolute(&args.kubelet_root)
        .and_then(|root| fs::canonicalize(&root).map(|real| (root, real)))
        .map_err(|error| {
            Problem::failure(format!("--kubelet-root {}: {error}", args.kubelet_root.shown()))
        })?;
    // As the kernel's table has it.
    let state = fs::canonicalize(state)
        .map_err(|error| Problem::failure(format!("--state {}: {error}", state.shown())))?;
    let [logs, bases, held, targets] =
        ["logs", "directories", "locks", "targets"].map(|name| state.join(name));
    for dir in [&logs, &bases, &held, &targets] {
        let _own = own_dir(dir)?;
    }
    if let Some(relative) = args.directory.iter().find(|directory| !directory.is_absolute()) {
        return Err(Problem::usage(format!("--directory {}: an absolute path is needed", relative.shown())));
    }
    let (options, wrapper) = (NodeOptions::parse(args)?, launch::wrapper(args.mounts));
    options.make_journal_dir()?;
    let directories = args.directory.clone();
    let targets = Targets::new(targets);
    Ok(Host { root, prefixes, directories, options, logs, bases, held, targets, wrapper })
}

/// The path of `unix:///PATH`, `unix:PATH` or `PATH`.
fn socket_path(endpoint: &str) -> Result<std::path::PathBuf> {
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    if !path.starts_with('/') {
        return Err(Problem::usage(format!(
            "--endpoint {endpoint:?}: the absolute path of a unix socket is needed, as unix:///csi/csi.sock"
        )));
    }
    Ok(path.into())
}
