//! packaging/kubernetes/image: the same bytes each time, and no program that needs a C library.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::manifests::packaging;
use crate::rig::{Out, Rig, has, run};

/// Links a program that does nothing.
fn linked(rig: &Rig, how: &str) -> Option<String> {
    let (source, program) = (rig.root.join("source.c"), rig.root.join(how));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let out =
        Command::new("cc").arg(format!("-{how}")).arg("-o").arg(&program).arg(&source).output().unwrap();
    if !out.status.success() {
        crate::rig::skipped("the C library's static part is not installed");
        return None;
    }
    Some(program.to_str().unwrap().to_owned())
}

fn image(rig: &Rig, program: &str, name: &str) -> Out {
    let certificates = rig.root.join("certificates");
    fs::write(&certificates, "of a test\n").unwrap();
    let mut command = Command::new(packaging().join("image"));
    command.args(["--program", program, "--tag", "watertight:test"]).arg(rig.root.join(name));
    command.env("SOURCE_DATE_EPOCH", "1700000000").env("WATERTIGHT_CERTIFICATES", certificates);
    run(command)
}

#[test]
fn an_image_has_a_static_program_and_the_same_bytes_each_time() {
    if !["cc", "readelf", "gzip"].into_iter().all(has) {
        return;
    }
    let rig = Rig::new();
    let (Some(program), Some(needy)) = (linked(&rig, "static"), linked(&rig, "pie")) else { return };
    image(&rig, &needy, "none.tar").ends(2, "not linked statically");
    image(&rig, "/nonesuch", "none.tar").ends(2, "is not there");
    assert!(!rig.root.join("none.tar").exists());
    let said = image(&rig, &program, "a.tar").ok().stdout;
    assert!(said.contains("watertight:test") && said.contains("manifest sha256:"), "{said}");
    image(&rig, &program, "b.tar").ok();
    let bytes = |name: &str| fs::read(rig.root.join(name)).unwrap();
    assert_eq!(bytes("a.tar"), bytes("b.tar"));
    let unpack = |file: &Path, flags: &str| {
        let out = Command::new("tar").arg(flags).arg(file).arg("-C").arg(&rig.root).output().unwrap();
        assert!(out.status.success(), "{out:?}");
    };
    unpack(&rig.root.join("a.tar"), "-xf");
    let json = |path: &Path| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
    let blob = |of: &Value| {
        let digest = of["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        rig.root.join("blobs/sha256").join(digest)
    };
    let manifest = json(&blob(&json(&rig.root.join("index.json"))["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/watertight"]));
    let layer = blob(&manifest["layers"][0]);
    assert_eq!(fs::metadata(&layer).unwrap().len(), manifest["layers"][0]["size"].as_u64().unwrap());
    unpack(&layer, "-xzf");
    assert_eq!(fs::read(rig.root.join("watertight")).unwrap(), fs::read(&program).unwrap());
}
