//! Blocks of Gemma 3n and of Gemma 4's small models beside attention and FFN, as data: rows of a layer's own, and a
//! low-rank path beside attention.

/// A row that the token has for the layer alone, which a gate of the stream opens: `norm(proj (gelu(inp_gate x) * row))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerRowSpec {
    /// Width of the row.
    pub width: usize,
    /// Layers from this one to the model's end: those whose rows the token still carries.
    pub n_left: usize,
    /// Epsilon of the norm.
    pub eps: f32,
}

/// A low-rank way past attention (LAuReL, arXiv 2411.07501): `norm(laurel_r laurel_l x) + x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaurelSpec {
    /// Width in its middle.
    pub rank: usize,
    /// Epsilon of the norm.
    pub eps: f32,
}
