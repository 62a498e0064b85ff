//! A program that is built without volumes on object storage.

use crate::rig::Rig;

#[test]
fn a_url_gets_one_clear_line() {
    let rig = Rig::new();
    let mnt = rig.mnt.to_str().unwrap();
    for verb in
        [&["format", "s3://bucket/a"][..], &["info", "s3://bucket/a"], &["mount", "s3://bucket/a", mnt]]
    {
        let out = rig.run(verb).ends(1, "is built without volumes on object storage");
        assert_eq!(out.stderr.lines().count(), 1, "{out:?}");
    }
    assert!(!rig.is_mounted());
}
