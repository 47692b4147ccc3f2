//! The repository's own rules, as tests. They are about file lengths and sizes, module heads, banned macros, where `unsafe` may
//! stand, which crate and which file may depend on which, and documents that agree with what is there.
//!
//! It reads the source tree as text, and lists every violation, not just the first. It knows comments, string
//! literals and modules' names, and nothing else of Rust's grammar.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use brigade_tidy::devices::devices;
use brigade_tidy::manifests::{self, locked};
use brigade_tidy::modules::{self, code_of};

/// Longest `.rs` file in lines.
const MAX_LINES: usize = 600;
/// Longest function in lines, from `fn` to its closing brace.
const MAX_FN_LINES: usize = 70;
/// Largest file in the tree.
const MAX_FILE_BYTES: u64 = 6 << 20;
/// Largest sum of everything under `tests/data`.
const MAX_TEST_DATA_BYTES: u64 = 12_000_000;
/// The command that shows the main job; README's first one.
const RUN_COMMAND: &str = "cargo run --release -- run";
/// The command that runs every test; README's second one.
const TEST_COMMAND: &str = "cargo test --release --workspace";
/// README's top, in lines: both commands stand here.
const README_TOP: usize = 25;
/// Macros that mark unfinished work or leftovers (in halves, so that this file passes itself).
const BANNED: [&str; 3] =
    [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
/// Where `unsafe` may stand; the tests' counting allocators cannot be written without.
const UNSAFE_ALLOWED: [&str; 5] = [
    "engine/kernels/",
    "engine/gguf/src/",
    "engine/gpu/src/",
    "engine/synth/tests/files/damage.rs",
    "engine/text/tests/template_memory.rs",
];
/// The folder of generated files, which a test compares with their sources.
const GENERATED: &str = "proto/generated/";
/// Folders that hold no source of ours.
const SKIPPED_DIRS: [&str; 5] = ["target", ".git", "node_modules", ".venv", "__pycache__"];

/// The table of kinds of devices, which names their crates. Each may need the same, and the engine may need each.
const KINDS_OF_DEVICES: &str = "engine/src/device/kinds.rs";
const A_DEVICE_MAY_NEED: &[&str] = &["ops", "quant", "shapes"];
/// For each crate folder: the crates of ours that its `[dependencies]` may name, so that a change compiles little.
const MAY_NEED: [(&str, &[&str]); 37] = [
    ("engine/sampling", &[]),
    ("engine/shapes", &[]),
    ("proto", &["sampling"]),
    ("engine/quant", &[]),
    ("engine/gguf", &["quant"]),
    ("engine/spec", &["gguf", "quant", "shapes"]),
    ("engine/models", &["gguf", "shapes", "spec"]),
    ("engine/synth", &["gguf", "models", "quant", "spec"]),
    ("engine/text", &["gguf"]),
    ("engine/ops", &["quant", "shapes"]),
    ("engine/kernels", &["ops", "quant", "shapes"]),
    ("engine/kernels/avx2", &["kernels"]),
    ("engine/kernels/avx512", &["kernels"]),
    ("engine/kernels/avxvnni", &["kernels"]),
    ("engine/kernels/neon", &["kernels"]),
    ("engine/kernels/reference", &["kernels"]),
    ("engine/kernels/software", &["kernels"]),
    ("engine/kernels/unfused", &["kernels"]),
    ("engine/kernels/unfused-avx2", &["kernels"]),
    ("engine/kernels/unfused-avx512", &["kernels"]),
    ("engine/kernels/unfused-neon", &["kernels"]),
    ("engine/kernels/tables", &["kernels", "kernels-reference", "kernels-unfused"]),
    ("engine", &["gguf", "kernels", "kernels-tables", "ops", "quant", "sampling", "spec"]),
    ("worker", &["engine", "gguf", "hub", "models", "proto", "quant", "spec", "text"]),
    ("coordinator/draft", &[]),
    ("coordinator/hub", &[]),
    ("coordinator/process", &[]),
    ("coordinator/sched", &["draft", "engine", "spec"]),
    ("coordinator/plan", &["engine", "gguf", "models", "sched", "spec", "worker"]),
    ("coordinator/dialect", &["engine", "gguf", "models", "proto", "text"]),
    (
        "coordinator/line",
        &[
            "dialect", "draft", "engine", "gguf", "hub", "models", "plan", "proto", "sampling",
            "sched", "spec", "text",
        ],
    ),
    (
        "coordinator/cluster",
        &["engine", "gguf", "hub", "line", "plan", "proto", "sched", "spec", "worker"],
    ),
    ("coordinator/http", &["dialect", "engine", "line", "proto", "sampling", "sched", "text"]),
    (
        "coordinator",
        &[
            "cluster", "dialect", "draft", "engine", "gguf", "http", "hub", "line", "plan",
            "process", "proto", "sampling", "sched", "synth", "text", "worker",
        ],
    ),
    ("tests/devices", &["kernels", "kernels-tables", "ops", "quant"]),
    ("tests/harness", &[]),
    ("tests/models", &["engine", "gguf", "harness", "models", "quant", "spec", "synth", "text"]),
];
/// Crates without input and output, beside those of the engine.
const WITHOUT_IO: [&str; 4] =
    ["coordinator/draft", "coordinator/sched", "coordinator/plan", "coordinator/dialect"];
/// Crates for input and output.
const IO: [&str; 6] = ["tokio", "tokio-stream", "tonic", "axum", "prost", "hyper"];

/// The root of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this package is `tests/tidy`").to_path_buf()
}

