//! Sizes of delta rules: KDA (arXiv 2510.26692) and the gated delta net (arXiv 2412.06464).

/// Key head of a value head, where there are fewer key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// Value head `h` uses key head `h / (n_head / n_key_head)`.
    Grouped,
    /// Value head `h` uses key head `h % n_key_head`.
    Tiled,
}

/// Values of the state that decay together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// Each key channel by a factor of its own.
    PerChannel,
    /// A whole head by one factor.
    PerHead,
}

/// Sizes of a delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Value heads, each with a state.
    pub n_head: usize,
    /// Query and key heads; divides `n_head`.
    pub n_key_head: usize,
    /// Key head of each value head.
    pub key_heads: KeyHeads,
    /// Width of a query or key head, at most 512.
    pub d_k: usize,
    /// Width of a value head.
    pub d_v: usize,
    /// Granularity of the decay.
    pub decay: Decay,
}

impl DeltaShape {
    /// Values of a sequence's state.
    #[inline]
    pub fn state_len(&self) -> usize {
        self.n_head * self.d_k * self.d_v
    }

    /// Values of a row of decay factors.
    #[inline]
    pub fn decay_len(&self) -> usize {
        match self.decay {
            Decay::PerChannel => self.n_head * self.d_k,
            Decay::PerHead => self.n_head,
        }
    }

    /// The key head of value head `head`.
    #[inline]
    pub fn key_head(&self, head: usize) -> usize {
        match self.key_heads {
            KeyHeads::Grouped => head / (self.n_head / self.n_key_head),
            KeyHeads::Tiled => head % self.n_key_head,
        }
    }
}
