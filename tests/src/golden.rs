//! Models with the logits that llama.cpp computed for them.
//!
//! A folder of them holds `manifest.json` and the files it names. A few small ones are in the
//! repository; `BRIGADE_TEST_DATA/golden` may hold more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brigade_engine::npy;
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
    /// Of a model that is not kept but made by its test: the Adler-32 checksum of the file.
    pub adler32: Option<u32>,
}

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

    /// The models of the repository, and those of `BRIGADE_TEST_DATA` where it is set.
    pub fn folders() -> Vec<Self> {
        let mut folders = vec![Self::repository()];
        match test_data("golden") {
            Some(more) => folders.push(Self::open(&more)),
            None => println!("BRIGADE_TEST_DATA is not set: only the repository's golden models"),
        }
        folders
    }

    /// Results for models that tests make: by file type.
    pub fn types() -> Self {
        Self::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data/types"))
    }

    fn open(folder: &Path) -> Self {
        let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest = serde_json::from_str(&manifest).unwrap();
        Self { folder: folder.to_owned(), manifest }
    }
}

/// ||ours - theirs|| / ||theirs|| over all given positions together.
pub fn relative_error(golden: &Golden, entry: &Entry, logits: &[Vec<f32>]) -> f64 {
    let theirs = npy::read(golden.folder.join(&entry.logits)).unwrap();
    assert_eq!(theirs.shape[0], entry.positions.len());
    let (mut difference, mut norm) = (0.0, 0.0);
    for (&pos, theirs) in entry.positions.iter().zip(theirs.data.chunks_exact(theirs.shape[1])) {
        assert_eq!(logits[pos].len(), theirs.len(), "width of a row of logits");
        for (&a, &b) in logits[pos].iter().zip(theirs) {
            difference += f64::from(a - b).powi(2);
            norm += f64::from(b).powi(2);
        }
    }
    (difference / norm).sqrt()
}

/// The first of the highest values.
pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = i;
        }
    }
    best as u32
}

/// Whether two lists of rows are the same bits.
pub fn same_bits(a: &[Vec<f32>], b: &[Vec<f32>]) -> bool {
    let bits =
        |rows: &[Vec<f32>]| -> Vec<u32> { rows.iter().flatten().map(|x| x.to_bits()).collect() };
    bits(a) == bits(b)
}

/// The Adler-32 checksum (RFC 1950).
pub fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65521;
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % MODULUS;
        (a, (a + b) % MODULUS)
    });
    b << 16 | a
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
