//! Data paths under load: fio with verification, memory maps, appends, far offsets.
#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use watertight_acceptance::command::Running;
use watertight_acceptance::program::have;
use watertight_acceptance::rng::Rng;
use watertight_acceptance::sys::{Aligned, Mapping};
use watertight_acceptance::{Cmd, Setup, Subject, is_long};

const WORKER: &str = env!("CARGO_BIN_EXE_acceptance-worker");

/// Runs one fio job that verifies what it wrote, then verifies it once more after a remount.
fn fio(name: &str, args: &[&str]) {
    let name = format!("fio-{name}");
    if !have(&name, &["fio"]) {
        return;
    }
    let Some(mut subject) = Subject::start(&name) else { return };
    let size = if is_long() { "512m" } else { "48m" };
    let run = |more: &[&str]| {
        let output = Cmd::new("fio")
            .arg(format!("--name={name}"))
            .arg(format!("--directory={}", subject.path().display()))
            .arg(format!("--size={size}"))
            .args(["--verify=crc32c", "--verify_fatal=1", "--randrepeat=1", "--group_reporting"])
            .args(["--minimal", "--thread", "--fallocate=none"])
            .args(args)
            .args(more)
            .dir("/tmp")
            .limit(Duration::from_secs(240))
            .ok();
        assert!(!output.err().contains("verify"), "{}", output.err());
    };
    run(&["--do_verify=1"]);
    let only_verify: &[&str] = &["--verify_only", "--do_verify=1"];
    let can_verify_later = !args.iter().any(|a| a.contains("randrw"));
    if can_verify_later {
        run(only_verify);
    }
    let before = watertight_acceptance::tree::checksum(subject.path());
    subject.remount();
    assert_eq!(watertight_acceptance::tree::checksum(subject.path()), before, "after a remount");
    subject.close();
    assert_eq!(watertight_acceptance::tree::checksum(subject.store()), before, "in the store");
}

#[test]
fn fio_sequential() {
    fio("sequential", &["--rw=write", "--bs=1m", "--ioengine=psync"]);
}

#[test]
fn fio_random() {
    fio("random", &["--rw=randwrite", "--bs=4k", "--ioengine=psync"]);
}

#[test]
fn fio_random_odd_sizes() {
    fio("odd", &["--rw=randwrite", "--bsrange=512-70k", "--bs_unaligned", "--ioengine=psync"]);
}

#[test]
fn fio_mixed_by_four() {
    fio("mixed", &["--rw=randrw", "--bs=8k", "--ioengine=psync", "--numjobs=4", "--size=12m", "--fsync=64"]);
}

#[test]
fn fio_direct() {
    fio("direct", &["--rw=randwrite", "--bs=16k", "--ioengine=psync", "--direct=1"]);
}

#[test]
fn fio_direct_asynchronous() {
    fio("libaio", &["--rw=randwrite", "--bs=4k", "--ioengine=libaio", "--iodepth=16", "--direct=1"]);
}

#[test]
fn fio_mapped() {
    fio("mapped", &["--rw=randwrite", "--bs=4k", "--ioengine=mmap"]);
}

#[test]
fn fio_synchronous() {
    fio("synchronous", &["--rw=randwrite", "--bs=4k", "--ioengine=psync", "--sync=1", "--size=8m"]);
}

/// Several processes write one file through shared mappings, every third word each; read(2) sees
/// all of it, at once, after a remount and in the store.
#[test]
fn mapped_writers() {
    let Some(mut subject) = Subject::start("mapped-writers") else { return };
    let words: u64 = 400_000;
    let path = subject.at("mapped");
    File::create(&path).unwrap().set_len(words * 8).unwrap();
    let writers: Vec<Running> = (0..3)
        .map(|id: u64| {
            let numbers = [id, 3, words].map(|n| n.to_string());
            Cmd::new(WORKER).arg("map").arg(&path).args(numbers).start()
        })
        .collect();
    for mut writer in writers {
        let status = writer.wait(Duration::from_secs(60)).expect("the writer ends");
        assert!(status.success(), "{status}");
    }
    let check = |path: &Path, when: &str| {
        let data = fs::read(path).unwrap();
        assert_eq!(data.len() as u64, words * 8, "{when}");
        for (i, word) in data.chunks_exact(8).enumerate() {
            let is = u64::from_le_bytes(word.try_into().unwrap());
            let i = i as u64;
            assert_eq!(is, i << 8 | (i % 3), "{when}: word {i}");
        }
    };
    check(&path, "through read(2)");
    subject.remount();
    check(&path, "after a remount");
    subject.close();
    check(&subject.store().join("mapped"), "in the store");
}

