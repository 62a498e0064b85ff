use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use super::*;
use crate::blocks::BLOCK;
use crate::rows::Object;

const UUID: [u8; 16] = [7; 16];
const OTHER: [u8; 16] = [8; 16];

fn options(dir: &Path, bytes_max: u64) -> DiskCacheOptions {
    DiskCacheOptions { dir: dir.join("cache"), bytes_max }
}

fn key(number: u64) -> Key {
    (Object::Segment(3, number), 1)
}

fn block(number: u64, len: usize) -> Bytes {
    (0..len).map(|at| u8::try_from((at as u64 * 31 + number) % 256).unwrap()).collect::<Vec<_>>().into()
}

/// A cache that was filled with some blocks and closed.
async fn filled(dir: &Path, blocks: u64) {
    let cache = DiskCache::open(&options(dir, DISK_CACHE_MIN), UUID).unwrap();
    for number in 0..blocks {
        cache.keep(key(number), block(number, 1000)).await;
    }
    cache.close();
    assert!(!cache.is_on());
}

fn file(dir: &Path, key: Key) -> PathBuf {
    let (Object::Segment(epoch, number), block) = key else { panic!("a segment's") };
    let uuid = crate::format::Uuid::from_bytes(UUID).to_string();
    dir.join("cache").join(uuid).join(format!("s-{epoch:016x}-{number:016x}-{block:08x}"))
}

async fn read(cache: &DiskCache, number: u64) -> Option<Bytes> {
    cache.read(vec![key(number)]).await.pop().map(|(_, bytes)| bytes)
}

#[tokio::test]
async fn blocks_are_there_at_the_next_opening_and_are_this_users_alone() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 5).await;
    let cache = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
    for number in 0..5 {
        assert_eq!(read(&cache, number).await, Some(block(number, 1000)));
    }
    assert_eq!(read(&cache, 5).await, None);
    let stats = cache.stats();
    assert_eq!((stats.blocks, stats.bytes, stats.hits, stats.damaged), (5, 5 * UNIT, 5, 0));
    for path in [dir.path().join("cache"), file(dir.path(), key(0)).parent().unwrap().to_owned()] {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700);
    }
    assert_eq!(fs::metadata(file(dir.path(), key(0))).unwrap().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn what_is_damaged_anywhere_is_not_read_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 1).await;
    let path = file(dir.path(), key(0));
    let whole = fs::read(&path).unwrap();
    let mut damaged: Vec<Vec<u8>> = (0..entry::HEADER)
        .chain([entry::HEADER, entry::HEADER + 500, whole.len() - 1])
        .map(|at| {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            changed
        })
        .collect();
    damaged.extend([1, entry::HEADER, entry::HEADER + 1, whole.len() - 1].map(|len| whole[..len].to_vec()));
    damaged.push([&whole[..], b"x"].concat());
    for content in damaged {
        let cache = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
        cache.keep(key(0), block(0, 1000)).await;
        while !cache.has(key(0)) {
            tokio::task::yield_now().await;
        }
        fs::write(&path, &content).unwrap();
        assert_eq!(read(&cache, 0).await, None, "{} bytes", content.len());
        assert!(!path.exists() && cache.is_on());
        assert_eq!(cache.stats().damaged, 1);
        // Found at an opening: the same.
        fs::write(&path, &content).unwrap();
        cache.close();
        let cache = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
        assert_eq!(read(&cache, 0).await, None);
        assert!(!path.exists() && cache.is_on());
    }
}

#[tokio::test]
async fn a_block_under_another_name_or_of_another_volume_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 2).await;
    fs::copy(file(dir.path(), key(0)), file(dir.path(), key(1))).unwrap();
    let cache = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
    assert_eq!((read(&cache, 0).await, read(&cache, 1).await), (Some(block(0, 1000)), None));
    cache.close();
    let uuid = |uuid| dir.path().join("cache").join(crate::format::Uuid::from_bytes(uuid).to_string());
    fs::rename(uuid(UUID), uuid(OTHER)).unwrap();
    let other = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), OTHER).unwrap();
    assert!(other.has(key(0)));
    assert_eq!(read(&other, 0).await, None);
}

