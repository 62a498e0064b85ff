//! The log: text for people, JSON for programs, priorities for the journal.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Out, PROGRAM, Rig, eventually, has, run};

/// Mounts a store that fails, so that something is logged, and returns all of the log.
fn log_of(rig: &mut Rig, format: &[&str]) -> String {
    let mut command = rig.command(&["mount"]);
    command.arg(format!("fault:write:fail=ENOSPC,dir:{}", rig.store.display())).arg(&rig.mnt);
    command.args(["-o", "dirty_after=10ms,drain_timeout=1s"]).args(format);
    let daemon = rig.start(command);
    fs::write(rig.mnt.join("a \"b\" 'c'\n"), "12345").unwrap();
    daemon.says("write-back failed");
    rig.verb("umount", &["--force"]).ends(1, "5 bytes");
    assert_eq!(daemon.end(), Some(1));
    daemon.stderr()
}

/// The events of a log in JSON; the line after them is the verb's own last word.
fn events(log: &str) -> Vec<Value> {
    let (events, rest): (Vec<&str>, Vec<&str>) = log.lines().partition(|line| line.starts_with('{'));
    assert!(rest.first().is_none_or(|line| line.starts_with("watertight: ")), "{log}");
    events
        .into_iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

#[test]
fn a_log_that_nobody_reads_on_a_terminal_is_json() {
    let Some(mut rig) = Rig::mounting() else { return };
    let log = log_of(&mut rig, &[]);
    let events = events(&log);
    let failed = events
        .iter()
        .find(|event| event["message"].as_str().is_some_and(|m| m.contains("write-back failed")));
    let failed = failed.unwrap_or_else(|| panic!("{log}"));
    assert!(["WARN", "ERROR"].contains(&failed["level"].as_str().unwrap()), "{failed}");
    assert!(failed["target"].as_str().unwrap().contains("watertight"), "{failed}");
    let time = failed["timestamp"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.contains('T'), "{time}");
    assert!(failed.as_object().unwrap().len() > 4, "the event has fields of its own: {failed}");
}

#[test]
fn the_form_can_be_chosen() {
    let Some(mut rig) = Rig::mounting() else { return };
    let text = log_of(&mut rig, &["--log-format", "text"]);
    assert!(!text.contains("{\""), "{text}");
    assert!(text.lines().any(|line| line.contains("write-back failed") && !line.starts_with('<')), "{text}");
    let journal = log_of(&mut rig, &["--log-format", "journald"]);
    assert!(
        journal.lines().any(|line| line.starts_with('<') && line.contains("write-back failed")),
        "{journal}"
    );
    rig.run(&["--log-format", "xml", "status"]).ends(2, "possible values: text, json, journald");
}

/// The spans whose beginning (`new`) or end (`close`) a log reports, with the names of the spans
/// around them.
fn steps(events: &[Value], which: &str) -> Vec<(String, Value, Vec<String>)> {
    let told = events.iter().filter(|event| event["message"] == which);
    told.map(|event| {
        let around = event["spans"].as_array().into_iter().flatten();
        let around = around.map(|span| span["name"].as_str().unwrap().to_owned()).collect();
        (event["span"]["name"].as_str().unwrap().to_owned(), event["span"].clone(), around)
    })
    .collect()
}

#[test]
fn each_step_of_a_volumes_life_is_a_span() {
    let Some(mut rig) = Rig::mounting() else { return };
    let mut command = rig.command(&["--log-level", "debug", "mount"]);
    command.arg(&rig.store).arg(&rig.mnt);
    let daemon = rig.start(command);
    for name in ["in", "to"] {
        fs::create_dir(rig.mnt.join(name)).unwrap();
    }
    let at = |name: &str| rig.mnt.join(name).to_str().unwrap().to_owned();
    rig.run(&["attach", "mem:", &at("in")]).ok();
    rig.run(&["move", &at("in"), &at("to")]).ok();
    fs::write(rig.mnt.join("to/a"), "a").unwrap();
    rig.run(&["detach", &at("to")]).ok();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    let log = events(&daemon.stderr());
    let (begun, ended) = (steps(&log, "new"), steps(&log, "close"));
    let find_in = |steps: &[(String, Value, Vec<String>)], name: &str, key: &str, value: &str| {
        let is = |step: &&(String, Value, Vec<String>)| {
            step.0 == name && step.1[key].as_str().is_some_and(|text| text.contains(value))
        };
        steps.iter().find(is).unwrap_or_else(|| panic!("no {name} with {key}={value}: {steps:?}")).clone()
    };
    let find = |name: &str, key: &str, value: &str| find_in(&ended, name, key, value);
    let (store, mnt) = (rig.store.to_str().unwrap(), rig.mnt.to_str().unwrap());
    assert_eq!(find("mount", "source", store).1["volume"], mnt);
    assert_eq!(find("attach", "source", "mem:").1["path"], "in");
    assert_eq!(find("move", "from", "in").1["to"], "to");
    assert_eq!(find("detach", "path", "to").1["how"], "Plain");
    // The process may be gone before the thread that has waited for the kernel logs it.
    find_in(&begun, "unmount", "id", "");
    find("end", "id", "");
    // An attached volume keeps its name in the log when it is moved.
    for (name, volume) in
        [("attach", at("in")), ("move", at("in")), ("detach", at("in")), ("end", mnt.to_owned())]
    {
        assert_eq!(find(name, "volume", "").1["volume"], volume.as_str(), "{name}");
    }
    find_in(&begun, "unmount", "volume", mnt);
    // The attached volume's drain is within its detach; each drain has its steps.
    assert!(find("drain", "volume", &at("in")).2.contains(&"detach".to_owned()), "{ended:?}");
    assert!(ended.iter().any(|step| step.0 == "drain" && step.1["volume"] == mnt), "{ended:?}");
    for part in ["write_back", "sync_store", "wait_for_switches", "release"] {
        let within = ended.iter().filter(|step| step.0 == part && step.2.contains(&"drain".to_owned()));
        assert_eq!(within.count(), 2, "{part}: {ended:?}");
    }
    let close = log.iter().find(|event| event["message"] == "close").unwrap();
    assert!(close["time.busy"].is_string(), "{close}");
}

/// The volume of an event: its own field, or that of a span that it is in.
fn volume_of(event: &Value) -> Option<&str> {
    let spans = event["spans"].as_array().into_iter().flatten();
    [event, &event["span"]].into_iter().chain(spans).find_map(|fields| fields["volume"].as_str())
}

#[test]
fn all_that_serve_and_its_processes_say_is_json_that_names_its_volume() {
    let Some(mut rig) = Rig::mounting() else { return };
    let at = |name: &str| rig.root.join(name).to_str().unwrap().to_owned();
    let (a, b, inside) = (at("a"), at("b"), at("a/in"));
    let (store, file) = (rig.store.display().to_string(), at("volumes.toml"));
    for name in ["a", "b", "store/in"] {
        fs::create_dir_all(rig.root.join(name)).unwrap();
    }
    let first = format!(
        "[[volume]]\nsource = \"fault:write:fail=ENOSPC,dir:{store}\"\nmountpoint = \"{a}\"\n\
         options = \"dirty_after=10ms,drain_timeout=60s\"\n"
    );
    let second = format!(
        "[[volume]]\nsource = \"mem:\"\nmountpoint = \"{b}\"\n[[volume]]\nsource = \"mem:\"\nattach = \"{inside}\"\n"
    );
    fs::write(&file, format!("{first}{second}")).unwrap();
    let daemon = rig.start(rig.command(&["--log-level", "debug", "serve", &file]));
    rig.run(&["limit", "/", &a, "sync_isolation=0"]).ok();
    rig.run(&["limit", "/", &inside, "sync_isolation=0"]).ok();
    // Its name is gone before it could be written.
    let open = File::create(rig.root.join("a/gone")).unwrap();
    fs::remove_file(rig.root.join("a/gone")).unwrap();
    (&open).write_all(b"12345").unwrap();
    daemon.says("write-back failed");
    // Two are taken out, and end well.
    fs::write(&file, first).unwrap();
    daemon.signal(Signal::HUP);
    daemon.says("unmounted, everything is on mem:");
    daemon.says("detached, everything is on mem:");
    daemon.signal(Signal::TERM);
    drop(open);
    let code = daemon.end();
    let log = daemon.stderr();
    let events: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    assert!(!log.contains("None") && !log.contains("Some("), "{log}");

    // An event of no volume concerns all of them.
    let of_all = [
        "reading ",
        "reload: ",
        "SIGTERM: unmounting ",
        "not everything is written",
        "cannot start a session",
    ];
    for event in &events {
        let message = event["message"].as_str().unwrap();
        let target = event["target"].as_str().unwrap();
        if of_all.iter().any(|begin| message.starts_with(begin)) || target.contains("uring") {
            continue;
        }
        let volume = volume_of(event).unwrap_or_else(|| panic!("{event}"));
        assert!([&a, &b, &inside].into_iter().any(|known| known == volume), "{event}");
    }
    let messages = |volume: &str| {
        let of = events.iter().filter(|event| volume_of(event) == Some(volume));
        of.map(|event| event["message"].as_str().unwrap()).collect::<Vec<_>>()
    };
    let wanted: [(&str, &[&str]); 3] = [
        (&a, &["is mounted", "limits changed", "write-back failed", "SIGTERM: unmounting", "drained"]),
        (&b, &["is mounted", "no longer in the file", "drained", "everything is on"]),
        (&inside, &["is attached", "limits changed", "no longer in the file", "detached, everything"]),
    ];
    for (volume, parts) in wanted {
        let messages = messages(volume);
        for part in parts {
            assert!(
                messages.iter().any(|message| message.contains(part)),
                "{part} of {volume}: {messages:?}"
            );
        }
    }
    // How it ended is an event, too.
    let last = events.last().unwrap();
    let failed = last["level"] == "ERROR" && last["message"].as_str().unwrap().starts_with("not everything");
    assert_eq!(failed, code == Some(1), "{code:?}: {last}");
}

#[test]
fn steps_are_told_of_where_somebody_debugs_and_named_by_what_is_logged_in_them() {
    let Some(mut rig) = Rig::mounting() else { return };
    let log = log_of(&mut rig, &["--log-level", "debug"]);
    let log = events(&log);
    let steps = steps(&log, "new");
    assert!(steps.iter().any(|(name, span, _)| name == "force" && span["why"].is_string()), "{steps:?}");

    let daemon = rig.mount("");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
    let log = events(&daemon.stderr());
    assert!(log.iter().all(|event| event["message"] != "new" && event["message"] != "close"), "{log:?}");
    let drained = log.iter().find(|event| event["message"] == "drained");
    assert_eq!(drained.map(|event| &event["span"]["name"]), Some(&Value::from("end")), "{log:?}");
}

#[test]
fn where_standard_error_is_the_journals_it_gets_priorities() {
    let Some(rig) = Rig::mounting() else { return };
    let path = rig.root.join("stream");
    let mount = |stream: &str| {
        let file = File::create(&path).unwrap();
        let meta = file.metadata().unwrap();
        let mut command = rig.command(&["mount", "mem:", "--log-level", "debug"]);
        command
            .arg(&rig.mnt)
            .env("JOURNAL_STREAM", stream.replace("OURS", &format!("{}:{}", meta.dev(), meta.ino())));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        eventually("it is mounted", || {
            rig.is_mounted() && !rig.status()["volumes"].as_array().unwrap().is_empty()
        });
        rig.verb("umount", &[]).ok();
        assert!(child.wait().unwrap().success());
        fs::read_to_string(&path).unwrap()
    };
    let log = mount("OURS");
    assert!(
        !log.is_empty() && log.lines().all(|line| line.starts_with("<6>") || line.starts_with("<7>")),
        "{log}"
    );
    // Processes with another standard error inherit the variable.
    let log = mount("1:1");
    assert!(!events(&log).is_empty(), "{log}");
}

#[test]
fn a_terminal_has_text() {
    let Some(rig) = Rig::mounting().filter(|_| has("script")) else { return };
    let line = format!("exec {PROGRAM} mount --log-level debug mem: {}", rig.mnt.display());
    let (mut script, screen) = rig.on_a_terminal(&line);
    eventually("it is ready", || screen().contains("ready: "));
    rig.verb("umount", &[]).ok();
    assert!(script.wait().unwrap().success());
    assert!(screen().contains("DEBUG") && !screen().contains("\"level\""), "{}", screen());
}

#[test]
fn a_log_file_is_json_and_the_verbs_talk_as_before() {
    let Some(rig) = Rig::mounting() else { return };
    let log = rig.root.join("log");
    let (log_file, mnt) = (log.to_str().unwrap(), rig.mnt.to_str().unwrap());
    rig.run(&["mount", "-d", "--log-file", log_file, "mem:", mnt]).ok().says("ready: mem:");
    rig.verb("umount", &[]).ok();
    let ended = |log: &Path| fs::read_to_string(log).is_ok_and(|log| log.contains("everything is on"));
    eventually("the log says how it ended", || ended(&log));
    let log = fs::read_to_string(&log).unwrap();
    assert!(events(&log).iter().any(|event| event["level"] == "INFO"), "{log}");
    let refused: Out = run(rig.command(&["umount", "/no/such/mount"]));
    refused.ends(2, "watertight: there is no /no/such/mount");
}

/// A line of a background thread names its volume as all others do: here the flusher's, whose store
/// panics.
#[test]
fn what_threads_of_a_volume_say_names_it() {
    let Some(mut rig) = Rig::mounting() else { return };
    let inside = rig.mnt.join("in").to_str().unwrap().to_owned();
    let other = rig.root.join("other");
    fs::create_dir(&other).unwrap();
    let mut command = rig.command(&["mount"]);
    command.arg(format!("fault:write:nth=1:panic,dir:{}", rig.store.display())).arg(&rig.mnt);
    let daemon = rig.start({
        command.args(["-o", "dirty_after=10ms"]);
        command
    });
    fs::create_dir(&inside).unwrap();
    let faulty = format!("fault:write:nth=1:panic,dir:{}", other.display());
    rig.run(&["attach", &faulty, &inside, "-o", "dirty_after=10ms"]).ok();
    let mnt = rig.mnt.to_str().unwrap().to_owned();
    for volume in [&mnt, &inside] {
        fs::write(Path::new(volume).join("file"), "12345").unwrap();
        let is_named = || {
            let log = daemon.stderr();
            let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let mut panicked = lines.filter(|event| {
                event["message"].as_str().is_some_and(|message| message.starts_with("write-back panicked"))
            });
            panicked.any(|event| volume_of(&event) == Some(volume))
        };
        eventually("the panic is logged with its volume", is_named);
    }
    // It was tried again.
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(rig.stored("file").unwrap(), b"12345");
    assert_eq!(fs::read(other.join("file")).unwrap(), b"12345");
}
