//! `gc`: removes objects that nobody needs from a volume's bucket.

use objects::Collected;

use crate::cli::GcArgs;
use crate::control::progress;
use crate::object_volumes::{canonical, problem};
use crate::term::console::console;
use crate::term::problem::Result;
use crate::term::shown::Show as _;
use crate::term::units;

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a URL or a key file that cannot be; 1 where another process holds the volume, and
/// where the bucket cannot be used.
pub fn run(args: &GcArgs) -> Result<()> {
    let url = canonical(&args.url)?;
    let what = format!("collecting the garbage of {}", url.shown());
    let key_file = args.encrypt_key_file.as_deref();
    let collect =
        || objects::collect_garbage(&url, key_file, args.dry_run).map_err(|error| problem(&url, &error));
    let collected = progress::waiting_for(&what, "the bucket", collect)?;
    if args.json {
        console().print_value(&collected)?;
    } else {
        console().print(&line(&collected));
    }
    Ok(())
}

fn line(collected: &Collected) -> String {
    let url = collected.url.shown();
    if let Some(first) = collected.readers.first() {
        return format!(
            "{url}: nothing was removed, for it is mounted read-only elsewhere, as the object {} says: if that mount is \
             gone, delete the object",
            first.shown()
        );
    }
    let objects = units::count(collected.objects, "object", "objects");
    let bytes = units::bytes(collected.bytes);
    match (collected.objects, collected.dry_run) {
        (0, _) => format!("{url}: there is no garbage"),
        (_, true) => format!("{url}: {objects} with {bytes} would be removed"),
        (_, false) => format!("{url}: {objects} with {bytes} were removed"),
    }
}
