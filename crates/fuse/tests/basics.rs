//! Everyday operations through a real mount.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};

use common::Setup;
use watertight_fuse::EndReason;

#[test]
fn a_tree_is_made_looked_at_and_found_in_the_store() {
    let Some(mounted) = Setup::default().mount() else { return };
    let root = mounted.path();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::write(root.join("a/file"), "hello").unwrap();
    fs::hard_link(root.join("a/file"), root.join("a/b/hard")).unwrap();
    symlink("../file", root.join("a/b/soft")).unwrap();
    assert_eq!(common::text(&root.join("a/b/soft")), "hello");
    assert_eq!(fs::metadata(root.join("a/file")).unwrap().nlink(), 2);
    fs::rename(root.join("a/file"), root.join("a/moved")).unwrap();
    assert!(!root.join("a/file").exists());
    fs::set_permissions(root.join("a/moved"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(root.join("a/b/hard")).unwrap().mode() & 0o7777, 0o640);
    let mut names: Vec<_> =
        fs::read_dir(root.join("a/b")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["c", "hard", "soft"]);
    fs::remove_dir(root.join("a/b/c")).unwrap();
    fs::remove_file(root.join("a/b/soft")).unwrap();
    assert_eq!(fs::read_dir(root.join("a/b")).unwrap().count(), 1);

    let is_block = mounted.is_block();
    let mut mounted = mounted;
    common::umount(&mounted.path());
    let ended = mounted.ended();
    if !is_block {
        mounted.volume.shutdown();
    }
    assert_eq!(common::text(&mounted.store_path().join("a/moved")), "hello");
    assert_eq!(common::text(&mounted.store_path().join("a/b/hard")), "hello");
    let expected = if is_block { EndReason::Destroyed } else { EndReason::Unmounted };
    assert_eq!(ended.reason, expected);
    assert_eq!(ended.stuck, 0);
}

#[test]
fn data_is_written_read_truncated_and_sparse() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("data");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let pattern: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    file.write_all_at(&pattern, 5_000_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8_000_000);
    let mut back = vec![1; 3_000_000];
    file.read_exact_at(&mut back, 5_000_000).unwrap();
    assert_eq!(back, pattern);
    file.read_exact_at(&mut back, 1_000_000).unwrap();
    assert!(back.iter().all(|&byte| byte == 0));
    file.set_len(5_000_010).unwrap();
    assert_eq!(fs::read(&path).unwrap()[5_000_000..], pattern[..10]);
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(mounted.store_path().join("data")).unwrap()[5_000_000..], pattern[..10]);
    mounted.unmount();
}

#[test]
fn a_large_directory_is_listed_whole_with_attributes() {
    let Some(mounted) = Setup::default().mount() else { return };
    let root = mounted.path();
    for n in 0..3000 {
        fs::write(root.join(format!("a name long enough to fill more than one reply {n}")), n.to_string())
            .unwrap();
    }
    for _ in 0..2 {
        let mut sizes = 0;
        let mut count = 0;
        for entry in fs::read_dir(&root).unwrap() {
            let entry = entry.unwrap();
            sizes += entry.metadata().unwrap().len();
            count += 1;
        }
        assert_eq!(count, 3000);
        assert_eq!(sizes, 10 + 90 * 2 + 900 * 3 + 2000 * 4);
    }
    fs::remove_file(root.join("a name long enough to fill more than one reply 7")).unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 2999);
    mounted.unmount();
}
