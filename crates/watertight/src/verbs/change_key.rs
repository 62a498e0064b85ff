//! `change-key`: gives an encrypted volume on object storage another key.

use crate::cli::ChangeKeyArgs;
use crate::control::progress;
use crate::object_volumes::{canonical, problem};
use crate::term::console::console;
use crate::term::problem::Result;
use crate::term::shown::Show as _;

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a URL or a key file that cannot be; 1 where the old key does not fit, and where the
/// bucket cannot be used.
pub fn run(args: &ChangeKeyArgs) -> Result<()> {
    let url = canonical(&args.url)?;
    let what = format!("changing the key of {}", url.shown());
    let change = || {
        objects::change_key(&url, &args.old_key_file, &args.new_key_file)
            .map_err(|error| problem(&url, &error))
    };
    let changed = progress::waiting_for(&what, "the bucket", change)?;
    if args.json {
        return console().print_value(&changed);
    }
    let (url, new) = (changed.url.shown(), args.new_key_file.shown());
    let what = if changed.changed { "has the key of" } else { "had already the key of" };
    console().print(&format!(
        "{url}: the volume {what} {new}; its data is as it was, and mounts that are there go on"
    ));
    Ok(())
}
