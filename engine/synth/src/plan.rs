//! A synthetic model before it is written: its metadata and tensors, in the order of the file.

use super::Shape;
use super::file_type::{FileType, Place, Role};
use super::noise::Fill;
use brigade_gguf::{GgufError, GgufWriter};
use brigade_quant::GgmlType;
use brigade_spec::TOKEN_EXPERTS;

/// Spread of norm weights around 1 and of biases around 0.
const SMALL: f32 = 0.1;
/// Tensors to which llama.cpp takes a scale besides, in any architecture; those of NVFP4 get one.
const SCALED: [&str; 10] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
];

/// A metadata value of an architecture's keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MetaScalar {
    U32(u32),
    F32(f32),
    /// One value for each layer.
    Layers(Vec<u32>),
    /// Counts that may be larger.
    Wide(Vec<u64>),
    /// One number for each layer.
    Numbers(Vec<f32>),
    Bool(bool),
    Str(&'static str),
}

impl MetaScalar {
    pub fn set(&self, writer: &mut GgufWriter, key: &str) -> Result<(), GgufError> {
        match self {
            Self::U32(v) => writer.set(key, v),
            Self::F32(v) => writer.set(key, v),
            Self::Numbers(v) => writer.set(key, v.as_slice()),
            Self::Layers(v) => writer.set(key, v.as_slice()),
            Self::Wide(v) => writer.set(key, v.as_slice()),
            Self::Bool(v) => writer.set(key, v),
            Self::Str(v) => writer.set(key, *v),
        }
    }
}

/// One tensor to make.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorPlan {
    pub name: String,
    pub ty: GgmlType,
    /// Sizes, the fastest-varying first.
    pub ne: Vec<usize>,
    pub fill: Fill,
}

/// Everything of a model but its tokenizer.
pub(super) struct ModelPlan {
    prefix: &'static str,
    quant: FileType,
    place: Place,
    pub metadata: Vec<(String, MetaScalar)>,
    pub tensors: Vec<TensorPlan>,
    /// Whether its tokens are word pieces, as BERT's.
    pub word_pieces: bool,
    /// Prefix of the names of layers' tensors.
    pub layer_prefix: &'static str,
}

impl ModelPlan {
    /// An empty plan; keys get `prefix` and a dot before them.
    pub fn new(prefix: &'static str, quant: FileType, shape: &Shape) -> Self {
        let place = Place {
            il: 0,
            n_layer: shape.n_layer,
            n_gqa: shape.n_head.checked_div(shape.n_head_kv).unwrap_or(1),
            n_expert: shape.experts.map_or(0, |experts| experts.count),
        };
        let (metadata, tensors) = (Vec::new(), Vec::new());
        let (word_pieces, layer_prefix) = (false, "");
        Self { prefix, quant, place, metadata, tensors, word_pieces, layer_prefix }
    }

    /// Adds a count to the metadata, in the place of an earlier one of that key. Shapes are far below
    /// 2^32: see `arch::plan`.
    pub fn count(&mut self, key: &str, value: usize) {
        let whole_key = format!("{}.{key}", self.prefix);
        self.metadata.retain(|(other, _)| *other != whole_key);
        self.metadata.push((whole_key, MetaScalar::U32(value as u32)));
    }

    /// Adds a number to the metadata, in the place of an earlier one of that key.
    pub fn number(&mut self, key: &str, value: f32) {
        let whole_key = format!("{}.{key}", self.prefix);
        self.metadata.retain(|(other, _)| *other != whole_key);
        self.metadata.push((format!("{}.{key}", self.prefix), MetaScalar::F32(value)));
    }

