//! Any text as the file of `watertight serve`, or as the values of `-o`: taken or refused in one
//! line, never a panic; and what is taken is written as options that are taken again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use watertight::cli::opts::MountOptions;
use watertight::serve::config::Config;

fn is_one_line(text: &str) {
    assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, text)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    if choice & 1 == 0 {
        match Config::parse(text) {
            Ok(config) => {
                for volume in &config.volumes {
                    is_one_line(&volume.describe());
                    let options = volume.mount_options();
                    let parsed = MountOptions::parse(&[options.clone()]);
                    parsed.unwrap_or_else(|problem| panic!("{options:?}: {problem}"));
                }
            }
            Err(wrong) => is_one_line(&wrong.to_string()),
        }
    } else {
        let lists: Vec<String> = text.split('\0').map(str::to_owned).collect();
        if let Err(problem) = MountOptions::parse(&lists) {
            is_one_line(&problem.to_string());
        }
    }
});
