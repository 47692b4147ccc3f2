//! Models with the logits that llama.cpp computed for them.
//!
//! A folder of them holds `manifest.json` and the files it names. A few small ones are in the
//! repository; `BRIGADE_TEST_DATA/golden` may hold more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A folder of golden models.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Where the files are.
    pub folder: PathBuf,
    /// What is in them.
    pub manifest: Manifest,
}

/// `manifest.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Manifest {
    /// The prompt whose logits are given.
    pub tokens: Vec<u32>,
    /// The prompt that is continued greedily.
    pub greedy_prompt: Vec<u32>,
    /// Models by name.
    pub models: BTreeMap<String, Entry>,
}

/// One model's results.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    /// The model.
    pub file: String,
    /// `[positions, n_vocab]` in f32.
    pub logits: String,
    /// Positions of the rows of `logits`.
    pub positions: Vec<usize>,
    /// The most probable token at every position of the prompt.
    pub argmax: Vec<u32>,
    /// Greedy tokens after `greedy_prompt`.
    pub greedy: Vec<u32>,
}

/// Golden models that are not run, each with its reason. Whatever stands in a manifest and not here must
/// pass.
pub const NOT_RUN: [(&str, &str); 0] = [];

impl Entry {
    /// Whether the weights are not quantised.
    pub fn is_f32(&self, name: &str) -> bool {
        !name.starts_with("llama-") || name == "llama-ropef"
    }
}

impl Golden {
    /// The models of the repository.
    pub fn repository() -> Self {
        Self::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data/golden"))
    }

    /// The models that must pass, by name: all but those of [`NOT_RUN`], which are said aloud.
    pub fn models(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.manifest.models.iter().filter(|(name, _)| {
            let reason = NOT_RUN.iter().find(|(not_run, _)| not_run == name);
            if let Some((name, reason)) = reason {
                println!("{name:20} not run: {reason}");
            }
            reason.is_none()
        })
    }

    /// The models of the repository, and those of `BRIGADE_TEST_DATA` where it is set.
    pub fn folders() -> Vec<Self> {
        let mut folders = vec![Self::repository()];
        match test_data("golden") {
            Some(more) => folders.push(Self::open(&more)),
            None => println!("BRIGADE_TEST_DATA is not set: only the repository's golden models"),
        }
        folders
    }

    fn open(folder: &Path) -> Self {
        let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest = serde_json::from_str(&manifest).unwrap();
        Self { folder: folder.to_owned(), manifest }
    }
}

/// A folder of `BRIGADE_TEST_DATA`, `None` where the variable is not set.
///
/// # Panics
/// If the variable names a place without that folder.
pub fn test_data(folder: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("BRIGADE_TEST_DATA")?).join(folder);
    assert!(path.is_dir(), "BRIGADE_TEST_DATA has no folder {folder}: {}", path.display());
    Some(path)
}
