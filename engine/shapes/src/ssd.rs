//! Sizes of Mamba-2's recurrence (SSD, arXiv 2405.21060).

/// Sizes of the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdShape {
    /// Number of heads.
    pub n_head: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Width of B and C: state values of a channel, at most 512.
    pub n_state: usize,
    /// Groups of neighbouring heads that share B and C; divides `n_head`.
    pub n_group: usize,
}

impl SsdShape {
    /// Channels of all heads.
    #[inline]
    pub fn n_inner(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Width of B, and of C, over all groups.
    #[inline]
    pub fn n_bc(&self) -> usize {
        self.n_group * self.n_state
    }

    /// Values of a head's state.
    #[inline]
    pub fn head_state(&self) -> usize {
        self.n_state * self.head_dim
    }

    /// Values of a sequence's state, `[n_head, n_state, head_dim]`.
    #[inline]
    pub fn state_len(&self) -> usize {
        self.n_inner() * self.n_state
    }
}
