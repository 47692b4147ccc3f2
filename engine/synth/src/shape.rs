//! The sizes of models, by the names that people know.

use super::SynthError;

/// The sizes of a transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Inner width of the dense FFN.
    pub n_ff: usize,
    /// Number of query heads.
    pub n_head: usize,
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of tokens in the vocabulary.
    pub vocab: usize,
    /// Positions the metadata promise.
    pub context: usize,
    /// Whether the output matrix is the embedding's.
    pub tied: bool,
    /// Mixture of experts instead of the dense FFN.
    pub experts: Option<Experts>,
    /// Sizes of Mamba-2 mixers, for architectures that have them.
    pub ssm: Ssm,
    /// Blocks behind the layers that draft tokens, for architectures that have them only where they are asked for.
    pub drafts: usize,
}

/// The sizes of a Mamba-2 mixer besides its width, which is twice that of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ssm {
    /// Width of a head.
    pub head_dim: usize,
    /// State values of a channel.
    pub n_state: usize,
    /// Groups of heads that share B and C.
    pub n_group: usize,
}

impl Ssm {
    /// Taps of the causal convolution.
    pub const CONV_TAPS: usize = 4;
    /// Sizes of Mamba-2 2.7B and Granite 4.
    const USUAL: Self = Self { head_dim: 64, n_state: 128, n_group: 1 };
}

/// The sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token takes.
    pub used: usize,
    /// Inner width of one expert.
    pub n_ff: usize,
}

const fn dense(layers_embd_ff: [usize; 3], heads: [usize; 3], vocab: usize, tied: bool) -> Shape {
    let [n_layer, n_embd, n_ff] = layers_embd_ff;
    let [n_head, n_head_kv, head_dim] = heads;
    let context = 32768;
    Shape {
        n_layer,
        n_embd,
        n_ff,
        n_head,
        n_head_kv,
        head_dim,
        vocab,
        context,
        tied,
        experts: None,
        ssm: Ssm::USUAL,
        drafts: 0,
    }
}

const fn moe(shape: Shape, count: usize, used: usize, n_ff: usize) -> Shape {
    Shape { experts: Some(Experts { count, used, n_ff }), ..shape }
}

/// `shape` with a context of a million.
const fn long(shape: Shape) -> Shape {
    Shape { context: 1 << 20, ..shape }
}

/// `shape` with narrow Mamba-2 heads in `n_group` groups.
const fn groups(shape: Shape, n_group: usize) -> Shape {
    Shape { ssm: Ssm { head_dim: 8, n_state: 16, n_group }, ..shape }
}

/// `shape` with blocks that draft tokens.
const fn drafting(shape: Shape, drafts: usize) -> Shape {
    Shape { drafts, ..shape }
}

