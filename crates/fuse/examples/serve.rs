//! Serves a store at a directory until it is unmounted: `serve SOURCE MOUNTPOINT`.
#![allow(clippy::print_stdout, reason = "it is its purpose")]

use std::error::Error;
use std::sync::Arc;

use volume::{Options, Volume};
use watertight_fuse::{EndReason, Mount, MountOptions, Session, SessionOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(source), Some(mountpoint)) = (args.next(), args.next()) else {
        return Err("usage: serve SOURCE MOUNTPOINT".into());
    };
    let volume = Volume::new(store::open(&source)?, Options::default())?;
    let mount = Mount::new(&MountOptions::new(mountpoint))?;
    let draining = Arc::clone(&volume);
    let options = SessionOptions {
        on_destroy: Box::new(move || {
            draining.shutdown();
        }),
        ..SessionOptions::default()
    };
    let session = Session::new(Arc::clone(&volume), mount, options)?;
    println!("ready");
    let ended = session.run()?;
    if !matches!(ended.reason, EndReason::Destroyed) {
        volume.shutdown();
    }
    println!("{:?}", volume.report());
    Ok(())
}
