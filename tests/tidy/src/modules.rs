//! Finds out which file of a crate needs which other, and whether that goes in circles.
//!
//! A file needs another one where its code names something of it. It does so in a `use`, or by a path that
//! begins with `crate`, `super`, `self`, a module imported by name, or a child module. These are the finer
//! rules:
//!
//! - A name that a module only hands on (`pub use`) is followed to the file that defines it. Handing on needs
//!   nothing.
//! - `mod` declares a file and does not need it.
//! - A module (`mod.rs`, or the crate's root) may need its parts while they use what it defines for them.
//!   Such a circle is allowed if the parts have no circle among themselves, and if it does not lead out of
//!   the module.
//! - Tests do not count: `#[cfg(test)]`, and files and folders called `tests`.
//!
//! This reads text, not Rust. Strings and comments are taken out, and macros are not expanded. A name that
//! comes by a glob is taken to be of the file that the glob names.

use std::collections::{BTreeMap, BTreeSet};

/// Circles of files in one crate's `src`: each is a set of two or more files, of which every one needs every other,
/// directly or not. `sources` are (path from the repository's root, text).
pub fn cycles(sources: &[(String, String)]) -> Vec<Vec<String>> {
    let tree = Tree::new(sources);
    let (needs, mut found) = (tree.needs(), Vec::new());
    circles(&needs, &tree.modules.keys().collect(), &mut found);
    let path = |module: &Module| tree.modules[module].path.clone();
    let mut found: Vec<Vec<String>> =
        found.into_iter().map(|circle| circle.into_iter().map(path).collect()).collect();
    found.iter_mut().for_each(|circle| circle.sort());
    found.sort();
    found
}

/// The files that each file needs directly, for messages.
pub fn needs(sources: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let tree = Tree::new(sources);
    let path = |module: &Module| tree.modules[module].path.clone();
    let needs = tree.needs();
    needs.iter().map(|(module, needed)| (path(module), needed.iter().map(path).collect())).collect()
}

/// The circles among some modules. A circle of one module with its own parts is allowed by itself: without that
/// module, its parts are checked again.
fn circles<'n>(
    needs: &'n Needs,
    among: &BTreeSet<&'n Module>,
    found: &mut Vec<BTreeSet<&'n Module>>,
) {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        among.iter().map(|module| (*module, reachable(needs, among, module))).collect();
    let mut seen = BTreeSet::new();
    for module in among {
        let is_back = |other: &&&Module| reached[**other].contains(module);
        let circle: BTreeSet<&Module> = reached[module].iter().filter(is_back).copied().collect();
        if circle.len() < 2 || !seen.insert(circle.clone()) {
            continue;
        }
        let whole = circle.iter().find(|whole| circle.iter().all(|part| part.starts_with(whole)));
        match whole {
            Some(whole) => {
                let parts = circle.iter().filter(|part| *part != whole).copied().collect();
                circles(needs, &parts, found);
            }
            None => found.push(circle),
        }
    }
}

fn reachable<'n>(
    needs: &'n Needs,
    among: &BTreeSet<&'n Module>,
    from: &Module,
) -> BTreeSet<&'n Module> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&Module> = needs[from].iter().collect();
    while let Some(module) = open.pop() {
        if among.contains(module) && reached.insert(module) {
            open.extend(&needs[module]);
        }
    }
    reached
}

/// A module's path in its crate: `["kernels", "cpu"]`.
type Module = Vec<String>;
/// The modules that each module needs.
type Needs = BTreeMap<Module, BTreeSet<Module>>;
/// A path as it is written.
type Written = Vec<String>;

/// A parsed file.
struct File {
    path: String,
    /// The file's `use` without `pub`: path, and the name it gives it here.
    uses: Vec<(Written, String)>,
    /// Names handed on, with where they come from.
    hands_on: BTreeMap<String, Written>,
    /// The code without those parts.
    code: String,
}

struct Tree {
    modules: BTreeMap<Module, File>,
}

