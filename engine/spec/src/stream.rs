//! Two blocks that Gemma 3n and small models of Gemma 4 have beside attention and FFN, as data: a row that each token has for
//! each layer, and a low-rank path beside attention.

/// The row that a token has for this layer alone. A gate, which is made of the residual stream, scales it: `norm(proj (gelu(inp_gate x) * row))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerRowSpec {
    /// Width of the row.
    pub width: usize,
    /// Number of layers from this one on to the model's end, this one included: their rows still travel with the token.
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
