#![allow(clippy::unwrap_used, missing_docs, clippy::print_stdout)]
use std::ffi::OsStr;
use std::io::IoSlice;
use std::time::Instant;
use watertight_store::*;
fn main() {
    let me = Creator { uid: 0, gid: 0, umask: 0o22 };
    let a: Vec<String> = std::env::args().collect();
    let buf = vec![1u8; 4096];
    let one = [IoSlice::new(&buf)];
    if a[2] == "raw" {
        let t = Instant::now();
        for i in 0..20000 {
            std::fs::write(format!("{}/f{}", a[1], i), &buf).unwrap();
        }
        println!("raw: {:.0} files/s", 20000.0 / t.elapsed().as_secs_f64());
        let t = Instant::now();
        for i in 0..20000 {
            std::fs::remove_file(format!("{}/f{}", a[1], i)).unwrap();
        }
        println!("raw rm: {:.0} files/s", 20000.0 / t.elapsed().as_secs_f64());
        return;
    }
    let s =
        DirStore::open_with(&a[1], DirOptions { open_max: None, unsynced_max: Some(a[2].parse().unwrap()) })
            .unwrap();
    let t = Instant::now();
    for i in 0..20000 {
        let n = format!("f{}", i);
        let n = Name::new(OsStr::new(&n)).unwrap();
        let c = s.create(ObjectId::ROOT, n, 0o644, me).unwrap();
        c.file.write_at(&one, 0).unwrap();
        drop(c.file);
        s.forget(c.entry.id, 1);
    }
    println!("{} untar-like: {:.0} files/s", a[2], 20000.0 / t.elapsed().as_secs_f64());
    println!("{:?}", s.counters());
    let t = Instant::now();
    for i in 0..20000 {
        let n = format!("f{}", i);
        let n = Name::new(OsStr::new(&n)).unwrap();
        let e = s.lookup(ObjectId::ROOT, n).unwrap();
        s.unlink(ObjectId::ROOT, n).unwrap();
        s.forget(e.id, 1);
    }
    println!("rm: {:.0} files/s", 20000.0 / t.elapsed().as_secs_f64());
}
