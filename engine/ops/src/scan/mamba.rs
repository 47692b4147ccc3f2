//! The selective scan of Mamba-1 (arXiv 2312.00752, section 3.2) over the rows of each sequence.
//!
//! Every channel `c` and state index `n` decays by itself, with `Δ[c] = softplus(dt[c] + bias[c])`:
//!
//! - `S[c][n] = S[c][n] · exp(Δ[c] · A[c][n]) + B[n] · Δ[c] · u[c]`
//! - `y[c] = Σ_n S[c][n] · C[n] + D[c] · u[c]`, with `n` ascending
//!
//! Channels are independent. A tile of sixteen of them walks the rows of a part with its state at hand.

use brigade_shapes::{LANES, mamba_state_len};

use super::{Columns, ScanPart, check_columns};
use crate::carry::{carried, mapped};
use crate::place::Place;
use crate::vector::Vector;

/// The constants of a selective scan.
#[derive(Clone, Debug)]
pub struct MambaWeights {
    /// Number of channels.
    pub channels: usize,
    /// State values of each channel.
    pub n_state: usize,
    /// `A`, negative, `[tiles, n_state, 16]`; channels beyond the last are zero, here and below.
    pub a: Vector,
    /// `[tiles, 16]`: added to the step sizes before the softplus.
    pub dt_bias: Vector,
    /// `D`, `[tiles, 16]`.
    pub d: Vector,
}

/// Operands of a selective scan, one row for each token.
#[derive(Clone, Copy, Debug)]
pub struct MambaRows<V> {
    /// Inputs `u`, `[n_rows, channels]`.
    pub u: V,
    /// Step sizes before bias and softplus, `[n_rows, channels]`.
    pub dt: V,
    /// `B`, `[n_rows, n_state]`.
    pub b: V,
    /// `C`, `[n_rows, n_state]`.
    pub c: V,
    /// `y` is multiplied by `silu` of these `channels` columns.
    pub gate: Columns<V>,
}

/// The scan over the rows of `parts`.
pub struct MambaScan<'a, P: Place> {
    /// Constants of the layer.
    pub weights: &'a MambaWeights,
    /// Rows of each sequence, and its slot.
    pub parts: &'a [ScanPart],
    /// `[n_slots, weights.state_len()]`, which follow.
    pub states: P::Write<'a, f32>,
    /// Inputs, step sizes, `B`, `C` and the gate.
    pub rows: MambaRows<P::Read<'a, f32>>,
    /// `[n_rows, channels]`.
    pub out: P::Write<'a, f32>,
}

mapped!(MambaRows { u: read, dt: read, b: read, c: read, gate: rows });
carried!(MambaScan { weights: same, parts: same, states: write, rows: rows, out: write });

impl<P: Place> MambaScan<'_, P> {
    /// Panics if shapes disagree, or two parts share a slot. Gives the number of rows.
    #[inline]
    pub fn check(&self) -> usize {
        let MambaWeights { channels, n_state, a, dt_bias, d } = self.weights;
        let padded = channels.next_multiple_of(LANES);
        assert!(*n_state > 0 && a.len() == padded * n_state, "mamba: A");
        assert!(dt_bias.len() == padded && d.len() == padded, "mamba: a value for each channel");
        let n_out = P::len_mut(&self.out);
        let n_rows = n_out / channels;
        assert_eq!(n_out, n_rows * channels, "mamba: length of out");
        let MambaRows { u, dt, b, c, gate } = &self.rows;
        assert!(P::len(u) == n_out && P::len(dt) == n_out, "mamba: u and dt");
        assert!([b, c].iter().all(|x| P::len(x) == n_rows * n_state), "mamba: B and C");
        check_columns::<P>(gate, n_rows, *channels, "mamba: gate");
        let n_slots = P::len_mut(&self.states) / self.weights.state_len();
        ScanPart::check(self.parts, n_rows, n_slots, "mamba");
        n_rows
    }
}

impl MambaWeights {
    /// `a` as files hold it, `[channels, n_state]` and negative; `dt_bias` and `d` are `[channels]`.
    ///
    /// # Panics
    /// If lengths disagree.
    #[inline]
    pub fn new(a: &[f32], dt_bias: &[f32], d: &[f32]) -> Self {
        let channels = d.len();
        assert!(channels > 0 && dt_bias.len() == channels, "mamba: channels");
        let n_state = a.len() / channels;
        assert!(n_state > 0 && a.len() == channels * n_state, "mamba: states of a channel");
        let padded = channels.next_multiple_of(LANES);
        let pad = |x: &[f32]| (0..padded).map(|c| x.get(c).copied().unwrap_or(0.0)).collect();
        let by_state = |i: usize| {
            let (tile, n, lane) = (i / (n_state * LANES), i / LANES % n_state, i % LANES);
            a.get((tile * LANES + lane) * n_state + n).copied().unwrap_or(0.0)
        };
        let tiled = (0..padded * n_state).map(by_state).collect();
        Self { channels, n_state, a: tiled, dt_bias: pad(dt_bias), d: pad(d) }
    }

    /// Values of a sequence's state ([`mamba_state_len`]).
    #[inline]
    pub fn state_len(&self) -> usize {
        mamba_state_len(self.channels, self.n_state)
    }
}
