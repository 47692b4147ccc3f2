//! Contexts: structs that borrow values of others, so that functions get them under one name. A context stays small, and a
//! function that gets one reads at least half of it, or else gets the few values that it needs.
//!
//! This reads text, not Rust. A function that calls a method of a context, or passes the whole of it on, counts as one that
//! reads all of it.

use crate::modules::code_alone;
use crate::parameters::{closed, is_of_word, parts, referred};

/// Fewest fields of a struct that is looked at: a smaller one is a pair of values.
const FEWEST_FIELDS: usize = 4;

/// A struct that borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The struct's name.
    pub name: String,
    /// Names of its fields.
    pub fields: Vec<String>,
}

/// A function that gets a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The function's name.
    pub function: String,
    /// The context's name.
    pub context: String,
    /// The fields that the function reads; `None`: all of them.
    pub reads: Option<Vec<String>>,
}

impl Reader {
    /// Whether the function reads fewer than half of the context's fields.
    pub fn reads_little(&self, context: &Context) -> bool {
        self.reads.as_ref().is_some_and(|reads| 2 * reads.len() < context.fields.len())
    }
}

/// Structs of a file that borrow and have fields with names.
pub fn contexts(text: &str) -> Vec<Context> {
    let code = code_alone(text);
    let mut found = Vec::new();
    for (at, head) in code.match_indices("struct ") {
        let rest = &code[at + head.len()..];
        let (name, rest) = rest.split_at(rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()));
        if code[..at].ends_with(is_of_word) || !rest.starts_with("<'") {
            continue;
        }
        let rest = rest[closed(rest)..].trim_start();
        if !rest.starts_with('{') {
            continue;
        }
        let fields: Vec<String> =
            parts(&rest[1..closed(rest) - 1]).filter_map(|field| field_name(&field)).collect();
        if fields.len() >= FEWEST_FIELDS {
            found.push(Context { name: name.to_owned(), fields });
        }
    }
    found
}

/// The name of a field, without its attributes and its visibility.
fn field_name(field: &str) -> Option<String> {
    let mut field = field;
    while field.starts_with('#') {
        field = field[1 + closed(&field[1..])..].trim_start();
    }
    field = field.strip_prefix("pub").unwrap_or(field);
    if field.starts_with('(') {
        field = &field[closed(field)..];
    }
    let (name, _) = field.split_once(':')?;
    Some(name.trim().to_owned())
}

/// Functions of a file that get one of `contexts` as a parameter.
pub fn readers(text: &str, contexts: &[Context]) -> Vec<Reader> {
    let code = code_alone(text);
    let mut found = Vec::new();
    for (at, head) in code.match_indices("fn ") {
        let rest = &code[at + head.len()..];
        let (function, mut rest) =
            rest.split_at(rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()));
        if code[..at].ends_with(is_of_word) || function.is_empty() {
            continue;
        }
        if rest.starts_with('<') {
            rest = &rest[closed(rest)..];
        }
        if !rest.starts_with('(') {
            continue;
        }
        let (list, behind) = rest.split_at(closed(rest));
        let Some(body) = body(behind) else { continue };
        for parameter in parts(&list[1..list.len() - 1]) {
            let Some((variable, ty)) = parameter.split_once(": ") else { continue };
            let variable = variable.strip_prefix("mut ").unwrap_or(variable);
            let ty = referred(ty);
            let ty = &ty[..ty.find(|c| !is_of_word(c)).unwrap_or(ty.len())];
            if let Some(context) = contexts.iter().find(|context| context.name == ty) {
                let reads = reads(body, variable, &context.fields);
                found.push(Reader { function: function.to_owned(), context: ty.to_owned(), reads });
            }
        }
    }
    found
}

/// The body of a function, from what stands behind its parameters; `None` where it has none.
fn body(behind: &str) -> Option<&str> {
    let begin = behind.find('{')?;
    let rest = &behind[begin..];
    (!behind[..begin].contains(';')).then(|| &rest[..block_end(rest)])
}

/// Bytes of a text up to and with the brace that closes the one at its beginning.
fn block_end(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// Fields of the variable that a body reads, by name or by taking it apart; `None` where it does something else with it.
fn reads(body: &str, variable: &str, fields: &[String]) -> Option<Vec<String>> {
    let mut reads: Vec<String> = Vec::new();
    for (at, _) in body.match_indices(variable) {
        let (before, rest) = (&body[..at], &body[at + variable.len()..]);
        let is_other =
            before.ends_with(|c: char| is_of_word(c) || c == '.') || rest.starts_with(is_of_word);
        let is_label = rest.starts_with(':') && !rest.starts_with("::");
        if is_other || is_label {
            continue;
        }
        let Some(field) = rest.trim_start().strip_prefix('.') else {
            reads.extend(taken_apart(before)?);
            continue;
        };
        let (field, rest) = field.split_at(field.find(|c| !is_of_word(c)).unwrap_or(field.len()));
        if rest.starts_with('(') || !fields.iter().any(|name| name == field) {
            return None;
        }
        reads.push(field.to_owned());
    }
    reads.sort();
    reads.dedup();
    Some(reads)
}

/// The fields that `let Context { .. } = *` at the end of a text takes out; `None` where the text ends otherwise.
fn taken_apart(before: &str) -> Option<Vec<String>> {
    let pattern = before.trim_end_matches(['*', '&']).trim_end().strip_suffix('=')?.trim_end();
    let pattern = &pattern.strip_suffix('}')?[pattern.rfind("let ")?..];
    let (_, fields) = pattern.split_once('{')?;
    let name = |field: String| field.split(':').next().map(|name| name.trim().to_owned());
    Some(parts(fields).filter(|field| field != "..").filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CX: &str = "/// Words.\npub struct Cx<'a> {\n    /// More.\n    pub a: &'a A,\n    pub(super) b: Vec<(B, C)>,\n    c: u8,\n    d: u8,\n}\n\
                      struct Own { a: A, b: B, c: C, d: D }\nstruct Pair<'a> { a: &'a A, b: &'a B }";

    fn of(code: &str) -> Vec<Option<Vec<String>>> {
        readers(code, &contexts(CX)).into_iter().map(|reader| reader.reads).collect()
    }

    #[test]
    fn structs_that_borrow_are_contexts() {
        let fields = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        assert_eq!(contexts(CX), [Context { name: "Cx".to_owned(), fields }]);
    }

    #[test]
    fn fields_are_counted_once_each() {
        let code = "fn one(cx: &Cx<'_>, other: u8) { cx.a.b(); f(&cx.a, x.cx, S { cx: 1 }) }\n\
                    fn two<T>(&self, mut cx: Cx<'_>) { let Cx { c, d, .. } = cx; }\nfn three(cx: &mut Cx) {}";
        let names = |all: &[&str]| Some(all.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(of(code), [names(&["a"]), names(&["c", "d"]), names(&[])]);
        let all = readers(code, &contexts(CX));
        let little: Vec<bool> =
            all.iter().map(|reader| reader.reads_little(&contexts(CX)[0])).collect();
        assert_eq!(little, [true, false, true]);
    }

    #[test]
    fn methods_and_the_whole_count_as_all() {
        let code = "fn one(cx: &Cx<'_>) { cx.walk() }\nfn two(cx: &Cx<'_>) { other(cx) }\nfn three(cx: &Cx<'_>);";
        assert_eq!(of(code), [None, None]);
    }
}
