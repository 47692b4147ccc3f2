//! What is written once: types that kernels, GPUs and the engine share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Types of operands that a GPU's crate and the engine, or the kernels, still define by the same name, each for itself.
const DEFINED_TWICE: [&str; 4] = ["ExpertProduct", "ExpertRows", "FewGreatest", "Product"];

/// Where operands are defined, kernels compute, and blocks ask for it.
const FOLDERS: [&str; 5] = ["shapes/src", "ops/src", "kernels/src", "gpu/src", "src/device"];

fn engine() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine")
}

/// The contents of all Rust files under a folder.
fn contents(folder: &Path, found: &mut Vec<String>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            contents(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(std::fs::read_to_string(&path).expect("a source is text"));
        }
    }
}

/// Names of the public types that a file defines.
fn types(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let name = ["pub struct ", "pub enum "].iter().find_map(|kind| line.strip_prefix(kind))?;
        name.split(|c: char| !c.is_alphanumeric()).next()
    })
}

#[test]
fn operands_are_defined_once() {
    let mut places: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for folder in FOLDERS {
        let mut files = Vec::new();
        contents(&engine().join(folder), &mut files);
        for name in files.iter().flat_map(|code| types(code)) {
            places.entry(name.to_string()).or_default().insert(folder);
        }
    }
    assert!(places.len() > 100, "{} types: the search finds too few", places.len());
    places.retain(|_, places| places.len() > 1);
    let found: Vec<&str> = places.keys().map(String::as_str).collect();
    assert_eq!(found, DEFINED_TWICE, "types that stand in several crates: {places:?}");
}

#[test]
fn the_search_sees_types_that_are_public() {
    let code = "pub struct One<'a> {\nstruct Two;\npub enum Three {\n    pub struct Four;\npub fn five() {}";
    assert_eq!(types(code).collect::<Vec<_>>(), ["One", "Three"]);
}