impl Tree {
    fn new(sources: &[(String, String)]) -> Self {
        let mut modules = BTreeMap::new();
        for (path, text) in sources {
            let Some((_, inner)) = path.split_once("/src/") else { continue };
            let module = match inner.trim_end_matches(".rs") {
                "lib" | "main" => Vec::new(),
                inner => inner.trim_end_matches("/mod").split('/').map(str::to_owned).collect(),
            };
            if !module.iter().any(|part| part == "tests") {
                // Of a program beside a library the library is the crate: the program names it from outside.
                let is_second = inner == "main.rs" && modules.contains_key(&Vec::new());
                if !is_second {
                    modules.insert(module, File::read(path, text));
                }
            }
        }
        Self { modules }
    }

    fn needs(&self) -> Needs {
        let needs = self.modules.iter().map(|(module, file)| {
            let mut needed: BTreeSet<Module> = BTreeSet::new();
            let mut names: BTreeMap<&str, Module> = BTreeMap::new();
            for (written, name) in &file.uses {
                if let Some((to, is_module)) = self.follow(module, written, 0) {
                    needed.insert(to.clone());
                    if is_module {
                        names.insert(name, to);
                    }
                }
            }
            for written in paths(&file.code) {
                let through = names.get(written[0].as_str());
                let found = match through {
                    Some(to) => self.follow_from(to, &written[1..], 0),
                    None => self.follow(module, &written, 0),
                };
                needed.extend(found.map(|(to, _)| to));
            }
            needed.remove(module);
            (module.clone(), needed)
        });
        needs.collect()
    }

    /// The module that has what is written in `here`, and whether it is the module itself that is named;
    /// `None` for other crates and for what is not a path of modules.
    fn follow(&self, here: &Module, written: &[String], depth: usize) -> Option<(Module, bool)> {
        let mut at = here.clone();
        let mut rest = written;
        match rest.first()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop()?;
            }
            child => {
                at.push(child.to_owned());
                if !self.modules.contains_key(&at) {
                    return None;
                }
            }
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|part| part == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        self.follow_from(&at, rest, depth)
    }

    fn follow_from(&self, from: &Module, rest: &[String], depth: usize) -> Option<(Module, bool)> {
        /// Names handed on through more hands than this go in circles themselves.
        const MAX_HANDS: usize = 16;
        let mut at = from.clone();
        for (i, part) in rest.iter().enumerate() {
            at.push(part.clone());
            if self.modules.contains_key(&at) {
                continue;
            }
            at.pop();
            let file = self.modules.get(&at)?;
            if let Some(written) = file.hands_on.get(part).filter(|_| depth < MAX_HANDS) {
                let mut written = written.clone();
                written.extend_from_slice(&rest[i + 1..]);
                if let Some(found) = self.follow(&at, &written, depth + 1) {
                    return Some(found);
                }
            }
            return Some((at, false));
        }
        self.modules.contains_key(&at).then_some((at, true))
    }
}

impl File {
    fn read(path: &str, text: &str) -> Self {
        let text = without_tests(text);
        let (mut uses, mut hands_on, mut code) = (Vec::new(), BTreeMap::new(), String::new());
        let mut rest = text.as_str();
        while let Some((before, is_public, tree, after)) = next_use(rest) {
            code.push_str(before);
            let mut found = Vec::new();
            spread(tree, &[], &mut found);
            if is_public {
                hands_on.extend(found.into_iter().map(|(written, name)| (name, written)))
            } else {
                uses.extend(found)
            }
            rest = after;
        }
        code.push_str(rest);
        Self { path: path.to_owned(), uses, hands_on, code }
    }
}

/// The first `use` of a text: the text before it, whether it is `pub`, the path that it names, and the text after it.
fn next_use(text: &str) -> Option<(&str, bool, &str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find("use ")?;
        from = at + 4;
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let head = text[line..at].trim();
        if head.is_empty() || head.starts_with("pub") && !head.contains(['=', ';', '{']) {
            let end = at + text[at..].find(';')?;
            return Some((&text[..line], !head.is_empty(), &text[at + 4..end], &text[end + 1..]));
        }
    }
}

