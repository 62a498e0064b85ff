//! `/metrics`, `/healthz` and `status --metrics`: every figure of `status`, in a form that
//! Prometheus takes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use watertight::control::api::State;
use watertight::control::metrics;

use crate::control::call;
use crate::rig::{Rig, eventually, run, tool};
use crate::sample;

/// A page by series (`name{labels}`), each of which must be there once.
fn series(page: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(all.insert(series.to_owned(), value.parse().unwrap()).is_none(), "twice: {line}");
    }
    all
}

/// The value of a figure without labels of its own.
fn value(page: &str, name: &str) -> f64 {
    let all = series(page);
    let mut of_name = all.iter().filter(|(series, _)| series.starts_with(&format!("watertight_{name}{{")));
    let (_, value) = of_name.next().unwrap_or_else(|| panic!("no {name} in: {page}"));
    assert!(of_name.next().is_none(), "{name} is not alone in: {page}");
    *value
}

fn get(rig: &Rig, path: &str) -> (String, String) {
    let answer = call(&rig.socket(), &format!("GET {path}"), "");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// All numbers in a value, except those under `left_out`.
fn numbers(value: &Value, left_out: &[&str], found: &mut Vec<f64>) {
    match value {
        Value::Number(n) => found.push(n.as_f64().unwrap()),
        Value::Array(all) => all.iter().for_each(|value| numbers(value, left_out, found)),
        Value::Object(all) => all
            .iter()
            .filter(|(key, _)| !left_out.contains(&key.as_str()))
            .for_each(|(_, value)| numbers(value, left_out, found)),
        _ => {}
    }
}

#[test]
fn every_figure_of_status_is_a_metric_and_has_help_and_type() {
    let status = sample::status();
    let page = metrics::page(&[&status], &[]);
    let mut values: Vec<f64> = series(&page).into_values().map(|value| value * 1000.0).collect();
    let json = serde_json::to_value(&status).unwrap();
    let mut figures = Vec::new();
    // Names of things, and figures of single files.
    let mut known = json.clone();
    let files = known.as_object_mut().unwrap().remove("errors").unwrap();
    // Its buckets are others.
    assert!(known.as_object_mut().unwrap().remove("operations").is_some());
    assert_eq!(files[0]["bytes"], 117, "told of single files: never a metric");
    let names = ["pid", "uid", "device", "openers"];
    numbers(
        &known,
        &[
            &names[..],
            &[
                "started_ms",
                "drain_us",
                "pause_us",
                "for_ms",
                "latency_us",
                "within_ms",
                "oldest_ms",
                "every_ms",
                "age_ms",
            ],
        ]
        .concat(),
        &mut figures,
    );
    assert!(figures.len() > 20, "{figures:?}");
    for figure in figures {
        let at = values.iter().position(|value| *value == figure * 1000.0);
        values.remove(at.unwrap_or_else(|| panic!("no metric has {figure} of {json}")));
    }
    assert_eq!(value(&page, "start_time_seconds"), 1_700_000_000.123);
    assert_eq!(value(&page, "switch_drain_seconds_total"), 0.000_133);
    assert!(
        page.contains(
            r#"watertight_cgroup_dirty_bytes{volume="fa4e",mountpoint="/x",cgroup="/a b",removed="1"} 135"#
        ),
        "{page}"
    );
    assert_eq!(value(&page, "stalled_seconds"), 0.141);
    assert_eq!(value(&page, "upgrade_pause_seconds"), 0.000_175);
    assert_eq!(value(&page, "store_request_oldest_seconds"), 0.164);
    assert_eq!(value(&page, "store_unanswered_seconds"), 0.165);
    assert_eq!(value(&page, "store_following_seconds"), 0.188);
    assert_eq!(value(&page, "store_following_age_seconds"), 0.189);
    assert_eq!(value(&page, "store_request_duration_seconds_sum"), 0.000_155);
    for (le, requests) in [("0.001", 156), ("0.002", 157), ("+Inf", 154)] {
        let sample = format!(
            r#"watertight_store_request_duration_seconds_bucket{{volume="fa4e",mountpoint="/x",kind="put",le="{le}"}} {requests}"#
        );
        assert!(page.contains(&sample), "no {sample} in {page}");
    }
    for (le, requests) in
        [("0.000016", 170), ("0.004096", 170), ("0.016384", 177), ("67.108864", 177), ("+Inf", 178)]
    {
        let sample = format!(
            r#"watertight_request_duration_seconds_bucket{{volume="fa4e",mountpoint="/x",op="read",le="{le}"}} {requests}"#
        );
        assert!(page.contains(&sample), "no {sample} in {page}");
    }
    assert_eq!(value(&page, "request_duration_seconds_sum"), 0.0009);
    assert_eq!(value(&page, "request_duration_seconds_count"), 178.0);
    for (part, us) in [("queue", 180), ("limit", 181), ("cache", 182), ("store", 183), ("rest", 174)] {
        let sample = format!(
            r#"watertight_request_part_seconds_total{{volume="fa4e",mountpoint="/x",op="read",part="{part}"}} 0.000{us}"#
        );
        assert!(page.contains(&sample), "no {sample} in {page}");
    }
    assert!(page.contains(r#"watertight_state{volume="fa4e",mountpoint="/x",state="active"} 1"#), "{page}");
    assert!(page.contains(r#"watertight_state{volume="fa4e",mountpoint="/x",state="stalled"} 0"#), "{page}");
    assert!(page.contains(r#"source="mem:",mount_type="fuse",transport="dev-fuse",mode="write-through"} 1"#));

    // Families in one piece, each with its head; no more of them than are known.
    let mut heads = Vec::new();
    for line in page.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            heads.push(head.split(' ').next().unwrap());
        } else if !line.starts_with("# HELP ") {
            let family = heads.last().unwrap();
            let rest = line.strip_prefix(family).unwrap_or_else(|| panic!("{line} in {family}"));
            let rest =
                ["_bucket", "_sum", "_count"].iter().find_map(|part| rest.strip_prefix(part)).unwrap_or(rest);
            assert!(rest.starts_with('{'), "{line}");
        }
    }
    let number = heads.len();
    heads.sort_unstable();
    heads.dedup();
    assert_eq!(heads.len(), number, "a family is there twice");
    assert_eq!(page.matches("# HELP ").count(), number);
}

#[test]
fn series_do_not_grow_with_files() {
    let mut status = sample::status();
    let before = series(&metrics::page(&[&status], &[])).len();
    status.errors = vec![status.errors[0].clone(); 1000];
    assert_eq!(series(&metrics::page(&[&status], &[])).len(), before);
}

#[test]
fn a_mount_process_serves_its_figures() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h,cache=8M");
    fs::write(rig.mnt.join("a"), vec![7; 100_000]).unwrap();
    let open = fs::File::open(rig.mnt.join("a")).unwrap();
    // The kernel reports the first close at any time.
    eventually("one file is open", || value(&get(&rig, "/metrics").1, "open_files") == 1.0);
    let (head, page) = get(&rig, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert_eq!(value(&page, "up"), 1.0);
    assert_eq!(value(&page, "dirty_bytes"), 100_000.0);
    assert_eq!(value(&page, "cache_limit_bytes"), 8.0 * 1024.0 * 1024.0);
    assert_eq!(value(&page, "open_files"), 1.0);
    assert_eq!(value(&page, "writeback_errors_total"), 0.0);
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid)).unwrap().count();
    assert!(value(&page, "open_fds") > 3.0 && descriptors > 3, "{page}");
    assert!(value(&page, "threads") > value(&page, "serving_threads"), "{page}");
    assert!(value(&page, "serving_threads") >= 1.0 && value(&page, "resident_memory_bytes") > 1e6, "{page}");
    let writes = |page: &str| {
        let all = series(page);
        all.iter().find(|(series, _)| series.contains(r#"kind="write""#)).map_or(0.0, |(_, n)| *n)
    };
    assert!(writes(&page) >= 1.0, "{page}");
    drop(open);

    rig.verb("sync", &[]).ok();
    fs::write(rig.mnt.join("b"), "more").unwrap();
    let (_, later) = get(&rig, "/metrics");
    assert_eq!(value(&later, "dirty_bytes"), 4.0);
    assert_eq!(value(&later, "written_bytes_total"), 100_000.0);
    assert!(writes(&later) > writes(&page), "{later}");

    // The figures of all volumes of the host, from the command line, with those that no mount
    // process knows.
    let all = rig.run(&["status", "--metrics"]).ok().stdout;
    assert_eq!(value(&all, "dirty_bytes"), 4.0);
    let mut of_volumes = series(&all);
    assert_eq!(of_volumes.remove("watertight_missing_volumes"), Some(0.0), "{all}");
    assert_eq!(
        of_volumes.keys().filter(|series| !series.contains("_requests_total")).collect::<Vec<_>>(),
        series(&later).keys().filter(|series| !series.contains("_requests_total")).collect::<Vec<_>>()
    );
    // A call for one volume has not read the files of `serve`.
    let one = rig.verb("status", &["--metrics"]).ok().stdout;
    assert_eq!(value(&one, "dirty_bytes"), 4.0);
    assert!(!one.contains("watertight_missing"), "{one}");
    daemon.kill();
    let all = rig.run(&["status", "--metrics"]).ok().stdout;
    assert_eq!(value(&all, "up"), 0.0, "a volume whose process was killed");
    assert!(!all.contains("watertight_state{"), "nobody knows its state: {all}");
    rig.verb("umount", &[]).ends(1, "died");
}

#[test]
fn the_figures_go_into_a_file_in_one_step() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    let dir = rig.root.join("collector");
    fs::create_dir(&dir).unwrap();
    let file = dir.join("watertight.prom");
    let shown = file.to_str().unwrap();
    let write = || rig.run(&["status", "--metrics", "--output", shown]);
    let silent = write().ok();
    assert_eq!((silent.stdout.as_str(), silent.stderr.as_str()), ("", ""));
    assert_eq!(value(&fs::read_to_string(&file).unwrap(), "dirty_bytes"), 5.0);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o644);
    let names = || fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(), ["watertight.prom"]);

    // A reader that has the old file open reads it to its end.
    let mut old = fs::File::open(&file).unwrap();
    rig.verb("sync", &[]).ok();
    write().ok();
    let mut page = String::new();
    old.read_to_string(&mut page).unwrap();
    assert_eq!(value(&page, "dirty_bytes"), 5.0);
    assert_eq!(value(&fs::read_to_string(&file).unwrap(), "dirty_bytes"), 0.0);

    // A path that cannot be replaced stays, and nothing is left beside it.
    let taken = dir.join("taken");
    fs::create_dir(&taken).unwrap();
    let refused = rig.run(&["status", "--metrics", "--output", taken.to_str().unwrap()]);
    refused.ends(2, "taken: exists and is not a regular file");
    assert!(taken.is_dir() && names().len() == 2, "{:?}", names());
    // So do devices, which a name in their place would take away, and links.
    let (link, dead) = (dir.join("link"), dir.join("dead"));
    symlink(&file, &link).unwrap();
    symlink("nowhere", &dead).unwrap();
    let socket = dir.join("socket");
    let _bound = UnixListener::bind(&socket).unwrap();
    for kept in [&link, &dead, &socket, Path::new("/dev/null"), Path::new("/dev/stdout")] {
        let before = fs::symlink_metadata(kept).unwrap().ino();
        let refused = rig.run(&["status", "--metrics", "--output", kept.to_str().unwrap()]);
        refused.ends(2, "is not a regular file");
        assert_eq!(fs::symlink_metadata(kept).unwrap().ino(), before, "{}", kept.display());
    }
    assert_eq!(names().len(), 5, "{:?}", names());
    rig.run(&["status", "--metrics", "--output", "/no/such/directory/file"]).ends(1, "No such file");
    rig.run(&["status", "--output", shown]).ends(2, "--metrics");
    rig.run(&["status", "--json", "--output", shown]).ends(2, "--");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn who_has_heard_of_a_loss_has_it_forgotten() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:fail=EIO", "dirty_after=1h");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    // Of one that runs nothing is forgotten.
    let out = rig.verb("wait", &["--forget", "--timeout", "0"]).ends(1, "not yet: active");
    assert_eq!(out.stdout, "");
    assert_eq!(rig.volume()["state"], "active");
    rig.verb("umount", &["--force"]).ends(1, "5 bytes");
    assert_eq!(daemon.end(), Some(1));
    let page = || rig.run(&["status", "--metrics"]).ok().stdout;
    assert_eq!(value(&page(), "up"), 0.0);
    // The query of the alert on lost data.
    let lost = |page: &str| {
        let all = series(page);
        all.iter().any(|(series, value)| {
            series.starts_with("watertight_state{") && series.contains(r#"state="failed""#) && *value == 1.0
        })
    };
    assert!(lost(&page()), "{}", page());
    let forgotten = format!("{}: forgotten: `status` and the metrics no longer report", rig.mnt.display());
    rig.verb("wait", &["--forget"]).ends(1, "5 bytes").says(&forgotten);
    assert!(!page().lines().any(|line| line.starts_with("watertight_up{")), "{}", page());
    assert!(!lost(&page()), "{}", page());
    rig.is_quiet();
}

#[test]
fn health_is_whether_data_gets_to_the_store() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:fail=ENOSPC", "dirty_after=10ms,drain_timeout=1s");
    let (head, body) = get(&rig, "/healthz");
    assert!(head.starts_with("HTTP/1.1 200") && body == "ok\n", "{head} {body}");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    eventually("it is not healthy", || get(&rig, "/healthz").0.starts_with("HTTP/1.1 503"));
    assert_eq!(get(&rig, "/healthz").1, "5 B of 1 file could not be written\n");
    let (_, page) = get(&rig, "/metrics");
    assert_eq!((value(&page, "failing_files"), value(&page, "failing_bytes")), (1.0, 5.0));
    assert!(value(&page, "writeback_errors_total") >= 1.0, "{page}");
    rig.verb("umount", &["--force"]).ends(1, "5 bytes");
    assert_eq!(daemon.end(), Some(1));

    let daemon = rig.mount_faulty("write:hang", "dirty_after=10ms,stall_after=100ms");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    eventually("the store that hangs is told of", || get(&rig, "/healthz").0.starts_with("HTTP/1.1 503"));
    rig.is_stalled_in("write");
    let (_, why) = get(&rig, "/healthz");
    assert!(why.starts_with("stalled: the store has not answered `write` for "), "{why}");
    assert!(why.ends_with("; 5 B of 1 file to be written\n"), "{why}");
    let (_, page) = get(&rig, "/metrics");
    assert!(value(&page, "stalled_seconds") >= 0.1, "{page}");
    rig.verb("umount", &["--force"]).ends(1, "5 bytes");
    assert_eq!(daemon.end(), Some(1));
}

#[test]
fn prometheus_own_checker_takes_the_page() {
    let Some(promtool) = tool("promtool") else { return };
    let mut status = sample::status();
    status.mountpoint = "/a \"b\" \\ \n é".into();
    let mut other = status.clone();
    other.id = "0the4".parse().unwrap();
    let id = "d0".parse().unwrap();
    let down =
        metrics::Down { of: metrics::VolumeLabels { id: &id, mountpoint: "/d" }, state: Some(State::Failed) };
    let check = |page: String| {
        let mut command = Command::new("sh");
        // Its standard input is the page.
        command.args(["-c", "exec \"$0\" check metrics < \"$1\""]).arg(&promtool);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(page.as_bytes()).unwrap();
        command.arg(file.path()).stdin(Stdio::null());
        run(command)
    };
    let good = check(metrics::page(&[&status, &other], &[down])).ok();
    assert_eq!((good.stdout.as_str(), good.stderr.as_str()), ("", ""));
    // It does find a mistake.
    check("# TYPE x counter\nx 1\nx 2\n".to_owned()).ends(3, "x");
}
