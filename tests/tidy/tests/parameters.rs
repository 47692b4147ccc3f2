//! Values that a function gets have names: no parameter of the tree is a clump of several (`parameters.rs` says which are), and
//! a context is small and used (`contexts.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brigade_tidy::contexts::{Context, contexts, readers};
use brigade_tidy::parameters::clumps;

/// Folders with sources, tests among them.
const FOLDERS: [&str; 5] = ["coordinator", "engine", "proto", "tests", "worker"];

/// Folders in them whose sources nobody wrote.
const SKIPPED: [&str; 3] = ["target", "generated", "node_modules"];

/// All Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !SKIPPED.contains(&name) {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// Most fields of a context.
const MOST_FIELDS: usize = 7;

/// Folders whose structs that borrow are operands of ops: data of one op, with as many fields as the op has.
const OPERANDS: [&str; 3] = ["engine/gpu", "engine/kernels", "engine/ops"];

/// A source, and its path in the tree.
struct Source {
    path: String,
    text: String,
}

/// All sources of the tree.
fn tree() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    assert!(files.len() > 1000, "{} files: the search finds too few", files.len());
    let read = |file: &PathBuf| {
        let path = file.strip_prefix(&root).unwrap_or(file).display().to_string();
        Source { path, text: std::fs::read_to_string(file).expect("a source is text") }
    };
    files.iter().map(read).collect()
}

/// The nearest folder above a file that is a package.
fn package(path: &str) -> &Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut above = Path::new(path).ancestors().skip(1);
    above
        .find(|folder| root.join(folder).join("Cargo.toml").is_file())
        .expect("a package of the file")
}

#[test]
fn no_parameter_is_a_clump() {
    let found: Vec<String> = tree()
        .iter()
        .flat_map(|Source { path, text }| {
            clumps(text).into_iter().map(move |clump| format!("{path}: {clump}"))
        })
        .collect();
    assert!(
        found.is_empty(),
        "give these values a struct, or parameters of their own:\n  {}",
        found.join("\n  ")
    );
}

#[test]
fn contexts_are_small_and_used() {
    let tree = tree();
    let mut packages: BTreeMap<&Path, Vec<&Source>> = BTreeMap::new();
    for source in
        tree.iter().filter(|source| !OPERANDS.iter().any(|folder| source.path.starts_with(folder)))
    {
        packages.entry(package(&source.path)).or_default().push(source);
    }
    let (mut found, mut n_readers) = (Vec::new(), 0);
    for sources in packages.values() {
        // A name that two structs have stands for the larger one.
        let mut all: Vec<Context> =
            sources.iter().flat_map(|source| contexts(&source.text)).collect();
        all.sort_by_key(|context| std::cmp::Reverse(context.fields.len()));
        let readers = sources.iter().flat_map(|source| {
            readers(&source.text, &all).into_iter().map(|reader| (&source.path, reader))
        });
        let mut functions: BTreeMap<String, usize> = BTreeMap::new();
        for (path, reader) in readers {
            let context = all
                .iter()
                .find(|context| context.name == reader.context)
                .expect("it was found by name");
            n_readers += 1;
            *functions.entry(reader.context.clone()).or_default() += 1;
            if reader.reads_little(context) {
                let (function, reads) =
                    (&reader.function, reader.reads.unwrap_or_default().join(", "));
                found.push(format!("{path}: {function} reads of {} only: {reads}", context.name));
            }
        }
        // What one function gets is that function's own business.
        let large = all.iter().filter(|context| {
            context.fields.len() > MOST_FIELDS
                && functions.get(&context.name).is_some_and(|n| *n > 1)
        });
        found.extend(
            large.map(|context| format!("{}: {} fields", context.name, context.fields.len())),
        );
    }
    assert!(n_readers > 300, "{n_readers} functions get a context: the search finds too few");
    assert!(
        found.is_empty(),
        "give a function the values that it reads, and a context at most {MOST_FIELDS}:\n  {}",
        found.join("\n  ")
    );
}