/// Every path of a `use`, with the name that it gets.
fn spread(tree: &str, before: &[String], found: &mut Vec<(Written, String)>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let (path, name) = tree.split_once(" as ").map_or((tree, None), |(p, n)| (p, Some(n)));
        let mut written = before.to_vec();
        let parts = path.split("::").map(str::trim).filter(|part| !part.is_empty() && *part != "*");
        written.extend(parts.map(str::to_owned));
        // `a::{self}` names `a`.
        if written.len() > 1 && written.last().is_some_and(|last| last == "self") {
            written.pop();
        }
        let last = written.last().cloned().unwrap_or_default();
        found.push((written, name.map_or(last, |name| name.trim().to_owned())));
        return;
    };
    let mut before = before.to_vec();
    let head = tree[..open].split("::").map(str::trim).filter(|part| !part.is_empty());
    before.extend(head.map(str::to_owned));
    let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                spread(&inner[start..at], &before, found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !inner[start..].trim().is_empty() {
        spread(&inner[start..], &before, found);
    }
}

/// Every `a::b::c` in code, as far as it is made of names.
fn paths(code: &str) -> Vec<Written> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("::") {
        let start = rest[..at].rfind(|c| !part(c)).map_or(0, |before| before + 1);
        // A character that is not ASCII ends a name as well.
        let start = (start..=at).find(|i| rest.is_char_boundary(*i)).unwrap_or(at);
        let mut written = vec![rest[start..at].to_owned()];
        rest = &rest[at..];
        while let Some(after) = rest.strip_prefix("::") {
            let end = after.find(|c| !part(c)).unwrap_or(after.len());
            if end == 0 {
                rest = after;
                break;
            }
            written.push(after[..end].to_owned());
            rest = &after[end..];
        }
        if !written[0].is_empty() && written.len() > 1 {
            found.push(written);
        }
    }
    found
}

/// The code of a file: no comments, no strings, no items for tests.
fn without_tests(text: &str) -> String {
    let mut out = String::new();
    let code = code_alone(text);
    let mut lines = code.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        // Further attributes, then the item up to its last line.
        while lines.peek().is_some_and(|line| line.trim_start().starts_with('#')) {
            lines.next();
        }
        let ends_here = |line: &str| line.trim_end().ends_with([';', '}']);
        if lines.next().is_some_and(|first| !ends_here(first)) {
            for line in lines.by_ref() {
                let depth = line.len() - line.trim_start().len();
                if depth == indent && line.trim_start().starts_with(['}', ')']) {
                    break;
                }
            }
        }
    }
    out
}

/// A file without its comments and without the contents of its strings and character literals; its lines stay.
pub fn code_alone(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |at| at + 2),
            'r' if !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') => raw_string(rest),
            '"' => 1 + end_of(&rest[1..], '"'),
            '\'' if rest[1..].starts_with('\\') => 1 + end_of(&rest[1..], '\''),
            '\'' if rest.chars().nth(2) == Some('\'') => {
                rest.chars().take(3).map(char::len_utf8).sum()
            }
            _ => 0,
        };
        if skipped == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        out.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
        rest = &rest[skipped..];
    }
    out
}

