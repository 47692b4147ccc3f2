//! What Gemma 3n and Gemma 4's small models have around attention and FFN, as data: rows of a layer's own, streams that are
//! updated by turns, and a low-rank way past attention.

/// A row that the token has for the layer alone, which a gate of the stream opens: `norm(proj (gelu(inp_gate x) * row))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerRowSpec {
    /// Width of the row.
    pub width: usize,
    /// Layers from this one to the model's end: those whose rows the token still carries.
    pub n_left: usize,
    /// Epsilon of the norm.
    pub eps: f32,
    /// Where a token has several streams: the block then reads the first one times `altup_correct_scale`, and what it gives
    /// is added to the others.
    pub altup: Option<AltUpSpec>,
}

/// Several streams, of which the first is computed with (AltUp, arXiv 2301.13310, section 3). Before a layer's blocks all
/// streams are predicted from what they were; behind them all are corrected by how far the first is from its prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AltUpSpec {
    /// Streams, the first included.
    pub n: usize,
    /// Which of the tensors beside the first stream has the second.
    pub second: usize,
    /// Epsilon of the norm before the router.
    pub eps: f32,
}

impl AltUpSpec {
    /// Which tensors beside the first stream have the others.
    #[inline]
    pub fn others(&self) -> std::ops::Range<usize> {
        self.second..self.second + self.n - 1
    }

    /// Which has the first stream as it was predicted, within a layer.
    #[inline]
    pub fn prediction(&self) -> usize {
        self.others().end
    }
}

/// A low-rank way past attention (LAuReL, arXiv 2411.07501): `norm(laurel_r laurel_l x) + x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaurelSpec {
    /// Width in its middle.
    pub rank: usize,
    /// Epsilon of the norm.
    pub eps: f32,
}
