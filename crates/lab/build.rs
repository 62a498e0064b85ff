//! Compiles what the lab asks of liburcu, where it and a C compiler are; elsewhere the peer is a
//! row that says so.
//!
//! Linked into the program, not loaded by it: liburcu's thread-local data then costs no call, as in
//! any program that uses it.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(has_liburcu)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/rcu/liburcu.c");
    match compile() {
        Ok(()) => println!("cargo::rustc-cfg=has_liburcu"),
        Err(why) => {
            println!("cargo::rustc-env=LAB_NO_LIBURCU={why}");
            // Never there, so that the next build asks again.
            println!("cargo::rerun-if-changed=liburcu-is-missing");
        }
    }
}

fn compile() -> Result<(), &'static str> {
    let library = pkg_config::Config::new()
        .cargo_metadata(false)
        .probe("liburcu-memb")
        .map_err(|_| "liburcu is not installed (Debian: liburcu-dev, pkg-config)")?;
    let mut build = cc::Build::new();
    build.file("src/rcu/liburcu.c").includes(&library.include_paths).opt_level(2).cargo_warnings(false);
    // As a program is compiled, not a library: thread-local data is reached without a call.
    build.pic(false).flag("-fPIE");
    // As rustc does, so that the copies of a loop lie where they are meant to
    // (src/rcu/placement.rs).
    build.flag("-falign-loops=16");
    build.try_compile("lab_liburcu").map_err(|_| "liburcu cannot be compiled against: no C compiler?")?;
    // After what uses it.
    for path in &library.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for name in &library.libs {
        println!("cargo::rustc-link-lib={name}");
    }
    Ok(())
}
