//! The op table: one function pointer for each op. A table holds the same generic kernels compiled for one
//! instruction set. It is chosen once, at start. This crate compiles none: each is a crate of its own.

use super::cpu;
use super::simd::Simd;
use crate::cpu::products::matmul_many::MANY_ROWS;
use crate::cpu::products::matmul_pairs::PairProducts;
use crate::tiles::attention::block_index::ProductTile;
use crate::tiles::attention::depth::DepthRow;
use crate::tiles::attention::index_scores::IndexTile;
use crate::tiles::attention::kv_pages::KvRow;
use crate::tiles::attention::paged::{AttendMerge, AttendTile};
use crate::tiles::attention::pooling::{GatedPool, PoolTile};
use crate::tiles::attention::rope::RopeRow;
use crate::tiles::products::activations::ActBlock;
use crate::tiles::products::matmul::MatmulChunk;
use crate::tiles::scan::conv::ConvTile;
use crate::tiles::scan::delta::DeltaTile;
use crate::tiles::scan::mamba::MambaTile;
use crate::tiles::scan::ssd::SsdTile;
use crate::tiles::scan::wkv6::Wkv6Tile;
use crate::tiles::scan::wkv7::{Wkv7Head, Wkv7Tile};
use brigade_quant::GgmlType;
use brigade_shapes::GateBounds;
use brigade_shapes::{SwiGluClamp, SwiGluLimit, Xielu};

/// Version of the kernels' numerics. A change of any bit of an op's result needs a new number, by which workers of two
/// releases with different bits are told apart. Tables with the same number give the same bits: tests hold them to it.
pub const NUMERICS: u32 = 1;

/// Version of the numerics of kernels without fused steps, which are those of GPUs.
pub const NUMERICS_UNFUSED: u32 = 1 << 16 | NUMERICS;

/// Version of the numerics of kernels that multiply many rows with weights of F16 and BF16 in pairs of bfloat16 values. How many
/// rows are together shows in their bits.
pub const NUMERICS_PAIRS: u32 = 1 << 17 | NUMERICS;

/// Version of the numerics of a GPU with fast math. Matrix units add in orders of their own, so every maker, device and
/// driver, which `identity` names, has a version that differs from all others.
pub fn fast_numerics(identity: &str) -> u32 {
    let hash = blake3::hash(format!("{NUMERICS_UNFUSED} {identity}").as_bytes());
    let [a, b, c, d, ..] = *hash.as_bytes();
    1 << 31 | u32::from_le_bytes([a, b, c, d])
}

