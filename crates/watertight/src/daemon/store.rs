//! The store of a volume, and the volume over it.

use std::path::Path;
use std::sync::Arc;

use recovery::Recovery;
use store::{DirOptions, ErrorKind, FaultStore, MemStore, Store};
use volume::{Tenants, Volume};

use crate::cli::opts::MountOptions;
use crate::host::checks::{self, Source};
use crate::object_volumes;
use crate::registry::target;
use crate::term::console::{Colour, console};
use crate::term::logging;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, in_one_line};

/// Opens a store, whose volume is to be seen at `mountpoint`.
pub(crate) fn open_store(
    source: &Source,
    options: &MountOptions,
    mountpoint: &Path,
) -> Result<Arc<dyn Store>> {
    let spec = &source.spec;
    let shown = spec.shown();
    open(spec, options, mountpoint).map_err(|error| match error.kind() {
        // Its holder may be on another host; the error names it.
        _ if source.url.is_some() => object_volumes::problem(spec, &error),
        ErrorKind::Busy => {
            let identity = checks::identity_of(spec);
            let volume = target::running(identity.unwrap_or_default().as_ref())
                .into_iter()
                .find(|v| v.is_running() && checks::identity_of(v.record().source.as_str()) == identity);
            let at = volume.map_or_else(String::new, |volume| {
                format!("; it is mounted at {}", volume.record().mountpoint)
            });
            match error.detail() {
                Some(by_whom) => Problem::failure(format!("store {}{at}", in_one_line(by_whom))),
                None => Problem::failure(format!("store {shown} is in use{at}")),
            }
        }
        ErrorKind::Invalid => Problem::usage(format!("source {shown}: {}", in_one_line(&error.to_string()))),
        ErrorKind::AccessDenied | ErrorKind::NotPermitted => {
            Problem::failure(format!("no permission to use the store {shown}: {error}"))
        }
        _ => Problem::failure(format!("the store {shown} cannot be opened: {error}")),
    })
}

/// The store by its name; one that fails by rules may be around any other.
fn open(spec: &str, options: &MountOptions, mountpoint: &Path) -> store::Result<Arc<dyn Store>> {
    if let Some((rules, inner)) = spec.strip_prefix("fault:").and_then(|rest| rest.split_once(',')) {
        // The rules first: a store is not opened for nothing.
        FaultStore::new(MemStore::new(0), rules)?;
        return Ok(FaultStore::new(open(inner, options, mountpoint)?, rules)?);
    }
    if object_volumes::looks_like(spec) {
        return object_volumes::open(spec, &options.objects, options.read_only == Some(true), mountpoint);
    }
    let no_atime = options.flags.iter().any(|flag| flag == "noatime");
    store::open_with(spec, DirOptions { no_atime, ..Default::default() })
}

/// `volume` is the log's name for it.
pub(crate) fn is_read_only(
    options: &MountOptions,
    (source, volume): (&Source, &str),
    store: &dyn Store,
) -> Result<bool> {
    let spec = source.spec.shown();
    match options.read_only {
        Some(true) => Ok(true),
        Some(false) if store.is_read_only() => {
            store.close();
            Err(Problem::failure(format!(
                "store {spec} is read-only, and rw was asked for; mount it with -o ro, or make it writable"
            )))
        }
        Some(false) => Ok(false),
        None => {
            if store.is_read_only() {
                let notice = format!("store {spec} is read-only: it is mounted read-only");
                if logging::has_all() {
                    tracing::warn!(volume, "{notice}");
                } else {
                    console().say(&console().paint_err(Colour::Yellow, &notice));
                }
            }
            Ok(store.is_read_only())
        }
    }
}

pub(crate) fn start_volume(
    name: &str,
    options: &MountOptions,
    store: Arc<dyn Store>,
    tenants: Arc<Tenants>,
    recovery: Option<&Arc<Recovery>>,
) -> Result<Arc<Volume>> {
    Volume::new(Arc::clone(&store), volume_options(name, options, tenants, recovery)).map_err(|error| {
        store.close();
        Problem::failure(format!("the volume cannot be started: {error}"))
    })
}

/// The options of a volume with this name.
pub(crate) fn volume_options(
    name: &str,
    options: &MountOptions,
    tenants: Arc<Tenants>,
    recovery: Option<&Arc<Recovery>>,
) -> volume::Options {
    let defaults = volume::Options::default();
    volume::Options {
        name: name.to_owned(),
        cache_bytes_max: options.cache_bytes,
        flushers: options.flushers.unwrap_or(defaults.flushers),
        dirty_after: options.dirty_after.unwrap_or(defaults.dirty_after),
        flush_on_close: options.flush_on_close,
        drain_deadline: options.drain_timeout,
        stall_after: options.stall_after,
        dirty_bytes_max: options.dirty_bytes_max,
        sync_policy: options.sync_policy,
        tenants,
        recovery: recovery.map(Arc::clone),
        write_through: options.objects.accept_to_host,
        ..defaults
    }
}
