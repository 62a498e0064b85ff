//! What becomes of the engine's tables when a volume is opened and closed again and again.

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use slatedb::admin::AdminBuilder;
use store::SetXattr;

use super::faults::{FaultyObjects, World};
use super::host::{CREATOR, FILE, ROOT, name, observe};
use crate::bucket::{Bucket, Patience};
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::object_names::engine_path;

pub(super) async fn open(world: &Arc<World>, nonce: u8) -> Arc<Mounted> {
    let bucket = Bucket::new(Arc::new(FaultyObjects::new(world, Arc::default())), "v".into());
    let bucket = bucket.seeded(nonce.into()).with_patience(Patience::UntilStopped);
    let options = MountOptions::plain(4, [nonce; 16]);
    let last = newest_manifest(&bucket).await.expect("it can be read");
    Mounted::open(bucket, last, options).await.expect("nobody else holds it")
}

/// Runs a life on a host that is alone.
pub(super) fn alone<T>(life: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(life)
}

/// Rows that were replayed are in the tables after a close, also where the host added none.
#[test]
fn replayed_rows_reach_the_tables() {
    let world = World::new(1);
    world.heal();
    let live = |nonce: u8, make: Option<&'static str>, is_closed: bool| {
        alone(async {
            let mounted = open(&world, nonce).await;
            if let Some(file) = make {
                mounted.tree().make(ROOT, name(file), FILE, 0o644, CREATOR).await.expect("made");
                mounted.tree().sync_all().await.expect("synced");
            }
            if is_closed {
                mounted.close().await;
            }
            observe(mounted.tree()).await.map(|seen| seen.len())
        })
    };
    let _closed = live(1, Some("a"), true);
    assert_eq!(live(2, Some("b"), false).unwrap(), 2);
    let _closed = live(3, None, true);
    assert_eq!(live(4, None, false).unwrap(), 2);
}

/// A volume that is mounted, changed and unmounted more often than the engine has tables.
#[test]
fn tables_are_merged() {
    let world = World::new(1);
    world.heal();
    for life in 0..150_u8 {
        alone(async {
            let mounted = open(&world, life).await;
            let tree = mounted.tree();
            let made = tree.make(ROOT, name(&life.to_string()), FILE, 0o644, CREATOR).await.expect("made");
            tree.forget(made.id.0, 1);
            let files = tree.engine.scan(crate::rows::keys_of(b'D', 1), 1000).await.expect("listed").len();
            assert_eq!(files, usize::from(life) + 1);
            assert_eq!(tree.totals.lock().inodes, i64::from(life) + 2);
            // A merge that begins with the opening is given up.
            let begun = tokio::time::Instant::now();
            mounted.close().await;
            assert!(begun.elapsed() < Duration::from_secs(10), "closed in {:?}", begun.elapsed());
        });
    }
}

/// Tables that are not merged.
async fn unmerged(world: &Arc<World>) -> usize {
    let store: Arc<dyn ObjectStore> = Arc::new(FaultyObjects::new(world, Arc::default()));
    let admin = AdminBuilder::new(engine_path(&"v".into()), store).build();
    admin.read_manifest(None).await.expect("it can be read").map_or(0, |manifest| manifest.l0().len())
}

/// What an opening takes by the number of tables that it finds: requests, and time if each request takes
/// 60 ms.
/// `cargo test -p watertight-objects --lib simulation::tables::what_an_opening_takes -- --ignored --nocapture`
#[test]
#[ignore = "it prints figures"]
fn what_an_opening_takes() {
    let world = World::new(1);
    world.heal();
    let mut nonce = 0;
    for tables in [1, 7, 8, 31, 63] {
        alone(async {
            let mounted = open(&world, nonce).await;
            while unmerged(&world).await < tables {
                mounted.tree().set_xattr(ROOT, "user.n".as_ref(), b"1", SetXattr::Any).await.expect("set");
                mounted.engine().write_tables().await.expect("written");
            }
        });
        let (before, took) = (
            world.requests(),
            alone(async {
                let begun = tokio::time::Instant::now();
                let mounted = open(&world, nonce + 1).await;
                let took = begun.elapsed();
                drop(mounted);
                took
            }),
        );
        println!("{tables} tables: {} requests, {took:?}", world.requests() - before);
        nonce += 2;
    }
}

mod schedules;
