//! Models together with the logits that llama.cpp computed for them.
//!
//! A folder of them holds `manifest.json` and the files that it names. A few small models are in the
//! repository. For others the manifest says how to make them. `BRIGADE_TEST_DATA/golden` may hold more.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use brigade_gguf::{Gguf, GgufWriter, npy};
use brigade_quant::GgmlType;
use brigade_synth::{AdapterSpec, Arch, FileType, Shape, Spec};
use serde::Deserialize;

use crate::places::of_tests;

/// A folder of golden models.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Folder of the files.
    pub folder: PathBuf,
    /// Contents of `manifest.json`.
    pub manifest: Manifest,
}

/// The file `manifest.json` of golden results.
#[derive(Clone, Debug, Deserialize)]
pub struct Manifest {
    /// The prompt whose logits are given.
    pub tokens: Vec<u32>,
    /// The prompt that is continued greedily.
    pub greedy_prompt: Vec<u32>,
    /// Models and their results, by name.
    pub models: BTreeMap<String, Entry>,
}

/// Golden results of one model.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    /// Name of the model's file.
    pub file: String,
    /// Recipe of the model, where the folder does not have it.
    pub synth: Option<Recipe>,
    /// `[positions, n_vocab]` in f32.
    pub logits: String,
    /// Positions of the rows of `logits`.
    pub positions: Vec<usize>,
    /// The most probable token at every position of the prompt.
    pub argmax: Vec<u32>,
    /// Greedy tokens after `greedy_prompt`.
    pub greedy: Vec<u32>,
    /// The first token whose logit is masked everywhere, and the first behind these: `logits` has none of them.
    pub masked: Option<[usize; 2]>,
    /// Adler-32 checksum of the file, for a model that its test makes and does not keep.
    pub adler32: Option<u32>,
}

/// Golden models that are not run, each with its reason. Whatever stands in a manifest and not here must
/// pass.
pub const NOT_RUN: [(&str, &str); 0] = [];
/// Arguments of `brigade synth` for a model.
#[derive(Clone, Debug, Deserialize)]
pub struct Recipe {
    /// The architecture, `--arch`.
    pub arch: String,
    /// The size, `--size`.
    pub size: String,
    /// The seed, `--seed`.
    pub seed: u64,
    /// The types of weights, `--quant`.
    pub quant: String,
    /// FNV-1a (64 bits) of the file, in hexadecimal digits: the results are those of these weights.
    pub fnv1a: String,
}

impl Recipe {
    /// The model, made in the system's folder for temporary files unless it is there.
    ///
    /// # Panics
    /// If `synth` makes another file than the one whose results are kept.
    pub fn make(&self) -> PathBuf {
        let path = self.path();
        if std::fs::read(&path).is_ok_and(|bytes| fnv1a(&bytes) == self.fnv1a) {
            path
        } else {
            self.make_anew()
        }
    }

    fn path(&self) -> PathBuf {
        let folder = std::env::temp_dir().join("brigade-golden-models");
        std::fs::create_dir_all(&folder).unwrap();
        folder.join(format!("{}-{}-{}.gguf", self.arch, self.size, self.fnv1a))
    }

    /// As [`Recipe::make`], even where the file is there: an older `synth` may have made it.
    ///
    /// # Panics
    /// As there.
    pub fn make_anew(&self) -> PathBuf {
        let path = self.path();
        let quant = FileType::ALL.iter().find(|ty| ty.name() == self.quant).expect("a file type");
        let spec = Spec {
            arch: Arch::named(&self.arch).unwrap(),
            shape: Shape::named(&self.size).unwrap(),
            quant: *quant,
            seed: self.seed,
            header_only: false,
        };
        // Other tests may make the same at this moment: each writes its own, and the last one stays.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let unique = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mine = path.with_extension(format!("{}-{}.part", unique.0, unique.1));
        brigade_synth::write(&spec, &mine).unwrap();
        let found = fnv1a(&std::fs::read(&mine).unwrap());
        std::fs::rename(&mine, &path).unwrap();
        assert_eq!(
            found, self.fnv1a,
            "synth makes another {} {} than llama.cpp's results are of: run tests/oracle/golden.py \
             for it again",
            self.arch, self.size
        );
        path
    }
}

fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

impl Entry {
    /// Whether the weights are not quantised.
    pub fn is_f32(&self, name: &str) -> bool {
        if let Some(recipe) = &self.synth {
            return recipe.quant == FileType::F32.name();
        }
        !name.starts_with("llama-") || name == "llama-ropef"
    }
}

