//! The protocol's structures against the C header that is installed.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fmt::Write as _;
use std::process::Command;

use watertight_fuse::abi::SIZES;

/// The kernel's name of a structure, where it is not the name in small letters.
fn c_name(name: &str) -> Option<String> {
    Some(match name {
        "SetXattrInCompat" | "CreateOut" | "CopyFileRangeOut" => return None,
        // Of Linux 6.18: the header may be older.
        "NotifyPruneOut" => return None,
        "StatFsOut" => "statfs_out".to_owned(),
        "SetXattrIn" | "GetXattrIn" | "GetXattrOut" | "GetAttrIn" | "SetAttrIn" => {
            name.to_lowercase().replace("in", "_in").replace("out", "_out")
        }
        "LSeekIn" | "LSeekOut" | "FSyncIn" | "FAllocateIn" | "MkNodIn" | "MkDirIn" => {
            name.to_lowercase().replace("in", "_in").replace("out", "_out")
        }
        "DirentPlus" => "direntplus".to_owned(),
        name => {
            let mut snake = String::new();
            for (at, letter) in name.char_indices() {
                if letter.is_uppercase() && at > 0 {
                    snake.push('_');
                }
                snake.push(letter.to_ascii_lowercase());
            }
            snake
        }
    })
}

#[test]
fn sizes_are_those_of_the_c_header() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = "#include <stdio.h>\n#include <linux/fuse.h>\nint main(void) {\n".to_owned();
    let mut expected = Vec::new();
    for (name, size) in SIZES {
        if let Some(c_name) = c_name(name) {
            writeln!(source, "printf(\"%zu\\n\", sizeof(struct fuse_{c_name}));").unwrap();
            expected.push((c_name, *size));
        }
    }
    source.push_str("return 0; }\n");
    std::fs::write(dir.path().join("sizes.c"), source).unwrap();
    let compiled = Command::new("cc").args(["-o", "sizes", "sizes.c"]).current_dir(dir.path()).output();
    match compiled {
        Err(error) => return common::skipped(&format!("no C compiler: {error}")),
        Ok(output) if !output.status.success() => {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            if message.contains("linux/fuse.h") && message.contains("No such file") {
                return common::skipped("linux/fuse.h is not installed");
            }
            // Structures that a header of an older kernel lacks cannot be compared; a wrong name is
            // a fault.
            panic!("{message}");
        }
        Ok(_) => {}
    }
    let output = Command::new(dir.path().join("sizes")).output().unwrap();
    let sizes = String::from_utf8(output.stdout).unwrap();
    let found: Vec<usize> = sizes.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    assert!(found.len() > 40);
    for ((name, size), found) in expected.iter().zip(found) {
        assert_eq!(*size, found, "struct fuse_{name}");
    }
}
