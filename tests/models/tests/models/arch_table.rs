//! The tables of architectures in the manual are made from the program: what runs, with the error that was measured, and
//! what does not, with the reason that the program gives. `BRIGADE_BLESS=1` writes them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use brigade_gguf::{Gguf, GgufWriter};
use brigade_model_tests::places::{of_tests, root};

/// Bound on the error against llama.cpp that the manual states, and the golden tests check.
const LIMIT: f64 = 1e-4;
/// The page, from the root.
const PAGE: &str = "docs/models.md";
/// Descriptions of the architectures that run, where they cannot be computed in a moment.
const SAID: &str = "tests/data/architectures.txt";

/// One row: architectures of a kind.
#[derive(Debug)]
struct Row {
    names: Vec<String>,
    examples: String,
    error: String,
}

/// The rows of a section of [`SAID`].
fn said(section: &str) -> Vec<Row> {
    let text = fs::read_to_string(root().join(SAID)).unwrap();
    let lines = text.lines().skip_while(|line| *line != format!("[{section}]")).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        let [names, examples, error] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{SAID}: NAMES | EXAMPLES | ERROR is needed: {line}");
        };
        let names = names.split(' ').map(str::to_owned).collect();
        Row { names, examples: examples.to_owned(), error: error.to_owned() }
    });
    rows.collect()
}

/// Names as a cell has them.
fn cell<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// A table of what runs.
fn running(section: &str, head: &str) -> String {
    let mut table = format!("| {head} | for example | largest error |\n|---|---|---|\n");
    for Row { names, examples, error } in said(section) {
        let names = cell(names.iter().map(String::as_str));
        table.push_str(&format!("| {names} | {examples} | {error} |\n"));
    }
    table
}

/// The table of what does not run: one row for each reason.
fn refused() -> String {
    let mut rows: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, reason) in brigade_models::refused() {
        match rows.last_mut().filter(|(last, _)| *last == reason) {
            Some((_, names)) => names.push(name),
            None => rows.push((reason, vec![name])),
        }
    }
    let mut table = "| architecture | why not |\n|---|---|\n".to_owned();
    for (reason, names) in rows {
        table.push_str(&format!("| {} | {reason} |\n", cell(names)));
    }
    table
}

/// The architectures whose blocks of drafts are compared with llama.cpp's.
fn drafting() -> String {
    let text = fs::read_to_string(of_tests("data/drafts/manifest.json")).unwrap();
    let models: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let arch = |model: &serde_json::Value| model["synth"]["arch"].as_str().unwrap().to_owned();
    let names: BTreeSet<String> = models.values().map(arch).collect();
    format!("{}\n", cell(names.iter().map(String::as_str)))
}

/// The page with a table put between its two markers.
fn put(page: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: made "), format!("<!-- {name}: end -->"));
    let at = page.find(&begin).unwrap_or_else(|| panic!("{PAGE}: no marker `{begin}`"));
    let from = at + page[at..].find("-->\n").expect("a marker ends") + "-->\n".len();
    let to = page.find(&end).unwrap_or_else(|| panic!("{PAGE}: no marker `{end}`"));
    format!("{}{table}{}", &page[..from], &page[to..])
}

fn the_manual_has_the_programs_tables() {
    let path: PathBuf = root().join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let mut made = put(&page, "decoders", &running("decoders", "architecture"));
    made = put(&made, "encoders", &running("encoders", "encoder"));
    made = put(&made, "refused", &refused());
    made = put(&made, "drafts", &drafting());
    if std::env::var_os("BRIGADE_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, made).unwrap();
    } else {
        assert!(
            made == page,
            "{PAGE} has other tables than the program: BRIGADE_BLESS=1 writes it"
        );
    }
}

fn every_architecture_that_runs_stands_there_once_with_its_error() {
    let rows: Vec<Row> = ["decoders", "encoders"].into_iter().flat_map(said).collect();
    let mut named = BTreeSet::new();
    for row in &rows {
        let error: f64 = row.error.parse().unwrap_or_else(|_| panic!("{SAID}: {row:?}"));
        assert!(error > 0.0 && error <= LIMIT, "{row:?}");
        for name in &row.names {
            assert!(named.insert(name.as_str()), "{SAID}: {name} stands in two rows");
        }
    }
    let runs: BTreeSet<&str> = brigade_models::supported().into_iter().collect();
    let lacking: Vec<_> = runs.difference(&named).collect();
    assert!(lacking.is_empty(), "{SAID} lacks {lacking:?}");
    let unknown: Vec<_> = named.difference(&runs).collect();
    assert!(unknown.is_empty(), "{SAID} has what the program does not run: {unknown:?}");
}

fn a_file_of_another_architecture_is_refused_by_name_with_the_reason() {
    let refusal = |name: &str| {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", name).unwrap();
        let mut bytes = Vec::new();
        writer.write_header_only(&mut bytes).unwrap();
        let model = Gguf::from_bytes(bytes.into(), name).unwrap();
        brigade_models::describe(&model).unwrap_err().to_string()
    };
    for (name, reason) in brigade_models::refused() {
        assert!(!brigade_models::supported().contains(&name), "{name} runs");
        let message = refusal(name);
        assert!(message.contains(&format!("{name:?}")), "{message}");
        assert!(message.contains(reason) && message.contains(PAGE), "{message}");
    }
    let message = refusal("gpt5");
    assert!(message.contains("gpt5") && message.contains("qwen3moe"), "{message}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        the_manual_has_the_programs_tables,
        every_architecture_that_runs_stands_there_once_with_its_error,
        a_file_of_another_architecture_is_refused_by_name_with_the_reason;
];
