//! Which tests assert that a mutant is caught: each call of `assert_caught` and
//! `assert_caught_by_any`, with what its arguments are when the test runs.

use super::inside::{self, line_of};
use super::value::{Scope, Value};
use crate::source::{Module, Target};
use std::path::PathBuf;
use std::rc::Rc;
use syn::visit::{self, Visit};
use syn::{
    Block, Expr, ExprCall, ExprClosure, ExprForLoop, ExprMethodCall, Item, ItemConst, ItemFn, Local, Macro,
};

const ASSERTS: [&str; 2] = ["assert_caught", "assert_caught_by_any"];

/// That a test fails with a mutant.
#[derive(Clone, Debug)]
pub(super) struct Assert {
    pub(super) target: Rc<Target>,
    pub(super) mutant: String,
    /// The test that objects.
    pub(super) test: String,
    /// The function that asserts it.
    pub(super) by: String,
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

/// All assertions, in the order in which they are made; and calls whose arguments cannot be
/// determined.
pub(super) fn all(modules: &[Module]) -> (Vec<Assert>, Vec<String>) {
    let mut reader =
        Reader { module: None, by: None, scope: Scope::default(), found: Vec::new(), faults: Vec::new() };
    for module in modules {
        reader.module = Some(module);
        reader.scope = Scope::of(module, modules);
        module.items.iter().for_each(|item| reader.visit_item(item));
    }
    (reader.found, reader.faults)
}

fn defines(module: &Module) -> bool {
    let is_assert = |name: &syn::Ident| ASSERTS.iter().any(|assert| name == assert);
    module.items.iter().any(|item| matches!(item, Item::Fn(function) if is_assert(&function.sig.ident)))
}

/// Follows a function's statements, each loop as often as it goes round.
struct Reader<'m> {
    module: Option<&'m Module>,
    /// The path of the function.
    by: Option<String>,
    scope: Scope,
    found: Vec<Assert>,
    faults: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self, call: &ExprCall) -> Option<()> {
        let module = self.module?;
        let mut arguments = call.args.iter();
        let test = self.scope.eval(arguments.next()?)?;
        let mutants = self.scope.eval(arguments.next()?)?.texts()?;
        for mutant in mutants {
            self.found.push(Assert {
                target: Rc::clone(&module.target),
                mutant,
                test: test.text()?.to_owned(),
                by: self.by.clone()?,
                file: module.file.clone(),
                line: line_of(call),
            });
        }
        Some(())
    }

    /// Goes through a body once for each value; once without any, if they are not known.
    fn each(&mut self, values: Option<Value>, pattern: &syn::Pat, body: impl Fn(&mut Self)) {
        let values = match values {
            Some(Value::List(values)) => values.into_iter().map(Some).collect(),
            _ => vec![None],
        };
        for value in values {
            self.scope.enter();
            self.scope.bind(pattern, value);
            body(self);
            self.scope.leave();
        }
    }
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item_fn(&mut self, function: &'a ItemFn) {
        // The innermost function's name would not be a test's.
        let outer = self.by.clone();
        if outer.is_none() {
            self.by = self.module.map(|module| module.path_of(&function.sig.ident.to_string()));
        }
        visit::visit_item_fn(self, function);
        self.by = outer;
    }

    fn visit_block(&mut self, block: &'a Block) {
        self.scope.enter();
        visit::visit_block(self, block);
        self.scope.leave();
    }

    fn visit_local(&mut self, local: &'a Local) {
        visit::visit_local(self, local);
        let value = local.init.as_ref().and_then(|init| self.scope.eval(&init.expr));
        self.scope.bind(&local.pat, value);
    }

    fn visit_item_const(&mut self, item: &'a ItemConst) {
        self.scope.bind_item(&Item::Const(item.clone()));
    }

    fn visit_expr_for_loop(&mut self, all: &'a ExprForLoop) {
        let values = self.scope.eval(&all.expr);
        self.each(values, &all.pat, |reader| reader.visit_block(&all.body));
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        if call.method == "for_each"
            && let Some(Expr::Closure(closure)) = call.args.first()
            && let Some(pattern) = closure.inputs.first()
        {
            let values = self.scope.eval(&call.receiver);
            self.each(values, pattern, |reader| reader.visit_expr(&closure.body));
        } else {
            visit::visit_expr_method_call(self, call);
        }
    }

    /// What it is called with is not known here.
    fn visit_expr_closure(&mut self, closure: &'a ExprClosure) {
        self.scope.enter();
        closure.inputs.iter().for_each(|pattern| self.scope.bind(pattern, None));
        self.visit_expr(&closure.body);
        self.scope.leave();
    }

    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        let name = match &*call.func {
            Expr::Path(callee) => callee.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let is_assert = name.is_some_and(|name| ASSERTS.contains(&name.as_str()));
        // Where the functions are defined, one calls the other.
        let is_own = self.module.is_some_and(defines);
        if is_assert && !is_own && self.read(call).is_none() {
            let file = self.module.map(|module| module.file.display().to_string()).unwrap_or_default();
            let line = line_of(call);
            self.faults.push(format!("{file}:{line}: cannot tell which mutants are caught here"));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, made: &'a Macro) {
        inside::visit(self, &made.tokens, &ASSERTS);
    }
}
