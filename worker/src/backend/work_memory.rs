//! Work memory of a stage: what a ubatch takes while it is computed, beside weights and states. The planner counts with
//! the same numbers, so that a worker never refuses what was planned for it.

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
