//! Makes `src/csi.v1.rs` of `proto/csi.proto`. In this directory: `cargo run --locked`.

/// What version 1.13 has taken out and kubelet still asks for, which up to 1.34 at least knows a
/// volume's condition by nothing else: what stands there now, and what is put in its place.
const OF_KUBELET: [(&str, &str); 2] = [
    (
        "  // Field 2 was VolumeCondition, an alpha API that has been removed.
  reserved 2;
}
",
        "  // Not of 1.13: what kubelet asks for.
  VolumeCondition volume_condition = 2;
}

// Not of 1.13: what kubelet asks for.
message VolumeCondition {
  bool abnormal = 1;

  // What is wrong, or that nothing is.
  string message = 2;
}
",
    ),
    (
        "      reserved 4;
",
        "      // Not of 1.13: what kubelet asks for.
      VOLUME_CONDITION = 4;
",
    ),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let crate_dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let proto = crate_dir.join("proto/csi.proto");
    let out = std::env::temp_dir().join(format!("csi-proto-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let mut text = std::fs::read_to_string(&proto)?;
    for (theirs, ours) in OF_KUBELET {
        if text.matches(theirs).count() != 1 {
            return Err(format!("csi.proto has this not once: {theirs:?}").into());
        }
        text = text.replace(theirs, ours);
    }
    std::fs::write(out.join("csi.proto"), text)?;
    let files = protox::compile([out.join("csi.proto")], [&out])?;
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
