//! Finds parameters that are clumps: one parameter of a function with several values that have no names at the call. These are
//! the patterns of tuples and arrays, and the types that are tuples of three values, or of two that are alike.
//!
//! This reads text, not Rust. Parameters of closures do not count, nor do those of functions that a macro names.

use crate::modules::code_alone;

/// The clumps of a file, each as `function: parameter`.
pub fn clumps(text: &str) -> Vec<String> {
    let (code, mut found) = (code_alone(text), Vec::new());
    for (at, head) in code.match_indices("fn ") {
        if code[..at].ends_with(is_of_word) {
            continue;
        }
        let rest = &code[at + head.len()..];
        let (name, mut rest) = rest.split_at(rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()));
        if rest.starts_with('<') {
            rest = &rest[closed(rest)..];
        }
        if name.is_empty() || !rest.starts_with('(') {
            continue;
        }
        let all = parts(&rest[1..closed(rest) - 1]);
        found.extend(all.filter(|one| is_clump(one)).map(|one| format!("{name}: {one}")));
    }
    found
}

pub(crate) fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a parameter, with its pattern and its type, is a clump.
fn is_clump(parameter: &str) -> bool {
    let mut parameter = parameter;
    while parameter.starts_with('#') {
        parameter = parameter[1 + closed(&parameter[1..])..].trim_start();
    }
    if referred(parameter).starts_with(['(', '[']) {
        return true;
    }
    let ty = parameter.split_once(':').map_or("", |(_, ty)| referred(ty.trim()));
    if !ty.starts_with('(') || closed(ty) < ty.len() {
        return false;
    }
    let values: Vec<String> = parts(&ty[1..ty.len() - 1]).collect();
    match &values[..] {
        [one, other] => one == other,
        values => values.len() > 2,
    }
}

/// A pattern or a type without its `&`, its lifetime and its `mut`.
pub(crate) fn referred(text: &str) -> &str {
    let mut text = text.trim_start_matches('&');
    if text.starts_with('\'') {
        text = text.split_once(' ').map_or("", |(_, rest)| rest);
    }
    text.strip_prefix("mut ").unwrap_or(text)
}

/// Bytes of a text up to and with what closes the bracket at its beginning.
pub(crate) fn closed(text: &str) -> usize {
    let (mut depth, mut before) = (0, ' ');
    for (at, c) in text.char_indices() {
        depth += deeper(c, before);
        if depth == 0 {
            return at + c.len_utf8();
        }
        before = c;
    }
    text.len()
}

/// By how much a character goes deeper into brackets. The arrows `->` and `=>` close none.
fn deeper(c: char, before: char) -> i32 {
    match c {
        '(' | '[' | '{' | '<' => 1,
        '>' if before == '-' || before == '=' => 0,
        ')' | ']' | '}' | '>' => -1,
        _ => 0,
    }
}

/// What stands between the commas of a list, with single spaces.
pub(crate) fn parts(list: &str) -> impl Iterator<Item = String> {
    let (mut depth, mut before, mut all) = (0, ' ', vec![String::new()]);
    for c in list.chars() {
        depth += deeper(c, before);
        before = c;
        match all.last_mut() {
            Some(last) if c != ',' || depth > 0 => last.push(c),
            _ => all.push(String::new()),
        }
    }
    let spaced = |part: String| part.split_whitespace().collect::<Vec<_>>().join(" ");
    all.into_iter().map(spaced).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_several_values_are_clumps() {
        let code = "fn one<T: Into<(u8, u8)>>((a, b): (A, B), c: T) {}\nfn two(\n    &self,\n    [x, y]: [f32; 2],\n) {}\n\
                    fn three(&(a, b): &(A, B)) {}\nfn four(#[allow(x)] (a, b): (A, B)) {}";
        let wanted = [
            "one: (a, b): (A, B)",
            "two: [x, y]: [f32; 2]",
            "three: &(a, b): &(A, B)",
            "four: #[allow(x)] (a, b): (A, B)",
        ];
        assert_eq!(clumps(code), wanted);
    }

    #[test]
    fn tuples_of_three_and_of_two_alike_are_clumps() {
        let code =
            "fn one(size: &'a mut (usize, usize)) {}\nfn two(x: (A, Vec<B>, C)) -> (u8, u8) {}";
        let wanted = ["one: size: &'a mut (usize, usize)", "two: x: (A, Vec<B>, C)"];
        assert_eq!(clumps(code), wanted);
    }

    #[test]
    fn other_parameters_are_none() {
        let code = "fn one(a: A, f: impl Fn((u8, u8)) -> (u8, u8), list: &[(u8, u8)], size: (A, B)) {}\n\
                    // fn two((a, b): (A, B)) {}\nconst S: &str = \"fn three((a, b): (A, B))\";\n\
                    fn four(State(fleet): State<Fleet>, x: ()) { let f = |(a, b): (A, B)| a; }";
        assert!(clumps(code).is_empty(), "{:?}", clumps(code));
    }
}
