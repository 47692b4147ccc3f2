//! The planner's input: a model in bytes and operations, and workers in memory and speed.

use std::ops::Range;

use brigade_engine::kernels::KV_PAGE;
use brigade_spec::pages_of_each;
use brigade_worker::backend::product_class::ByClass;
use brigade_worker::backend::visiting_experts::MATRICES;
use brigade_worker::backend::work_memory::LoadingMemory;
use serde::{Serialize, Serializer};

use super::stored::StoredFacts;
use super::units::format_bytes;

/// A model as far as placing it matters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelFacts {
    /// The model's name, for explanations.
    pub name: String,
    /// Layers in order of computation.
    pub layers: Vec<LayerFacts>,
    /// Bytes of the embedding matrix; held by the first stage, which reads one row a token.
    pub embedding_bytes: u64,
    /// Bytes of the head (norm and output matrix), held by the last stage, in a form of its own even
    /// where the model has one matrix for both.
    pub head_bytes: u64,
    /// Weight elements that a row multiplies with in the head.
    #[serde(serialize_with = "total")]
    pub head_elements: ByClass<u64>,
    /// The model's own blocks of drafts, where the last stage has them.
    pub drafts: DraftFacts,
    /// Bytes that a row sends over the cut before layer `i`; `[n_layers]`, the first is 0.
    pub cut_bytes: Vec<u64>,
    /// Work memory of a stage for each row of a ubatch.
    pub scratch_bytes_per_row: u64,
    /// Width of a logits row in bytes: the last stage's work memory for each row.
    pub logits_bytes: u64,
    /// What a tensor takes while it is loaded.
    pub loading: LoadingMemory,
    /// Longest context the model was trained for.
    pub n_ctx_train: u32,
    /// What stages need in their workers' caches.
    #[serde(skip)]
    pub stored: StoredFacts,
}

/// Blocks that draft tokens behind the last layer; all of it is 0 where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DraftFacts {
    /// Bytes of their tensors, and of an embedding where they have none of their own.
    pub weight_bytes: u64,
    /// Weight elements that a row multiplies with in all of them.
    #[serde(serialize_with = "total")]
    pub elements: ByClass<u64>,
    /// The part of these elements for a row from which nothing is drafted.
    pub entry_elements: u64,
    /// Bytes of their caches for a position of a sequence.
    pub kv_bytes: u64,
    /// Bytes of a sequence's other state, for any length.
    pub state_bytes: u64,
}

impl DraftFacts {
    /// The share of a row's operations that one takes which is only remembered, `0.0..=1.0`.
    pub fn entry_share(&self) -> f64 {
        self.entry_elements as f64 / self.elements.sum().max(1) as f64
    }
}

/// Elements of all classes: what programs read in JSON.
fn total<S: Serializer>(elements: &ByClass<u64>, to: S) -> Result<S::Ok, S::Error> {
    elements.sum().serialize(to)
}

impl ModelFacts {
    /// How many layers there are where they are fewer in the file, for people.
    pub fn passes(&self) -> Option<String> {
        let n_layers = self.layers.len();
        let in_file = self.layers.iter().filter(|layer| layer.same_weights.is_none()).count();
        (in_file < n_layers).then(|| {
            format!(
                "{n_layers} layers, which are {in_file} of the file: each pass through one of these is a layer, and a stage \
                 holds the weights of all its passes once"
            )
        })
    }

    /// The same with a KV cache of the smallest values; `None` where that frees nothing.
    pub(super) fn with_smallest_kv(&self) -> Option<Self> {
        let smaller = |l: &LayerFacts| (1..l.kv_bytes).contains(&l.kv_small_bytes);
        if !self.layers.iter().any(smaller) {
            return None;
        }
        let mut model = self.clone();
        for layer in model.layers.iter_mut().filter(|layer| smaller(layer)) {
            layer.kv_bytes = layer.kv_small_bytes;
        }
        Some(model)
    }
}

