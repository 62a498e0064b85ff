//! The lab: asks the questions that this project's claims rest on, and measures the answers.
//!
//! Each experiment runs every variant and every peer in one process run, interleaved, so that
//! changes of the machine's load affect all of them. [`experiment`] defines an experiment,
//! [`report`] and [`stats`] process its samples; `volumes` is the first.

mod child;
mod cli;
mod control;
mod disk_cache;
mod drain;
mod eventpoll;
mod experiment;
mod experiments;
mod host;
mod isolation;
mod kernels;
mod machine;
mod mapped;
mod modules;
mod mounts;
mod mutants;
mod null_server;
mod objects;
mod page_blocks;
mod progress;
mod random;
mod rcu;
mod report;
mod results;
mod scale;
mod source;
mod stats;
mod sync;
mod table;
mod volumes;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        // A peer of the experiments that is this executable itself, in a process of its own.
        Some(first) if first == null_server::COMMAND => return null_server::main(arguments.next()),
        Some(first) if first == sync::client::COMMAND => return sync::client::main(arguments),
        Some(first) if first == isolation::keeper::COMMAND => {
            return isolation::keeper::main(arguments.next());
        }
        Some(first) if first == isolation::tenant::COMMAND => return isolation::tenant::main(arguments),
        Some(first) if first == disk_cache::process::COMMAND => return disk_cache::process::main(arguments),
        Some(first) if first == host::COMMAND => return host::main(),
        Some(first) if first == results::COMMAND => return results::main(),
        Some(first) if first == modules::COMMAND => return modules::main(),
        Some(first) if first == mutants::COMMAND => return mutants::main(),
        Some(first) if first == kernels::COMMAND => return kernels::main(),
        Some(first) if first == kernels::INSIDE => return kernels::main_inside(),
        Some(first) if first == kernels::NAMESPACE => return kernels::main_namespace(arguments),
        Some(first) if first == drain::churner::COMMAND => return drain::churner::main(arguments),
        _ => {}
    }
    cli::main()
}
