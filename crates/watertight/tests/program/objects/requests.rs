//! What is seen of a volume's requests to object storage.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use testing::cgroup::Cgroup;

use super::{LARGE, World, pattern};
use crate::control::call;
use crate::rig::Rig;

#[test]
fn requests_are_in_status_and_in_the_metrics() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("dirty_after=1h");
    let figures = |world: &World| world.rig.volume()["store_requests"].clone();
    let before = figures(&world);
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert!(number(&before["by_kind"]["get"]["sent"]) > 0, "{before}");
    fs::write(world.path("a"), pattern(LARGE)).unwrap();
    fs::File::open(world.path("a")).unwrap().sync_all().unwrap();
    let after = figures(&world);
    let put = &after["by_kind"]["put"];
    let more = number(&put["sent"]) - number(&before["by_kind"]["put"]["sent"]);
    // A segment, and the log's object that names it.
    assert!((2..10).contains(&more), "{before} {after}");
    assert!(number(&after["sent_bytes"]) > number(&before["sent_bytes"]), "{before} {after}");
    let latency = put["latency"].as_array().unwrap();
    let counts: Vec<u64> = latency.iter().map(|class| number(&class["requests"])).collect();
    assert!(counts.is_sorted() && counts.last() <= Some(&number(&put["answered"])), "{put}");
    assert_eq!(number(&put["answered"]) + number(&put["failures"]), number(&put["sent"]), "{put}");
    assert!(number(&put["latency_us"]) > 0, "{put}");

    let answer = call(&world.rig.socket(), "GET /metrics", "");
    let sent = number(&figures(&world)["by_kind"]["put"]["sent"]);
    let at = world.rig.mnt.display();
    let labels = format!("mountpoint=\"{at}\",kind=\"put\"");
    assert!(answer.contains(&format!("{labels}}} {sent}\n")), "no {sent} puts in {answer}");
    assert!(answer.contains(&format!("{labels},le=\"+Inf\"}} ")), "{answer}");
    let status = world.rig.run(&["status"]).ok();
    status.says(&format!("requests to {}: ", world.url)).says(" put").says("0 throttled");
    world.umount(&daemon);
}

#[test]
fn a_store_that_sends_none_has_no_figures_of_requests() {
    let Some(mut rig) = Rig::mounting() else { return };
    let _daemon = rig.mount("");
    assert_eq!(rig.volume().get("store_requests"), None);
    let page = call(&rig.socket(), "GET /metrics", "");
    assert!(!page.lines().any(|line| line.starts_with("watertight_store_")), "{page}");
}

/// As a database does with the head of its journal.
#[test]
fn what_was_just_synced_is_changed_again_without_fetching_it() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("dirty_after=1h");
    let gets =
        |world: &World| world.rig.volume()["store_requests"]["by_kind"]["get"]["sent"].as_u64().unwrap();
    let file = fs::File::create(world.path("journal")).unwrap();
    file.sync_all().unwrap();
    let before = gets(&world);
    for round in 1..=50_u8 {
        file.write_all_at(&[round; 9000], 0).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(&[0; 12], 0).unwrap();
        file.sync_data().unwrap();
    }
    // A question for the lease each five seconds.
    let more = gets(&world) - before;
    assert!(more < 25, "{more} GETs for 50 rounds");
    let mut expected = [50; 9000];
    expected[..12].fill(0);
    assert_eq!(fs::read(world.path("journal")).unwrap(), expected);
    drop(file);
    world.umount(&daemon);
}

/// What is compressed to nothing takes as long: a limit counts what was written.
#[test]
fn a_limit_counts_what_was_written_to_a_bucket() {
    let Some(mut world) = World::new() else { return };
    let Some(slow) = Cgroup::make() else { return };
    let daemon = world.mount(&format!("dirty_after=1h,limit={}:wbps=1M", slow.path().display()));
    let before = world.rig.volume()["store_requests"]["sent_bytes"].as_u64().unwrap();
    let (of, begun) = (format!("of={}", world.path("zeros").display()), Instant::now());
    slow.run("dd", &["if=/dev/zero", &of, "bs=1M", "count=3", "conv=fsync", "status=none"]);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    let sent = world.rig.volume()["store_requests"]["sent_bytes"].as_u64().unwrap() - before;
    assert!(sent < 1 << 20, "{sent} bytes");
    world.umount(&daemon);
}
