use std::time::Duration;

use object_store::ObjectStore as _;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use store::{Creator, FileType, Name, NewNode, ObjectId};

use super::*;
use crate::bucket::Bucket;
use crate::mount::{MountOptions, Mounted};

#[tokio::test(start_paused = true)]
async fn a_file_that_is_written_faster_than_the_bucket_takes_it_has_large_segments() {
    const MIB: usize = 1 << 20;
    const WRITES: usize = 256;
    let objects = Arc::new(InMemory::new());
    let config =
        ThrottleConfig { wait_put_per_call: Duration::from_millis(200), ..ThrottleConfig::default() };
    let slow = ThrottledStore::new(Arc::clone(&objects), config);
    let bucket = Bucket::new(Arc::new(slow), "v".into());
    let mounted = Mounted::open(bucket, None, MountOptions::plain(4, [1; 16])).await.unwrap();
    let tree = mounted.tree();
    let name = Name::new("file".as_ref()).unwrap();
    let what = NewNode::Special { kind: FileType::Regular, rdev: 0 };
    let creator = Creator { uid: 0, gid: 0, umask: 0 };
    let id = tree.make(ObjectId::ROOT, name, what, 0o644, creator).await.unwrap().id;
    let pin = tree.pin_used(id.0, "test").unwrap();
    for at in 0..WRITES {
        tree.write_at(&pin, &[IoSlice::new(&vec![1; MIB])], (at * MIB) as u64).await.unwrap();
    }
    tree.sync_all().await.unwrap();
    let segments = objects.list_with_delimiter(Some(&"v/seg".into())).await.unwrap().common_prefixes.len();
    assert!((1..=WRITES * MIB / EXTENT_BYTES_MAX).contains(&segments), "{segments} segments");
    mounted.close().await;
}
