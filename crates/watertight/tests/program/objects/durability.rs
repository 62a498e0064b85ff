//! What is in the bucket when.

use std::fs;

use super::World;
use crate::rig::eventually;

#[test]
fn names_that_nobody_synced_are_in_the_bucket_a_little_later_and_a_kill_leaves_a_prefix() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("dirty_after=1h");
    let puts = |world: &World| world.rig.volume()["store_requests"]["by_kind"]["put"]["sent"].as_u64();
    let before = puts(&world);
    fs::create_dir(world.path("first")).unwrap();
    eventually("the name is committed", || puts(&world) > before);
    // Steps of which a kill may keep any number, in their order.
    for step in 0..100 {
        fs::create_dir(world.path(&format!("step-{step}"))).unwrap();
        fs::write(world.path("unsynced"), "unsynced").unwrap();
    }
    daemon.kill();
    world.rig.verb("umount", &[]).ends(1, "died before everything was written");
    let daemon = world.mount("takeover");
    assert!(world.path("first").is_dir());
    let there: Vec<bool> = (0..100).map(|step| world.path(&format!("step-{step}")).is_dir()).collect();
    assert!(there.is_sorted_by(|before, after| before >= after), "{there:?}");
    world.umount(&daemon);
}