/// Bytes up to and with the `quote` that closes what is open.
fn end_of(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Bytes of the raw string that a text begins with, 0 where it does not.
fn raw_string(text: &str) -> usize {
    let after = &text[1..];
    let marks = after.len() - after.trim_start_matches('#').len();
    if !after[marks..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(marks));
    let inner = &after[marks + 1..];
    2 + marks + inner.find(&close).map_or(inner.len(), |at| at + close.len())
}

/// A line without its `//` comment and without the contents of its string literals.
pub fn code_of(line: &str) -> String {
    let (mut out, mut in_string, mut chars) = (String::new(), false, line.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_string => drop(chars.next()),
            // '"' as a character literal opens no string.
            '\'' if !in_string && chars.peek() == Some(&'"') => drop(chars.next()),
            '"' => in_string = !in_string,
            '/' if !in_string && chars.peek() == Some(&'/') => break,
            c if !in_string => out.push(c),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        cycles(&sources.collect::<Vec<_>>())
    }

    #[test]
    fn two_files_that_need_each_other_are_a_cycle() {
        let planted = found(&[
            ("c/src/lib.rs", "mod a;\nmod b;\nmod d;\npub use a::A;\n"),
            ("c/src/a.rs", "use crate::b::B;\npub struct A(B);\n"),
            ("c/src/b.rs", "pub struct B;\nfn f() { super::a::g() }\n"),
            ("c/src/d.rs", "use crate::A;\n"),
        ]);
        assert_eq!(planted, [["c/src/a.rs", "c/src/b.rs"]]);
    }

    #[test]
    fn cycles_are_seen_through_fronts_and_module_names_and_longer_ways() {
        let planted = found(&[
            ("c/src/lib.rs", "mod x;\nmod y;\n"),
            ("c/src/x/mod.rs", "mod one;\nmod two;\npub(crate) use two::{Two as Second, other};\n"),
            ("c/src/x/one.rs", "use {std::fmt, super::Second};\n"),
            ("c/src/x/two.rs", "use crate::y;\nfn f() { y::inner::h(); }\n"),
            ("c/src/y/mod.rs", "pub mod inner;\n"),
            ("c/src/y/inner.rs", "use crate::x::{self};\nfn h() -> x::one::One {}\n"),
        ]);
        assert_eq!(planted, [["c/src/x/one.rs", "c/src/x/two.rs", "c/src/y/inner.rs"]]);
        // A child that goes back through its parent's sibling.
        let longer = found(&[
            ("c/src/lib.rs", "mod x;\nmod z;\n"),
            ("c/src/x/mod.rs", "mod one;\nuse one::One;\npub const N: u8 = 1;\n"),
            ("c/src/x/one.rs", "use super::N;\nuse crate::z::Z;\n"),
            ("c/src/z.rs", "use crate::x;\nfn z() -> u8 { x::N }\n"),
        ]);
        assert_eq!(longer, [["c/src/x/mod.rs", "c/src/x/one.rs", "c/src/z.rs"]]);
    }

    #[test]
    fn a_part_may_use_what_the_whole_defines() {
        let parent = found(&[
            ("c/src/lib.rs", "mod x;\npub const M: u8 = 1;\nuse x::X;\n"),
            ("c/src/x/mod.rs", "mod one;\nuse one::One;\npub struct X;\npub const N: u8 = 1;\n"),
            ("c/src/x/one.rs", "use super::N;\nfn one() -> u8 { crate::M }\n"),
        ]);
        assert!(parent.is_empty(), "{parent:?}");
        let parts = found(&[
            ("c/src/lib.rs", "mod x;\n"),
            ("c/src/x/mod.rs", "mod one;\nmod two;\nuse one::One;\npub const N: u8 = 1;\n"),
            ("c/src/x/one.rs", "use super::{N, two};\n"),
            ("c/src/x/two.rs", "use super::{N, one};\n"),
        ]);
        assert_eq!(parts, [["c/src/x/one.rs", "c/src/x/two.rs"]]);
    }

    #[test]
    fn declaring_handing_on_and_tests_need_nothing() {
        let sound = found(&[
            ("c/src/lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::B;\n"),
            (
                "c/src/a.rs",
                "// use crate::b::B;\nconst S: &str = \"crate::b::B\";\npub struct A;\n\n#[cfg(test)]\nmod tests {\n    use crate::B;\n}\n",
            ),
            (
                "c/src/b.rs",
                "use crate::A;\nconst T: &str = r#\"\nuse super::c;\"#;\n/* use super::c; */\n#[cfg(test)]\nuse crate::c;\n",
            ),
            ("c/src/c.rs", "use crate::B;\nfn f<'a>(c: char) { if c == '\"' || c == '\\'' {} }\n"),
            ("c/src/b/tests.rs", "use super::*;\n"),
        ]);
        assert!(sound.is_empty(), "{sound:?}");
    }
}
