//! A crate's modules, and the paths that each of them names, read from its sources.
//!
//! A *module* here is a file: an inline module belongs to the file that it stands in. Modules of
//! tests, and everything else under `#[cfg(test)]`, are left out. Paths are collected from the whole
//! file, macros included; [`super::graph`] finds out which modules they lead to.

use std::collections::BTreeMap;
use std::mem;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

use crate::source::{Module, is_of_tests};

/// The names from the crate's root to a module or an item.
pub(super) type ModPath = Vec<String>;

/// A path as it is written, and the module in which it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) scope: ModPath,
    pub(super) segments: Vec<String>,
}

/// All modules of a crate.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The file of each module, inline ones too.
    pub(super) files: BTreeMap<ModPath, PathBuf>,
    /// What each module re-exports: the new name, `*` for all, and the path.
    pub(super) reexports: BTreeMap<ModPath, Vec<(String, Named)>>,
    /// What each names.
    pub(super) named: Vec<Named>,
}

impl Source {
    /// Takes the modules of one library or program.
    pub(super) fn of(modules: &[Module]) -> Self {
        let mut source = Self::default();
        for module in modules.iter().filter(|module| !module.is_of_tests) {
            source.files.insert(module.path.clone(), module.file.clone());
            Reader { source: &mut source, scope: &module.path }.items(&module.items);
        }
        source
    }
}

/// Reads one module.
struct Reader<'a> {
    source: &'a mut Source,
    scope: &'a ModPath,
}

impl Reader<'_> {
    fn items(&mut self, items: &[Item]) {
        items.iter().for_each(|item| self.visit_item(item));
    }

    fn name(&mut self, segments: Vec<String>) {
        self.source.named.push(Named { scope: self.scope.clone(), segments });
    }

    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_of_path(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.end_of_path(&mut path);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.end_of_path(&mut path);
    }

    fn end_of_path(&mut self, path: &mut Vec<String>) {
        let path = mem::take(path);
        if path.len() > 1 {
            self.name(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_of_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_of_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut leaves = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut leaves);
        let is_private = matches!(item.vis, Visibility::Inherited);
        for (segments, name) in leaves {
            let named = Named { scope: self.scope.clone(), segments };
            if is_private {
                self.source.named.push(named.clone());
            }
            self.source.reexports.entry(self.scope.clone()).or_default().push((name, named));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.name(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, made: &'ast syn::Macro) {
        self.tokens(made.tokens.clone());
        visit::visit_macro(self, made);
    }

    /// A visibility is no use: `pub(in crate::a)`.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// The paths of a use, and under which name each is known then.
fn flatten(tree: &UseTree, prefix: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    let with = |prefix: &[String], last: String| [prefix, &[last]].concat();
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            leaves.push((prefix.clone(), prefix.last().cloned().unwrap_or_default()));
        }
        UseTree::Name(name) => leaves.push((with(prefix, name.ident.to_string()), name.ident.to_string())),
        UseTree::Rename(rename) => {
            leaves.push((with(prefix, rename.ident.to_string()), rename.rename.to_string()));
        }
        UseTree::Glob(_) => leaves.push((prefix.clone(), "*".to_owned())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, leaves)),
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