/// Without msync: munmap and close, then unmount, lose nothing.
#[test]
fn mapped_without_msync() {
    let Some(mut subject) = Subject::start("mapped-no-msync") else { return };
    let path = subject.at("mapped");
    let mut rng = Rng::new(3);
    let mut expected = rng.bytes(3 << 20);
    fs::write(&path, &expected).unwrap();
    {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let map = Mapping::new(&file, expected.len()).unwrap();
        drop(file);
        for _ in 0..300 {
            let at = rng.index(expected.len() - 100);
            let data = rng.bytes(100);
            map.write(at, &data);
            expected[at..at + 100].copy_from_slice(&data);
        }
    }
    assert!(fs::read(&path).unwrap() == expected, "through read(2)");
    subject.close();
    assert!(fs::read(subject.store().join("mapped")).unwrap() == expected, "in the store");
}

/// A mapping, write(2) and O_DIRECT on one file see each other's bytes.
#[test]
fn mapping_and_calls_see_each_other() {
    let Some(subject) = Subject::start("coherence") else { return };
    let path = subject.at("file");
    fs::write(&path, vec![0; 64 << 10]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let map = Mapping::new(&file, 64 << 10).unwrap();
    let mut rng = Rng::new(11);
    let mut model = vec![0u8; 64 << 10];
    for turn in 0..400 {
        let at = rng.index(16) * 4096;
        let data = rng.bytes(4096);
        model[at..at + 4096].copy_from_slice(&data);
        match rng.below(3) {
            0 => map.write(at, &data),
            1 => file.write_all_at(&data, at as u64).unwrap(),
            _ => direct.write_all_at(Aligned::new(&data).get(), at as u64).unwrap(),
        }
        let at = rng.index(16) * 4096;
        let read = match rng.below(3) {
            0 => map.read(at, 4096),
            1 => {
                let mut buf = vec![0; 4096];
                file.read_exact_at(&mut buf, at as u64).unwrap();
                buf
            }
            _ => {
                let mut buf = Aligned::zeroed(4096);
                direct.read_exact_at(buf.get_mut(), at as u64).unwrap();
                buf.get().to_vec()
            }
        };
        assert!(read == model[at..at + 4096], "turn {turn}: page {} differs", at / 4096);
    }
}

/// Five processes append records of many sizes: every record is there once, whole, in its writer's
/// order.
fn appends(name: &str, setup: Setup) {
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let path = subject.at("log");
    File::create(&path).unwrap();
    let count: u64 = if is_long() { 20_000 } else { 1500 };
    let writers: Vec<Running> = (0..5)
        .map(|id: u64| {
            Cmd::new(WORKER).arg("append").arg(&path).args([id.to_string(), count.to_string()]).start()
        })
        .collect();
    for mut writer in writers {
        let status = writer.wait(Duration::from_secs(120)).expect("the writer ends");
        assert!(status.success(), "{status}");
    }
    let check = |path: &Path, when: &str| {
        let text = String::from_utf8(fs::read(path).unwrap()).expect("records are text");
        assert!(text.ends_with('\n'), "{when}: the last record is cut");
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        for (n, line) in text.lines().enumerate() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [id, seq, len, filler, total] = fields[..] else { panic!("{when}: line {n}: {line:.80}") };
            let number = |s: &str| s.parse::<u64>().unwrap_or_else(|e| panic!("{when}: line {n}: {e}"));
            assert_eq!(number(len), filler.len() as u64, "{when}: line {n}");
            assert_eq!(number(total), (line.len() - total.len() - 1) as u64, "{when}: line {n}");
            let expected = next.entry(number(id)).or_default();
            assert_eq!(number(seq), *expected, "{when}: writer {id} at line {n}");
            *expected += 1;
        }
        assert!(next.len() == 5 && next.values().all(|n| *n == count), "{when}: records {next:?}");
    };
    check(&path, "on the mount");
    subject.remount();
    check(&path, "after a remount");
    subject.close();
    check(&subject.store().join("log"), "in the store");
}

