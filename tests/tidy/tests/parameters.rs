//! Values that a function gets have names: no parameter of the tree is a clump of several (`parameters.rs` says which are).

use std::path::{Path, PathBuf};

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

#[test]
fn no_parameter_is_a_clump() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    assert!(files.len() > 1000, "{} files: the search finds too few", files.len());
    let mut found = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a source is text");
        let path = file.strip_prefix(&root).unwrap_or(file).display();
        found.extend(clumps(&text).into_iter().map(|clump| format!("{path}: {clump}")));
    }
    assert!(
        found.is_empty(),
        "give these values a struct, or parameters of their own:\n  {}",
        found.join("\n  ")
    );
}
