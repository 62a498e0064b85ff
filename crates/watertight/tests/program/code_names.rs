//! Names of the code in the documents: each is in the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Names that stand for any name.
const PLACEHOLDERS: [&str; 1] = ["NAME"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files below a directory of the repository that are not built or fetched.
fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // Cargo marks a directory that it builds into.
        let is_built = path.join("CACHEDIR.TAG").exists();
        if is_built || [".git", "corpus", "artifacts"].contains(&name) || path.is_symlink() {
            continue;
        }
        if path.is_dir() { files_below(&path, found) } else { found.push(path) }
    }
}

/// The words of a source, without its comments.
fn words_of(source: &str) -> impl Iterator<Item = &str> {
    let code = source.lines().map(|line| line.split("//").next().unwrap());
    code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
}

/// What a document says in code spans, outside of blocks of commands.
fn spans_of(document: &str) -> Vec<&str> {
    let prose = document.split("```").step_by(2);
    prose.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

/// What is not in the sources of the names that a code span has; None if it is no such name.
fn missing_of<'a>(span: &'a str, words: &BTreeSet<String>, files: &[PathBuf]) -> Option<&'a str> {
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if PLACEHOLDERS.iter().any(|any| span.contains(any)) {
        return None;
    }
    if span.ends_with(".rs") && !span.contains([' ', '*', '{']) {
        return (!files.iter().any(|file| file.ends_with(span))).then_some(span);
    }
    let name = span.strip_suffix("()").unwrap_or(span);
    let parts: Vec<&str> = name.split("::").collect();
    let is_name = parts.iter().all(|part| is_word(part))
        && (parts.len() > 1 || is_type(name) || (name != span && name.contains('_')));
    is_name.then(|| parts.into_iter().find(|part| !words.contains(*part)))?
}

/// Whether a word is written as a type of more than one word: `LimitEntry`.
fn is_type(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|first| first.is_ascii_uppercase())
        && word.contains(|c: char| c.is_ascii_lowercase())
        && chars.any(|c| c.is_ascii_uppercase())
        && !word.contains('_')
}

#[test]
fn names_of_the_code_in_the_documents_are_in_the_sources() {
    let mut files = Vec::new();
    files_below(&root(), &mut files);
    let mut words = BTreeSet::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|ending| ending == "rs")) {
        // This file names what is not there.
        if !file.ends_with("code_names.rs") {
            words.extend(words_of(&fs::read_to_string(file).unwrap()).map(str::to_owned));
        }
    }
    let is_document = |file: &&PathBuf| {
        file.extension().is_some_and(|ending| ending == "md") && !file.ends_with("CHANGELOG.md")
    };
    let (mut named, mut stale) = (0, Vec::new());
    for file in files.iter().filter(is_document) {
        for span in spans_of(&fs::read_to_string(file).unwrap()) {
            named += 1;
            if let Some(missing) = missing_of(span, &words, &files) {
                stale.push(format!("{}: `{span}`: there is no {missing}", file.display()));
            }
        }
    }
    assert!(stale.is_empty(), "documents name what the code does not have:\n{}", stale.join("\n"));
    assert!(named > 1000, "{named} code spans were looked at");
}

#[test]
fn a_name_that_the_code_does_not_have_is_found() {
    let words = ["Volume", "sync", "LimitEntry"].map(str::to_owned).into();
    let files = [PathBuf::from("/r/crates/volume/src/page.rs")];
    let missing = |span| missing_of(span, &words, &files);
    for span in [
        "Volume::sync",
        "Volume::sync()",
        "LimitEntry",
        "volume/src/page.rs",
        "umount -l",
        "O_DIRECT",
        "ENOSYS",
    ] {
        assert_eq!(missing(span), None, "{span}");
    }
    assert_eq!(missing("Volume::flush"), Some("flush"));
    assert_eq!(missing("Gone::sync"), Some("Gone"));
    assert_eq!(missing("LimitRow"), Some("LimitRow"));
    assert_eq!(missing("begin_sync()"), Some("begin_sync"));
    assert_eq!(missing("volume/src/pages.rs"), Some("volume/src/pages.rs"));
    assert_eq!(spans_of("a `b` c\n```sh\nx `y`\n```\n`d`"), ["b", "d"]);
    assert_eq!(
        words_of("let a_b = 1; // c\n/// d").filter(|word| !word.is_empty()).collect::<Vec<_>>(),
        ["let", "a_b", "1"]
    );
}
