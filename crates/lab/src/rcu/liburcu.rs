//! liburcu, where it and a C compiler are installed: `liburcu.c` is compiled and loaded when the lab runs.

use std::os::raw::{c_int, c_ulong};
use std::process::Command;

use anyhow::{Context as _, ensure};
use libloading::{Library, Symbol};

use super::subject::{Subject, stay};

const SOURCE: &str = include_str!("liburcu.c");

/// The loaded library.
pub(crate) struct Liburcu {
    library: Library,
    /// Holds the library's file.
    _directory: tempfile::TempDir,
}

type Plain = unsafe extern "C" fn();

impl Liburcu {
    /// Compiles and loads it.
    ///
    /// # Errors
    /// Without a C compiler or liburcu's development files.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let (source, library) = (directory.path().join("liburcu.c"), directory.path().join("liblab.so"));
        std::fs::write(&source, SOURCE)?;
        let compiled = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source)
            .arg("-lurcu")
            .output()
            .context("not installed: no C compiler")?;
        ensure!(compiled.status.success(), "not installed: liburcu (Debian: liburcu-dev)");
        // SAFETY: our own library; its constructors are liburcu's, which may run at any time.
        let library = unsafe { Library::new(&library) }?;
        Ok(Self { library, _directory: directory })
    }

    fn plain(&self, name: &[u8]) -> Symbol<'_, Plain> {
        // SAFETY: the names given here are those of functions of this type in `liburcu.c`.
        unsafe { self.library.get(name) }.expect("a function of liburcu.c")
    }

    /// Runs `work` as a thread that liburcu knows.
    fn registered<T>(&self, work: impl FnOnce() -> T) -> T {
        let (enter, leave) = (self.plain(b"lab_enter_thread"), self.plain(b"lab_leave_thread"));
        // SAFETY: each thread registers once, here, and leaves before it returns.
        unsafe { enter() };
        let result = work();
        // SAFETY: as above.
        unsafe { leave() };
        result
    }
}

impl Subject for Liburcu {
    fn read(&self, pairs: u64, nested: bool) {
        // SAFETY: the function of this type in `liburcu.c`.
        let read: Symbol<'_, unsafe extern "C" fn(c_ulong, c_int)> =
            unsafe { self.library.get(b"lab_read") }.expect("a function of liburcu.c");
        // SAFETY: called by a registered thread.
        self.registered(|| unsafe { read(pairs, c_int::from(nested)) });
    }

    fn read_while(&self, goes_on: &dyn Fn() -> bool) {
        let (lock, unlock) = (self.plain(b"lab_lock"), self.plain(b"lab_unlock"));
        self.registered(|| {
            loop {
                // SAFETY: called by a registered thread, and unlocked below.
                unsafe { lock() };
                stay();
                // SAFETY: locked above.
                unsafe { unlock() };
                if !goes_on() {
                    return;
                }
            }
        });
    }

    fn grace(&self) -> Result<(), &'static str> {
        let synchronize = self.plain(b"lab_synchronize");
        // SAFETY: outside of read sections.
        unsafe { synchronize() };
        Ok(())
    }

    fn poll(&self) -> Result<(), &'static str> {
        // SAFETY: the function of this type in `liburcu.c`.
        let poll: Symbol<'_, unsafe extern "C" fn() -> c_int> =
            unsafe { self.library.get(b"lab_poll") }.expect("a function of liburcu.c");
        // SAFETY: called by a registered thread, outside of read sections.
        let is_there = self.registered(|| unsafe { poll() });
        if is_there == 0 {
            Err("this liburcu has no polled grace periods (0.14 and later have)")
        } else {
            Ok(())
        }
    }

    fn callbacks(&self, values: u64) {
        // SAFETY: the function of this type in `liburcu.c`.
        let callbacks: Symbol<'_, unsafe extern "C" fn(c_ulong) -> c_ulong> =
            unsafe { self.library.get(b"lab_callbacks") }.expect("a function of liburcu.c");
        // SAFETY: called by a registered thread, outside of read sections.
        let given = self.registered(|| unsafe { callbacks(values) });
        assert_eq!(given, values, "memory for the values");
    }
}
