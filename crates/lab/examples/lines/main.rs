//! How many cache lines move between processors for one event, against the number of producers.
//!
//! `RUSTFLAGS="--cfg lines" cargo run -p lab --example lines --target-dir target/lines`
//!
//! The model: our eventpoll's own code with three ready lists, on as many processors as there are
//! threads, each doing one atomic operation in its turn (`sync::lines`). N producers signal a
//! source of their own without a pause; one consumer takes the ready ones without sleeping.
//!
//! The count to check it by: two processors, as this machine may have, with up to 8 producers to a
//! processor. The model runs as many threads on two processors as well; beside that stands the
//! count where these threads are pinned to two processors and run freely.
#![allow(clippy::print_stdout, reason = "prints a table")]

#[cfg(lines)]
mod counted;
#[cfg(lines)]
#[path = "../../src/eventpoll/lists.rs"]
mod lists;
#[cfg(lines)]
mod model;

#[cfg(lines)]
fn main() {
    model::main();
}

#[cfg(not(lines))]
fn main() -> std::process::ExitCode {
    eprintln!("lines: built without its counters; build it with RUSTFLAGS=\"--cfg lines\"");
    std::process::ExitCode::from(2)
}
