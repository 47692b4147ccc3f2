//! What decides the angles of rotary positions, and their sines and cosines.

use crate::kernels::vector::Vector;

/// Which elements of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Pair `i` is `(2i, 2i + 1)`.
    Norm,
    /// Pair `i` is `(i, i + n_rot / 2)`.
    Neox,
}

/// What decides the angles; the same for all rows of a model (or of a layer kind).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParams {
    /// Pairing.
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

/// YaRN's constants.
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

/// Cosines and sines of every row of a ubatch, in the order the kernel reads them.
pub struct RopeTable {
    pub(in crate::kernels) params: RopeParams,
    pub(in crate::kernels) layout: RopeLayout,
    pub(in crate::kernels) n_rot: usize,
    pub(in crate::kernels) n_rows: usize,
    /// Per row `n_rot` values. Norm: each cosine twice. Neox: cosines, then sines.
    pub(in crate::kernels) cos: Vector,
    /// Per row `n_rot` values. Norm: `-sin, sin` per pair. Neox: unused and empty.
    pub(in crate::kernels) sin: Vector,
}

/// One row of heads to rotate.
pub(in crate::kernels) struct RopeRow<'a> {
    pub(in crate::kernels) layout: RopeLayout,
    /// `[n_heads, head_dim]`.
    pub(in crate::kernels) x: &'a mut [f32],
    pub(in crate::kernels) head_dim: usize,
    /// As in [`RopeTable`].
    pub(in crate::kernels) cos: &'a [f32],
    /// As in [`RopeTable`]; for Neox the sines, `[n_rot / 2]`.
    pub(in crate::kernels) sin: &'a [f32],
}

impl RopeTable {
    /// The table that turns back what this one turned, as far as it has no magnitude.
    pub fn backwards(&self) -> Self {
        let (mut cos, mut sin) = (self.cos.to_vec(), self.sin.to_vec());
        match self.layout {
            RopeLayout::Norm => sin.iter_mut().for_each(|sin| *sin = -*sin),
            RopeLayout::Neox => {
                let half = self.n_rot / 2;
                for row in cos.chunks_exact_mut(self.n_rot.max(1)) {
                    row[half..].iter_mut().for_each(|sin| *sin = -*sin);
                }
            }
        }
        Self { params: self.params.clone(), cos: cos.into(), sin: sin.into(), ..*self }
    }

    /// Rows of the table.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(in crate::kernels) fn row(&self, r: usize) -> (&[f32], &[f32]) {
        let row = r * self.n_rot..(r + 1) * self.n_rot;
        match self.layout {
            RopeLayout::Norm => (&self.cos[row.clone()], &self.sin[row]),
            RopeLayout::Neox => self.cos[row].split_at(self.n_rot / 2),
        }
    }
}
