//! Any bytes as the body of a mount process's answer, which another user may have written: read or
//! refused, and what is printed of it does nothing to a terminal and is one line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use watertight::control::api::{
    AttachReply, CloneReply, DetachReply, Ended, ErrorReply, LeaveReply, Limits, MoveReply, Status, Synced,
    UmountReply, WaitReply,
};
use watertight::control::events::Event;
use watertight::control::metrics;
use watertight::term::shown::{in_json, in_one_line};

/// No end of a line, nothing that a terminal obeys, nothing that turns the text around.
fn is_harmless(text: &str) {
    let acts = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!text.contains(acts), "{text:?}");
}

/// Reads it; what was read is written and read again as the same.
fn read<T: DeserializeOwned + Serialize>(body: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(body).ok()?;
    let text = serde_json::to_string(&value).expect("it was JSON");
    let again: T = serde_json::from_str(&in_json(&text)).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(serde_json::to_string(&again).expect("it was JSON"), text);
    Some(value)
}

fn ended(ended: &Ended) {
    ended.lost("it".to_owned(), 1000).iter().for_each(|line| is_harmless(line));
}

fn status(status: &Status) {
    for name in [&status.source, &status.mountpoint, &status.mount_type, &status.transport, &status.mode] {
        is_harmless(&name.to_string());
    }
    status.cgroups.iter().for_each(|cgroup| is_harmless(&cgroup.path.to_string()));
    status.limits.iter().for_each(|limits| is_harmless(&limits.cgroup.to_string()));
    status.errors.iter().for_each(|error| is_harmless(&format!("{} {}", error.file, error.error)));
    if let Err(why) = status.health() {
        is_harmless(&why);
    }
    // A page of lines, each a sample or a comment: a name begins none.
    for line in metrics::page(&[status], &[]).lines() {
        assert!(line.starts_with(['#', 'w']), "{line:?}");
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, body)) = input.split_first() else { return };
    match choice % 12 {
        0 => drop(read::<Status>(body).inspect(status)),
        1 => drop(read::<Vec<Status>>(body).inspect(|all| all.iter().for_each(status))),
        2 => drop(read::<WaitReply>(body).inspect(|reply| reply.ended.iter().for_each(ended))),
        3 => drop(read::<UmountReply>(body).inspect(|reply| {
            reply.ended.iter().for_each(ended);
            reply.holders.lines().iter().for_each(|line| is_harmless(line));
        })),
        4 => drop(read::<Event>(body)),
        5 => drop(read::<ErrorReply>(body).inspect(|reply| is_harmless(&in_one_line(&reply.error)))),
        6 => drop(read::<Limits>(body)),
        7 => drop(read::<Synced>(body)),
        8 => drop(read::<DetachReply>(body).inspect(|reply| {
            reply.ended.iter().for_each(ended);
            reply.holders.lines().iter().for_each(|line| is_harmless(line));
        })),
        9 => drop(read::<AttachReply>(body)),
        10 => drop(read::<MoveReply>(body)),
        _ => drop((read::<CloneReply>(body), read::<LeaveReply>(body))),
    }
});