    /// Adds a switch to the metadata.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.metadata.push((format!("{}.{key}", self.prefix), MetaScalar::Bool(value)));
    }

    /// Adds a count for each layer to the metadata, in the place of one for all.
    pub fn counts(&mut self, key: &str, values: impl IntoIterator<Item = usize>) {
        let values = values.into_iter().map(|v| v as u32).collect();
        let whole_key = format!("{}.{key}", self.prefix);
        self.metadata.retain(|(other, _)| *other != whole_key);
        self.metadata.push((format!("{}.{key}", self.prefix), MetaScalar::Layers(values)));
    }

    /// Adds a list of counts that may be larger than 2^32 to the metadata.
    pub fn wide_counts(&mut self, key: &str, values: impl IntoIterator<Item = u64>) {
        let values = values.into_iter().collect();
        self.metadata.push((format!("{}.{key}", self.prefix), MetaScalar::Wide(values)));
    }

    /// Adds a number for each layer to the metadata.
    pub fn numbers(&mut self, key: &str, values: impl IntoIterator<Item = f32>) {
        let values = values.into_iter().collect();
        self.metadata.push((format!("{}.{key}", self.prefix), MetaScalar::Numbers(values)));
    }

    /// As [`Self::numbers`], under a key without the architecture's name before it.
    pub fn plain_numbers(&mut self, key: &str, values: impl IntoIterator<Item = f32>) {
        self.metadata.push((key.to_owned(), MetaScalar::Numbers(values.into_iter().collect())));
    }

    /// Adds a word to the metadata.
    pub fn text(&mut self, key: &str, value: &'static str) {
        self.metadata.push((format!("{}.{key}", self.prefix), MetaScalar::Str(value)));
    }

    /// Sets the layer to which the next tensors belong.
    pub fn layer(&mut self, il: usize) {
        self.place.il = il;
    }

    /// A tensor of the current layer.
    fn push(&mut self, name: String, role: Role, ne: &[usize], fill: Fill) {
        let ty = self.quant.tensor_type(role, self.place, ne[0]);
        // An architecture's own scale stands for the one that came with NVFP4.
        if name.ends_with(".scale") {
            self.tensors.retain(|tensor| tensor.name != name);
        }
        let stem = name
            .strip_suffix(".weight")
            .filter(|stem| ty == GgmlType::NVFP4 && SCALED.iter().any(|part| stem.ends_with(part)));
        let scale = stem.map(|stem| TensorPlan {
            name: format!("{stem}.scale"),
            ty: GgmlType::F32,
            ne: vec![ne.get(2).copied().unwrap_or(1)],
            fill: Fill::AroundOne(SMALL),
        });
        self.tensors.push(TensorPlan { name, ty, ne: ne.to_vec(), fill });
        self.tensors.extend(scale);
    }

    /// A matrix of the whole model, rows of standard deviation `deviation`.
    pub fn global(&mut self, name: &str, role: Role, ne: &[usize], deviation: f32) {
        self.push(format!("{name}.weight"), role, ne, Fill::Normal(deviation));
    }

    /// A tensor of the whole model, by its whole name.
    pub fn bare_global(&mut self, name: &str, role: Role, ne: &[usize], fill: Fill) {
        self.push(name.to_owned(), role, ne, fill);
    }

    /// A norm of the whole model.
    pub fn global_norm(&mut self, name: &str, width: usize) {
        self.push(format!("{name}.weight"), Role::Precise, &[width], Fill::AroundOne(SMALL));
    }

    /// A bias of the whole model.
    pub fn global_bias(&mut self, name: &str, width: usize) {
        self.push(format!("{name}.bias"), Role::Precise, &[width], Fill::Normal(SMALL));
    }

    /// A matrix (or a stack of them) of the current layer that maps unit variance to `gain` squared.
    pub fn matrix(&mut self, name: &str, role: Role, ne: &[usize], gain: f32) {
        let deviation = gain / (ne[0] as f32).sqrt();
        let name = self.layer_name(&format!("{name}.weight"));
        self.push(name, role, ne, Fill::Normal(deviation));
    }

    fn layer_name(&self, name: &str) -> String {
        format!("{}blk.{}.{name}", self.layer_prefix, self.place.il)
    }

    /// A norm of the current layer.
    pub fn norm(&mut self, name: &str, width: usize) {
        let name = self.layer_name(&format!("{name}.weight"));
        self.push(name, Role::Precise, &[width], Fill::AroundOne(SMALL));
    }

    /// A norm of the current layer whose name has no end.
    pub fn bare_norm(&mut self, name: &str, width: usize) {
        self.precise(name, &[width], Fill::AroundOne(SMALL));
    }

    /// A bias of the current layer whose name has no end.
    pub fn bare_bias(&mut self, name: &str, width: usize) {
        self.precise(name, &[width], Fill::Normal(SMALL));
    }

    /// Norms of the current layer with weights `[width, n]`.
    pub fn matrix_norm(&mut self, name: &str, ne: &[usize]) {
        let name = format!("{name}.weight");
        self.precise(&name, ne, Fill::AroundOne(SMALL));
    }

    /// A tensor of the current layer that is f32 in every file type, by its whole name.
    pub fn precise(&mut self, name: &str, ne: &[usize], fill: Fill) {
        self.push(self.layer_name(name), Role::Precise, ne, fill);
    }

    /// The table of the current layer that gives each of `vocab` tokens `used` of `count` experts.
    pub fn token_experts(&mut self, vocab: usize, used: usize, count: usize) {
        let name = self.layer_name(TOKEN_EXPERTS);
        let (ty, ne, fill) = (GgmlType::I32, vec![used, vocab], Fill::Experts(count));
        self.tensors.push(TensorPlan { name, ty, ne, fill });
    }

    /// A bias of the current layer.
    pub fn bias(&mut self, name: &str, width: usize) {
        let name = self.layer_name(&format!("{name}.bias"));
        self.push(name, Role::Precise, &[width], Fill::Normal(SMALL));
    }
}