/// Bytes and operations of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LayerFacts {
    /// Bytes of all tensors.
    pub weight_bytes: u64,
    /// The first layer that computes with the same tensors, where that is an earlier one: a stage that has both holds them
    /// once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_weights: Option<usize>,
    /// The part of them in experts of which a token uses some.
    pub expert_bytes: u64,
    /// Share of the experts that a token uses, `0.0..=1.0`.
    pub expert_share: f64,
    /// The part of them in experts that rows are sent to: what may lie in the host's memory beside a GPU.
    pub routed_bytes: u64,
    /// Bytes of each matrix of one of them; 0: no more.
    #[serde(skip)]
    pub expert_matrices: [u64; MATRICES],
    /// Weight elements that a row multiplies with (of experts: those it uses), by the class of their products.
    #[serde(serialize_with = "total")]
    pub elements: ByClass<u64>,
    /// The part of these elements in routed experts.
    #[serde(serialize_with = "total")]
    pub routed_elements: ByClass<u64>,
    /// KV cache for a position of a sequence.
    pub kv_bytes: u64,
    /// Positions that a token sees at most; `None`: all before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// The same with the smallest type of values that there is; 0 where that is not known.
    pub kv_small_bytes: u64,
    /// Bytes of a sequence's convolution states.
    pub conv_bytes: u64,
    /// Bytes of a sequence's scan states.
    pub scan_bytes: u64,
}

impl LayerFacts {
    /// Bytes of each matrix of one of the experts that rows are sent to.
    pub fn matrices(&self) -> &[u64] {
        let n = self.expert_matrices.iter().take_while(|bytes| **bytes > 0).count();
        &self.expert_matrices[..n]
    }

    /// Bytes of weights read to compute `rows` rows at once: of the experts, those that at least one
    /// of the rows is expected to use, `1 - (1 - share)^rows` of them.
    pub fn read_bytes(&self, rows: f64) -> f64 {
        let dense = (self.weight_bytes - self.expert_bytes) as f64;
        dense + self.expert_bytes as f64 * (1.0 - (1.0 - self.expert_share).powf(rows))
    }

    /// The part of [`LayerFacts::read_bytes`] for routed experts.
    pub fn routed_read(&self, rows: f64) -> f64 {
        self.routed_bytes as f64 * (1.0 - (1.0 - self.expert_share).powf(rows))
    }

    /// Bytes of the KV cache that a token behind `positions` others reads.
    pub fn cache_read(&self, positions: f64) -> f64 {
        self.kv_bytes as f64 * self.window.map_or(positions, |n| positions.min(f64::from(n)))
    }

    /// Bytes of the KV cache that each position adds. `windows`: none where a window bounds them.
    pub fn growing_kv(&self, windows: bool) -> u64 {
        if windows && self.window.is_some() { 0 } else { self.kv_bytes }
    }

    /// Bytes of a page of the KV cache that is kept while the window sees it; 0 where all are kept.
    pub fn window_page(&self, windows: bool) -> u64 {
        let page = (KV_PAGE as u64).saturating_mul(self.kv_bytes);
        if windows && self.window.is_some() { page } else { 0 }
    }

    /// Pages of a sequence that the window needs.
    pub fn pages_of_each(&self) -> u64 {
        self.window.map_or(0, |width| pages_of_each(width).into())
    }

    /// Recurrent state of a sequence.
    pub fn state_bytes(&self) -> u64 {
        self.conv_bytes.saturating_add(self.scan_bytes)
    }

    /// Operations for one row, multiply and add counted as two.
    pub fn ops(&self) -> f64 {
        2.0 * self.elements.sum() as f64
    }

    /// The elements that are not in routed experts.
    pub fn dense_elements(&self) -> ByClass<u64> {
        self.elements.zip(self.routed_elements, u64::saturating_sub)
    }
}

/// Bytes of a sequence's state in some layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SequenceBytes {
    /// KV cache, for each of its positions.
    pub kv_bytes_per_token: u64,
    /// KV cache of layers with a window, for any length.
    pub window_bytes: u64,
    /// Last inputs of the convolutions, for any length.
    pub conv_bytes: u64,
    /// States of the scans, for any length.
    pub scan_bytes: u64,
}

impl SequenceBytes {
    /// The sum over `layers`. `windows`: layers with a window keep only the positions in it.
    pub fn of(layers: &[LayerFacts], windows: bool) -> Self {
        let sum = |bytes: &dyn Fn(&LayerFacts) -> u64| layers.iter().map(bytes).sum();
        Self {
            kv_bytes_per_token: sum(&|l| l.growing_kv(windows)),
            window_bytes: sum(&|l| l.window_page(windows).saturating_mul(l.pages_of_each())),
            conv_bytes: sum(&|l| l.conv_bytes),
            scan_bytes: sum(&|l| l.scan_bytes),
        }
    }
}

