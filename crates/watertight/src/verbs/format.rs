//! `format`: makes a volume on object storage.

use objects::{Compression, FormatOptions};

use crate::cli::{Compress, FormatArgs};
use crate::control::progress;
use crate::object_volumes::{canonical, problem};
use crate::term::console::console;
use crate::term::problem::Result;
use crate::term::shown::Show as _;

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a URL or a key file that cannot be; 1 where there is a volume already, and where the
/// bucket cannot be used.
pub fn run(args: &FormatArgs) -> Result<()> {
    let url = canonical(&args.url)?;
    let options = FormatOptions {
        compression: match args.compress {
            Compress::Zstd => Compression::Zstd,
            Compress::Lz4 => Compression::Lz4,
            Compress::None => Compression::None,
        },
        key_file: args.encrypt_key_file.clone(),
        size_max: args.size,
    };
    let what = format!("formatting {}", url.shown());
    let format = || objects::format(&url, &options).map_err(|error| problem(&url, &error));
    let formatted = progress::waiting_for(&what, "the bucket", format)?;
    if args.json {
        return console().print_value(&formatted);
    }
    let (url, probe) = (formatted.url.shown(), formatted.probe.shown());
    let key = args.encrypt_key_file.as_ref().map_or_else(String::new, |file| {
        format!(" -o encrypt-key-file={}", std::path::absolute(file).as_ref().unwrap_or(file).shown())
    });
    console().print(&format!(
        "{url}: a volume is there now ({}); the bucket: {probe}\n\
         `watertight mount{key} {url} DIRECTORY` mounts it, on this host or any other",
        formatted.uuid.shown()
    ));
    Ok(())
}