/// Every file under `dir`, except in [`SKIPPED_DIRS`], with its path relative to the root.
fn files_under(dir: &Path, found: &mut Vec<(String, PathBuf)>) {
    let mut entries: Vec<_> =
        fs::read_dir(dir).expect("readable folder").map(|e| e.expect("entry").path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            if !SKIPPED_DIRS.contains(&name.as_str()) {
                files_under(&path, found);
            }
        } else {
            let relative = path.strip_prefix(root()).expect("under the root");
            found.push((relative.to_string_lossy().replace('\\', "/"), path.clone()));
        }
    }
}

/// Every file of the tree.
fn all_files() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    files_under(&root(), &mut found);
    assert!(found.len() > 20, "the walk found {} files only: wrong root?", found.len());
    found
}

/// (relative path, text) of every `.rs` file.
fn sources() -> Vec<(String, String)> {
    let ours = |name: &str| name.ends_with(".rs") && !name.starts_with(GENERATED);
    let rust = all_files().into_iter().filter(|(name, _)| ours(name));
    rust.map(|(name, path)| (name, fs::read_to_string(path).expect("UTF-8 source"))).collect()
}

/// The text of one file of the repository.
fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Fails with the whole list when there is one.
fn none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

/// Whether `code` holds `word` with no letter, digit or underscore on either side.
fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(part) && !code[at + word.len()..].starts_with(part))
}

/// Names in the `[dependencies]` section of a crate's manifest.
fn dependencies(krate: &str) -> Vec<String> {
    manifests::dependencies(&read(&format!("{krate}/Cargo.toml")))
}

#[test]
fn files_read_in_one_sitting() {
    let mut long = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        if lines > MAX_LINES {
            long.push(format!("{name}: {lines} lines, limit {MAX_LINES}"));
        }
    }
    none("split these files", &long);
}

#[test]
fn every_file_says_what_it_is() {
    let silent = sources().into_iter().filter(|(_, text)| !text.starts_with("//!"));
    none("start these with `//!`", &silent.map(|(name, _)| name).collect::<Vec<_>>());
}

/// A module's file that no `mod` names is never compiled: a leftover, or code that only seems to be there.
#[test]
fn every_module_is_compiled() {
    let sources = sources();
    let text = |name: &str| sources.iter().find(|(n, _)| n == name).map(|(_, text)| text);
    let mut lost = Vec::new();
    for (name, _) in &sources {
        let Some((krate, inner)) = name.split_once("/src/") else { continue };
        if ["lib.rs", "main.rs"].contains(&inner) || inner.starts_with("bin/") {
            continue;
        }
        let module = inner.trim_end_matches(".rs").trim_end_matches("/mod");
        let (folder, stem) = module.rsplit_once('/').unwrap_or(("", module));
        let parents = match folder {
            "" => vec![format!("{krate}/src/lib.rs"), format!("{krate}/src/main.rs")],
            _ => ["/mod.rs", ".rs"].map(|end| format!("{krate}/src/{folder}{end}")).to_vec(),
        };
        let declaration = format!("mod {stem};");
        let declared = |parent: &String| text(parent).is_some_and(|t| t.contains(&declaration));
        if !parents.iter().any(declared) {
            lost.push(format!("{name}: no `{declaration}` in {}", parents.join(" or ")));
        }
    }
    none("every file under src belongs to its crate", &lost);
}