/// `KV 8.00 KiB a token, conv state 1.37 MiB and scan state 54.00 MiB a sequence`, with `KV of windows` between them
/// where there are such.
impl std::fmt::Display for SequenceBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = [self.kv_bytes_per_token, self.window_bytes, self.conv_bytes, self.scan_bytes];
        let [kv, window, conv, scan] = bytes.map(format_bytes);
        write!(f, "KV {kv} a token, ")?;
        if self.window_bytes > 0 {
            write!(f, "KV of windows {window}, ")?;
        }
        write!(f, "conv state {conv} and scan state {scan} a sequence")
    }
}

/// A worker that could hold layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerFacts {
    /// The worker's name, for explanations.
    pub name: String,
    /// Bytes it may use. Of a stage of a node: an equal part of the node's.
    pub memory: u64,
    /// Memory read, 10^9 bytes a second.
    pub gbps: f64,
    /// Matrix multiplication, 10^9 operations a second, by the class of weights.
    pub gops: ByClass<f64>,
    /// The link to the next worker; `None`: not a limit.
    pub link: Option<LinkFacts>,
    /// The host beside a GPU, where routed experts may lie in its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostFacts>,
    /// Layers whose weights are in its memory already; empty: none.
    #[serde(skip)]
    pub holds: Range<usize>,
    /// The node whose memory it shares with other stages; `None`: it has memory of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeFacts>,
    /// The cache in which it keeps weights that it is sent; `None`: no limit is known, or it needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskFacts>,
}

/// The cache of a worker, for a line that has one or several workers which share its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DiskFacts {
    /// The folder's number: equal ones are one folder.
    pub folder: u64,
    /// Bytes that it may hold.
    pub limit: u64,
    /// Bytes that the line's stages may need there together: all that other lines do not need.
    pub left: u64,
}

/// The memory of a node, for a line that has one or several of its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NodeFacts {
    /// The node's number: equal ones share memory.
    pub node: u64,
    /// Bytes that all stages of the node may take.
    pub limit: u64,
    /// Bytes that the line's stages on the node may take together.
    pub left: u64,
    /// The same of the host's memory beside a GPU with memory of its own.
    pub host_left: u64,
}

impl WorkerFacts {
    /// Bytes of all its memories.
    pub fn all_memory(&self) -> u64 {
        let host = self.host.and_then(|host| host.memory).unwrap_or(0);
        self.memory.saturating_add(host)
    }
}

/// The host beside a GPU, for routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HostFacts {
    /// Bytes it may use; `None`: of the GPU's, which is the same memory.
    pub memory: Option<u64>,
    /// Memory read, 10^9 bytes a second.
    pub gbps: f64,
    /// Matrix multiplication, 10^9 operations a second, by the class of weights.
    pub gops: ByClass<f64>,
    /// Speed of copies from there to the GPU, 10^9 bytes a second; 0: no experts are sent there for prompts.
    pub sent_gbps: f64,
    /// Whether the GPU computes meanwhile: it has a transfer queue.
    pub sent_beside: bool,
    /// The rule for which experts lie there.
    pub experts: HostExperts,
}

/// The layers whose routed experts lie with the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HostExperts {
    /// First layers of a stage, as few as do not fit on the GPU.
    #[default]
    Auto,
    /// All layers.
    All,
    /// So many first layers of the model.
    Layers(u32),
}

/// The network link to the next worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkFacts {
    /// 10^9 bytes a second.
    pub gbps: f64,
    /// Latency in one direction, in microseconds.
    pub latency_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_bounds_what_is_read_of_the_cache() {
        let layer = |window| LayerFacts { kv_bytes: 8, window, ..LayerFacts::default() };
        assert_eq!(layer(None).cache_read(1000.0), 8000.0);
        assert_eq!(layer(Some(128)).cache_read(1000.0), 1024.0);
        assert_eq!(layer(Some(128)).cache_read(100.0), 800.0);
    }

    #[test]
    fn rows_share_experts() {
        let layer = LayerFacts {
            weight_bytes: 1_000,
            expert_bytes: 800,
            expert_share: 0.25,
            ..LayerFacts::default()
        };
        assert_eq!(layer.read_bytes(1.0), 400.0);
        assert_eq!(layer.read_bytes(2.0), 200.0 + 800.0 * (1.0 - 0.75 * 0.75));
        assert!(layer.read_bytes(100.0) > 999.0);
    }
}
