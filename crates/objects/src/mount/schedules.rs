//! A volume that goes on in the next program of its process, and the mutants that a test catches.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib
//! mount::schedules`

use object_store::memory::InMemory;
use store::{Name, ObjectId};

use super::*;
use crate::garbage::tests::{bucket, make, open, read, write};

/// Opens the volume for the next program.
async fn taken_over(objects: &Arc<InMemory>, nonce: u8, handed: NumberedState) -> Arc<Mounted> {
    let last = newest_manifest(&bucket(objects)).await.unwrap();
    let options = MountOptions { handed: Some(handed), ..MountOptions::plain(4, [nonce; 16]) };
    Mounted::open(bucket(objects), last, options).await.unwrap()
}

/// A file that lost its name while programs have it open is there as long as they have it, and no
/// longer.
#[tokio::test]
async fn a_file_without_a_name_goes_on_as_long_as_it_is_referred_to() {
    let objects = Arc::default();
    let mut mounted = open(&objects, 1).await;
    let name = Name::new("file".as_ref()).unwrap();
    let pin = make(mounted.tree(), "file").await;
    let id = ObjectId(pin.ino);
    write(mounted.tree(), &pin, 7, 5000).await;
    let entry = mounted.tree().lookup(ObjectId::ROOT, name).await.unwrap();
    assert_eq!(entry.id, id);
    mounted.tree().remove(ObjectId::ROOT, name, false).await.unwrap();
    mounted.tree().sync_all().await.unwrap();
    drop(pin);
    for program in 2..5 {
        let handed = mounted.tree().hand_over().unwrap();
        assert_eq!(handed.references, [(id, 1)], "program {program}");
        // The program before has no time to end anything.
        let _replaced = mounted;
        mounted = taken_over(&objects, program, handed).await;
        let pin = mounted.tree().pin_used(id.0, "test").expect("the reference is lost");
        assert_eq!(read(mounted.tree(), &pin, 5000).await, [7; 5000], "program {program}");
        mounted.tree().sync_all().await.unwrap();
    }
    mounted.tree().forget(id.0, 1);
    // It is removed by a task.
    while mounted.tree().load(id.0).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(mounted.tree().hand_over().unwrap(), NumberedState::default());
    mounted.close().await;
}

#[tokio::test]
async fn what_is_not_durable_is_not_handed_over() {
    let mounted = open(&Arc::default(), 1).await;
    let pin = make(mounted.tree(), "file").await;
    mounted.tree().write_at(&pin, &[std::io::IoSlice::new(&[1; 5000])], 0).await.unwrap();
    assert_eq!(mounted.tree().hand_over().map_err(|error| error.kind()), Err(ErrorKind::Busy));
    mounted.tree().sync_all().await.unwrap();
    mounted.tree().hand_over().unwrap();
    drop(pin);
    mounted.close().await;
}

#[cfg(shuttle)]
#[test]
fn a_program_that_reaps_what_is_in_use_is_caught() {
    use sync::mutant::assert_caught;
    let test = "mount::schedules::a_file_without_a_name_goes_on_as_long_as_it_is_referred_to";
    assert_caught(test, &["handed-over-and-reaped"], "Stale");
    assert_caught(test, &["handed-over-without-references"], "the reference is lost");
}
