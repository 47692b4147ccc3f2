//! Parses the repository's documents: fenced blocks, headings and links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders without documents of ours.
const SKIPPED_DIRS: [&str; 5] = ["target", ".git", "node_modules", ".venv", "__pycache__"];
/// Word behind `sh` for blocks that are not run.
const NOT_RUN: &str = "not-run";
/// Machine of blocks that name none.
pub const HERE: &str = "here";

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the repository")
}

/// Every `.md` file by its path from the root, with its text.
pub fn documents() -> BTreeMap<String, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root().to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_symlink() || SKIPPED_DIRS.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".md") {
                let relative = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.insert(relative, fs::read_to_string(&path).unwrap());
            }
        }
    }
    assert!(found.len() > 20, "{} documents: wrong root?", found.len());
    found
}

/// A fenced block of a document.
pub struct Block {
    /// The words behind the backticks.
    pub info: Vec<String>,
    /// The number of its first line.
    pub first: usize,
    /// The lines of the block.
    pub lines: Vec<String>,
}

impl Block {
    /// Whether it has command lines.
    pub fn is_shell(&self) -> bool {
        self.info.first().is_some_and(|word| word == "sh")
    }

    /// Whether these are to be run.
    pub fn is_run(&self) -> bool {
        self.is_shell() && !self.info.iter().any(|word| word == NOT_RUN)
    }

    /// The machines that it runs on.
    pub fn machines(&self) -> Vec<&str> {
        let named: Vec<&str> = self.info.iter().skip(1).map(String::as_str).collect();
        if named.is_empty() { vec![HERE] } else { named }
    }

    /// The block's command lines: those that end in `\` with the next one, without empty lines and comments.
    pub fn commands(&self) -> Vec<String> {
        let text = self.lines.join("\n").replace("\\\n", " ");
        let lines = text.lines().map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    }
}

/// A document in two: its fenced blocks, and its other lines with their numbers.
pub fn parted(text: &str) -> (Vec<Block>, Vec<(usize, &str)>) {
    let (mut blocks, mut prose) = (Vec::<Block>::new(), Vec::new());
    let mut is_open = false;
    for (at, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), is_open) {
            (Some(info), false) => {
                let info = info.split_whitespace().map(str::to_owned).collect();
                blocks.push(Block { info, first: at + 2, lines: Vec::new() });
                is_open = true;
            }
            (Some(_), true) => is_open = false,
            (None, true) => blocks.last_mut().unwrap().lines.push(line.to_owned()),
            (None, false) => prose.push((at + 1, line)),
        }
    }
    (blocks, prose)
}

/// A heading's anchor, as GitHub makes it.
fn slug(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Anchors of a document; of headings alike the second one has a number behind it.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut times) = (BTreeSet::new(), BTreeMap::<String, usize>::new());
    for (_, line) in parted(text).1 {
        let Some(heading) = line.trim_start_matches('#').strip_prefix(' ') else { continue };
        if line.starts_with('#') {
            let slug = slug(heading);
            let n = times.entry(slug.clone()).or_default();
            anchors.insert(if *n == 0 { slug } else { format!("{slug}-{n}") });
            *n += 1;
        }
    }
    anchors
}

/// Where a line's links go.
pub fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// A path without `..` in it.
pub fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part.as_os_str() == ".." {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}
