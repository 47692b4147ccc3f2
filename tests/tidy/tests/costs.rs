//! The cost of changes, in files. The tests count how many files of the product name a setting of sampling, and
//! whether each patch of `tests/changes` touches only as many files and lines as its head allows. `.ci/changes`
//! compiles those patches.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The table of settings.
const TABLE: &str = "engine/sampling/src/table.rs";

/// Most files of the product that name a setting: the table, the wire's message, what is generated from it, and what
/// computes it.
const MOST_FILES: usize = 4;

/// Names that mean something else too, or that somebody repeats: the most files that have them, and why.
const OTHER_MEANINGS: [(&str, usize, &str); 4] = [
    ("temperature", 18, "attention has one, an answer of Responses repeats it, `/set temperature`"),
    ("top_k", 12, "indexed attention has one"),
    ("top_p", 6, "an answer of Responses repeats it"),
    ("mirostat", 8, "a step with a state: whether it acts is asked by name"),
];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this package is `tests/tidy`").to_path_buf()
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Files below `dir` whose names end so, by their paths from the root.
fn files(dir: &str, ends: &[&str], found: &mut Vec<String>) {
    let entries = fs::read_dir(root().join(dir)).unwrap_or_else(|e| panic!("{dir}: {e}"));
    for entry in entries {
        let entry = entry.expect("an entry of a folder");
        let name = format!("{dir}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            files(&name, ends, found);
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(name);
        }
    }
}

/// The product's code by path: without tests, benches and comments.
fn product() -> Vec<(String, String)> {
    let mut names = Vec::new();
    for dir in ["coordinator", "engine", "proto", "worker"] {
        files(dir, &[".rs", ".proto"], &mut names);
    }
    let is_test = |name: &String| {
        name.ends_with("tests.rs") || name.contains("/tests/") || name.contains("/benches/")
    };
    let code = |name: String| {
        let text = read(&name);
        let is_of_tests =
            |part: &str| ["mod tests {", "pub mod tests {"].iter().any(|m| part.starts_with(m));
        let parts = text.split("#[cfg(test)]\n");
        let own: String = parts.take_while(|part| !is_of_tests(part)).collect();
        let lines: Vec<String> = own
            .lines()
            .map(|line| {
                if line.trim_start().starts_with("//") {
                    String::new()
                } else {
                    // Names of settings stand in texts too.
                    line.split(" // ").next().unwrap_or_default().to_string()
                }
            })
            .collect();
        (name, lines.join("\n"))
    };
    names.into_iter().filter(|name| !is_test(name)).map(code).collect()
}

fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(part) && !code[at + word.len()..].starts_with(part))
}

/// The names of a row: its setting's, and its field's where no other struct would have one of that name.
fn names_of_rows() -> BTreeSet<String> {
    let (table, mut names) = (read(TABLE), BTreeSet::new());
    let rows = table.split_once("chain {").expect("the table begins with its chain").1;
    let mut is_in_group = false;
    for line in rows.lines() {
        is_in_group |= line.trim().ends_with(" {");
        let Some((field, rest)) = line.split_once("=> ").filter(|_| line.contains("(\"")) else {
            continue;
        };
        let field = field.trim().split(':').next().unwrap_or_default().to_string();
        let name = rest.split('"').nth(1).unwrap_or_default().to_string();
        names.extend([Some(name), (!is_in_group).then_some(field)].into_iter().flatten());
    }
    names.insert("mirostat".to_string());
    assert!(names.len() > 20, "{names:?}");
    names
}

#[test]
fn a_setting_of_sampling_stands_in_few_files() {
    let (product, mut wrong) = (product(), Vec::new());
    assert!(product.len() > 500, "{} files: wrong root?", product.len());
    for name in names_of_rows() {
        let files: Vec<&str> = product
            .iter()
            .filter(|(_, code)| has_word(code, &name))
            .map(|(file, _)| file.as_str())
            .collect();
        let other = OTHER_MEANINGS.iter().find(|(other, _, _)| *other == name);
        let most = other.map_or(MOST_FILES, |(_, most, _)| *most);
        println!("{name}: {} files of at most {most}", files.len());
        if files.len() > most || files.is_empty() {
            wrong.push(format!("{name}: {} files, at most {most}: {files:?}", files.len()));
        }
    }
    assert!(wrong.is_empty(), "write these from {TABLE}:\n  {}", wrong.join("\n  "));
}