#[tokio::test]
async fn the_bound_holds_also_at_the_next_opening_and_what_was_used_last_stays() {
    let dir = tempfile::tempdir().unwrap();
    let len = usize::try_from(BLOCK).unwrap();
    let most = DISK_CACHE_MIN + 8 * BLOCK;
    let cache = DiskCache::open(&options(dir.path(), most), UUID).unwrap();
    for number in 0..200 {
        cache.keep(key(number), block(number, len)).await;
        let _used = read(&cache, 0).await;
        assert!(cache.stats().bytes <= most + BLOCK + UNIT);
    }
    while !cache.has(key(199)) {
        tokio::task::yield_now().await;
    }
    assert!(cache.has(key(0)) && !cache.has(key(1)));
    let on_disk = |dir: &Path| -> u64 {
        let files = fs::read_dir(file(dir, key(0)).parent().unwrap()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    cache.close();
    assert!(on_disk(dir.path()) <= most, "{} bytes", on_disk(dir.path()));
    let smaller = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
    assert!(smaller.stats().bytes <= DISK_CACHE_MIN && on_disk(dir.path()) <= DISK_CACHE_MIN);
}

#[tokio::test]
async fn a_reader_does_not_wait_for_a_queue_that_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DiskCache::open(&options(dir.path(), 1 << 30), UUID).unwrap();
    for number in 0..2000 {
        cache.offer(key(number), &block(number, 100));
    }
    cache.close();
    let skipped = cache.stats().skipped;
    let cache = DiskCache::open(&options(dir.path(), 1 << 30), UUID).unwrap();
    assert_eq!(cache.stats().blocks + skipped, 2000);
    assert!(cache.stats().blocks >= QUEUE as u64);
}

#[tokio::test]
async fn a_directory_that_vanishes_switches_it_off_and_one_block_that_does_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 3).await;
    let cache = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
    fs::remove_file(file(dir.path(), key(0))).unwrap();
    assert_eq!(read(&cache, 0).await, None);
    assert!(cache.is_on() && !cache.has(key(0)));
    fs::remove_dir_all(dir.path().join("cache")).unwrap();
    assert_eq!(read(&cache, 1).await, None);
    cache.keep(key(9), block(9, 10)).await;
    while cache.is_on() {
        tokio::task::yield_now().await;
    }
    assert_eq!((cache.stats().blocks, cache.stats().bytes), (0, 0));
    cache.offer(key(9), &block(9, 10));
    assert_eq!(read(&cache, 9).await, None);
}

#[test]
fn directories_that_are_no_caches_are_refused_in_plain_words() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: PathBuf| {
        let options = DiskCacheOptions { dir: path, bytes_max: DISK_CACHE_MIN };
        let error = DiskCache::open(&options, UUID).map(|_| "it opened").unwrap_err();
        assert_eq!(error.kind(), store::ErrorKind::Invalid);
        error.to_string()
    };
    let path = dir.path().join("foreign");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(path.join("letter.txt"), "dear").unwrap();
    let said = refused(path.clone());
    assert!(said.contains("not empty, and no cache") && said.contains("letter.txt"), "{said}");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing was made there");
    fs::remove_file(path.join("letter.txt")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
    assert!(refused(path.clone()).contains("its mode should be 0700"));
    symlink(&path, dir.path().join("link")).unwrap();
    assert!(refused(dir.path().join("link")).contains("not a directory"));
    assert!(refused(dir.path().join("link/below")).contains("symbolic link"));
    assert!(refused(dir.path().join("missing/below")).contains("missing"));
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(refused(dir.path().join("file")).contains("not a directory"));
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&path, Some(12), Some(12)).unwrap();
        assert!(refused(path).contains("it belongs to user 12, not to 0"));
    }
    let first = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
    assert!(refused(dir.path().join("cache")).contains("another mount of this volume uses it"));
    first.close();
    assert!(DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).is_ok());
}

#[tokio::test]
async fn a_copy_of_a_bucket_and_an_earlier_state_of_it_are_others() {
    assert_eq!(identity(UUID, "s3://a/v"), identity(UUID, "s3://a/v"));
    assert_ne!(identity(UUID, "s3://a/v"), identity(UUID, "s3://b/v"));
    let dir = tempfile::tempdir().unwrap();
    let (early, late) = ((Object::Segment(3, 0), 0), (Object::Segment(5, 0), 0));
    let fill = async || {
        let cache = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
        for key in [early, late] {
            cache.keep(key, Bytes::from_static(b"block")).await;
        }
        cache.close();
    };
    fill().await;
    let cache = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
    cache.empty_if_later_than(5);
    assert!(cache.has(early) && cache.has(late), "they are of this state");
    cache.empty_if_later_than(4);
    assert!(!cache.has(early) && !cache.has(late), "an earlier state has others of these names");
    cache.close();
    let cache = DiskCache::open(&options(dir.path(), DISK_CACHE_MIN), UUID).unwrap();
    assert!(!cache.has(early), "they are removed");
}
