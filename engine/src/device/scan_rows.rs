//! Operands of convolutions and recurrences: rows, and columns of them.

use super::Rows;
use crate::kernels::{self, Vector};

/// Columns of rows, from `first_col` on.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    /// The rows.
    pub rows: &'a Rows,
    /// Where the wanted columns start.
    pub first_col: usize,
}

/// Operands of [`Device::ssd`], columns of `[n_rows, ..]` each.
#[derive(Clone, Copy)]
pub struct SsdInput<'a> {
    /// `[n_rows, n_head * head_dim]`.
    pub x: Columns<'a>,
    /// `[n_rows, n_group * n_state]`.
    pub b: Columns<'a>,
    /// `[n_rows, n_group * n_state]`.
    pub c: Columns<'a>,
    /// `[n_rows, n_head]`: time steps before bias and softplus.
    pub dt: Columns<'a>,
}

/// Operands of [`Device::delta_scan`].
#[derive(Clone, Copy)]
pub struct DeltaRows<'a> {
    /// `[n, n_key_head, d_k]`, normed by the caller.
    pub q: Columns<'a>,
    /// `[n, n_key_head, d_k]`, normed by the caller.
    pub k: Columns<'a>,
    /// `[n, n_head, d_v]`.
    pub v: Columns<'a>,
    /// Decay factors in 0..=1, `[n, n_head, d_k]` or `[n, n_head]`.
    pub decay: Columns<'a>,
    /// `[n, n_head]`, in 0..=1.
    pub beta: Columns<'a>,
}

/// Operands of [`Device::mamba_scan`].
#[derive(Clone, Copy)]
pub struct MambaRows<'a> {
    /// Inputs `u`, `[n_rows, channels]`.
    pub u: &'a Rows,
    /// Step sizes before bias and softplus, `[n_rows, channels]`.
    pub dt: &'a Rows,
    /// `B`, `[n_rows, n_state]`.
    pub b: &'a Rows,
    /// `C`, `[n_rows, n_state]`.
    pub c: &'a Rows,
    /// `y` is multiplied by `silu` of these `channels` columns.
    pub gate: Columns<'a>,
}

/// Operands of [`Device::wkv6`], `[n_rows, n_heads * d]` each.
#[derive(Clone, Copy)]
pub struct Wkv6Rows<'a> {
    /// Receptance: reads the state out.
    pub r: &'a Rows,
    /// Decay of each key, in 0..=1.
    pub w: &'a Rows,
    /// Keys.
    pub k: &'a Rows,
    /// Values.
    pub v: &'a Rows,
    /// How much of a row's own key and value is read, `[n_heads * d]`; see [`kernels::Wkv6Rows::own`].
    pub own: Option<&'a Vector>,
}

/// Operands of [`Device::wkv7`] and [`Device::wkv7_bonus`], `[n_rows, n_heads * d]` each.
#[derive(Clone, Copy)]
pub struct Wkv7Rows<'a> {
    /// Receptance: reads the state out.
    pub r: &'a Rows,
    /// Decay of each key, in 0..1.
    pub w: &'a Rows,
    /// Keys.
    pub k: &'a Rows,
    /// Values.
    pub v: &'a Rows,
    /// Normed removal keys `κ`.
    pub kappa: &'a Rows,
    /// Their learning rates times themselves, `κ ⊙ a`.
    pub kappa_a: &'a Rows,
}

impl<'a> Columns<'a> {
    /// All columns.
    pub fn whole(rows: &'a Rows) -> Self {
        Self { rows, first_col: 0 }
    }

    pub(super) fn on_host(self) -> kernels::Columns<'a> {
        let Self { rows, first_col } = self;
        kernels::Columns { data: rows, stride: rows.cols(), first_col }
    }
}

impl<'a> Wkv7Rows<'a> {
    pub(super) fn on_host(self) -> kernels::Wkv7Rows<'a> {
        let Self { r, w, k, v, kappa, kappa_a } = self;
        kernels::Wkv7Rows { r, w, k, v, kappa, kappa_a }
    }
}