/// Folders of test programs, and whether a harness of ours runs their tests.
fn test_programs(sources: &[(String, String)]) -> Vec<(&str, bool)> {
    let mains = sources.iter().filter_map(|(name, text)| {
        let folder = name.strip_suffix("/main.rs").filter(|f| f.contains("tests/"))?;
        (!folder.contains("/src")).then(|| (folder, text.contains("brigade_harness::main")))
    });
    mains.collect()
}

#[test]
fn every_module_of_a_test_program_is_compiled() {
    let sources = sources();
    let programs = test_programs(&sources);
    assert!(programs.iter().filter(|(_, is_ours)| *is_ours).count() > 5, "{programs:?}");
    let mut lost = Vec::new();
    for (program, _) in programs {
        for (name, _) in &sources {
            let Some(inner) = name.strip_prefix(&format!("{program}/")) else { continue };
            let module = inner.trim_end_matches(".rs").trim_end_matches("/mod");
            let (folder, stem) = module.rsplit_once('/').unwrap_or(("", module));
            let parents = match folder {
                "" if stem == "main" => continue,
                "" => vec![format!("{program}/main.rs")],
                _ => ["/mod.rs", ".rs"].map(|end| format!("{program}/{folder}{end}")).to_vec(),
            };
            let declares = |(n, text): &(String, String)| {
                parents.contains(n) && text.contains(&format!("mod {stem};"))
            };
            if !sources.iter().any(declares) {
                lost.push(format!("{name}: no `mod {stem};` in {}", parents.join(" or ")));
            }
        }
    }
    none("every file of a test program belongs to it", &lost);
}

/// Where a harness of ours runs the tests, a function with the attribute is left out of the program without a word.
#[test]
fn tests_that_our_harness_runs_are_in_its_lists() {
    let sources = sources();
    let mut wrong = Vec::new();
    for (program, _) in test_programs(&sources).into_iter().filter(|(_, is_ours)| *is_ours) {
        let start = format!("{program}/");
        for (name, text) in sources.iter().filter(|(name, _)| name.starts_with(&start)) {
            let marked = |line: &str| {
                ["#[test]", "#[tokio::test", "#[ignore"].iter().any(|a| code_of(line).contains(a))
            };
            let lines = text.lines().enumerate().filter(|(_, line)| marked(line));
            wrong.extend(lines.map(|(at, _)| format!("{name}:{}", at + 1)));
        }
    }
    none("list these in TESTS, without the attribute", &wrong);
}

#[test]
fn functions_fit_a_screen() {
    let mut long = Vec::new();
    for (name, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            // A signature ends in `{`, or in `;` where there is no body.
            let ends = |l: &&&str| l.trim_end().ends_with(['{', ';', '}']);
            let has_body =
                lines[at..].iter().find(ends).is_some_and(|l| l.trim_end().ends_with('{'));
            if !has_word(&code_of(line), "fn") || !has_body {
                continue;
            }
            let indent = &line[..line.len() - line.trim_start().len()];
            let closing = format!("{indent}}}");
            let Some(length) = lines[at..].iter().position(|l| **l == closing) else { continue };
            if length + 1 > MAX_FN_LINES {
                long.push(format!("{name}:{}: {} lines", at + 1, length + 1));
            }
        }
    }
    none(&format!("cut these functions to {MAX_FN_LINES} lines"), &long);
}