/// The kernels of one instruction set. The crate `brigade-kernels-tables` has those that this machine can run.
pub struct Kernels {
    /// Name for logs and for `--kernels`: `avx512`, `avx512bf16`, `avxvnni`, `avx2`, `neon`, `reference`, `unfused`.
    pub name: &'static str,
    /// Version of the numerics: [`NUMERICS`], [`NUMERICS_UNFUSED`], or [`NUMERICS_PAIRS`].
    pub numerics: u32,
    /// Whether this machine has the instructions.
    pub detected: fn() -> bool,
    /// Makes blocks of 8-bit activations of values, 32 to a block.
    pub quantize: fn(&[f32], &mut [ActBlock]),
    pub(super) matmul: fn(&MatmulChunk<'_>),
    /// Products in pairs, for tables of [`NUMERICS_PAIRS`].
    pub(super) pairs: Option<PairProducts>,
    pub(super) rms_norm: fn(&mut [f32], &[f32], f32),
    pub(super) l2_norm: fn(&mut [f32], f32),
    pub(super) layer_norm: fn(&mut [f32], &[f32], &[f32], f32),
    pub(super) lerp: fn(&mut [f32], &[f32], &[f32]),
    pub(super) add: fn(&mut [f32], &[f32]),
    pub(super) add_scaled: fn(&mut [f32], &[f32], f32),
    pub(super) scale: fn(&mut [f32], f32),
    pub(super) mul: fn(&mut [f32], &[f32]),
    pub(super) silu_mul: fn(&mut [f32], &[f32]),
    pub(super) sigmoid_mul: fn(&mut [f32], &[f32]),
    pub(super) silu: fn(&mut [f32]),
    pub(super) sigmoid: fn(&mut [f32]),
    pub(super) tanh: fn(&mut [f32]),
    pub(super) softplus: fn(&mut [f32]),
    pub(super) relu_squared: fn(&mut [f32]),
    pub(super) bounded_gate_mul: fn(&mut [f32], &[f32], GateBounds),
    pub(super) gelu: fn(&mut [f32]),
    pub(super) gelu_mul: fn(&mut [f32], &[f32]),
    pub(super) clamped_swiglu_mul: fn(&mut [f32], &[f32], SwiGluClamp),
    pub(super) limited_swiglu_mul: fn(&mut [f32], &[f32], SwiGluLimit),
    pub(super) xielu: fn(&mut [f32], Xielu),
    pub(super) softcap: fn(&mut [f32], f32),
    pub(super) clamp: fn(&mut [f32], f32),
    pub(super) softmax: fn(&mut [f32]),
    pub(super) rope: fn(&mut RopeRow<'_>),
    pub(super) conv: fn(&mut ConvTile<'_>),
    pub(super) mamba_scan: fn(&mut MambaTile<'_>),
    pub(super) delta: fn(DeltaTile<'_>),
    pub(super) delta_plain: fn(DeltaTile<'_>),
    pub(super) decay_factors: fn(&mut [f32], &[f32], &[f32]),
    pub(super) bounded_decay_factors: fn(&mut [f32], &[f32], &[f32], f32),
    pub(super) attend_depth: fn(DepthRow<'_>),
    pub(super) pool_gated: fn(GatedPool<'_>),
    pub(super) ssd: fn(SsdTile<'_>),
    pub(super) ssd_plain: fn(SsdTile<'_>),
    pub(super) wkv6: fn(&mut Wkv6Tile<'_>),
    pub(super) wkv6_decay: fn(&mut [f32], &[f32]),
    pub(super) wkv7: fn(&mut Wkv7Tile<'_>),
    pub(super) wkv7_prepare: fn(&mut Wkv7Head<'_>),
    pub(super) wkv7_bonus: fn(&mut [f32], [&[f32]; 4]),
    pub(super) kv_write: fn(&mut KvRow<'_>),
    pub(super) attend: fn(&mut AttendTile<'_>),
    pub(super) index_scores: fn(&mut IndexTile<'_>),
    pub(super) index_products: fn(&mut ProductTile<'_>),
    pub(super) pool_keys: fn(&mut PoolTile<'_>),
    pub(super) probe_read: fn(&[u8], usize) -> i32,
    pub(super) probe_narrow_dots: fn(usize) -> usize,
    pub(super) probe_wide_dots: fn(usize) -> usize,
    pub(super) probe_fmas: fn(usize) -> usize,
    pub(super) attend_merge: fn(&mut AttendMerge<'_>),
}

impl Kernels {
    /// The kernels compiled for the instructions of `S`. They panic where the machine lacks these.
    pub const fn of<S: Simd>() -> Self {
        Self {
            name: S::NAME,
            numerics: NUMERICS,
            detected: || S::detect().is_some(),
            quantize: cpu::products::activations::quantize::<S>,
            matmul: cpu::products::matmul::chunk::<S>,
            pairs: None,
            rms_norm: cpu::rowwise::norm::rms_norm::<S>,
            l2_norm: cpu::rowwise::norm::l2_norm::<S>,
            layer_norm: cpu::rowwise::norm::layer_norm::<S>,
            lerp: cpu::rowwise::elementwise::lerp::<S>,
            add: cpu::rowwise::elementwise::add::<S>,
            add_scaled: cpu::rowwise::elementwise::add_scaled::<S>,
            scale: cpu::rowwise::elementwise::scale::<S>,
            mul: cpu::rowwise::elementwise::mul::<S>,
            silu_mul: cpu::rowwise::elementwise::silu_mul::<S>,
            sigmoid_mul: cpu::rowwise::elementwise::sigmoid_mul::<S>,
            silu: cpu::rowwise::elementwise::silu::<S>,
            sigmoid: cpu::rowwise::elementwise::sigmoid::<S>,
            tanh: cpu::rowwise::elementwise::tanh::<S>,
            softplus: cpu::rowwise::elementwise::softplus::<S>,
            relu_squared: cpu::rowwise::elementwise::relu_squared::<S>,
            bounded_gate_mul: cpu::rowwise::bounded_gate::bounded_gate_mul::<S>,
            gelu: cpu::rowwise::gates::gelu::<S>,
            gelu_mul: cpu::rowwise::gates::gelu_mul::<S>,
            clamped_swiglu_mul: cpu::rowwise::gates::clamped_swiglu_mul::<S>,
            limited_swiglu_mul: cpu::rowwise::gates::limited_swiglu_mul::<S>,
            xielu: cpu::rowwise::gates::xielu::<S>,
            softcap: cpu::rowwise::gates::softcap::<S>,
            clamp: cpu::rowwise::gates::clamp::<S>,
            softmax: cpu::rowwise::elementwise::softmax::<S>,
            rope: cpu::attention::rope::rotate::<S>,
            conv: cpu::scan::conv::conv::<S>,
            mamba_scan: cpu::scan::mamba::mamba_scan::<S>,
            delta: cpu::scan::delta::delta::<S>,
            delta_plain: cpu::scan::delta_plain::delta_plain::<S>,
            decay_factors: cpu::scan::delta::decay_factors::<S>,
            bounded_decay_factors: cpu::scan::delta::bounded_decay_factors::<S>,
            attend_depth: cpu::attention::depth::attend_depth::<S>,
            pool_gated: cpu::attention::pooling::pool_gated::<S>,
            ssd: cpu::scan::ssd::ssd::<S>,
            ssd_plain: cpu::scan::ssd_plain::ssd_plain::<S>,
            wkv6: cpu::scan::wkv6::wkv6::<S>,
            wkv6_decay: cpu::scan::wkv6::decay::<S>,
            wkv7: cpu::scan::wkv7::wkv7::<S>,
            wkv7_prepare: cpu::scan::wkv7::prepare::<S>,
            wkv7_bonus: cpu::scan::wkv7::bonus::<S>,
            kv_write: cpu::attention::kv_pages::kv_write::<S>,
            attend: cpu::attention::paged::attend::<S>,
            index_scores: cpu::attention::index_scores::index_scores::<S>,
            index_products: cpu::attention::index_scores::index_products::<S>,
            pool_keys: cpu::attention::pooling::pool_keys::<S>,
            probe_read: cpu::probe::read::<S>,
            probe_narrow_dots: cpu::probe::narrow_dots::<S>,
            probe_wide_dots: cpu::probe::wide_dots::<S>,
            probe_fmas: cpu::probe::fmas::<S>,
            attend_merge: cpu::attention::paged::merge::<S>,
        }
    }
}

impl Kernels {
    /// All of `others` but products, which are compiled for the instructions of `S`, and give the same bits.
    pub const fn with_products_of<S: Simd>(others: &Self) -> Self {
        Self {
            name: S::NAME,
            detected: || S::detect().is_some(),
            matmul: cpu::products::matmul::chunk::<S>,
            probe_narrow_dots: cpu::probe::narrow_dots::<S>,
            probe_wide_dots: cpu::probe::wide_dots::<S>,
            ..*others
        }
    }

    /// All of `others`, and products in pairs of bfloat16 values, which are compiled for the instructions of `S`. A machine that
    /// has these has those of `others`.
    pub const fn with_pairs_of<S: Simd>(others: &Self) -> Self {
        Self {
            name: S::NAME,
            numerics: NUMERICS_PAIRS,
            detected: || S::detect().is_some(),
            pairs: Some(PairProducts::of::<S>()),
            ..*others
        }
    }

    /// The same kernels as those of another number.
    pub const fn with_numerics(self, numerics: u32) -> Self {
        Self { numerics, ..self }
    }
}

impl Kernels {
    /// The kernels of products in pairs, if products of `n_rows` rows with weights of type `ty` are such.
    #[inline]
    pub(crate) fn pairs_for(&self, ty: GgmlType, n_rows: usize) -> Option<&PairProducts> {
        let are_paired = matches!(ty, GgmlType::F16 | GgmlType::BF16) && n_rows >= MANY_ROWS;
        self.pairs.as_ref().filter(|_| are_paired)
    }

    /// Whether pairs are summed as [`Simd::dot_pairs`] says; `false` of a table without pairs. Makers of processors describe the
    /// instruction alike, but not every one was tried.
    pub fn pairs_are_as_stated(&self) -> bool {
        self.pairs.as_ref().is_some_and(|pairs| (pairs.is_as_stated)())
    }

    /// Computes one chunk of a product.
    #[inline]
    pub(crate) fn multiply(&self, chunk: &MatmulChunk<'_>) {
        match (self.pairs_for(chunk.w.ty, chunk.n_rows), chunk.w.ty) {
            (Some(pairs), GgmlType::F16) => (pairs.of_f16)(chunk),
            (Some(pairs), GgmlType::BF16) => (pairs.of_bf16)(chunk),
            (Some(_), ty) => unreachable!("{} has no products in pairs", ty.name()),
            (None, _) => (self.matmul)(chunk),
        }
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("name", &self.name).finish_non_exhaustive()
    }
}
