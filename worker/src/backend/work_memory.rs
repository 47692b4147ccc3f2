//! Memory of a stage beside weights and states: what a ubatch takes while it is computed, and what a tensor takes while it is
//! packed. The planner counts with the same numbers, so that a worker never refuses what was planned for it.

use brigade_gguf::adapters::of_model;
use brigade_gguf::{Gguf, TensorInfo};
use brigade_spec::ModelSpec;

/// Work memory is never taken for less than this many hidden rows: the residual stream, normed rows, queries, keys,
/// values, and the feed-forward's wider ones.
const LEAST_HIDDEN_ROWS: f64 = 24.0;

/// Bytes of work memory for each row of a ubatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkMemory {
    /// On every stage: the rows of the layer that needs most.
    pub row_bytes: u64,
    /// On the last stage besides: a row of logits. No stage of an encoder makes any.
    pub logits_bytes: u64,
}

impl WorkMemory {
    /// That of a model, by the shapes of its matrices.
    pub fn of(model: &Gguf, spec: &ModelSpec) -> Self {
        let mut layers = vec![0.0; spec.layers.len()];
        for tensor in model.tensors() {
            let Some(in_file) = brigade_spec::layer_of(&tensor.name) else { continue };
            let is_left_out = |layer| spec.leaves_out(layer, of_model(&tensor.name).0);
            for layer in spec.layers_of(in_file).filter(|&layer| !is_left_out(layer)) {
                layers[layer] += widths(tensor, active_share(spec, layer, &tensor.name));
            }
        }
        // Rows enter and leave a layer as hidden rows, with what goes along beside them; to that come the rows of the
        // layer's own matrices.
        let (hidden, carried) = (4.0 * spec.n_embd as f64, 4.0 * spec.widest_row() as f64);
        let widest = layers.into_iter().fold(LEAST_HIDDEN_ROWS * hidden, f64::max);
        let head_width = if spec.is_encoder() { 0 } else { spec.n_vocab };
        let row_bytes = (widest + hidden + carried) as u64;
        Self { row_bytes, logits_bytes: 4 * head_width as u64 }
    }

    /// Bytes for ubatches of so many rows, on the last stage or another.
    pub fn bytes(&self, max_rows: u32, is_last: bool) -> u64 {
        let logits = if is_last { self.logits_bytes } else { 0 };
        self.row_bytes.saturating_add(logits).saturating_mul(max_rows.into())
    }
}

/// Bytes of the file that are in memory while a stage is loaded: those of the tensor that is being packed. Its packed form is
/// among the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LoadingMemory {
    /// For the largest tensor of any layer.
    pub layer_bytes: u64,
    /// For the largest tensor of the head, which the last stage loads besides.
    pub head_bytes: u64,
}

impl LoadingMemory {
    /// That of a model, by the sizes of its tensors.
    pub fn of(model: &Gguf, spec: &ModelSpec) -> Self {
        let is_tied = brigade_spec::is_tied(model, spec);
        let mut all = Self::default();
        for tensor in model.tensors() {
            let name = of_model(&tensor.name).0;
            let of_layer = brigade_spec::layer_of(&tensor.name);
            let experts = || spec.layers.iter().any(|layer| layer.is_of_experts(name));
            let is_read_apart = [brigade_spec::TOKEN_EMBD, brigade_spec::LAYER_ROW_TABLE]
                .contains(&name)
                || spec.is_of_a_layer(name)
                || brigade_spec::is_of_other_senses(name)
                || brigade_spec::heads::has(name);
            if name == brigade_spec::OUTPUT || name == brigade_spec::TOKEN_EMBD && is_tied {
                all.head_bytes = all.head_bytes.max(tensor.nbytes);
            } else if of_layer.is_some() && experts() {
                // Experts are read one by one.
                all.layer_bytes = all.layer_bytes.max(tensor.nbytes / tensor.ne[2].max(1) as u64);
            } else if !is_read_apart {
                // Of matrices in one tensor, each is picked out before it is packed.
                all.layer_bytes = all.layer_bytes.max(2 * tensor.nbytes);
            }
        }
        all
    }

    /// Bytes on the last stage or another.
    pub fn bytes(&self, is_last: bool) -> u64 {
        if is_last { self.layer_bytes.max(self.head_bytes) } else { self.layer_bytes }
    }

    /// Bytes in the host's memory where the weights lie in a GPU's own: the packed form is there too, until the GPU has it.
    pub fn on_its_way(&self, is_last: bool) -> u64 {
        self.bytes(is_last).saturating_mul(2)
    }
}

/// Share of a layer's tensor that one token reads: less than 1 for experts, and for adapters that tokens switch on.
pub fn active_share(spec: &ModelSpec, layer: usize, tensor: &str) -> f64 {
    let of_blocks = spec.layers[layer].blocks.iter().map(|block| block.kind.active_share(tensor));
    of_blocks.fold(spec.switched_share(tensor), f64::min)
}

/// Bytes of a row that goes into a matrix and the row that comes out, in f32; of experts, for as many
/// as a row uses, which is this `share` of them. Their sum over a layer bounds its work memory: not all are needed at once.
fn widths(tensor: &TensorInfo, share: f64) -> f64 {
    if tensor.n_dims < 2 || brigade_spec::has_token_rows(&tensor.name) {
        return 0.0;
    }
    let experts: usize = tensor.ne[2..].iter().product();
    let used = experts as f64 * share;
    4.0 * (tensor.ne[0] + tensor.ne[1]) as f64 * used
}
