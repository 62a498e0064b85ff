//! What an expression is, as far as it can be determined without running it: texts, and lists and
//! tuples of them.

use super::inside;
use crate::source::Module;
use std::collections::HashMap;
use std::rc::Rc;
use syn::{Expr, ExprClosure, Item, Lit, Macro, Pat, Stmt};

/// What is known of an expression.
#[derive(Clone)]
pub(super) enum Value {
    Text(String),
    /// An array, a slice or a tuple.
    List(Vec<Value>),
    Closure(Rc<ExprClosure>),
    /// Part of a tuple that is none of these.
    Unknown,
}

impl Value {
    /// The texts that it is made of.
    pub(super) fn texts(&self) -> Option<Vec<String>> {
        let Self::List(values) = self else { return None };
        values.iter().map(|value| value.text().map(str::to_owned)).collect()
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The names that can be seen at a place, the innermost last. A name without a value hides those
/// outside of it.
#[derive(Clone, Default)]
pub(super) struct Scope(Vec<HashMap<String, Option<Value>>>);

impl Scope {
    /// The constants of a module, and of the others in its file.
    pub(super) fn of(module: &Module, all: &[Module]) -> Self {
        let mut scope = Self(vec![HashMap::new()]);
        let is_near = |other: &&Module| other.file == module.file && other.target == module.target;
        for item in all.iter().filter(is_near).chain([module]).flat_map(|module| &module.items) {
            scope.bind_item(item);
        }
        scope
    }

    pub(super) fn enter(&mut self) {
        self.0.push(HashMap::new());
    }

    pub(super) fn leave(&mut self) {
        self.0.pop();
    }

    /// A constant.
    pub(super) fn bind_item(&mut self, item: &Item) {
        let (name, expression) = match item {
            Item::Const(item) => (&item.ident, &item.expr),
            Item::Static(item) => (&item.ident, &item.expr),
            _ => return,
        };
        let value = self.eval(expression);
        self.set(name.to_string(), value);
    }

    /// What a pattern names, if that is a value and in the same parts.
    pub(super) fn bind(&mut self, pattern: &Pat, value: Option<Value>) {
        match pattern {
            Pat::Ident(ident) => self.set(ident.ident.to_string(), value),
            Pat::Type(typed) => self.bind(&typed.pat, value),
            Pat::Reference(reference) => self.bind(&reference.pat, value),
            Pat::Paren(inner) => self.bind(&inner.pat, value),
            Pat::Tuple(tuple) => self.bind_each(tuple.elems.iter(), value),
            Pat::Slice(slice) => self.bind_each(slice.elems.iter(), value),
            _ => {}
        }
    }

    fn bind_each<'p>(&mut self, patterns: impl ExactSizeIterator<Item = &'p Pat>, value: Option<Value>) {
        let values = match value {
            Some(Value::List(values)) if values.len() == patterns.len() => {
                values.into_iter().map(Some).collect()
            }
            _ => vec![None; patterns.len()],
        };
        patterns.zip(values).for_each(|(pattern, value)| self.bind(pattern, value));
    }

    fn set(&mut self, name: String, value: Option<Value>) {
        if let Some(innermost) = self.0.last_mut() {
            innermost.insert(name, value);
        }
    }

    fn get(&self, name: &str) -> Option<Value> {
        self.0.iter().rev().find_map(|names| names.get(name)).cloned().flatten()
    }

    /// What an expression is.
    pub(super) fn eval(&self, expression: &Expr) -> Option<Value> {
        match expression {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(Value::Text(text.value())),
                _ => None,
            },
            Expr::Array(array) => self.list(array.elems.iter()),
            Expr::Tuple(tuple) => {
                // What is beside the texts may be anything.
                let values = tuple.elems.iter().map(|part| self.eval(part).unwrap_or(Value::Unknown));
                Some(Value::List(values.collect()))
            }
            Expr::Reference(inner) => self.eval(&inner.expr),
            Expr::Paren(inner) => self.eval(&inner.expr),
            Expr::Group(inner) => self.eval(&inner.expr),
            Expr::Index(index) => {
                let is_whole = matches!(&*index.index, Expr::Range(range) if range.start.is_none() && range.end.is_none());
                is_whole.then(|| self.eval(&index.expr)).flatten()
            }
            Expr::Path(path) => self.get(&path.path.segments.last()?.ident.to_string()),
            Expr::Block(block) => match block.block.stmts.as_slice() {
                [Stmt::Expr(last, None)] => self.eval(last),
                _ => None,
            },
            Expr::Closure(closure) => Some(Value::Closure(Rc::new(closure.clone()))),
            Expr::Macro(made) => self.made(&made.mac),
            Expr::MethodCall(call) => self.method(&call.method.to_string(), &call.receiver),
            Expr::Call(call) => {
                let Expr::Path(callee) = &*call.func else { return None };
                let name = callee.path.segments.last()?.ident.to_string();
                if name == "from" {
                    return self.eval(call.args.first()?);
                }
                let Some(Value::Closure(closure)) = self.get(&name) else { return None };
                let mut inner = self.clone();
                inner.enter();
                // In a closure its own name is another one's.
                inner.set(name, None);
                for (pattern, argument) in closure.inputs.iter().zip(&call.args) {
                    inner.bind(pattern, self.eval(argument));
                }
                inner.eval(&closure.body)
            }
            _ => None,
        }
    }

    fn list<'e>(&self, parts: impl Iterator<Item = &'e Expr>) -> Option<Value> {
        parts.map(|part| self.eval(part)).collect::<Option<Vec<_>>>().map(Value::List)
    }

    /// A method that gives what it is called on, in another type.
    fn method(&self, name: &str, receiver: &Expr) -> Option<Value> {
        let value = self.eval(receiver)?;
        match name {
            "to_owned" | "to_string" | "as_str" | "as_slice" | "as_ref" | "into" | "iter" | "into_iter"
            | "copied" | "cloned" | "clone" => Some(value),
            "concat" => {
                let Value::List(parts) = value else { return None };
                let mut all = Vec::new();
                for part in parts {
                    let Value::List(part) = part else { return None };
                    all.extend(part);
                }
                Some(Value::List(all))
            }
            _ => None,
        }
    }

    fn made(&self, made: &Macro) -> Option<Value> {
        let arguments = inside::expressions(&made.tokens)?;
        if made.path.is_ident("vec") {
            return self.list(arguments.iter());
        }
        if !made.path.is_ident("format") {
            return None;
        }
        let (pattern, arguments) = arguments.split_first()?;
        let pattern = self.eval(pattern)?;
        let mut arguments = arguments.iter();
        let (mut text, mut rest) = (String::new(), pattern.text()?);
        while let Some((before, after)) = rest.split_once('{') {
            text.push_str(before);
            let (name, after) = after.split_once('}')?;
            let value = if name.is_empty() { self.eval(arguments.next()?)? } else { self.get(name)? };
            text.push_str(value.text()?);
            rest = after;
        }
        text.push_str(rest);
        Some(Value::Text(text))
    }
}
