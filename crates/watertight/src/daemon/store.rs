//! The store of a volume, and the volume over it.

use std::sync::Arc;

use store::{ErrorKind, Store};
use volume::{Tenants, Volume};

use crate::cli::opts::MountOptions;
use crate::host::checks::{self, Source};
use crate::registry::target;
use crate::term::console::{Colour, console};
use crate::term::logging;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, in_one_line};

pub(crate) fn open_store(source: &Source, options: &MountOptions) -> Result<Arc<dyn Store>> {
    let spec = &source.spec;
    let shown = spec.shown();
    let no_atime = options.flags.iter().any(|flag| flag == "noatime");
    let how = store::DirOptions { no_atime, ..Default::default() };
    store::open_with(spec, how).map_err(|error| match error.kind() {
        ErrorKind::Busy => {
            let directory = checks::directory_of(spec).unwrap_or_default();
            let volume = target::running(directory.as_ref()).into_iter().find(|v| {
                v.is_running()
                    && checks::directory_of(v.record().source.as_str()) == checks::directory_of(spec)
            });
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
) -> Result<Arc<Volume>> {
    let defaults = volume::Options::default();
    let volume_options = volume::Options {
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
        ..defaults
    };
    Volume::new(Arc::clone(&store), volume_options).map_err(|error| {
        store.close();
        Problem::failure(format!("the volume cannot be started: {error}"))
    })
}
