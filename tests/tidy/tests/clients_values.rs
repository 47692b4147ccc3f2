//! Rules for values that come from others, in requests and in model files. Numbers and flags are read in one place,
//! so that 3.0 is the same everywhere. And no code assigns by index into a client's value, which would panic if the
//! value had another type.

use std::fs;
use std::path::{Path, PathBuf};

/// Functions that read numbers and flags of JSON.
const NUMBERS: [&str; 2] =
    ["coordinator/dialect/src/values/number.rs", "coordinator/http/src/request/value.rs"];

/// Other ways to read them.
const OTHER_READERS: [&str; 10] = [
    "as_u64",
    "as_i64",
    "as_f64",
    "as_bool",
    "as_i128",
    "as_u128",
    "is_u64",
    "is_i64",
    "is_f64",
    "as_number",
];

/// Files that take a JSON text apart by themselves: the readers above, and what reads a text inside of one.
const JSON_READERS: [&str; 5] = [
    "coordinator/http/src/request/fields.rs",
    "coordinator/http/src/request/value.rs",
    "coordinator/http/src/request/answer_format.rs",
    "coordinator/http/src/answer/blocks.rs",
    "coordinator/http/src/server/admin.rs",
];

/// Functions that read the numbers of model files; `inspect` shows them.
const FILE_NUMBERS: [&str; 4] = [
    "engine/gguf/src/value.rs",
    "engine/gguf/src/meta.rs",
    "engine/gguf/src/writer.rs",
    "coordinator/src/cli/inspect.rs",
];

/// Numbers of files, by their types.
const FILE_TYPES: [&str; 10] = ["U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F32", "F64"];

/// Files that write answers: what they assign to is their own.
const ANSWERS: [&str; 9] = [
    "compat/anthropic/mod.rs",
    "compat/anthropic/stream.rs",
    "compat/responses/mod.rs",
    "compat/responses/stream.rs",
    "compat/ollama/mod.rs",
    "compat/ollama/answer.rs",
    "error.rs",
    "server/status.rs",
    "answer/pooled.rs",
];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this package is `tests/tidy`").to_path_buf()
}

/// The sources below a folder, without tests: their paths, and their lines with numbers.
fn sources(folder: &str) -> Vec<(String, Vec<(usize, String)>)> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name =
                path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            if path.is_dir() {
                let is_ours = !name.ends_with("/tests")
                    && !name.ends_with("/unit")
                    && !name.ends_with("/target");
                folders.extend(is_ours.then_some(path));
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).expect("UTF-8 source");
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let code = code.split("#[cfg(test)]\npub mod tests").next().unwrap_or_default();
                let lines = code.lines().enumerate().map(|(i, line)| (i + 1, code_of(line)));
                found.push((name, lines.collect()));
            }
        }
    }
    assert!(!found.is_empty(), "nothing in {folder}");
    found
}

/// A line without its comment.
fn code_of(line: &str) -> String {
    let at = line.find("//").filter(|at| line[..*at].matches('"').count().is_multiple_of(2));
    line[..at.unwrap_or(line.len())].to_owned()
}

fn has_word(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].ends_with(is_part) && !code[at + word.len()..].starts_with(is_part)
    })
}

fn none(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}:\n{}", wrong.join("\n"));
}

/// The code of the crates that read requests and schemas.
fn of_requests() -> Vec<(String, Vec<(usize, String)>)> {
    [sources("coordinator/http/src"), sources("coordinator/dialect/src")].concat()
}

#[test]
fn numbers_and_flags_of_json_have_one_reader() {
    let mut wrong = Vec::new();
    for (name, lines) in of_requests().iter().filter(|(name, _)| !NUMBERS.contains(&name.as_str()))
    {
        for (at, code) in lines {
            if let Some(word) = OTHER_READERS.iter().find(|word| has_word(code, word)) {
                wrong.push(format!(
                    "{name}:{at}: {word}: use brigade_dialect::values::number, or Fields::take"
                ));
            }
        }
    }
    none("numbers and flags of JSON are read in number.rs and value.rs", &wrong);
}

#[test]
fn requests_are_taken_apart_in_one_place() {
    let mut wrong = Vec::new();
    let http = sources("coordinator/http/src");
    for (name, lines) in http.iter().filter(|(name, _)| !JSON_READERS.contains(&name.as_str())) {
        for (at, code) in lines {
            let words = ["from_str", "from_slice", "from_value", "Deserialize"];
            let is_json = |word: &&&str| {
                has_word(code, word) && (**word == "Deserialize" || code.contains("serde_json"))
            };
            if let Some(word) = words.iter().find(is_json) {
                wrong.push(format!("{name}:{at}: {word}: use Fields"));
            }
        }
    }
    none("bodies are read with Fields", &wrong);
}

#[test]
fn numbers_of_model_files_have_one_reader() {
    let all = [
        sources("engine/gguf/src"),
        sources("engine/text/src"),
        sources("engine/models/src"),
        sources("engine/src"),
        sources("coordinator"),
        sources("worker/src"),
    ]
    .concat();
    let mut wrong = Vec::new();
    for (name, lines) in all.iter().filter(|(name, _)| !FILE_NUMBERS.contains(&name.as_str())) {
        for (at, code) in lines {
            let types = FILE_TYPES.iter().map(|ty| format!("Value::{ty}("));
            if let Some(word) = types.into_iter().find(|word| code.contains(word.as_str())) {
                wrong.push(format!(
                    "{name}:{at}: {word}..): use the accessors of Meta, or Value::number"
                ));
            }
        }
    }
    none("numbers of model files are read in meta.rs", &wrong);
}

/// The name before an index that something is assigned to: `call` of `call["id"] = x`.
fn assigned(code: &str) -> Option<&str> {
    let (before, behind) = code.split_once("] = ")?;
    let (name, index) = before.split_once('[')?;
    let name = name.trim();
    if code.trim_start().starts_with("let ") {
        return None;
    }
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    // A place of a list of our own is a number.
    (is_name && !behind.is_empty() && index.parse::<usize>().is_err()).then_some(name)
}

#[test]
fn nothing_is_assigned_by_index_into_a_clients_value() {
    let mut wrong = Vec::new();
    for (name, lines) in of_requests() {
        if ANSWERS.iter().any(|file| name.ends_with(&format!("http/src/{file}"))) {
            continue;
        }
        for (i, (at, code)) in lines.iter().enumerate() {
            let Some(variable) = assigned(code) else { continue };
            // A value that was made here as an object or a list may be filled so.
            let made = format!("let mut {variable}");
            let binding = lines[..i].iter().rev().find(|(_, code)| code.contains(&made));
            let is_own =
                binding.is_some_and(|(_, code)| code.contains("json!({") || code.contains("vec!["));
            if !is_own {
                wrong.push(format!("{name}:{at}: {}: use as_object_mut and insert", code.trim()));
            }
        }
    }
    none("assignments by index into values that were not made here", &wrong);
}

#[test]
fn the_rules_see_what_they_are_for() {
    assert_eq!(assigned("            call[\"id\"] = json!(1);"), Some("call"));
    assert_eq!(assigned("    function[field] = value.clone();"), Some("function"));
    assert_eq!(assigned("    let a = b[\"c\"].clone();"), None);
    assert_eq!(assigned("    rows[3] = 1.0;"), None);
    assert_eq!(assigned("    let [a, b] = pair[..] else {"), None);
    assert!(has_word("x.as_u64()", "as_u64") && !has_word("x.has_u64s()", "as_u64"));
    assert_eq!(code_of("a // Value::U32(").trim(), "a");
}
