//! Makes `src/csi.v1.rs` of `proto/csi.proto`. In this directory: `cargo run --locked`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let crate_dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let proto = crate_dir.join("proto/csi.proto");
    let files = protox::compile([&proto], [crate_dir.join("proto")])?;
    let out = std::env::temp_dir().join(format!("csi-proto-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .build_transport(false)
        .generate_default_stubs(true)
        .out_dir(&out)
        .compile_fds(files)?;
    let made = std::fs::read_to_string(out.join("csi.v1.rs"))?;
    std::fs::remove_dir_all(&out)?;
    let head = format!("// Of csi.proto with the digest {:016x}.\n", digest(&std::fs::read(&proto)?));
    std::fs::write(crate_dir.join("src/csi.v1.rs"), head + &made)?;
    Ok(())
}

/// FNV-1a, as the test that asks whether the file is up to date has it.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