#[test]
fn concurrent_appends() {
    appends("appends", Setup::default());
}

#[test]
fn concurrent_appends_with_kernel_writeback() {
    appends("appends-writeback", Setup::default().option("mode=kernel-writeback"));
}

/// The size of the largest file that can be made in `dir`.
fn largest_file(dir: &Path) -> u64 {
    let file = tempfile::tempfile_in(dir).unwrap();
    let (mut good, mut bad) = (0, i64::MAX as u64);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        *if file.set_len(middle).is_ok() { &mut good } else { &mut bad } = middle;
    }
    good
}

/// A write across the end of the largest file does what fits, as on the host.
#[test]
fn the_largest_file() {
    let Some(mut subject) = Subject::start("largest-file") else { return };
    if subject.is_in_bucket() {
        watertight_acceptance::skip("largest-file", "a bucket has no limit that can be met");
        return;
    }
    let most = largest_file(subject.store());
    if most > 1 << 62 {
        watertight_acceptance::skip("largest-file", "the host's file system has no limit");
        return;
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(subject.at("x")).unwrap();
    if subject.is_kernel_writeback() {
        // The kernel accepts it without asking; fsync reports it.
        file.write_all_at(b"abc", most - 2).unwrap();
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EFBIG));
    } else {
        assert_eq!(file.write_at(b"abc", most - 2).unwrap(), 2);
        assert!(file.write_at(b"abc", most).is_err());
        file.sync_all().unwrap();
        assert_eq!(fs::metadata(subject.store().join("x")).unwrap().len(), most);
    }
    file.set_len(0).unwrap();
    drop(file);
    subject.close();
}

/// Offsets beyond 32 bits, and the end of what a file can be.
#[test]
fn far_offsets() {
    let Some(mut subject) = Subject::start("far-offsets") else { return };
    let path = subject.at("far");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let places = [0, (4 << 30) - 3, 6 << 30, (1 << 40) + 5];
    for at in places {
        file.write_all_at(b"far away", at).unwrap();
    }
    // Beyond what the store can take, the write itself fails: it could never be written back.
    let beyond = if subject.is_kernel_writeback() || subject.is_in_bucket() {
        Vec::new()
    } else {
        let most = largest_file(subject.store());
        vec![most, most + 1, i64::MAX as u64 - 1]
    };
    for at in beyond {
        let wrote = file.write_at(b"x", at).map_err(|e| e.raw_os_error());
        assert_eq!(wrote, Err(Some(libc::EFBIG)), "a write at {at}");
    }
    file.sync_all().unwrap();
    drop(file);
    let check = |path: &Path, when: &str| {
        let file = File::open(path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (1 << 40) + 13, "{when}");
        for at in places {
            let mut buf = [0; 10];
            let n = file.read_at(&mut buf, at).unwrap();
            assert_eq!(&buf[..8], b"far away", "{when}: at {at}");
            assert!(n == 8 || buf[8..] == [0, 0], "{when}: after {at}");
        }
        let mut hole = [1; 4096];
        file.read_exact_at(&mut hole, 5 << 30).unwrap();
        assert_eq!(hole, [0; 4096], "{when}: the hole");
    };
    check(&path, "on the mount");
    subject.remount();
    check(&path, "after a remount");
    subject.close();
    check(&subject.store().join("far"), "in the store");
}
