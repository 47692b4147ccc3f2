//! Limits constant expressions in a chat template. The template engine computes them already when it
//! compiles. Such an expression can be short and its value long (`"a" * 100000000`), so the sum of such
//! repetitions has a limit.

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind};

/// Bytes that repetitions of constants may come to in one template.
pub const MAX_REPEATED_CONSTANTS: u64 = 16 << 20;
/// Counted for an item of a constant list.
const ITEM_BYTES: u64 = 32;

/// Refuses a template whose constants would be larger than [`MAX_REPEATED_CONSTANTS`].
///
/// # Errors
/// The template's constants would be larger. The error names the limit.
pub fn check(tree: &Stmt<'_>) -> Result<(), Error> {
    let mut sum = 0_u64;
    statement(tree, &mut sum);
    if sum <= MAX_REPEATED_CONSTANTS {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("repeated constants of more than {MAX_REPEATED_CONSTANTS} bytes in all, the limit"),
    ))
}

fn statements(list: &[Stmt<'_>], sum: &mut u64) {
    list.iter().for_each(|one| statement(one, sum));
}

fn statement(one: &Stmt<'_>, sum: &mut u64) {
    let mut see = |expr: &Expr<'_>| {
        expression(expr, sum);
    };
    match one {
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        Stmt::EmitExpr(s) => see(&s.expr),
        Stmt::Set(s) => see(&s.expr),
        Stmt::Do(s) => see_call(&s.call.expr, &s.call.args, sum),
        Stmt::Include(s) => see(&s.name),
        Stmt::Extends(s) => see(&s.name),
        Stmt::Import(s) => see(&s.expr),
        Stmt::FromImport(s) => see(&s.expr),
        Stmt::Template(s) => statements(&s.children, sum),
        Stmt::Block(s) => statements(&s.body, sum),
        Stmt::ForLoop(s) => {
            see(&s.iter);
            s.filter_expr.iter().for_each(see);
            statements(&s.body, sum);
            statements(&s.else_body, sum);
        }
        Stmt::IfCond(s) => {
            see(&s.expr);
            statements(&s.true_body, sum);
            statements(&s.false_body, sum);
        }
        Stmt::WithBlock(s) => {
            s.assignments.iter().for_each(|(_, value)| see(value));
            statements(&s.body, sum);
        }
        Stmt::SetBlock(s) => {
            s.filter.iter().for_each(see);
            statements(&s.body, sum);
        }
        Stmt::AutoEscape(s) => {
            see(&s.enabled);
            statements(&s.body, sum);
        }
        Stmt::FilterBlock(s) => {
            see(&s.filter);
            statements(&s.body, sum);
        }
        Stmt::Macro(s) => {
            s.defaults.iter().for_each(see);
            statements(&s.body, sum);
        }
        Stmt::CallBlock(s) => {
            s.macro_decl.defaults.iter().for_each(see);
            see_call(&s.call.expr, &s.call.args, sum);
            statements(&s.macro_decl.body, sum);
        }
    }
}

fn see_call(callee: &Expr<'_>, args: &[CallArg<'_>], sum: &mut u64) {
    expression(callee, sum);
    see_args(args, sum);
}

fn see_args(args: &[CallArg<'_>], sum: &mut u64) {
    for arg in args {
        let (CallArg::Pos(expr)
        | CallArg::Kwarg(_, expr)
        | CallArg::PosSplat(expr)
        | CallArg::KwargSplat(expr)) = arg;
        expression(expr, sum);
    }
}

/// Knowledge of an expression's value: whether it is constant, its size in bytes, and its value where it is a plain
/// number.
#[derive(Clone, Copy, Default)]
struct Folded {
    constant: bool,
    bytes: u64,
    number: Option<u64>,
}

fn expression(expr: &Expr<'_>, sum: &mut u64) -> Folded {
    let mut all = |parts: &[Expr<'_>]| {
        let parts = parts.iter().map(|part| expression(part, sum));
        parts.fold(Folded { constant: true, ..Folded::default() }, |all, part| Folded {
            constant: all.constant && part.constant,
            bytes: all.bytes.saturating_add(part.bytes).saturating_add(ITEM_BYTES),
            number: None,
        })
    };
    match expr {
        Expr::Var(_) => Folded::default(),
        Expr::Const(c) => Folded {
            constant: true,
            bytes: c.value.as_str().map_or(0, |text| text.len() as u64),
            number: match c.value.kind() {
                ValueKind::Number | ValueKind::Bool => c.value.as_usize().map(|n| n as u64),
                _ => None,
            },
        },
        Expr::List(list) => all(&list.items),
        Expr::Tuple(tuple) => all(&tuple.items),
        Expr::Map(map) => {
            let (keys, values) = (all(&map.keys), all(&map.values));
            Folded { constant: false, bytes: keys.bytes.saturating_add(values.bytes), number: None }
        }
        Expr::BinOp(op) => {
            let [left, right] = [&op.left, &op.right].map(|side| expression(side, sum));
            let constant = left.constant && right.constant;
            let both = left.bytes.saturating_add(right.bytes);
            let bytes = match op.op {
                // A count that is itself computed may be anything.
                BinOpKind::Mul if constant && both > 0 => {
                    let times = left.number.or(right.number).unwrap_or(u64::MAX);
                    let bytes = both.saturating_mul(times);
                    *sum = sum.saturating_add(bytes);
                    bytes
                }
                _ => both,
            };
            Folded { constant, bytes, number: None }
        }
        Expr::UnaryOp(op) => Folded { number: None, ..expression(&op.expr, sum) },
        _ => {
            within(expr, sum);
            // What is compared is computed early as well, to a truth value.
            Folded { constant: matches!(expr, Expr::Compare(_)), ..Folded::default() }
        }
    }
}

/// Looks into an expression that is not computed early, or to nothing long.
fn within(expr: &Expr<'_>, sum: &mut u64) {
    let mut see = |part: &Expr<'_>| {
        expression(part, sum);
    };
    match expr {
        Expr::Compare(compare) => {
            see(&compare.expr);
            compare.ops.iter().for_each(|op| see(&op.expr));
        }
        Expr::IfExpr(e) => {
            let parts = [Some(&e.test_expr), Some(&e.true_expr), e.false_expr.as_ref()];
            parts.into_iter().flatten().for_each(see);
        }
        Expr::Slice(slice) => {
            see(&slice.expr);
            [&slice.start, &slice.stop, &slice.step].into_iter().flatten().for_each(see);
        }
        Expr::Filter(filter) => {
            filter.expr.iter().for_each(see);
            see_args(&filter.args, sum);
        }
        Expr::Test(test) => see_call(&test.expr, &test.args, sum),
        Expr::GetAttr(get) => see(&get.expr),
        Expr::GetItem(get) => [&get.expr, &get.subscript_expr].into_iter().for_each(see),
        Expr::Call(call) => see_call(&call.expr, &call.args, sum),
        // These are looked into where they are met.
        Expr::Var(_) | Expr::Const(_) | Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => {}
        Expr::BinOp(_) | Expr::UnaryOp(_) => {}
    }
}
