//! Parameters of rotary positions, and their sines and cosines.

use std::sync::OnceLock;

use brigade_ops::{Angles, Vector};

pub use brigade_shapes::RopeLayout;

/// Parameters of the angles, the same for all rows of a model (or of a kind of layer).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParams {
    /// How a head's elements form pairs.
    pub layout: RopeLayout,
    /// Rotated elements at the start of a head, even; the rest is left alone.
    pub n_rot: usize,
    /// Base of the frequencies, e.g. 10000.
    pub freq_base: f32,
    /// Factor on every angle: 1 / linear scaling factor.
    pub freq_scale: f32,
    /// Divisors per pair (`[n_rot / 2]`), infinite for one that is not rotated; `None`: ones.
    pub freq_factors: Option<Vec<f32>>,
    /// Factor on sine and cosine, before YaRN's own.
    pub attn_factor: f32,
    /// YaRN mixing; `None`: none.
    pub yarn: Option<Yarn>,
}

/// Constants of YaRN's interpolation (arXiv 2309.00071).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Share of the extrapolated angle, 1 unless a model says otherwise.
    pub ext_factor: f32,
    /// Rotations above which a pair is fully extrapolated (32).
    pub beta_fast: f32,
    /// Rotations below which a pair is fully interpolated (1).
    pub beta_slow: f32,
    /// Context length of the training.
    pub n_ctx_orig: u32,
}

/// Cosines and sines of every row of a ubatch.
pub struct RopeTable {
    pub(crate) params: RopeParams,
    pub(crate) n_rows: usize,
    /// Per row the cosines of all pairs, then their sines.
    pub(crate) by_pair: Vector,
    /// Table of the inverse rotation, made when it is first used.
    pub(crate) backwards: OnceLock<Box<RopeTable>>,
}

/// One row of heads to rotate.
pub(crate) struct RopeRow<'a> {
    pub(crate) layout: RopeLayout,
    /// `[n_heads, head_dim]`.
    pub(crate) x: &'a mut [f32],
    pub(crate) head_dim: usize,
    /// Cosines of all pairs.
    pub(crate) cos: &'a [f32],
    /// Sines of all pairs.
    pub(crate) sin: &'a [f32],
}

impl RopeTable {
    /// The table that turns back what this one turned, as far as it has no magnitude.
    #[inline]
    pub fn backwards(&self) -> &Self {
        self.backwards.get_or_init(|| Box::new(self.turned_back()))
    }

    fn turned_back(&self) -> Self {
        let mut by_pair = self.by_pair.to_vec();
        let n_rot = self.params.n_rot;
        for row in by_pair.chunks_exact_mut(n_rot.max(1)) {
            row[n_rot / 2..].iter_mut().for_each(|sin| *sin = -*sin);
        }
        Self {
            params: self.params.clone(),
            n_rows: self.n_rows,
            by_pair: by_pair.into(),
            backwards: OnceLock::new(),
        }
    }

    /// The table as ops take it.
    #[inline]
    pub fn angles(&self) -> Angles<&Vector> {
        let RopeParams { n_rot, layout, .. } = self.params;
        Angles { by_pair: &self.by_pair, n_rot, layout }
    }

    /// Rows of the table.
    #[inline]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }
}
