//! `demo`: the benefit of volumes that do not wait for each other, in under a minute; with `objects`,
//! of an unmount that waits for the bucket.
//!
//! Everything goes through the program itself, started as a person would start it, with a runtime
//! directory of its own. Nothing is left behind, also after Ctrl-C.

#[cfg(feature = "objects")]
mod bucket;
mod events;
mod files;
#[cfg(feature = "objects")]
mod objects;
mod say;
mod stage;
mod stalled;
mod table;
mod tenants;
mod unmount;

use std::sync::Arc;

use sync::Mutex;

use self::say::failed;
use self::stage::{Demo, Stage};
use self::table::Table;
use crate::cli::{DemoArgs, DemoPart};
use crate::host::signals;
use crate::term::problem::Result;

/// Runs the verb.
///
/// # Errors
/// When this user cannot mount, or when a claim of the demo does not hold.
pub fn run(args: &DemoArgs) -> Result<()> {
    let (stage, paths) = Stage::build()?;
    let stage = Arc::new(Mutex::new(Some(stage)));
    // Takes everything down; the main thread's next step then fails.
    signals::clean_up(Arc::clone(&stage), "stopped; nothing is left behind")
        .map_err(|error| failed("handling signals", &error))?;
    let demo = Demo::new(paths, Arc::clone(&stage), &args.mount_type);
    let outcome = match args.part {
        None => show(&demo),
        #[cfg(feature = "objects")]
        Some(DemoPart::Objects) => objects::show(&demo),
        #[cfg(not(feature = "objects"))]
        Some(DemoPart::Objects) => Err(crate::object_volumes::absent()),
    };
    // The thread that takes signals holds the stage as well: it goes here, however the demo went.
    drop(stage.lock().take());
    outcome
}

fn show(demo: &Demo) -> Result<()> {
    let mut table = Table::default();
    unmount::show(demo, &mut table)?;
    tenants::show(demo, &mut table)?;
    stalled::show(demo, &mut table)?;
    events::show(&mut table)?;
    table.print();
    Ok(())
}
