//! Rooms: folders of a crate that stand above each other. A file uses its own room and those before it, never one behind.
//! And no folder is so full that a stranger finds nothing in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use brigade_tidy::modules;

/// The rooms of a folder, lowest first, and files beside them that count as rooms of their own. A file that is
/// neither, such as the folder's root, may use all. Rooms may use what the root defines for them.
const ROOMS: &[(&str, &[&str])] = &[
    (
        "coordinator/http/src",
        &[
            "error", "clients", "request", "events", "app", "answer", "fleet", "openai", "compat",
            "server",
        ],
    ),
    (
        "coordinator/cluster/src",
        &[
            "local",
            "progress",
            "reconcile",
            "pki",
            "config",
            "members",
            "states",
            "weights",
            "building",
            "pool",
            "watch",
            "supervisor",
            "start",
        ],
    ),
    (
        "engine/gpu/src",
        &[
            "error",
            "lock",
            "vulkan",
            "memory",
            "pipelines",
            "commands",
            "device",
            "precompile",
            "transfer",
            "operands",
            "ops",
            "accelerator",
            "kind",
        ],
    ),
    (
        "engine/gpu/src/ops",
        &["probe", "rowwise", "products", "experts", "scan", "kv", "index", "attention", "run"],
    ),
    (
        "engine/kernels/src",
        &[
            "sync", "pinning", "shares", "pool", "ahead", "simd", "slab", "aligned", "format",
            "tiles", "cpu", "table", "compute", "ops", "probe",
        ],
    ),
    (
        "engine/kernels/src/cpu",
        &["lanes", "exp", "probe", "products", "rowwise", "attention", "scan"],
    ),
    (
        "engine/kernels/src/ops",
        &["products", "rowwise", "scan", "kv", "index", "attention", "experts", "run"],
    ),
    (
        "engine/src",
        &[
            "batch",
            "error",
            "constraint",
            "control_vectors",
            "device",
            "heads",
            "sample",
            "state",
            "weights",
            "block",
            "residual",
            "stage",
        ],
    ),
    (
        "engine/src/device",
        &[
            "hardware",
            "mapping",
            "kinds",
            "name",
            "accelerator",
            "rows",
            "ops",
            "experts",
            "probe",
            "self_test",
            "devices",
        ],
    ),
    (
        "engine/synth/src",
        &[
            "noise",
            "vocab",
            "file_type",
            "shape",
            "plan",
            "shared_parts",
            "decoders",
            "recurrent",
            "latent",
            "encoders",
            "arch",
            "adapter",
        ],
    ),
    (
        "worker/src",
        &[
            "machine", "weights", "records", "backend", "copies", "executor", "prefixes", "config",
            "host", "identity", "loading", "stage", "state", "services", "run", "node",
        ],
    ),
    (
        "coordinator/dialect/src",
        &[
            "names",
            "values",
            "parser",
            "template",
            "pooling",
            "text_model",
            "constrain",
            "sample_model",
        ],
    ),
];

/// Most Rust files of one folder.
const MOST_FILES: usize = 25;

/// Folders with more: those of models have a file for each, and the rest nobody has parted yet.
const FULLER: &[(&str, usize)] =
    &[("engine/kernels/tables/tests/kernels", 32), ("engine/models/src/models", 100)];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this package is `tests/tidy`").to_path_buf()
}

/// Rust files below a folder, by their paths from the root, with what is in them.
fn sources(dir: &str, found: &mut Vec<(String, String)>) {
    let entries = fs::read_dir(root().join(dir)).unwrap_or_else(|e| panic!("{dir}: {e}"));
    for entry in entries {
        let entry = entry.expect("an entry of a folder");
        let name = format!("{dir}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            sources(&name, found);
        } else if name.ends_with(".rs") {
            found.push((name, fs::read_to_string(entry.path()).expect("a source is text")));
        }
    }
    found.sort();
}

/// The sources of the crate that a folder is of.
fn crate_of(folder: &str) -> String {
    let (krate, _) = folder.split_once("/src").expect("a folder of a crate's sources");
    format!("{krate}/src")
}