/// The value of a line of a patch's head.
fn head<'a>(patch: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = patch.lines().take_while(|line| !line.is_empty());
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// A file that a patch touches.
#[derive(Debug, PartialEq, Eq)]
struct Touched<'a> {
    file: &'a str,
    /// Lines that are added or removed. One that is changed counts twice.
    n_lines: usize,
}

fn touched(patch: &str) -> Vec<Touched<'_>> {
    let (mut all, mut is_in_lines) = (Vec::<Touched<'_>>::new(), false);
    for line in patch.lines() {
        if let Some(files) = line.strip_prefix("diff --git a/") {
            let file = files.split(" b/").next().unwrap_or_default();
            all.push(Touched { file, n_lines: 0 });
            is_in_lines = false;
        }
        is_in_lines |= line.starts_with("@@ ");
        let is_changed = is_in_lines && line.starts_with(['+', '-']);
        if let Some(last) = all.last_mut().filter(|_| is_changed) {
            last.n_lines += 1;
        }
    }
    all
}

#[test]
fn lines_of_patches_are_counted() {
    let patch = "Change: one\n\ndiff --git a/one.rs b/one.rs\n--- a/one.rs\n+++ b/one.rs\n@@ -1,2 +1,2 @@\n kept\n-old\n+new\n\
                 diff --git a/two.rs b/two.rs\nnew file mode 100644\n--- /dev/null\n+++ b/two.rs\n@@ -0,0 +1 @@\n+all\n";
    let of = |file, n_lines| Touched { file, n_lines };
    assert_eq!(touched(patch), [of("one.rs", 2), of("two.rs", 1)]);
}

#[test]
fn patches_touch_what_their_heads_allow() {
    let (mut patches, mut wrong) = (Vec::new(), Vec::new());
    files("tests/changes", &[".patch"], &mut patches);
    assert!(!patches.is_empty(), "there are no patches");
    for name in patches {
        let patch = read(&name);
        let most: Option<usize> = head(&patch, "Files").and_then(|n| n.parse().ok());
        let (Some(most), Some(_)) = (most, head(&patch, "Change")) else {
            wrong.push(format!("{name}: its head has no lines \"Change: ...\" and \"Files: N\""));
            continue;
        };
        let folder = head(&patch, "Folder").map(|folder| format!("{folder}/"));
        let touched: Vec<Touched<'_>> = touched(&patch)
            .into_iter()
            .filter(|of| folder.as_ref().is_none_or(|folder| !of.file.starts_with(folder)))
            .collect();
        println!("{name}: {} files of at most {most}: {touched:?}", touched.len());
        if touched.is_empty() || touched.len() > most {
            wrong.push(format!("{name}: {} files, at most {most}: {touched:?}", touched.len()));
        }
        let n_lines: usize = touched.iter().map(|of| of.n_lines).sum();
        match head(&patch, "Lines").map(str::parse::<usize>) {
            None if folder.is_none() => {}
            Some(Ok(most)) if n_lines <= most => println!("{name}: {n_lines} lines of {most}"),
            most => wrong.push(format!("{name}: {n_lines} lines, at most {most:?}: {touched:?}")),
        }
    }
    assert!(wrong.is_empty(), "these changes cost too much:\n  {}", wrong.join("\n  "));
}

#[test]
fn the_reader_of_the_table_finds_rows() {
    let names = names_of_rows();
    for name in ["temperature", "penalty_last_n", "repeat_last_n", "dry_base", "mirostat_tau"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(!names.contains("base") && !names.contains("tau"), "{names:?}");
}
