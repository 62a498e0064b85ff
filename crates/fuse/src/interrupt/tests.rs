use super::*;

#[test]
fn sigkill_is_found_for_thread_and_process() {
    let status = |thread: &str, process: &str| {
        format!("Name:\tcat\nSigQ:\t0/1\nSigPnd:\t{thread}\nShdPnd:\t{process}\nSigBlk:\t0000000000000100\n")
    };
    assert!(has_sigkill(&status("0000000000000100", "0000000000000000")));
    assert!(has_sigkill(&status("0000000000000000", "0000000000000102")));
    assert!(!has_sigkill(&status("0000000000000000", "0000000000000002")));
    assert!(!has_sigkill(""));
}

#[test]
fn nobody_is_being_killed_here() {
    assert!(!is_being_killed(0));
    assert!(!is_being_killed(std::process::id()));
}
