//! What an unmount and a mount elsewhere wait for.

use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use store::{Name, ObjectId};
use tokio::time::Instant;

use super::*;
use crate::format::Options;
use crate::garbage::tests::{make as make_file, read, write};

/// The time to the bucket and back, the only thing that takes time here.
const DISTANCE: Duration = Duration::from_millis(100);

fn distant(objects: &Arc<InMemory>) -> Bucket {
    let config = ThrottleConfig {
        wait_get_per_call: DISTANCE,
        wait_list_per_call: DISTANCE,
        wait_list_with_delimiter_per_call: DISTANCE,
        wait_put_per_call: DISTANCE,
        wait_delete_per_call: DISTANCE,
        ..ThrottleConfig::default()
    };
    Bucket::new(Arc::new(ThrottledStore::new(Arc::clone(objects), config)), "v".into())
}

fn round_trips(since: Instant) -> u128 {
    since.elapsed().as_millis() / DISTANCE.as_millis()
}

/// Threads that sync all the time share the objects of the log, though four are on their way.
#[tokio::test(start_paused = true)]
async fn commits_that_come_together_share_a_request() {
    const CALLERS: usize = 64;
    let objects = Arc::default();
    make(&distant(&objects), Options::default(), None).await.unwrap();
    let mounted = open_held(&distant(&objects), None, &OpenOptions::default()).await.unwrap();
    let puts = || mounted.requests().kinds.iter().find(|kind| kind.name == "put").map_or(0, |kind| kind.sent);
    let mut files = Vec::new();
    for number in 0..CALLERS {
        files.push(make_file(mounted.tree(), &format!("file-{number}")).await);
    }
    let file = files.remove(0);
    write(mounted.tree(), &file, 1, 1000).await;
    let (before, begun) = (puts(), Instant::now());
    let syncing = files.into_iter().map(|file| {
        let tree = Arc::clone(mounted.tree());
        tokio::spawn(async move {
            for byte in 0..10 {
                write(&tree, &file, byte, 1000).await;
            }
        })
    });
    for one in syncing.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    let (syncs, puts) = (10 * (CALLERS - 1), puts() - before);
    assert!(puts * 10 <= syncs as u64, "{puts} PUTs for {syncs} fsyncs");
    assert!(round_trips(begun) <= 15, "{} round trips of ten fsyncs", round_trips(begun));
    mounted.close().await;
}

#[tokio::test(start_paused = true)]
async fn few_requests_of_a_handover_wait_for_each_other() {
    let objects = Arc::default();
    make(&distant(&objects), Options::default(), None).await.unwrap();
    let mounted = open_held(&distant(&objects), None, &OpenOptions::default()).await.unwrap();
    let file = make_file(mounted.tree(), "file").await;
    write(mounted.tree(), &file, 1, 1000).await;
    drop(make_file(mounted.tree(), "another").await);
    drop(file);
    let begun = Instant::now();
    mounted.close().await;
    // The rows, in the log and in a table; the manifest, and the lease.
    assert!(round_trips(begun) <= 3, "{} round trips of an unmount", round_trips(begun));

    let begun = Instant::now();
    let mounted = open_held(&distant(&objects), None, &OpenOptions::default()).await.unwrap();
    let tree = mounted.tree();
    // Format, lease, and the manifest's name; the manifest; the lease, the log, and the table; the
    // writer's manifest; the fence; whether there is another writer.
    assert!(round_trips(begun) <= 6, "{} round trips of a mount", round_trips(begun));
    let entry = tree.lookup(ObjectId::ROOT, Name::new("file".as_ref()).unwrap()).await.unwrap();
    assert_eq!(read(tree, &tree.pin(entry.id.0), 1000).await, [1; 1000]);
    assert!(round_trips(begun) <= 7, "{} round trips until data was read", round_trips(begun));
    mounted.close().await;
}

#[test]
fn a_program_whose_state_names_no_holder_is_followed_by_the_lease_alone() {
    let handed = |holder: Option<&str>| {
        let handed = NumberedState { holder: holder.map(str::to_owned), ..NumberedState::default() };
        resumed_of(&OpenOptions { handed: Some(handed), ..OpenOptions::default() })
    };
    assert_eq!(handed(None).unwrap(), None);
    assert!(handed(Some(&"ab".repeat(16))).unwrap().is_some());
    assert_eq!(handed(Some("none")).map_err(|error| error.kind()), Err(ErrorKind::Invalid));
}
