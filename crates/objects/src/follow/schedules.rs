//! What a reader that follows shows, and what holders keep for it.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib schedules`

use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;
use store::{ErrorKind, Name, ObjectId, SetXattr};

use super::*;
use crate::garbage::tests::{LARGE, bucket, collector, make, open, read, write};
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::node::Pin;

const ROOT: ObjectId = ObjectId::ROOT;

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_ref()).unwrap()
}

/// A reader, and what follows for it.
async fn reader(objects: &Arc<InMemory>) -> (Arc<Mounted>, Follower) {
    let last = newest_manifest(&bucket(objects)).await.unwrap().unwrap();
    let options = MountOptions { follow: Some(Duration::from_millis(1)), ..MountOptions::plain(4, [9; 16]) };
    let mounted = Mounted::open_read_only(bucket(objects), last, options).await.unwrap();
    let follower = mounted.take_follower().expect("it follows");
    (mounted, follower)
}

async fn look_up(tree: &Arc<Tree>, file: &str) -> Result<Pin> {
    let entry = tree.lookup(ROOT, name(file)).await?;
    let pin = tree.pin_used(entry.id.0, "test")?;
    tree.forget(entry.id.0, 1);
    Ok(pin)
}

/// What a file holds now.
async fn shown(tree: &Arc<Tree>, pin: &Pin) -> Vec<u8> {
    tree.engine.followed().unwrap().within(pin.ino, read(tree, pin, LARGE)).await
}

#[tokio::test]
async fn changes_are_shown_from_holder_to_holder_and_their_users_are_told() {
    let objects = Arc::default();
    let holder = open(&objects, 1).await;
    let pin = make(holder.tree(), "file").await;
    write(holder.tree(), &pin, 1, LARGE).await;
    let (mounted, mut follower) = reader(&objects).await;
    let tree = mounted.tree();
    let told = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let note = Arc::clone(&told);
    tree.engine.followed().unwrap().on_change(Arc::new(move |id| {
        note.lock().push(id.0);
        note.lock().len() != 1
    }));
    let file = look_up(tree, "file").await.unwrap();
    assert_eq!(shown(tree, &file).await, vec![1; LARGE]);
    make(holder.tree(), "unused").await;
    write(holder.tree(), &pin, 2, LARGE).await;
    assert_eq!(shown(tree, &file).await, vec![1; LARGE], "not before it looks");
    follower.step().await.unwrap();
    assert_eq!(shown(tree, &file).await, vec![2; LARGE]);
    assert_eq!(*told.lock(), [file.ino], "the first time it could not be taken note of");
    follower.step().await.unwrap();
    follower.step().await.unwrap();
    assert_eq!(*told.lock(), [file.ino; 2]);
    // Of what the table has when a holder ends, and of the next one's, beyond its fence.
    holder.close().await;
    let holder = open(&objects, 2).await;
    let pin = look_up(holder.tree(), "file").await.unwrap();
    write(holder.tree(), &pin, 3, LARGE).await;
    holder.tree().set_xattr(ObjectId(pin.ino), "user.a".as_ref(), b"b", SetXattr::Any).await.unwrap();
    holder.tree().sync_all().await.unwrap();
    follower.step().await.unwrap();
    assert_eq!(shown(tree, &file).await, vec![3; LARGE]);
    assert_eq!(tree.get_xattr(ObjectId(file.ino), "user.a".as_ref()).await.unwrap(), b"b");
    assert_eq!(*tree.totals.lock(), *holder.tree().totals.lock());
    // Over the newest tables it is the same.
    follower.renew_tables().await.unwrap();
    assert_eq!(shown(tree, &file).await, vec![3; LARGE]);
    assert_eq!(*tree.totals.lock(), *holder.tree().totals.lock());
    assert_eq!(tree.engine.scan(rows::keys_of(b'D', 1), 1).await.unwrap().len(), 1);
    assert_eq!(tree.engine.scan(rows::keys_of(b'D', 1), 9).await.unwrap().len(), 2);
    follower.tidy().await;
    assert!(follower.earlier.is_empty(), "nobody uses them");
    holder.close().await;
    mounted.close().await;
}

