//! `info`: describes a volume on object storage, without taking it.

#[cfg(test)]
use objects::LeftJournal;
use objects::{Compression, Holder, Info};

use crate::cli::InfoArgs;
use crate::control::progress;
use crate::object_volumes::{canonical, problem};
use crate::term::console::console;
use crate::term::problem::Result;
use crate::term::shown::Show as _;
use crate::term::units;

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a URL or a key file that cannot be; 1 where there is no volume, or the bucket cannot
/// be used.
pub fn run(args: &InfoArgs) -> Result<()> {
    let url = canonical(&args.url)?;
    let what = format!("looking at {}", url.shown());
    let key_file = args.encrypt_key_file.as_deref();
    let look = || objects::info(&url, key_file).map_err(|error| problem(&url, &error));
    let info = progress::waiting_for(&what, "the bucket", look)?;
    if args.json {
        console().print_value(&info)?;
    } else {
        console().print(&page(&info));
    }
    Ok(())
}

/// Everything for a person, a line each. What comes from the bucket is any text.
fn page(info: &Info) -> String {
    let compression = match info.compression {
        Compression::None => "not compressed",
        Compression::Zstd => "compressed by zstd",
        Compression::Lz4 => "compressed by LZ4",
    };
    let encrypted = if info.encrypted { "encrypted" } else { "not encrypted" };
    let content = match (info.bytes, info.files) {
        (Some(bytes), Some(files)) => {
            format!("{} in {}", units::bytes(bytes), units::count(files, "file", "files"))
        }
        _ if info.encrypted => "not known without its key: give --encrypt-key-file".to_owned(),
        _ => "not known".to_owned(),
    };
    let snapshots = match (info.snapshots.len(), info.snapshots.last()) {
        (_, None) => "none".to_owned(),
        (count, Some(last)) => {
            format!("{count}, the last is {} of {}", last.name.shown(), last.created.shown())
        }
    };
    let holder = info.holder.as_ref().map_or_else(|| "nobody: it can be mounted".to_owned(), held);
    let journal = info.journal.as_ref().map_or_else(String::new, |journal| {
        let (host, directory) = (journal.host.shown(), journal.directory.shown());
        format!("\n  journal    host {host}, {directory}: it may have data that is not in the bucket")
    });
    format!(
        "{}\n  id         {}\n  format     version {}, {compression}, {encrypted}\n  made       {}\n  \
         content    {content}\n  holder     {holder}{journal}\n  snapshots  {snapshots}",
        info.url.shown(),
        info.uuid.shown(),
        info.version,
        info.created.shown(),
    )
}

fn held(holder: &Holder) -> String {
    format!(
        "host {}, process {}, at {}, since {} ({})",
        holder.host.shown(),
        holder.pid,
        holder.mountpoint.shown(),
        holder.since.shown(),
        holder.state.shown()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_it_is_named_and_what_the_bucket_says_stays_in_its_line() {
        let holder = Holder {
            host: "alpha\nbeta".to_owned(),
            pid: 7,
            mountpoint: "/mnt/\u{1b}[2J".to_owned(),
            since: "2026-11-26T12:00:00Z".to_owned(),
            state: "held".to_owned(),
        };
        let info = Info {
            url: "s3://bucket/a".to_owned(),
            uuid: "u".to_owned(),
            version: 1,
            created: "2026-11-25T12:00:00Z".to_owned(),
            compression: Compression::Lz4,
            encrypted: true,
            bytes: None,
            files: None,
            holder: Some(holder),
            snapshots: Vec::new(),
            journal: None,
        };
        let text = page(&info);
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        for part in ["process 7", "compressed by LZ4, encrypted", "not known without its key"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        let journal = Some(LeftJournal { host: "a\nb".to_owned(), directory: "/j".to_owned() });
        let left = page(&Info { journal, ..info.clone() });
        assert!(left.lines().count() == 8 && left.contains("/j: it may have data"), "{left}");
        let free = Info { holder: None, bytes: Some(2048), files: Some(3), ..info };
        assert!(page(&free).contains("nobody") && page(&free).contains("3 files"), "{}", page(&free));
    }
}
