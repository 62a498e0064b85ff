//! Small crates in which the circles are known.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{graphs, is_known};

/// The circles of a crate of these files, as the files' names.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let of_crate = dir.path().join("crates/one");
    std::fs::create_dir_all(of_crate.join("src")).unwrap();
    std::fs::write(of_crate.join("Cargo.toml"), "[package]\nname = \"one\"\n").unwrap();
    for (name, text) in files {
        let file = of_crate.join("src").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let graphs = graphs(dir.path()).unwrap();
    let [(name, graph)] = graphs.as_slice() else { panic!("{graphs:?}") };
    assert_eq!(name, "one");
    let file = |file: &&PathBuf| file.strip_prefix("crates/one/src").unwrap().display().to_string();
    graph.circles().iter().map(|circle| circle.iter().map(file).collect()).collect()
}

#[test]
fn two_modules_that_use_each_other_are_a_circle() {
    let by_use = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f() { super::a::g(); }"),
        ("c.rs", "use crate::{a, b};"),
    ];
    assert_eq!(circles_of(&by_use), [["a.rs", "b.rs"]]);
}

#[test]
fn a_module_and_its_child_are_a_circle_only_if_each_uses_the_other() {
    let one_way =
        [("lib.rs", "mod a;"), ("a.rs", "mod b; pub use b::B;"), ("a/b.rs", "pub struct B(super::A);")];
    assert!(circles_of(&one_way).is_empty());
    let both = [("lib.rs", "mod a;"), ("a.rs", "mod b; fn f() { b::f() }"), ("a/b.rs", "use super::A;")];
    assert_eq!(circles_of(&both), [["a/b.rs", "a.rs"]]);
}

#[test]
fn a_use_of_a_reexport_is_a_use_of_where_the_item_is() {
    let files = [
        ("lib.rs", "mod a; mod b; mod front; pub use front::A;"),
        ("front.rs", "pub use crate::a::A;"),
        ("a.rs", "use crate::b;"),
        ("b/mod.rs", "fn f(_: &crate::A) {}"),
    ];
    assert_eq!(circles_of(&files), [["a.rs", "b/mod.rs"]]);
}

#[test]
fn paths_in_macros_and_inline_modules_count() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "fn f() { assert!(matches!(1, crate::b::ONE)); }"),
        ("b.rs", "mod inner { fn f() { super::super::a::f(); } }"),
    ];
    assert_eq!(circles_of(&files), [["a.rs", "b.rs"]]);
    let below = [
        ("lib.rs", "mod io { mod a; mod b; }"),
        ("io/a.rs", "use super::b;"),
        ("io/b.rs", "use crate::io::a;"),
    ];
    assert_eq!(circles_of(&below), [["io/a.rs", "io/b.rs"]]);
}

#[test]
fn what_only_tests_use_does_not_count() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::f;"),
        ("b.rs", "#[cfg(all(test, loom))] mod tests { use crate::a; } #[cfg(test)] use crate::a;"),
    ];
    assert!(circles_of(&files).is_empty());
}

#[test]
fn a_circle_is_known_if_it_is_part_of_a_known_one() {
    let set = |files: &[&str]| files.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
    let known = [set(&["a", "b", "c"])];
    assert!(is_known(&known, &set(&["a", "c"]).iter().collect()));
    assert!(!is_known(&known, &set(&["a", "d"]).iter().collect()));
    assert!(!is_known(&[], &set(&["a", "b"]).iter().collect()));
}