/// What is garbage before all that a reader shows goes; what it shows stays.
#[tokio::test]
async fn a_follower_keeps_what_it_shows_and_no_more() {
    let objects = Arc::default();
    let holder = open(&objects, 1).await;
    let (tree, mut collector) = (holder.tree(), collector(&holder, 1));
    let pin = make(tree, "file").await;
    write(tree, &pin, 1, LARGE).await;
    let mut mark = Some(Mark::set(bucket(&objects)).await.unwrap());
    let (mounted, mut follower) = reader(&objects).await;
    let (shows, segments) =
        (mounted.tree(), async || bucket(&objects).list("seg", None).await.unwrap().len());
    let file = look_up(shows, "file").await.unwrap();
    for byte in 2..6 {
        // It has looked, and its mark says so.
        make(tree, &format!("since {byte}")).await;
        tree.sync_all().await.unwrap();
        follower.step().await.unwrap();
        follower.renew(&mut mark).await.unwrap();
        write(tree, &pin, byte, LARGE).await;
        collector.pass().await.unwrap();
        collector.pass().await.unwrap();
        let data = shows.engine.followed().unwrap().within(file.ino, async {
            let mut data = vec![0; LARGE];
            shows.read_at(&file, &mut data, 0).await.map(|_| data)
        });
        let data = data.await;
        assert!(data.is_ok(), "what a follower shows is gone: {data:?}");
        assert_eq!(data.unwrap(), vec![byte - 1; LARGE], "it has not looked since");
        assert_eq!(segments().await, 2, "what it has, and the newest");
    }
    // A file that is removed while it is in use there.
    follower.step().await.unwrap();
    tree.remove(ROOT, name("file"), false).await.unwrap();
    let ino = pin.ino;
    drop(pin);
    while tree.engine.get(&rows::inode_key(ino)).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    for more in 0..3 {
        make(tree, &format!("more {more}")).await;
        tree.sync_all().await.unwrap();
        follower.step().await.unwrap();
        follower.renew(&mut mark).await.unwrap();
        collector.pass().await.unwrap();
    }
    let found = shows.engine.followed().unwrap().within(ROOT.0, look_up(shows, "file")).await;
    assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(shown(shows, &file).await, vec![5; LARGE]);
    assert_eq!(segments().await, 2, "also what was replaced since its tables were the newest");
    drop(file);
    for _ in 0..2 {
        make(tree, "last").await;
        tree.sync_all().await.unwrap();
        follower.step().await.unwrap();
        follower.renew(&mut mark).await.unwrap();
        tree.remove(ROOT, name("last"), false).await.unwrap();
        collector.pass().await.unwrap();
    }
    assert_eq!(segments().await, 0, "nobody has it any more");
    mark.unwrap().remove().await;
    holder.close().await;
    mounted.close().await;
}

/// A reader that was stopped until its mark did not count any more finds that out, and shows the
/// newest state.
#[tokio::test]
async fn a_follower_that_lost_its_mark_begins_anew() {
    let objects = Arc::default();
    let holder = open(&objects, 1).await;
    let pin = make(holder.tree(), "file").await;
    write(holder.tree(), &pin, 1, LARGE).await;
    let mut mark = Some(Mark::set(bucket(&objects)).await.unwrap());
    let (mounted, mut follower) = reader(&objects).await;
    let tree = mounted.tree();
    let file = look_up(tree, "file").await.unwrap();
    let marks: Vec<_> = bucket(&objects).list("reader", None).await.unwrap();
    bucket(&objects).delete_many(&[format!("reader/{}", marks[0])]).await.unwrap();
    write(holder.tree(), &pin, 2, LARGE).await;
    drop(pin);
    holder.close().await;
    // What it would have read next is gone.
    let holder = open(&objects, 2).await;
    collector(&holder, 1).collect(false).await.unwrap();
    follower.step().await.unwrap();
    follower.renew(&mut mark).await.unwrap();
    assert_eq!(shown(tree, &file).await, vec![2; LARGE]);
    assert_eq!(bucket(&objects).list("reader", None).await.unwrap().len(), 1);
    mark.unwrap().remove().await;
    holder.close().await;
    mounted.close().await;
}

#[cfg(shuttle)]
#[test]
fn a_collection_that_forgets_followers_is_caught() {
    use sync::mutant::assert_caught;
    let test = "follow::schedules::a_follower_keeps_what_it_shows_and_no_more";
    assert_caught(test, &["garbage-of-a-follower"], "what a follower shows is gone");
}
