//! What stands inside of a macro's parentheses.

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::Visit;
use syn::{Block, Expr, ExprCall, Token};

/// Visits what is in a macro as the code that most macros take: statements, or expressions with
/// commas between them. In what is neither, the calls of functions with one of these names.
pub(super) fn visit<V: for<'a> Visit<'a>>(visitor: &mut V, tokens: &TokenStream, names: &[&str]) {
    use syn::parse::Parser as _;
    if let Ok(statements) = Block::parse_within.parse2(tokens.clone()) {
        statements.iter().for_each(|statement| visitor.visit_stmt(statement));
    } else if let Some(expressions) = expressions(tokens) {
        expressions.iter().for_each(|expression| visitor.visit_expr(expression));
    } else {
        for call in calls(tokens, names) {
            visitor.visit_expr_call(&call);
        }
    }
}

/// The arguments of a macro that takes expressions.
pub(super) fn expressions(tokens: &TokenStream) -> Option<Vec<Expr>> {
    use syn::parse::Parser as _;
    let parsed = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens.clone()).ok()?;
    Some(parsed.into_iter().collect())
}

/// The line that a call is in.
pub(super) fn line_of(call: &ExprCall) -> usize {
    call.paren_token.span.open().start().line
}

fn calls(tokens: &TokenStream, names: &[&str]) -> Vec<ExprCall> {
    let (mut calls, mut before) = (Vec::new(), None);
    for token in tokens.clone() {
        if let TokenTree::Group(group) = &token {
            let callee = before.filter(|ident: &proc_macro2::Ident| names.iter().any(|name| ident == name));
            let call = callee.and_then(|callee| {
                let tokens = [TokenTree::Ident(callee), token.clone()].into_iter().collect();
                match syn::parse2(tokens).ok()? {
                    Expr::Call(call) => Some(call),
                    _ => None,
                }
            });
            match call {
                Some(call) => calls.push(call),
                None => calls.extend(self::calls(&group.stream(), names)),
            }
        }
        before = match token {
            TokenTree::Ident(ident) => Some(ident),
            _ => None,
        };
    }
    calls
}
