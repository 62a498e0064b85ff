//! The tests of the workspace, and what each of them claims.

use crate::source::checker::{Builds, Checker};
use crate::source::{Module, Target, text_of};
use std::path::PathBuf;
use std::rc::Rc;
use syn::{Attribute, Item};

/// A function with `#[test]`.
#[derive(Clone, Debug)]
pub(super) struct Test {
    pub(super) target: Rc<Target>,
    /// As the test program names it.
    pub(super) path: String,
    /// The first paragraph of its comment.
    pub(super) claim: Option<String>,
    pub(super) file: PathBuf,
    pub(super) line: usize,
    /// What runs it, if that can be determined.
    pub(super) checker: Option<Checker>,
    pub(super) is_ignored: bool,
}

/// All tests, in the order of the sources.
pub(super) fn all(modules: &[Module]) -> Vec<Test> {
    let mut tests = Vec::new();
    for module in modules {
        for item in &module.items {
            let Item::Fn(function) = item else { continue };
            let has = |name| has_attribute(&function.attrs, name);
            if has("test") || function.attrs.iter().any(is_async_test) {
                tests.push(Test {
                    target: Rc::clone(&module.target),
                    path: module.path_of(&function.sig.ident.to_string()),
                    claim: claim(&function.attrs),
                    file: module.file.clone(),
                    line: function.sig.ident.span().start().line,
                    checker: of(module.builds, &function.attrs),
                    is_ignored: has("ignore"),
                });
            }
        }
    }
    tests
}

/// Whether this is `#[tokio::test]`, or another runtime's.
fn is_async_test(attribute: &Attribute) -> bool {
    let segments = &attribute.path().segments;
    segments.len() == 2 && segments.last().is_some_and(|last| last.ident == "test")
}

fn has_attribute(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

fn of(builds: Builds, attributes: &[Attribute]) -> Option<Checker> {
    builds.restricted(attributes).checker()
}

/// The first paragraph of a comment, in one line; links are code.
fn claim(attributes: &[Attribute]) -> Option<String> {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).filter_map(text_of);
    let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    let paragraph = lines.split(String::is_empty).find(|lines| !lines.is_empty())?;
    Some(paragraph.join(" ").replace("[`", "`").replace("`]", "`"))
}