/// Every named size: `([layers, width, ff], [heads, KV heads, head width], vocabulary, tied)`.
/// `0.6b` is the reference model of the benchmarks; the large ones are those of well-known models
/// and meant for `header_only`; the `golden` ones are small enough for a repository.
pub static SIZES: &[(&str, Shape)] = &[
    ("golden", groups(dense([4, 32, 64], [4, 2, 8], 384, true), 2)),
    ("golden-moe", groups(moe(dense([4, 32, 64], [4, 2, 8], 384, true), 8, 3, 16), 2)),
    ("golden-untied", groups(dense([4, 32, 64], [2, 1, 16], 384, false), 2)),
    ("golden-untied-moe", groups(moe(dense([4, 32, 64], [2, 1, 16], 384, false), 4, 2, 32), 2)),
    ("golden-wide", dense([4, 32, 64], [4, 2, 16], 384, false)),
    ("golden-wide-tied", dense([4, 32, 64], [4, 2, 16], 384, true)),
    ("golden-wide-moe", moe(dense([4, 32, 64], [4, 2, 16], 384, false), 8, 3, 32)),
    ("golden-untied-8", moe(dense([4, 32, 64], [2, 1, 16], 384, false), 8, 3, 16)),
    ("golden-one-of-4", moe(dense([4, 32, 64], [4, 2, 16], 384, false), 4, 1, 32)),
    ("golden-64", dense([64, 16, 32], [2, 1, 8], 384, true)),
    ("golden-32", dense([32, 16, 32], [2, 1, 8], 384, false)),
    ("golden-40", dense([40, 16, 32], [2, 1, 8], 384, false)),
    ("golden-24", dense([24, 32, 64], [4, 2, 16], 384, true)),
    ("golden-drafts", drafting(groups(dense([4, 32, 64], [4, 2, 8], 384, true), 2), 1)),
    (
        "golden-moe-drafts",
        drafting(groups(moe(dense([4, 32, 64], [4, 2, 8], 384, true), 8, 3, 16), 2), 1),
    ),
    (
        "golden-wide-moe-drafts",
        drafting(moe(dense([4, 32, 64], [4, 2, 16], 384, false), 8, 3, 32), 1),
    ),
    (
        "golden-wide-moe-2-drafts",
        drafting(moe(dense([4, 32, 64], [4, 2, 16], 384, false), 8, 3, 32), 2),
    ),
    ("golden-images", dense([4, 32, 64], [4, 2, 8], 8320, false)),
    ("golden-images-40", dense([40, 16, 32], [2, 1, 8], 8320, false)),
    ("golden-4-groups", groups(dense([4, 32, 64], [2, 1, 16], 384, false), 4)),
    ("golden-deep", moe(dense([9, 24, 48], [2, 2, 8], 384, false), 4, 2, 8)),
    ("golden-rwkv", dense([3, 128, 64], [2, 1, 64], 384, false)),
    ("golden-rwkv-32", dense([3, 64, 64], [2, 2, 32], 384, false)),
    ("golden-encoder", dense([4, 32, 64], [4, 4, 8], 384, true)),
    ("golden-encoder-untied", dense([3, 32, 64], [4, 4, 8], 384, false)),
    ("golden-encoder-moe", moe(dense([4, 32, 64], [4, 4, 8], 384, true), 8, 2, 64)),
    ("tiny", dense([4, 256, 512], [4, 2, 64], 512, false)),
    ("tiny-tied", dense([4, 256, 512], [4, 2, 64], 512, true)),
    ("tiny-moe", moe(dense([4, 256, 512], [4, 2, 64], 512, false), 8, 2, 256)),
    ("tiny-deep", moe(dense([9, 128, 256], [4, 4, 32], 512, false), 8, 2, 64)),
    ("tiny-encoder", dense([3, 256, 512], [4, 4, 64], 512, true)),
    ("tiny-encoder-moe", moe(dense([3, 256, 512], [4, 4, 64], 512, true), 4, 2, 512)),
    ("base", dense([12, 768, 3072], [12, 12, 64], 30522, true)),
    ("0.1b", dense([12, 768, 2048], [12, 4, 64], 32000, false)),
    ("0.5b", dense([24, 1024, 4096], [16, 4, 64], 32000, false)),
    ("0.5b-moe", moe(dense([12, 1024, 2816], [8, 2, 128], 32000, false), 16, 4, 512)),
    ("0.5b-mamba", dense([48, 1280, 3584], [20, 4, 64], 32000, true)),
    ("0.6b", dense([32, 1024, 4096], [16, 4, 64], 32000, false)),
    ("1b", dense([16, 2048, 8192], [32, 8, 64], 128256, true)),
    ("3b", dense([28, 3072, 8192], [24, 8, 128], 128256, true)),
    ("8b", dense([32, 4096, 14336], [32, 8, 128], 128256, false)),
    ("32b", dense([64, 5120, 25600], [64, 8, 128], 151936, false)),
    ("70b", dense([80, 8192, 28672], [64, 8, 128], 128256, false)),
    ("405b", dense([126, 16384, 53248], [128, 8, 128], 128256, false)),
    ("8x7b", moe(dense([32, 4096, 14336], [32, 8, 128], 32000, false), 8, 2, 14336)),
    ("30b-a3b", moe(dense([48, 2048, 6144], [32, 4, 128], 151936, false), 128, 8, 768)),
    ("235b-a22b", moe(dense([94, 4096, 12288], [64, 4, 128], 151936, false), 128, 8, 1536)),
    ("20b-a4b", moe(dense([24, 2880, 2880], [64, 8, 64], 201088, false), 32, 4, 2880)),
    ("120b-a5b", moe(dense([36, 2880, 2880], [64, 8, 64], 201088, false), 128, 4, 2880)),
    ("230b-a10b", moe(dense([62, 3072, 1536], [48, 8, 128], 200064, false), 256, 8, 1536)),
    ("355b-a32b", moe(dense([92, 5120, 12288], [96, 8, 128], 151552, false), 160, 8, 1536)),
    ("400b-a17b", moe(dense([48, 5120, 16384], [40, 8, 128], 202048, false), 128, 1, 8192)),
    ("671b-a37b", moe(dense([61, 7168, 18432], [128, 128, 128], 129280, false), 256, 8, 2048)),
    ("2.8t", long(moe(dense([93, 7168, 33792], [96, 96, 128], 163840, false), 896, 16, 3072))),
];

impl Shape {
    /// The size of this name.
    ///
    /// # Errors
    /// There is none; the message lists those there are.
    pub fn named(name: &str) -> Result<Self, SynthError> {
        let found = SIZES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, shape)| shape.clone()).ok_or_else(|| SynthError::Unknown {
            what: "size",
            name: name.to_owned(),
            choices: SIZES.iter().map(|(name, _)| *name).collect(),
        })
    }
}
