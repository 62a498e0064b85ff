//! Processes that tests start on a volume: each verb is one kind of work.
//!
//! `append FILE ID COUNT`, `map FILE ID STRIDE WORDS`, `log FILE`,
//! `crash DIR ROUND SEED (sync|nosync) (honest|lying)`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::ExitCode;

use watertight_acceptance::crash::{Plan, write_steps};
use watertight_acceptance::rng::Rng;
use watertight_acceptance::sys::Mapping;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["append", file, id, count] => append(file, number(id), number(count)),
        ["map", file, id, stride, words] => map(file, number(id), number(stride), number(words)),
        ["log", file] => log(file),
        ["crash", dir, round, seed, sync, honesty] => {
            let plan = Plan::new(number(round), number(seed), *sync == "sync");
            write_steps(Path::new(dir), plan, *honesty == "lying", &mut io::stdout())
        }
        _ => Err(io::Error::other(format!("no such work: {args:?}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{args:?}: {e}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

/// Appends `count` records, each in one write(2): a line with the writer's number, the record's,
/// filler of random length and the length of it all.
fn append(file: &str, id: u64, count: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(file)?;
    let mut rng = Rng::new(id);
    for n in 0..count {
        let filler = "x".repeat(rng.index(6000));
        let head = format!("{id} {n} {} {filler}", filler.len());
        file.write_all(format!("{head} {}\n", head.len()).as_bytes())?;
    }
    Ok(())
}

/// Appends records of 512 bytes, its number 64 times in each, and syncs each; writes a byte to
/// standard output for each that is synced. Ends with the first failure.
fn log(file: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(file)?;
    for number in 0_u64.. {
        file.write_all_at(&number.to_le_bytes().repeat(64), number * 512)?;
        file.sync_all()?;
        io::stdout().write_all(b".")?;
        io::stdout().flush()?;
    }
    Ok(())
}

/// Writes every `stride`-th word of `words` through a shared mapping, beginning at the `id`-th;
/// syncs now and then.
fn map(file: &str, id: u64, stride: u64, words: u64) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let len = usize::try_from(words * 8).map_err(io::Error::other)?;
    let map = Mapping::new(&file, len)?;
    for word in (id..words).step_by(usize::try_from(stride).map_err(io::Error::other)?) {
        let at = usize::try_from(word * 8).map_err(io::Error::other)?;
        map.write(at, &(word << 8 | id).to_le_bytes());
        if word % 5003 == 0 {
            map.sync()?;
        }
    }
    map.sync()
}