/// The place of a file's room among those of its folder; `None`: it is in none.
fn place(folder: &str, rooms: &[&str], file: &str) -> Option<usize> {
    let inner = file.strip_prefix(folder)?.strip_prefix('/')?;
    let room = inner.split('/').next()?;
    let room = room.strip_suffix(".rs").unwrap_or(room);
    rooms.iter().position(|known| *known == room)
}

/// Every arrow from a room to one behind it.
fn arrows_back(folder: &str, rooms: &[&str], sources: &[(String, String)]) -> Vec<String> {
    let mut back = Vec::new();
    for (file, needed) in modules::needs(sources) {
        let Some(from) = place(folder, rooms, &file) else { continue };
        for other in needed {
            let to = place(folder, rooms, &other);
            if let Some(to) = to.filter(|to| *to > from) {
                let (from, to) = (rooms[from], rooms[to]);
                back.push(format!("{file} (of {from}) needs {other} (of {to})"));
            }
        }
    }
    back
}

#[test]
fn rooms_point_in_one_direction() {
    let mut wrong = Vec::new();
    for (folder, rooms) in ROOMS {
        let mut own = Vec::new();
        sources(&crate_of(folder), &mut own);
        let mut files: BTreeMap<usize, usize> = BTreeMap::new();
        for (file, _) in &own {
            let Some(inner) = file.strip_prefix(folder).and_then(|f| f.strip_prefix('/')) else {
                continue;
            };
            match place(folder, rooms, file) {
                Some(at) => *files.entry(at).or_default() += 1,
                None if ["lib.rs", "mod.rs", "tests.rs"].contains(&inner) => {}
                None if inner.starts_with("tests/") => {}
                None => wrong.push(format!("{file} is in no room")),
            }
        }
        let arrows = modules::needs(&own).values().map(|needed| needed.len()).sum::<usize>();
        let counts = files.iter().map(|(at, n)| format!("{} {n}", rooms[*at]));
        println!("{folder}: {arrows} arrows; files: {}", counts.collect::<Vec<_>>().join(", "));
        assert!(arrows > own.len(), "{folder}: {arrows} arrows among {} files", own.len());
        for (at, room) in rooms.iter().enumerate().filter(|(at, _)| !files.contains_key(at)) {
            wrong.push(format!("{folder}: room {at}, {room}, has no file"));
        }
        wrong.extend(arrows_back(folder, rooms, &own));
    }
    assert!(wrong.is_empty(), "rooms that use others behind them:\n  {}", wrong.join("\n  "));
}

#[test]
fn no_folder_is_too_full() {
    let (mut found, mut folders) = (Vec::new(), BTreeMap::<String, usize>::new());
    for dir in ["coordinator", "engine", "proto", "tests", "worker"] {
        sources(dir, &mut found);
    }
    for (file, _) in &found {
        let folder = file.rsplit_once('/').expect("a file in a folder").0;
        *folders.entry(folder.to_owned()).or_default() += 1;
    }
    assert!(folders.len() > 50, "{} folders: wrong root?", folders.len());
    let most = |folder: &str| {
        let fuller = FULLER.iter().find(|(known, _)| *known == folder);
        fuller.map_or(MOST_FILES, |(_, most)| *most)
    };
    folders.retain(|folder, n| *n > most(folder));
    assert!(folders.is_empty(), "part these folders (most: {MOST_FILES} files): {folders:#?}");
}

#[test]
fn the_search_sees_an_arrow_back() {
    let file = |name: &str, code: &str| (format!("c/src/{name}"), code.to_owned());
    let sources = [
        file("lib.rs", "mod low;\nmod high;\npub fn all() { high::run() }"),
        file("low/mod.rs", "pub(crate) mod part;"),
        file("low/part.rs", "use crate::high::other::Thing;\npub fn one(_: Thing) {}"),
        file("high/mod.rs", "pub(crate) mod other;\npub fn run() { crate::low::part::one() }"),
        file("high/other.rs", "pub struct Thing;\n#[cfg(test)]\nmod tests { use crate::all; }"),
    ];
    let back = arrows_back("c/src", &["low", "high"], &sources);
    assert_eq!(back, ["c/src/low/part.rs (of low) needs c/src/high/other.rs (of high)"]);
}
