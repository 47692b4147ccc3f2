//! The model that is served: its file, the description of its layers, its tokenizer and template, and its
//! name.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use brigade_dialect::text_model::TextModel;
use brigade_engine::control_vectors::ControlVectors;
use brigade_engine::heads::Heads;
use brigade_engine::kernels::KvType;
use brigade_engine::stage::{check_own_drafts, check_tensors};
use brigade_gguf::adapters::of_model;
use brigade_gguf::{FileState, Gguf, GgufError, TensorFiles, TensorInfo};
use brigade_hub::remote::Remote;
use brigade_plan::{Keep, LEAST_CTX, ModelFacts, StoredFacts, default_keep};
use brigade_proto::limits::{MAX_CTX, MAX_ROWS};
use brigade_spec::{ModelError, ModelSpec, is_of_other_senses};
use brigade_text::TextError;
use bytes::Bytes;
use serde::Serialize;
use thiserror::Error;

use crate::adapters::{AdapterError, AdapterFile, Adapters, LayerSpan};

/// Rows of the largest ubatch where nothing is said, of a model that takes texts in pieces.
const DEFAULT_MAX_ROWS: u32 = 512;

/// llama.cpp's numbers for mixtures of tensor types, in `general.file_type`.
const FILE_TYPES: [(u32, &str); 36] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (33, "Q4_0_4_4"),
    (34, "Q4_0_4_8"),
    (35, "Q4_0_8_8"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
];

/// A context beyond the positions that a model has learned.
#[derive(Debug, Error)]
#[error(
    "a context of {n_ctx} positions is too long: this model ({arch}) has learned {most} positions and no more; ask \
     for at most {most} (--ctx)"
)]
pub struct ContextTooLong {
    n_ctx: u32,
    most: u32,
    arch: String,
}

/// Why a model cannot be served.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file, or an architecture that is not supported.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer or chat template.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The adapters that were asked for.
    #[error("--lora: {0}")]
    Adapters(#[from] AdapterError),
}

/// An opened model, ready to be served.
#[derive(Debug)]
pub struct Model {
    /// The model's metadata and tensor directory.
    pub gguf: Gguf,
    /// The model's open files; `None` where only its description was asked for.
    pub files: Option<TensorFiles>,
    /// The description of its layers.
    pub spec: ModelSpec,
    /// The model's tokenizer, chat template and names.
    pub text: Arc<TextModel>,
    /// Heads that turn a text's rows into verdicts or vectors, where the file has them.
    pub heads: Arc<Heads>,
    /// Metadata and tensor directory, as every stage must have them.
    pub header: Bytes,
    /// The blake3 hash of `header`.
    pub header_hash: blake3::Hash,
    /// The LoRA adapters of `--lora`.
    pub adapters: Arc<Adapters>,
    /// Control vectors that are added to the residual stream behind its layers.
    pub control_vectors: Option<Arc<ControlVectors>>,
    /// The address of its weights, where none of them are on this machine.
    pub remote: Option<Arc<Remote>>,
    /// SHA-256 of its files, of a model that came by name: other weights under the same header are another model.
    pub source: Option<String>,
    /// What its stages need in caches, once that was asked for.
    stored: OnceLock<StoredFacts>,
}

/// Facts about a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelMeta {
    /// The file's `general.architecture`.
    pub architecture: String,
    /// Positions a sequence may hold here.
    pub n_ctx: u32,
    /// Positions the model was trained on.
    pub n_ctx_train: u32,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// The number of weights.
    pub n_params: u64,
    /// Bytes of all tensors.
    pub size: u64,
    /// How its weights are stored, as its file says.
    pub quantization: String,
}