#[test]
fn nothing_is_left_unfinished() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        for (at, line) in text.lines().enumerate() {
            let code = code_of(line);
            for word in BANNED.iter().filter(|word| code.contains(*word)) {
                found.push(format!("{name}:{}: {word})", at + 1));
            }
        }
    }
    none("finish these", &found);
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let mut found = Vec::new();
    for (name, text) in sources() {
        if UNSAFE_ALLOWED.iter().any(|room| name.starts_with(room)) {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            if has_word(&code_of(line), "unsafe") {
                found.push(format!("{name}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    none(&format!("unsafe belongs in {UNSAFE_ALLOWED:?}"), &found);
}

/// [`MAY_NEED`], and the same of devices.
fn may_need() -> Vec<(String, &'static [&'static str])> {
    let others = MAY_NEED.into_iter().map(|(krate, may)| (krate.to_owned(), may));
    others
        .chain(devices(&read(KINDS_OF_DEVICES)).into_iter().map(|krate| (krate, A_DEVICE_MAY_NEED)))
        .collect()
}

#[test]
fn crates_depend_in_one_direction() {
    let (may_need, devices, mut wrong) = (may_need(), devices(&read(KINDS_OF_DEVICES)), Vec::new());
    for (krate, may) in &may_need {
        let named = dependencies(krate);
        for other in named.iter().filter_map(|name| name.strip_prefix("brigade-")) {
            let is_device = krate == "engine" && devices.contains(&format!("engine/{other}"));
            if !may.contains(&other) && !is_device {
                wrong.push(format!("{krate} depends on brigade-{other}"));
            }
        }
        let without_io = krate.starts_with("engine") || WITHOUT_IO.contains(&krate.as_str());
        for name in named.iter().filter(|name| without_io && IO.contains(&name.as_str())) {
            wrong.push(format!("{krate} depends on {name}"));
        }
    }
    let members = read("Cargo.toml");
    let known = |member: &str| {
        member.starts_with("tests") || may_need.iter().any(|(krate, _)| krate == member)
    };
    let list = members.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.expect("the workspace has members");
    let names: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert!(names.len() > 20, "{names:?}");
    for member in names.into_iter().filter(|member| !known(member) && !member.ends_with("/unit")) {
        wrong.push(format!("{member} is not in MAY_NEED"));
    }
    none("crates point the wrong way", &wrong);
}

/// Files of a crate lie in layers: none needs one that needs it (see [`modules`] for what counts).
#[test]
fn modules_point_in_one_direction() {
    let sources = sources();
    let mut wrong = Vec::new();
    let crates = [
        "proto",
        "engine/sampling",
        "engine/quant",
        "engine/gguf",
        "engine/gpu",
        "engine/kernels",
        "engine/text",
        "engine/spec",
        "engine/models",
        "engine/synth",
        "engine",
        "worker",
        "coordinator/draft",
        "coordinator/sched",
        "coordinator/plan",
        "coordinator/dialect",
        "coordinator/line",
        "coordinator/cluster",
        "coordinator/http",
        "coordinator/hub",
        "coordinator/process",
        "coordinator",
        "tests",
        "tests/devices",
        "tests/models",
    ];
    for krate in crates {
        let start = format!("{krate}/src/");
        let own: Vec<_> = sources.iter().filter(|(n, _)| n.starts_with(&start)).cloned().collect();
        let needs = modules::needs(&own);
        assert!(needs.values().any(|needed| !needed.is_empty()), "{krate}: no file needs another?");
        for circle in modules::cycles(&own) {
            wrong.push(format!("{krate}: {} files need each other:", circle.len()));
            for file in &circle {
                let back = needs[file].iter().filter(|other| circle.contains(other));
                let back: Vec<_> = back.map(String::as_str).collect();
                wrong.push(format!("    {file} needs {}", back.join(", ")));
            }
        }
    }
    none("part these files", &wrong);
}

#[test]
fn readme_and_ci_call_the_same_commands() {
    let readme = read("README.md");
    let top: Vec<&str> = readme.lines().take(README_TOP).collect();
    let mut wrong = Vec::new();
    for command in [RUN_COMMAND, TEST_COMMAND] {
        if !top.iter().any(|line| line.trim() == command) {
            wrong.push(format!("README.md: no line `{command}` in the first {README_TOP}"));
        }
        if !read(".ci/run").lines().any(|line| line.contains(command)) {
            wrong.push(format!(".ci/run: does not call `{command}`"));
        }
    }
    none("documents and CI disagree", &wrong);
}

/// The names of the packages that the release profile compiles at a level of their own.
#[test]
fn the_profile_names_crates_that_there_are() {
    let (manifest, lock) = (read("Cargo.toml"), locked(&read("Cargo.lock")));
    let named = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("[profile.release.package.")?.strip_suffix(']'));
    let named: Vec<&str> = named.collect();
    assert!(named.len() > 20, "{named:?}");
    let unknown = named.iter().filter(|name| !lock.contains_key(**name));
    none("the profile names these", &unknown.map(|name| (*name).to_owned()).collect::<Vec<_>>());
}

/// A package of unit tests has the sources of its crate, so it needs what that needs.
#[test]
fn unit_tests_need_what_their_crate_needs() {
    let (mut wrong, mut n_units) = (Vec::new(), 0);
    for (name, _) in all_files() {
        let Some(krate) = name.strip_suffix("/unit/Cargo.toml") else { continue };
        n_units += 1;
        let (of_crate, of_unit) = (dependencies(krate), dependencies(&format!("{krate}/unit")));
        if of_crate != of_unit {
            wrong.push(format!("{krate}: {of_crate:?} and {of_unit:?}"));
        }
        let manifest = read(&format!("{krate}/Cargo.toml"));
        if !manifest.lines().any(|line| line == "test = false") {
            wrong.push(format!("{krate}: its library is compiled for unit tests as well"));
        }
    }
    assert!(n_units > 5, "{n_units} packages of unit tests: wrong root?");
    none("these do not agree", &wrong);
}

/// The fuzz targets are a workspace of their own: nothing else notices that their lock file lacks a crate. They use all
/// crates of ours.
#[test]
fn fuzz_targets_lock_what_the_crates_need() {
    let (ours, theirs) = (locked(&read("Cargo.lock")), locked(&read("tests/fuzz/Cargo.lock")));
    let crates = may_need().into_iter().filter(|(krate, _)| !krate.starts_with("tests"));
    let (mut seen, mut missing, mut wanted) = (BTreeSet::new(), Vec::new(), Vec::new());
    for (krate, _) in crates {
        let manifest = read(&format!("{krate}/Cargo.toml"));
        let (name, needs) = (manifests::name(&manifest), manifests::dependencies(&manifest));
        // One that is not there at all is what another one lacks, or only a feature needs it.
        let has = theirs.get(&name).unwrap_or(&needs);
        let lacks = needs.iter().filter(|n| n.starts_with("brigade-") && !has.contains(n));
        missing.extend(lacks.map(|needed| format!("{needed} of {name}")));
        wanted.extend(needs);
    }
    assert!(wanted.len() > 40, "{wanted:?}");
    while let Some(name) = wanted.pop() {
        // Our own crates' lists have in them what their tests need; loom is for a test build of others that nobody makes.
        if name.starts_with("brigade-") || name == "loom" || !seen.insert(name.clone()) {
            continue;
        }
        // A crate under another name of ours is in neither file by that name.
        let Some(needs) = ours.get(&name) else { continue };
        if !theirs.contains_key(&name) {
            missing.push(name);
        }
        wanted.extend(needs.iter().cloned());
    }
    none("crates that tests/fuzz/Cargo.lock lacks (run `cargo metadata` in tests/fuzz)", &missing);
}

/// Names in backticks of one column of KERNELS.md's table, each with its line.
fn listed(column: usize) -> Vec<(String, String)> {
    let text = read("engine/gpu/KERNELS.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| {
        let cell = row.split('|').nth(column).unwrap_or_default();
        let names = cell.split('`').skip(1).step_by(2);
        names.map(|name| (name.to_string(), row.to_string())).collect::<Vec<_>>()
    });
    names.collect()
}

/// Public methods of `Gpu` in a file. Functions without `&self` compute nothing.
fn ops_of(code: &str) -> BTreeSet<String> {
    let within = code.split("impl Gpu {").skip(1).filter_map(|rest| rest.split("\n}").next());
    let heads = within.flat_map(|body| body.split("\n    pub fn ").skip(1));
    let ops = heads.filter_map(|head| {
        let (name, rest) = head.split_once('(')?;
        rest.trim_start().starts_with("&self").then(|| name.split('<').next().unwrap_or(name))
    });
    ops.filter(|op| !["run", "supports"].contains(op)).map(str::to_string).collect()
}

#[test]
fn the_list_of_kernels_is_complete() {
    let folder = root().join("engine/gpu");
    let names: Vec<String> = all_files().into_iter().map(|(name, _)| name).collect();
    let shaders: BTreeSet<&str> = names
        .iter()
        .filter_map(|name| name.strip_prefix("engine/gpu/shaders/")?.strip_suffix(".comp"))
        .collect();
    let ops: BTreeSet<String> = sources()
        .iter()
        .filter(|(name, _)| name.starts_with("engine/gpu/src/ops/"))
        .flat_map(|(_, text)| ops_of(text))
        .collect();
    assert!(shaders.len() > 40 && ops.len() > 60, "{} {}", shaders.len(), ops.len());
    let of = |column| listed(column).into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>();
    // A cell may send to an op of another row for its kernels.
    let (listed_ops, kernels) = (of(1), of(3));
    let mut wrong = Vec::new();
    wrong.extend(ops.difference(&listed_ops).map(|op| format!("no row has the op `{op}`")));
    wrong.extend(listed_ops.difference(&ops).map(|op| format!("`{op}` is no method of Gpu")));
    let missing = shaders.iter().filter(|kernel| !kernels.contains(**kernel));
    wrong.extend(missing.map(|kernel| format!("no row has the kernel `{kernel}`")));
    let unknown = kernels.iter().filter(|k| !shaders.contains(k.as_str()) && !ops.contains(*k));
    wrong.extend(unknown.map(|kernel| format!("`{kernel}` is neither a kernel nor an op")));
    for (column, place) in [(2, "src/ops"), (5, "tests/vulkan")] {
        let is_there = |at: &str| {
            [".rs", "/mod.rs"].iter().any(|end| folder.join(format!("{at}{end}")).is_file())
        };
        for (name, row) in listed(column) {
            if !is_there(&format!("{place}/{name}")) {
                wrong.push(format!("engine/gpu/{place} has no `{name}`: {row}"));
            }
        }
    }
    none("engine/gpu/KERNELS.md", &wrong);
}

#[test]
fn dashboards_show_metrics_that_exist() {
    let known = read("coordinator/line/src/measured/metrics.rs");
    let dashboard = read("deploy/grafana/brigade.json");
    let part = |c: char| c.is_ascii_lowercase() || c == '_';
    let mut unknown = Vec::new();
    let mut n_names = 0;
    for (at, _) in dashboard.match_indices("brigade_") {
        let rest = &dashboard[at..];
        let name = &rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())];
        // A histogram's series have an ending.
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        n_names += 1;
        if !known.contains(&format!("\"{name}\"")) {
            unknown.push(name.to_string());
        }
    }
    assert!(n_names > 10, "{n_names} names: wrong file?");
    none("metrics.rs has no such metric", &unknown);
}

#[test]
fn the_tree_stays_small() {
    let files = all_files();
    let size = |path: &Path| fs::metadata(path).expect("metadata").len();
    let large = files.iter().filter(|(_, path)| size(path) > MAX_FILE_BYTES);
    let large: Vec<_> = large.map(|(name, path)| format!("{name}: {} bytes", size(path))).collect();
    none(&format!("files above {MAX_FILE_BYTES} bytes"), &large);
    let data = files.iter().filter(|(name, _)| name.starts_with("tests/data/"));
    let total: u64 = data.map(|(_, path)| size(path)).sum();
    assert!(total <= MAX_TEST_DATA_BYTES, "tests/data: {total} bytes, limit {MAX_TEST_DATA_BYTES}");
}

#[test]
fn the_reader_of_lines_sees_code_only() {
    assert_eq!(code_of(r#"let a = "word // x"; // word"#), "let a = ; ");
    assert_eq!(code_of(r#"if c == '"' { word() }"#).trim(), "if c == ' { word() }");
    assert!(has_word("word {", "word") && !has_word("word_count", "word"));
}
