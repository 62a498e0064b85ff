//! Extended attributes of files in a bucket.

use std::fs::File;

use rustix::fs::{XattrFlags, fsetxattr};
use rustix::io::Errno;

use super::World;

/// The kernel's bound of one value.
const VALUE_MAX: usize = 64 << 10;

#[test]
fn the_extended_attributes_of_a_file_are_bounded_in_all() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("dirty_after=1h");
    let file = File::create(world.path("file")).unwrap();
    let set = |name: &str, len: usize| fsetxattr(&file, name, &vec![7; len], XattrFlags::empty());
    assert_eq!(set("user.first", VALUE_MAX), Ok(()));
    assert_eq!(set("user.second", VALUE_MAX), Ok(()));
    assert_eq!(set("user.third", VALUE_MAX), Err(Errno::NOSPC));
    // A smaller one in place of a larger one makes room.
    assert_eq!(set("user.first", 1), Ok(()));
    assert_eq!(set("user.third", VALUE_MAX), Ok(()));
    drop(file);
    world.umount(&daemon);
}