impl Model {
    /// Opens a model file to run it.
    ///
    /// # Errors
    /// The file is damaged, or something in it is not supported.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, &[])
    }

    /// Opens a model file with adapters, to run it.
    ///
    /// # Errors
    /// As [`Model::open`], of the adapters too.
    pub fn open_with(path: &Path, adapters: &[AdapterFile]) -> Result<Self, OpenError> {
        let own = Adapters::new(adapters)?;
        let (gguf, files) =
            Gguf::open_files_with(path, &paths(adapters)).map_err(ModelError::from)?;
        Self::from_gguf(gguf, Some(files), &name_of(path), own)
    }

    /// Opens a model for its description only: the tensors' data need not be there.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_header_only(path: &Path) -> Result<Self, OpenError> {
        Self::open_header_only_with(path, &[])
    }

    /// Opens a model with adapters from its header alone, to plan or inspect it.
    ///
    /// # Errors
    /// As [`Model::open_with`].
    pub fn open_header_only_with(path: &Path, adapters: &[AdapterFile]) -> Result<Self, OpenError> {
        let own = Adapters::new(adapters)?;
        let gguf = Gguf::open_header_only_with(path, &paths(adapters)).map_err(ModelError::from)?;
        Self::from_gguf(gguf, None, &name_of(path), own)
    }

    /// Adds the sum of these control vectors, each times its scale, to what the layers in `layers` give; `None`: all.
    ///
    /// # Errors
    /// A file that cannot be read or does not fit the model, or vectors that change nothing.
    pub fn add_control_vectors(
        &mut self,
        files: &[AdapterFile],
        layers: Option<LayerSpan>,
    ) -> Result<(), ModelError> {
        if !files.is_empty() {
            let files: Vec<_> = files.iter().map(|f| (f.path.clone(), f.scale)).collect();
            let layers = layers.map(|span| span.first..=span.last);
            let read = ControlVectors::read(&files, layers, &self.spec)?;
            self.control_vectors = Some(Arc::new(read));
        }
        Ok(())
    }

    /// The control vectors of `layers` as workers get them: f32 in little-endian order, one row a layer.
    pub fn control_vectors_of(&self, layers: Range<usize>) -> Bytes {
        let rows = self.control_vectors.as_ref().map(|vectors| vectors.rows(layers));
        rows.into_iter().flatten().flat_map(f32::to_le_bytes).collect()
    }

    /// Tells them from others; empty where there are none.
    pub fn control_vectors_id(&self) -> Bytes {
        let id = self.control_vectors.as_ref().map(|vectors| *vectors.id().as_bytes());
        id.into_iter().flatten().collect()
    }

    fn from_gguf(
        gguf: Gguf,
        files: Option<TensorFiles>,
        name: &str,
        adapters: Adapters,
    ) -> Result<Self, OpenError> {
        let described = brigade_models::described(&gguf)?;
        // Now, and not when a worker loads them.
        check_tensors(&described)?;
        let unsound = check_own_drafts(&described).err();
        let mut spec = Arc::unwrap_or_clone(described.spec);
        if let Some(error) = unsound {
            (spec.own_drafts, spec.own_drafts_refused) = (None, Some(error.to_string()));
        }
        let mut text = TextModel::from_gguf(name.to_string(), &gguf)?;
        if spec.is_encoder() {
            text.set_encoder();
        }
        let heads = match &files {
            Some(files) => Heads::read(&gguf, spec.n_embd, spec.is_encoder(), files)?,
            None => Heads::default(),
        };
        let header = Bytes::from(gguf.header_bytes());
        let header_hash = blake3::hash(&header);
        let (text, heads, adapters) = (Arc::new(text), Arc::new(heads), Arc::new(adapters));
        Ok(Self {
            gguf,
            files,
            spec,
            text,
            heads,
            stored: OnceLock::new(),
            header,
            header_hash,
            adapters,
            control_vectors: None,
            remote: None,
            source: None,
        })
    }

    /// Notes for the operator about things that do not keep the model from running.
    pub fn notes(&self) -> Vec<String> {
        let left = self.gguf.tensors().iter().filter(|t| is_of_other_senses(&t.name)).count();
        let senses = (left > 0).then(|| {
            format!(
                "{left} tensors are for images or sounds (v.*, mm.* and their like): they are not loaded, and the model reads text only"
            )
        });
        let template = self.text.bad_template().map(|why| {
            format!(
                "the model's own chat template cannot be used: {why}; requests for chats are refused; give another one with --chat-template"
            )
        });
        senses.into_iter().chain(template).collect()
    }

    /// The files that tensors are read from.
    ///
    /// # Errors
    /// The model was opened for its description only.
    pub fn files(&self) -> Result<&TensorFiles, GgufError> {
        self.files.as_ref().ok_or_else(|| GgufError::NoData {
            name: "of any name".to_string(),
            file: self.gguf.name().to_string(),
        })
    }

    /// Checks that its files have not been cut off or written to since they were opened. A changed file can serve no
    /// new line.
    ///
    /// # Errors
    /// Names the file and the sign of the change.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        self.files.as_ref().map_or(Ok(()), TensorFiles::check_unchanged)
    }

    /// Name in logs, requests and answers.
    pub fn name(&self) -> &str {
        self.text.name()
    }

    /// Size of the vocabulary: of the logits, which the tokenizer's may not exceed.
    pub fn n_vocab(&self) -> u32 {
        self.spec.n_vocab as u32
    }

    /// The longest context when `wanted` was asked for: where nothing was, the model's own, of which a line has as much as
    /// its memory allows. An encoder computes a text in one ubatch, whose work memory grows with it.
    pub fn ctx(&self, wanted: Option<u32>) -> u32 {
        let own = self.spec.n_ctx_train.clamp(1, MAX_CTX);
        wanted.unwrap_or(if self.spec.is_encoder() { own.min(LEAST_CTX) } else { own })
    }

    /// The context without which there is no line.
    pub fn least_ctx(&self, wanted: Option<u32>) -> u32 {
        wanted.unwrap_or(LEAST_CTX.min(self.ctx(wanted)))
    }

    /// Rows of the largest ubatch where nothing is said. An encoder's holds a text as long as the context.
    pub fn default_rows(&self, ctx: Option<u32>) -> u32 {
        if self.spec.is_encoder() {
            DEFAULT_MAX_ROWS.max(self.ctx(ctx)).min(MAX_ROWS)
        } else {
            DEFAULT_MAX_ROWS
        }
    }

    /// Refuses a context of more positions than the model can tell apart.
    ///
    /// # Errors
    /// The model has a table of positions, and `wanted` goes beyond it.
    pub fn check_ctx(&self, wanted: Option<u32>) -> Result<(), ContextTooLong> {
        let n_ctx = self.ctx(wanted);
        match self.spec.max_positions() {
            Some(most) if n_ctx > most => {
                let arch = self.spec.arch.clone();
                Err(ContextTooLong { n_ctx, most, arch })
            }
            _ => Ok(()),
        }
    }

    /// What to keep when `wanted` was asked for. `windows`: layers with a window keep only the
    /// positions in it.
    pub fn keep(&self, wanted: Option<Keep>, max_seqs: u32, windows: bool) -> Keep {
        wanted.unwrap_or_else(|| Keep::States(default_keep(self.spec.prefixes(windows), max_seqs)))
    }

    /// Whether layers with a window need less memory when they keep only the positions in it: where a window and a
    /// ubatch of `max_rows` are less than the context.
    pub fn gains_by_windows(&self, ctx: Option<u32>, max_rows: u32) -> bool {
        let blocks = self.spec.layers.iter().flat_map(|layer| &layer.blocks);
        let narrowest = blocks.filter_map(|block| block.kind.window()).min();
        let needs = narrowest.map(|width| width.saturating_add(max_rows));
        !self.spec.is_encoder() && needs.is_some_and(|needs| needs < self.ctx(ctx))
    }

    /// Bytes of all tensors that stages have.
    pub fn weight_bytes(&self) -> u64 {
        self.gguf
            .tensors()
            .iter()
            .filter(|tensor| !is_of_other_senses(&tensor.name))
            .map(|tensor| tensor.nbytes)
            .sum()
    }

    /// A text that names everything answers depend on besides requests and the line. This is the metadata, the
    /// weights as far as a lock knows them, adapters with their scales and files, and control vectors.
    pub fn identity(&self) -> String {
        let n = self.adapters.iter().len();
        let files: Vec<_> = self.files.iter().flat_map(TensorFiles::states).collect();
        let of_adapters = files.len().saturating_sub(n)..;
        let stamp = |(_, state): &(&Path, &FileState)| {
            format!(" {} bytes of {}", state.nbytes, state.mtime_ns)
        };
        let stamps: String = files[of_adapters].iter().map(stamp).collect();
        let vectors = self.control_vectors.as_ref().map(|vectors| format!(" {}", vectors.id()));
        let vectors = vectors.unwrap_or_default();
        let source =
            self.source.as_ref().map(|sha256| format!(" sha256 {sha256}")).unwrap_or_default();
        format!("{}{source}{}{stamps}{vectors}", self.header_hash, self.adapters.identity())
    }

    /// The model's tensors without those of adapters, and without those that no stage of a text model has.
    fn own_tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.gguf
            .tensors()
            .iter()
            .filter(|tensor| !of_model(&tensor.name).1 && !is_of_other_senses(&tensor.name))
    }

    /// The type that most of the weights have, for tables.
    pub fn quant_name(&self) -> String {
        let mut by_type = std::collections::BTreeMap::<String, u64>::new();
        for t in self.own_tensors() {
            *by_type.entry(t.ty.to_string()).or_default() += t.nbytes;
        }
        by_type.into_iter().max_by_key(|(_, n)| *n).map(|(ty, _)| ty).unwrap_or_default()
    }

    /// How the file says that its weights are stored; else the type that most of them have.
    fn file_type(&self) -> String {
        let id = self.gguf.meta().opt_u32("general.file_type").ok().flatten();
        let known = id.and_then(|id| FILE_TYPES.iter().find(|(known, _)| *known == id));
        known.map_or_else(|| self.quant_name(), |(_, name)| (*name).to_string())
    }

    /// The model's entry in `/v1/models`.
    pub fn meta(&self, n_ctx: u32) -> ModelMeta {
        ModelMeta {
            architecture: self.spec.arch.clone(),
            n_ctx,
            n_ctx_train: self.spec.n_ctx_train,
            n_vocab: self.n_vocab(),
            n_params: self.own_tensors().map(|t| t.n_elems() as u64).sum(),
            size: self.own_tensors().map(|t| t.nbytes).sum(),
            quantization: self.file_type(),
        }
    }

    /// The model as the planner sees it, with KV kept as `kv`.
    ///
    /// # Errors
    /// A tensor's type has no kernel.
    pub fn facts(&self, kv: KvType) -> Result<ModelFacts, ModelError> {
        let facts = ModelFacts::from_gguf(&self.gguf, kv)?;
        let stored = self.stored().clone();
        Ok(ModelFacts { name: self.name().to_string(), stored, ..facts })
    }

    /// What its stages need in caches of workers that have not its file.
    pub fn stored(&self) -> &StoredFacts {
        let header = self.header.len() as u64;
        self.stored.get_or_init(|| StoredFacts::from_gguf(&self.gguf, &self.spec, header))
    }

    /// Whether the head computes with the embedding's matrix.
    pub fn is_tied(&self) -> bool {
        brigade_spec::is_tied(&self.gguf, &self.spec)
    }
}

fn paths(adapters: &[AdapterFile]) -> Vec<PathBuf> {
    adapters.iter().map(|adapter| adapter.path.clone()).collect()
}

/// A file's name without folder, extension and shard number.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    match stem.rsplit_once("-of-") {
        Some((head, count)) if count.chars().all(|c| c.is_ascii_digit()) => {
            head.rsplit_once('-').map_or(head, |(name, _)| name).to_string()
        }
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_file_names() {
        assert_eq!(name_of(Path::new("/a/qwen3-0.6b.Q8_0.gguf")), "qwen3-0.6b.Q8_0");
        assert_eq!(name_of(Path::new("big-00001-of-00003.gguf")), "big");
        assert_eq!(name_of(Path::new("one-of-these.gguf")), "one-of-these");
    }
}
