//! Events as lines, for people and for programs.

use std::io::{self, Write};

use volume::events::{Edge, Life, Limit};

use crate::control::api::now_ms;
use crate::control::events::{Event, EventKind};
use crate::registry::Record;
use crate::term::console::{Colour, console};
use crate::term::shown::{Name, in_json, in_one_line};
use crate::term::units;

/// Prints events in one form.
pub(super) struct Printer {
    is_json: bool,
}

impl Printer {
    pub(super) const fn new(is_json: bool) -> Self {
        Self { is_json }
    }

    pub(super) fn print(&self, event: &Event, mountpoint: &Name) -> io::Result<()> {
        if self.is_json {
            return line(&in_json(&serde_json::to_string(event)?));
        }
        let (colour, text) = words(&event.what);
        let text = console().paint(colour, &text);
        let volume = &event.volume;
        line(&console().harmless(&format!("{}  {volume}  {mountpoint}  {text}", units::utc(event.time_ms))))
    }

    /// A volume whose events are not read (any more): for programs an event that no volume has
    /// sent.
    pub(super) fn unheard(&self, record: &Record, why: &str) -> io::Result<()> {
        let Record { id, mountpoint, .. } = record;
        if self.is_json {
            let event =
                serde_json::json!({ "kind": "unheard", "time_ms": now_ms(), "volume": id, "error": why });
            return line(&in_json(&event.to_string()));
        }
        let text = console().paint(Colour::Red, &format!("unheard: {}", in_one_line(why)));
        line(&console().harmless(&format!("{}  {id}  {mountpoint}  {text}", units::utc(now_ms()))))
    }
}

/// Writes one line at once, even where others write to the same place.
fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{text}\n").as_bytes())?;
    out.flush()
}

/// An event for a person.
fn words(what: &EventKind) -> (Colour, String) {
    let lasts = |edge, begins: String, ends: String| match edge {
        Edge::Begins => (Colour::Yellow, begins),
        Edge::Ends => (Colour::Green, ends),
    };
    match what {
        EventKind::Life { state, path, error } => {
            let (colour, state) = match state {
                Life::Mounted => (Colour::Green, "mounted"),
                Life::Attached => (Colour::Green, "attached"),
                Life::Detached => (Colour::Yellow, "detached: no path leads to it any more"),
                Life::Draining => (Colour::Yellow, "draining: it writes what is left"),
                Life::Released => (Colour::Dim, "released: everything is on the store"),
                Life::Failed => (Colour::Red, "failed"),
            };
            let at = path.as_ref().map_or_else(String::new, |path| format!(" at {path}"));
            let why = error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
            (colour, format!("{state}{at}{why}"))
        }
        EventKind::Limit { cgroup, limit, edge } => {
            let limit = match limit {
                Limit::IoMax => "io.max",
                Limit::DirtyMax => "memory.dirty_max",
            };
            lasts(
                *edge,
                format!("{limit} of {cgroup} throttles its writers"),
                format!("{limit} of {cgroup} no longer throttles its writers"),
            )
        }
        EventKind::Stall { edge: Edge::Begins } => {
            (Colour::Red, "stalled: the store does not answer".to_owned())
        }
        EventKind::Stall { edge: Edge::Ends } => (Colour::Green, "the store answers again".to_owned()),
        EventKind::CacheFull { edge } => {
            lasts(*edge, "the cache is full: writers wait".to_owned(), "the cache has room again".to_owned())
        }
        EventKind::Error { file, error } => {
            (Colour::Red, format!("{file} could not be written: {error}; its data stays in the cache"))
        }
        EventKind::Gap { lost } => {
            (Colour::Red, format!("gap: {} missing", units::count(*lost, "event is", "events are")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_words() {
        let say = |what: EventKind| words(&what).1;
        let path = Some("/mnt".into());
        assert_eq!(say(EventKind::Life { state: Life::Mounted, path, error: None }), "mounted at /mnt");
        let error = Some("5 bytes of 1 files were not written".into());
        assert_eq!(
            say(EventKind::Life { state: Life::Failed, path: None, error }),
            "failed: 5 bytes of 1 files were not written"
        );
        let limit = |limit, edge| say(EventKind::Limit { cgroup: "/t/a".into(), limit, edge });
        assert_eq!(limit(Limit::IoMax, Edge::Begins), "io.max of /t/a throttles its writers");
        assert_eq!(
            limit(Limit::DirtyMax, Edge::Ends),
            "memory.dirty_max of /t/a no longer throttles its writers"
        );
        assert_eq!(say(EventKind::Gap { lost: 1 }), "gap: 1 event is missing");
        assert_eq!(say(EventKind::Gap { lost: 7 }), "gap: 7 events are missing");
    }
}
