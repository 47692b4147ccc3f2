//! Rotary positions: the angles of a ubatch, computed once for all layers, and their application.
//!
//! The angle of pair `i` at position `p` is `p * base^(-2i/n_rot) / factor_i`. It is computed step by step in
//! f32 (each step multiplies by `base^(-2/n_rot)`), because that is how models are run elsewhere. YaRN mixes
//! interpolated and extrapolated angles by a ramp over the pairs. Sine and cosine are computed in f64 by pure
//! Rust code and then rounded, so that every machine has the same table.

use std::f64::consts::PI;
use std::sync::OnceLock;

use crate::compute::Compute;
use crate::tiles::attention::rope::{RopeParams, RopeRow, RopeTable, Yarn};
use crate::tiles::out_rows::Rows;
use brigade_ops::{Angles, Host, Rope};

impl RopeTable {
    /// Angles for rows at `positions`.
    ///
    /// # Panics
    /// If `n_rot` is odd or the factors are not one per pair.
    pub fn new(compute: &Compute, params: &RopeParams, positions: &[u32]) -> Self {
        let n_rot = params.n_rot;
        assert!(n_rot.is_multiple_of(2), "rope: {n_rot} rotated elements are not pairs");
        if let Some(factors) = &params.freq_factors {
            assert_eq!(factors.len(), n_rot / 2, "rope: factors are one per pair");
        }
        let n_rows = positions.len();
        let mut by_pair = vec![0.0; n_rows * n_rot];
        if n_rot > 0 {
            params.fill(compute, positions, &mut by_pair);
        }
        let (params, by_pair) = (params.clone(), by_pair.into());
        Self { params, n_rows, by_pair, backwards: OnceLock::new() }
    }

    /// Angles of the same rotation at other positions.
    pub fn at(&self, compute: &Compute, positions: &[u32]) -> Self {
        Self::new(compute, &self.params, positions)
    }
}

/// Cost of a sine and a cosine, in elements of an elementwise op.
const SINCOS_COST: usize = 32;

/// Between which pairs YaRN's ramp runs.
struct Ramp {
    low: f32,
    high: f32,
    ext_factor: f32,
    /// Factor on sine and cosine: `1 + 0.1 ln(1 / freq_scale)`.
    magnitude: f32,
}

impl Yarn {
    fn ramp(&self, params: &RopeParams) -> Ramp {
        let n_rot = params.n_rot as f32;
        let dim = |beta: f32| {
            let turns = f64::from(self.n_ctx_orig) / (f64::from(beta) * 2.0 * PI);
            (f64::from(n_rot) * libm::log(turns) / (2.0 * libm::log(f64::from(params.freq_base))))
                as f32
        };
        Ramp {
            low: dim(self.beta_fast).floor().max(0.0),
            high: dim(self.beta_slow).ceil().min(n_rot - 1.0),
            ext_factor: self.ext_factor,
            magnitude: 1.0 + 0.1 * (-libm::log(f64::from(params.freq_scale))) as f32,
        }
    }
}

impl RopeParams {
    /// Fills the table for rows at `positions`, as [`RopeTable`] has it.
    fn fill(&self, compute: &Compute, positions: &[u32], by_pair: &mut [f32]) {
        let n_rot = self.n_rot;
        let ramp = self.yarn.map(|yarn| yarn.ramp(self));
        let rows = Rows::new(by_pair, n_rot);
        compute.for_rows(positions.len(), n_rot * SINCOS_COST, &|range| {
            for r in range {
                // SAFETY: `for_rows` hands out each row once.
                let (cos, sin) = unsafe { rows.rows(r..r + 1) }.split_at_mut(n_rot / 2);
                self.angles(positions[r], ramp.as_ref(), |i, c, s| (cos[i], sin[i]) = (c, s));
            }
        });
    }

    /// Calls `put(pair, cos, sin)` for each pair of a row at position `p`.
    fn angles(&self, p: u32, ramp: Option<&Ramp>, mut put: impl FnMut(usize, f32, f32)) {
        let step = libm::pow(f64::from(self.freq_base), f64::from(-2.0 / self.n_rot as f32)) as f32;
        let mut theta = p as f32;
        for i in 0..self.n_rot / 2 {
            let extrapolated = theta / self.freq_factors.as_ref().map_or(1.0, |f| f[i]);
            let interpolated = self.freq_scale * extrapolated;
            let (angle, magnitude) = match ramp {
                None => (interpolated, self.attn_factor),
                Some(ramp) => {
                    let slope = (i as f32 - ramp.low) / (ramp.high - ramp.low).max(0.001);
                    let mix = (1.0 - slope.clamp(0.0, 1.0)) * ramp.ext_factor;
                    let angle = interpolated * (1.0 - mix) + extrapolated * mix;
                    (angle, self.attn_factor * ramp.magnitude)
                }
            };
            let (sin, cos) = libm::sincos(f64::from(angle));
            put(i, cos as f32 * magnitude, sin as f32 * magnitude);
            theta *= step;
        }
    }
}

impl Compute {
    /// Rotates `x` (`[n_rows, n_heads, head_dim]`) in place, row `r` by the table's row `r`.
    ///
    /// # Panics
    /// If the shapes disagree or the table rotates more than a head.
    pub fn rope(&self, x: &mut [f32], head_dim: usize, table: &RopeTable) {
        self.rotate(Rope { x, head_dim, angles: table.angles().map(|values| &values[..]) });
    }

    /// Runs the op [`Rope`].
    pub(crate) fn rotate(&self, op: Rope<'_, Host>) {
        let n_rows = op.check();
        if n_rows == 0 {
            return;
        }
        let Rope { x, head_dim, angles: Angles { by_pair, n_rot, layout } } = op;
        let (row_len, rotate) = (x.len() / n_rows, self.kernels().rope);
        self.each_row(x, row_len, "rope", &|r, x| {
            let (cos, sin) = by_pair[r * n_rot..][..n_rot].split_at(n_rot / 2);
            rotate(&mut RopeRow { layout, x, head_dim, cos, sin });
        });
    }
}
