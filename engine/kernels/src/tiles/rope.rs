//! What decides the angles of rotary positions, and their sines and cosines.

use std::sync::OnceLock;

use brigade_ops::Vector;

pub use brigade_shapes::RopeLayout;

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
    pub(crate) params: RopeParams,
    pub(crate) layout: RopeLayout,
    pub(crate) n_rot: usize,
    pub(crate) n_rows: usize,
    /// Per row `n_rot` values. Norm: each cosine twice. Neox: cosines, then sines.
    pub(crate) cos: Vector,
    /// Per row `n_rot` values. Norm: `-sin, sin` per pair. Neox: unused and empty.
    pub(crate) sin: Vector,
    /// Per row the cosines of all pairs, then their sines, whatever the layout; made when it is asked for.
    pub(crate) by_pair: OnceLock<Vector>,
    /// What turns back; made when it is asked for.
    pub(crate) backwards: OnceLock<Box<RopeTable>>,
}

/// One row of heads to rotate.
pub(crate) struct RopeRow<'a> {
    pub(crate) layout: RopeLayout,
    /// `[n_heads, head_dim]`.
    pub(crate) x: &'a mut [f32],
    pub(crate) head_dim: usize,
    /// As in [`RopeTable`].
    pub(crate) cos: &'a [f32],
    /// As in [`RopeTable`]; for Neox the sines, `[n_rot / 2]`.
    pub(crate) sin: &'a [f32],
}

impl RopeTable {
    /// Rotated elements at the start of a head.
    #[inline]
    pub fn n_rot(&self) -> usize {
        self.n_rot
    }

    /// Pairing.
    #[inline]
    pub fn layout(&self) -> RopeLayout {
        self.layout
    }

    /// The table that turns back what this one turned, as far as it has no magnitude.
    #[inline]
    pub fn backwards(&self) -> &Self {
        self.backwards.get_or_init(|| Box::new(self.turned_back()))
    }

    fn turned_back(&self) -> Self {
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
        Self {
            params: self.params.clone(),
            cos: cos.into(),
            sin: sin.into(),
            by_pair: OnceLock::new(),
            backwards: OnceLock::new(),
            ..*self
        }
    }

    /// Per row the cosines of all pairs, then their sines, `[n_rows, n_rot]`.
    #[inline]
    pub fn by_pair(&self) -> &Vector {
        self.by_pair.get_or_init(|| match self.layout {
            RopeLayout::Neox => self.cos.clone(),
            RopeLayout::Norm => {
                let rows = self.cos.chunks_exact(self.n_rot).zip(self.sin.chunks_exact(self.n_rot));
                let of_row = |(cos, sin): (&'_ [f32], &'_ [f32])| -> Vec<f32> {
                    let (cos, sin) = (cos.iter().step_by(2), sin[1..].iter().step_by(2));
                    cos.chain(sin).copied().collect()
                };
                rows.flat_map(of_row).collect()
            }
        })
    }

    /// Rows of the table.
    #[inline]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    #[inline]
    pub(crate) fn row(&self, r: usize) -> (&[f32], &[f32]) {
        let row = r * self.n_rot..(r + 1) * self.n_rot;
        match self.layout {
            RopeLayout::Norm => (&self.cos[row.clone()], &self.sin[row]),
            RopeLayout::Neox => self.cos[row].split_at(self.n_rot / 2),
        }
    }
}