impl Golden {
    /// The models of the repository.
    pub fn repository() -> Self {
        Self::open(&of_tests("data/golden"))
    }

    /// The models that must pass, by name: all but those of [`NOT_RUN`], which are said aloud. `BRIGADE_TEST_MODEL`
    /// leaves those whose names hold it, for work on one of them.
    pub fn models(&self) -> impl Iterator<Item = (&String, &Entry)> {
        let only = std::env::var("BRIGADE_TEST_MODEL").unwrap_or_default();
        let wanted = self.manifest.models.iter().filter(move |(name, _)| name.contains(&only));
        wanted.filter(|(name, _)| {
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

    /// Path of an entry's model. Makes the model where the folder has only a recipe.
    pub fn model(&self, entry: &Entry) -> PathBuf {
        entry.synth.as_ref().map_or_else(|| self.folder.join(&entry.file), Recipe::make)
    }

    /// Path of the model with this name, as by [`Golden::model`].
    ///
    /// # Panics
    /// If the folder has no model of that name.
    pub fn named(&self, name: &str) -> PathBuf {
        self.model(&self.manifest.models[name])
    }

    /// Results for models that tests make: by file type.
    pub fn types() -> Self {
        Self::open(&of_tests("data/types"))
    }

    fn open(folder: &Path) -> Self {
        let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest = serde_json::from_str(&manifest).unwrap();
        Self { folder: folder.to_owned(), manifest }
    }
}

/// Encoders together with the vectors that llama.cpp made with them.
#[derive(Clone, Debug, Deserialize)]
pub struct Encoders {
    /// Tokens of the texts.
    pub texts: Vec<Vec<u32>>,
    /// Encoders and their results, by name.
    pub models: BTreeMap<String, EncoderEntry>,
}

/// Golden results of one encoder.
#[derive(Clone, Debug, Deserialize)]
pub struct EncoderEntry {
    /// Recipe of the model.
    pub synth: Recipe,
    /// Vectors of the texts, by the name of the pooling.
    pub pooled: BTreeMap<String, Vec<Vec<f64>>>,
    /// Scores of the texts, for a reranker.
    pub rank: Option<Vec<f64>>,
}

impl Encoders {
    /// Golden results of the repository.
    pub fn repository() -> Self {
        let path = of_tests("data/encoders.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }
}

/// Models with adapters together with the logits that llama.cpp computed with them.
#[derive(Clone, Debug, Deserialize)]
pub struct Adapted {
    /// Adapted models and their results, by name.
    pub models: BTreeMap<String, AdaptedEntry>,
}

/// One model's results with its adapters.
#[derive(Clone, Debug, Deserialize)]
pub struct AdaptedEntry {
    /// Recipe of the model.
    pub synth: Recipe,
    /// Recipes of its adapters.
    pub adapters: Vec<AdapterRecipe>,
    /// File of logits, as in [`Entry`].
    pub logits: String,
    /// Positions of the logits, as in [`Entry`].
    pub positions: Vec<usize>,
    /// Most probable token of each position, as in [`Entry`].
    pub argmax: Vec<u32>,
    /// Tokens drawn greedily, as in [`Entry`].
    pub greedy: Vec<u32>,
}

/// Arguments of `brigade synth --adapter-of` for an adapter.
#[derive(Clone, Debug, Deserialize)]
pub struct AdapterRecipe {
    /// The rank, `--rank`.
    pub rank: usize,
    /// The scale, `--alpha`.
    pub alpha: f32,
    /// The seed, `--seed`.
    pub seed: u64,
    /// Scale with which it is used.
    pub scale: f32,
    /// Checksum of the file, as in [`Recipe`].
    pub fnv1a: String,
}

impl AdapterRecipe {
    /// Writes the adapter of `model` to `path`.
    ///
    /// # Panics
    /// If `synth` makes another file than the one whose results are kept.
    pub fn make(&self, model: &Path, path: &Path) {
        let &Self { rank, alpha, seed, .. } = self;
        let spec = AdapterSpec { rank, alpha, seed };
        brigade_synth::write_adapter(&Gguf::open(model).unwrap(), &spec, path).unwrap();
        let found = fnv1a(&std::fs::read(path).unwrap());
        assert_eq!(found, self.fnv1a, "another adapter: run tests/oracle/lora.py for it again");
    }
}

impl Adapted {
    /// Folder of the repository's results.
    pub fn folder() -> PathBuf {
        of_tests("data/lora")
    }

    /// Golden results of the repository.
    pub fn repository() -> Self {
        let manifest = std::fs::read_to_string(Self::folder().join("manifest.json")).unwrap();
        serde_json::from_str(&manifest).unwrap()
    }
}

/// Models with control vectors together with the logits that llama.cpp computed with them.
#[derive(Clone, Debug, Deserialize)]
pub struct Steered {
    /// Steered models and their results, by name.
    pub models: BTreeMap<String, SteeredEntry>,
}

/// One model's results with its control vectors.
#[derive(Clone, Debug, Deserialize)]
pub struct SteeredEntry {
    /// Recipe of the model.
    pub synth: Recipe,
    /// Recipes of its control vectors.
    pub vectors: Vec<VectorRecipe>,
    /// The first and the last layer that they are for.
    pub layers: [usize; 2],
    /// File of logits, as in [`Entry`].
    pub logits: String,
    /// Positions of the logits, as in [`Entry`].
    pub positions: Vec<usize>,
    /// Most probable token of each position, as in [`Entry`].
    pub argmax: Vec<u32>,
    /// Tokens drawn greedily, as in [`Entry`].
    pub greedy: Vec<u32>,
}

/// Recipe of a control vector.
#[derive(Clone, Debug, Deserialize)]
pub struct VectorRecipe {
    /// Two seeds, two vectors.
    pub seed: usize,
    /// Scale with which it is used.
    pub scale: f32,
}

impl VectorRecipe {
    /// Writes the vector to `path`, with a direction for each of `layers`; as tests/oracle/control_vectors.py has it.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn make(&self, n_embd: usize, layers: Range<usize>, path: &Path) {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", "controlvector").unwrap();
        for layer in layers.clone() {
            writer.tensor(&format!("direction.{layer}"), GgmlType::F32, &[n_embd]).unwrap();
        }
        let mut stream = writer.start(Vec::new()).unwrap();
        for layer in layers {
            let value = |i: usize| ((layer * 131 + i * 29 + self.seed * 17) % 101) as f32 - 50.0;
            let bytes: Vec<u8> =
                (0..n_embd).flat_map(|i| (value(i) / 256.0).to_le_bytes()).collect();
            stream.write(&bytes).unwrap();
        }
        std::fs::write(path, stream.finish().unwrap()).unwrap();
    }
}

impl Steered {
    /// Folder of the repository's results.
    pub fn folder() -> PathBuf {
        of_tests("data/control_vectors")
    }

    /// Golden results of the repository.
    pub fn repository() -> Self {
        let manifest = std::fs::read_to_string(Self::folder().join("manifest.json")).unwrap();
        serde_json::from_str(&manifest).unwrap()
    }
}

/// ||ours - theirs|| / ||theirs|| over all given positions together.
pub fn relative_error(golden: &Golden, entry: &Entry, logits: &[Vec<f32>]) -> f64 {
    let mut logits = Cow::Borrowed(logits);
    if let Some([first, end]) = entry.masked {
        for row in logits.to_mut() {
            let masked: Vec<f32> = row.drain(first..end).collect();
            assert!(masked.iter().all(|logit| *logit == f32::MIN), "tokens {first}..{end}");
        }
    }
    let logits = &logits;
    relative_error_of(&golden.folder.join(&entry.logits), &entry.positions, logits)
}

/// The same beside the rows of a file, which are those of some positions.
pub fn relative_error_of(file: &Path, positions: &[usize], logits: &[Vec<f32>]) -> f64 {
    let theirs = npy::read(file).unwrap();
    assert_eq!(theirs.shape[0], positions.len());
    let (mut difference, mut norm) = (0.0, 0.0);
    for (&pos, theirs) in positions.iter().zip(theirs.data.chunks_exact(theirs.shape[1])) {
        assert_eq!(logits[pos].len(), theirs.len(), "width of a row of logits");
        for (&a, &b) in logits[pos].iter().zip(theirs) {
            difference += f64::from(a - b).powi(2);
            norm += f64::from(b).powi(2);
        }
    }
    (difference / norm).sqrt()
}

/// The rows of a file that `brigade logits` wrote.
pub fn rows_of(file: &Path) -> Vec<Vec<f32>> {
    let all = npy::read(file).unwrap();
    all.data.chunks_exact(all.shape[1]).map(<[f32]>::to_vec).collect()
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

/// A number without a pattern.
pub fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (n ^ (n >> 29)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ (n >> 32)
}

/// Token ids below the golden vocabularies' 288.
pub fn tokens(n: usize, seed: u64) -> Vec<u32> {
    (0..n as u64).map(|i| 3 + (mix(seed << 32 | i) % 280) as u32).collect()
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
