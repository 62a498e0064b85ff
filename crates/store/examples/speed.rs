#![allow(clippy::unwrap_used, missing_docs, clippy::print_stdout)]
use std::ffi::OsStr;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;
use watertight_store::*;
fn main() {
    let me = Creator { uid: 0, gid: 0, umask: 0o22 };
    for spec in std::env::args().skip(1) {
        let s: Arc<dyn Store> = open(&spec).unwrap();
        let c = s.create(ObjectId::ROOT, Name::new(OsStr::new("big")).unwrap(), 0o644, me).unwrap();
        let buf = vec![1u8; 4096];
        let bufs: Vec<IoSlice> = (0..256).map(|_| IoSlice::new(&buf)).collect();
        for round in 0..3 {
            let t = Instant::now();
            for i in 0..512u64 {
                c.file.write_at(&bufs, i << 20).unwrap();
            }
            println!(
                "{spec} seq write 1M (256x4k) round {round}: {:.0} MB/s",
                512.0 / t.elapsed().as_secs_f64()
            );
            if round == 1 {
                s.set_attr(c.entry.id, &SetAttr { size: Some(0), ..Default::default() }).unwrap();
            }
        }
        let one = [IoSlice::new(&buf)];
        let t = Instant::now();
        for i in 0..200000u64 {
            c.file.write_at(&one, (i * 7919 % 131072) << 12).unwrap();
        }
        println!("{spec} rand write 4k: {:.0} ops/s", 200000.0 / t.elapsed().as_secs_f64());
        let mut b = vec![0u8; 1 << 20];
        let t = Instant::now();
        for i in 0..512u64 {
            c.file.read_at(&mut b, i << 20).unwrap();
        }
        println!("{spec} read 1M: {:.0} MB/s", 512.0 / t.elapsed().as_secs_f64());
        let t = Instant::now();
        for i in 0..50000 {
            let n = format!("f{}", i % 100);
            let n = Name::new(OsStr::new(&n)).unwrap();
            let c = s.create(ObjectId::ROOT, n, 0o644, me).unwrap();
            drop(c.file);
            s.unlink(ObjectId::ROOT, n).unwrap();
            s.forget(c.entry.id, 1);
        }
        println!("{spec} create+unlink: {:.0} ops/s", 50000.0 / t.elapsed().as_secs_f64());
        let n = Name::new(OsStr::new("big")).unwrap();
        let t = Instant::now();
        for _ in 0..200000 {
            let e = s.lookup(ObjectId::ROOT, n).unwrap();
            s.forget(e.id, 1);
        }
        println!("{spec} lookup warm: {:.0} ops/s", 200000.0 / t.elapsed().as_secs_f64());
        let t = Instant::now();
        for _ in 0..200000 {
            s.attr(c.entry.id).unwrap();
        }
        println!("{spec} attr: {:.0} ops/s", 200000.0 / t.elapsed().as_secs_f64());
        s.unlink(ObjectId::ROOT, n).unwrap();
        drop(c);
        let t = Instant::now();
        for i in 0..20000 {
            let n = format!("f{}", i);
            let n = Name::new(OsStr::new(&n)).unwrap();
            let c = s.create(ObjectId::ROOT, n, 0o644, me).unwrap();
            c.file.write_at(&one, 0).unwrap();
            drop(c.file);
            s.forget(c.entry.id, 1);
        }
        println!("{spec} untar-like: {:.0} files/s", 20000.0 / t.elapsed().as_secs_f64());
        let t = Instant::now();
        for i in 0..20000 {
            let n = format!("f{}", i);
            let n = Name::new(OsStr::new(&n)).unwrap();
            let e = s.lookup(ObjectId::ROOT, n).unwrap();
            s.unlink(ObjectId::ROOT, n).unwrap();
            s.forget(e.id, 1);
        }
        println!("{spec} rm: {:.0} files/s", 20000.0 / t.elapsed().as_secs_f64());
        s.close();
    }
}
