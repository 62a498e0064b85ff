//! `why`: what the requests of a process, or for a volume, wait for now.

mod sentence;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use self::sentence::{Case, idle, line};
use crate::cli::WhyArgs;
use crate::control::api::{Limits, RequestUnderWay, Status};
use crate::control::client::{CallError, Client};
use crate::registry::target::{self, RegisteredVolume};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::verbs::sync::find;

/// How long to look for a request that waits.
const LOOK: Duration = Duration::from_secs(1);
/// One that has been under way for so long is what was looked for.
const LONG: Duration = Duration::from_millis(100);
/// How often to look.
const EVERY: Duration = Duration::from_millis(50);
/// How long a process may take to answer, and all together.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_OF_ALL: Duration = Duration::from_secs(5);
/// Requests that are named.
const NAMED_MAX: usize = 8;

/// Runs the verb.
///
/// # Errors
/// Exit 2 where there is no such process, or the path lies in no volume; 1 when the mount process
/// cannot be asked.
pub fn run(args: &WhyArgs) -> Result<()> {
    let pid = args.target.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (sentence, evidence, requests) = match pid {
        Some(pid) => of_process(pid)?,
        None => of_volume(args)?,
    };
    if args.json {
        return console().print_value(&json!({ "sentence": sentence, "requests": requests }));
    }
    console().print(&sentence);
    evidence.iter().for_each(|line| console().print(&format!("  {line}")));
    Ok(())
}

/// The sentence, what it rests on in lines, and the requests that it is about.
type Answer = (String, Vec<String>, Vec<RequestUnderWay>);

fn of_volume(args: &WhyArgs) -> Result<Answer> {
    let (volume, _) = find(&args.target)?;
    let client = volume.client()?;
    let at = &volume.record().mountpoint;
    let failed = |error: CallError| Problem::failure(format!("{at}: {error}"));
    let before = client.stats().map_err(failed)?;
    let requests = look(|| client.under_way().map(|all| all.requests)).map_err(failed)?;
    let status = client.status().map_err(failed)?;
    let Some(longest) = requests.first() else {
        let stats = client.stats().map_err(failed)?.since(&before);
        return Ok((idle(&status, &stats), Vec::new(), requests));
    };
    let sentence = of_request(longest, client, &status);
    Ok((sentence, lines(&requests), requests))
}

fn of_process(pid: &str) -> Result<Answer> {
    let threads = || -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
    };
    if threads().is_empty() {
        return Err(Problem::usage(format!("there is no process {pid}; a file of this name is `./{pid}`")));
    }
    let all = target::volumes();
    let mounts: Vec<&RegisteredVolume> =
        all.iter().filter(|volume| volume.is_running() && !volume.is_attached()).collect();
    let mut silent = Vec::new();
    let requests = look(|| {
        let (until, of) = (Instant::now() + PATIENCE_OF_ALL, threads());
        let mut requests: Vec<RequestUnderWay> = Vec::new();
        silent.clear();
        for mount in &mounts {
            let left = until.saturating_duration_since(Instant::now()).min(PATIENCE);
            match mount.client().ok().map(|client| client.under_way_within(left)) {
                Some(Ok(all)) => {
                    requests.extend(all.requests.into_iter().filter(|one| of.contains(&one.caller)))
                }
                None | Some(Err(CallError::Gone)) => {}
                Some(Err(error)) => silent.push(format!("{}: {error}", mount.record().mountpoint)),
            }
        }
        requests.sort_by_key(|one| std::cmp::Reverse(one.for_us));
        Ok::<_, Problem>(requests)
    })?;
    let Some(longest) = requests.first() else {
        let sentence = format!("no request of process {pid} waits in a volume");
        silent.push(format!("{} mounts were asked for {} s", mounts.len(), LOOK.as_secs()));
        return Ok((sentence, silent, requests));
    };
    let of_request = |volume: &RegisteredVolume| {
        let client = volume.client().ok()?;
        Some(of_request(longest, client, &client.status_within(PATIENCE).ok()?))
    };
    let volume =
        all.iter().find(|volume| volume.is_running() && volume.record().mountpoint == longest.mountpoint);
    let sentence = volume.and_then(of_request).unwrap_or_else(|| line(longest, &name_of(longest.caller)));
    let mut evidence = lines(&requests);
    evidence.extend(silent);
    Ok((sentence, evidence, requests))
}

/// Looks until a request has been under way for long, the oldest first; those that were there at
/// the end of the time if none has.
fn look<E>(
    mut ask: impl FnMut() -> std::result::Result<Vec<RequestUnderWay>, E>,
) -> std::result::Result<Vec<RequestUnderWay>, E> {
    let until = Instant::now() + LOOK;
    loop {
        let requests = ask()?;
        let is_long = requests.first().is_some_and(|one| Duration::from_micros(one.for_us) >= LONG);
        if is_long {
            return Ok(requests);
        }
        if Instant::now() >= until {
            return Ok(Vec::new());
        }
        // Nothing reports a request that has waited for long.
        thread::sleep(EVERY);
    }
}

fn of_request(request: &RequestUnderWay, client: &Client, status: &Status) -> String {
    let limits =
        if request.limit.is_some() { client.limits().unwrap_or_default() } else { Limits::default() };
    let own = cgroups::Hierarchy::find(&cgroups::Choice::Auto)
        .ok()
        .flatten()
        .and_then(|tree| tree.path_of(request.caller))
        .map(|below| Path::new("/").join(below));
    let is_own = request.limit.as_ref().is_some_and(|limit| own.as_deref() == Some(limit.cgroup.as_path()));
    Case { request, caller: &name_of(request.caller), is_own, limits: &limits.limits, status }.sentence()
}

fn lines(requests: &[RequestUnderWay]) -> Vec<String> {
    let shown = requests.iter().take(NAMED_MAX).map(|one| line(one, &name_of(one.caller)));
    let more = requests.len().saturating_sub(NAMED_MAX);
    shown.chain((more > 0).then(|| format!("and {more} more"))).collect()
}

/// `dd (4711)`.
fn name_of(thread: u32) -> String {
    if thread == 0 {
        return "the kernel".to_owned();
    }
    let name = fs::read(format!("/proc/{thread}/comm")).unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    if name.is_empty() {
        return format!("thread {thread}");
    }
    format!("{} ({thread})", OsStr::from_bytes(name).shown())
}
