//! Definitions that stand once: types that kernels, GPUs and the engine share. And what is known in one place: kinds
//! of devices, and ways in which blocks meet the residual stream.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The file of the engine that knows which kinds of devices there are beside the host: their table.
const REGISTRATION: &str = "kinds.rs";

/// Words of one kind of device.
const OF_ONE_DEVICE: [&str; 5] = ["vulkan", "VULKAN", "has_gpu", "brigade_gpu", "Gpu"];

/// Most methods of the trait that a device is behind.
const MOST_METHODS: usize = 15;

/// Where operands are defined, kernels compute, and blocks ask for it.
const FOLDERS: [&str; 5] = ["shapes/src", "ops/src", "kernels/src", "gpu/src", "src/device"];

/// Structs of which every model's file says something, and the most fields of each. A field that one or two models
/// have belongs into a variant or a part of it.
const FIELDS: [(&str, &str, usize); 2] =
    [("layer.rs", "BlockSpec", 5), ("attention.rs", "AttentionSpec", 12)];

/// Files of the engine that run block after block.
const LOOPS: [&str; 2] = ["stage/layers.rs", "stage/own_drafts/block.rs"];

/// Enums of what differs from model to model of the residual stream, with the files of descriptions that they stand
/// in.
const WAYS: [(&str, &str); 6] = [
    ("residual.rs", "Residual"),
    ("residual.rs", "Streams"),
    ("residual.rs", "HeadReads"),
    ("residual.rs", "AltUpStep"),
    ("passes.rs", "Passes"),
    ("passes.rs", "PassEnd"),
];

/// One variant's name means something else too.
const OTHER_MEANING: &str = "Stream";

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
    assert!(places.is_empty(), "types that stand in several crates: {places:?}");
}

/// The product's lines of a file: those before its tests, without comments.
fn product(code: &str) -> impl Iterator<Item = &str> {
    let before = code.split("#[cfg(test)]").next().unwrap_or_default();
    before.lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn one_kind_of_device_is_known_where_devices_are_registered() {
    let mut found = Vec::new();
    let mut folders = vec![engine().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the engine") {
            let path = entry.expect("an entry of a folder").path();
            if path.is_dir() {
                folders.extend((path.file_name() != Some("tests".as_ref())).then_some(path));
                continue;
            }
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if folder.ends_with("device") && name == REGISTRATION {
                continue;
            }
            let code = std::fs::read_to_string(&path).expect("a source is text");
            let lines =
                product(&code).filter(|line| OF_ONE_DEVICE.iter().any(|w| line.contains(w)));
            found.extend(lines.map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
    assert!(found.is_empty(), "what the table of devices' kinds alone may know: {found:#?}");
}

#[test]
fn a_device_has_few_methods() {
    let path = engine().join("ops/src/accelerator.rs");
    let code = std::fs::read_to_string(&path).expect("the trait of a device");
    let (_, from) = code.split_once("pub trait Accelerator").expect("the trait");
    let (of_trait, _) = from.split_once("\n}\n").expect("its end");
    let n = of_trait.lines().filter(|line| line.trim_start().starts_with("fn ")).count();
    assert!((8..=MOST_METHODS).contains(&n), "{n} methods");
}

/// The lines that a public type has right below it, fields or variants, by the words that they begin with.
fn members(code: &str, kind: &str, name: &str) -> Vec<String> {
    let head = format!("pub {kind} {name} {{\n");
    let (_, from) = code.split_once(&head).unwrap_or_else(|| panic!("no {head}"));
    let (body, _) = from.split_once("\n}").expect("its end");
    let own = body.lines().filter_map(|line| line.strip_prefix("    "));
    let own = own.filter(|line| line.starts_with(|c: char| c.is_alphabetic()));
    let word = |line: &str| {
        line.trim_start_matches("pub ").split(|c: char| !is_of_word(c)).next().map(str::to_owned)
    };
    own.filter_map(word).collect()
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn description(file: &str) -> String {
    let path = engine().join("spec/src").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn descriptions_have_what_all_models_have() {
    for (file, name, most) in FIELDS {
        let fields = members(&description(file), "struct", name);
        println!("{name}: {} fields of at most {most}", fields.len());
        assert!((3..=most).contains(&fields.len()), "{name}, at most {most}: {fields:?}");
    }
}

#[test]
fn whoever_runs_blocks_knows_no_way_of_a_residual_by_name() {
    let of = |(file, name): (&str, &str)| members(&description(file), "enum", name);
    let mut ways: BTreeSet<String> = WAYS.into_iter().flat_map(of).collect();
    assert!(ways.remove(OTHER_MEANING) && ways.len() > 15, "{ways:?}");
    let mut found = Vec::new();
    for file in LOOPS {
        let code = std::fs::read_to_string(engine().join("src").join(file)).expect("a loop");
        assert!(code.contains(".enter(") && code.contains(".meet("), "{file} runs no blocks");
        let words = product(&code).flat_map(|line| line.split(|c| !is_of_word(c)));
        found.extend(
            words.filter(|word| ways.contains(*word)).map(|word| format!("{file}: {word}")),
        );
    }
    let mut stage = Vec::new();
    contents(&engine().join("src/stage"), &mut stage);
    let names = ["Residual::", "HeadReads::", "Streams::", "AltUpStep::", "PassEnd::", "Passes::"];
    let lines = stage.iter().flat_map(|code| product(code));
    found.extend(
        lines.filter(|line| names.iter().any(|name| line.contains(name))).map(str::to_owned),
    );
    assert!(found.is_empty(), "what `engine/src/residual` alone may know: {found:#?}");
}

#[test]
fn the_search_sees_fields_and_variants() {
    let code = "pub enum Way {\n    /// Plain.\n    Plain,\n    Scaled {\n        /// By.\n        by: f32,\n    },\n    \
                #[default]\n    Deep(Spec),\n}\npub struct Spec {\n    pub one: u8,\n}";
    assert_eq!(members(code, "enum", "Way"), ["Plain", "Scaled", "Deep"]);
    assert_eq!(members(code, "struct", "Spec"), ["one"]);
}

#[test]
fn the_search_sees_types_that_are_public() {
    let code = "pub struct One<'a> {\nstruct Two;\npub enum Three {\n    pub struct Four;\npub fn five() {}";
    assert_eq!(types(code).collect::<Vec<_>>(), ["One", "Three"]);
}
