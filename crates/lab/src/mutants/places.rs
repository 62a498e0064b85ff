//! Where the sources leave a step out: each `is_on("NAME")` of `sync::mutant`.

use super::inside::{self, line_of};
use super::value::Scope;
use crate::source::Module;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprCall, ImplItemFn, Item, ItemFn, LitStr, Macro};

/// The function that asks for a mutant.
const ASKS: &str = "is_on";

/// One place of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

/// All places, and those whose mutant's name cannot be determined.
pub(super) fn all(modules: &[Module]) -> (BTreeSet<Place>, BTreeSet<String>) {
    let mut found = Finder::new(modules);
    for module in modules {
        found.file = module.file.clone();
        found.scope = Scope::of(module, modules);
        // A function of this name that is not the mutants' own.
        found.is_own = modules.iter().any(|other| other.file == module.file && defines(other));
        module.items.iter().for_each(|item| found.visit_item(item));
    }
    (found.places, found.faults)
}

fn defines(module: &Module) -> bool {
    module.items.iter().any(|item| matches!(item, Item::Fn(function) if function.sig.ident == ASKS))
}

struct Finder<'m> {
    modules: &'m [Module],
    file: PathBuf,
    scope: Scope,
    is_own: bool,
    places: BTreeSet<Place>,
    faults: BTreeSet<String>,
}

impl<'m> Finder<'m> {
    fn new(modules: &'m [Module]) -> Self {
        Self {
            modules,
            file: PathBuf::new(),
            scope: Scope::default(),
            is_own: false,
            places: BTreeSet::new(),
            faults: BTreeSet::new(),
        }
    }

    /// Whether a call asks for a mutant: by a path to the module, or by the name alone.
    fn asks(&self, call: &ExprCall) -> bool {
        let Expr::Path(callee) = &*call.func else { return false };
        let mut segments = callee.path.segments.iter().rev().map(|segment| segment.ident.to_string());
        let is_asked = segments.next().is_some_and(|name| name == ASKS);
        let is_meant = match segments.next() {
            Some(module) => module == "mutant",
            None => !self.is_own,
        };
        is_asked && is_meant && call.args.len() == 1
    }

    fn add(&mut self, name: String, line: usize) {
        self.places.insert(Place { name, file: self.file.clone(), line });
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        if self.asks(call) {
            let (argument, line) = (&call.args[0], line_of(call));
            let value = self.scope.eval(argument);
            if let Some(name) = value.as_ref().and_then(|value| value.text()) {
                self.add(name.to_owned(), line);
            } else {
                let texts = texts_of(called(argument).as_deref(), &self.file, self.modules);
                if texts.is_empty() {
                    let file = self.file.display();
                    self.faults.insert(format!("{file}:{line}: cannot tell which mutant is asked for"));
                }
                texts.into_iter().for_each(|(name, line)| self.add(name, line));
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, made: &'a Macro) {
        inside::visit(self, &made.tokens, &[ASKS]);
    }
}

/// The function or method that an argument is the result of.
fn called(argument: &Expr) -> Option<String> {
    match argument {
        Expr::MethodCall(call) => Some(call.method.to_string()),
        Expr::Call(call) => match &*call.func {
            Expr::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// The texts in the functions of this name in a file: one that says which mutant is which.
fn texts_of(name: Option<&str>, file: &Path, modules: &[Module]) -> Vec<(String, usize)> {
    let Some(name) = name else { return Vec::new() };
    let mut texts = Texts { of: name, found: Vec::new() };
    let items = modules.iter().filter(|module| module.file == file).flat_map(|module| &module.items);
    items.for_each(|item| texts.visit_item(item));
    texts.found
}

struct Texts<'n> {
    of: &'n str,
    found: Vec<(String, usize)>,
}

impl Texts<'_> {
    fn read(&mut self, block: &Block) {
        let mut literals = Literals(Vec::new());
        literals.visit_block(block);
        self.found.extend(literals.0);
    }
}

impl<'a> Visit<'a> for Texts<'_> {
    fn visit_item_fn(&mut self, function: &'a ItemFn) {
        if function.sig.ident == self.of {
            self.read(&function.block);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a ImplItemFn) {
        if function.sig.ident == self.of {
            self.read(&function.block);
        }
    }
}

struct Literals(Vec<(String, usize)>);

impl<'a> Visit<'a> for Literals {
    fn visit_lit_str(&mut self, text: &'a LitStr) {
        self.0.push((text.value(), text.span().start().line));
    }
}
