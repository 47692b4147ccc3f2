//! Sizes of hyper-connected streams.

/// Constants by which a projection's numbers become mixing weights of residual streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamShape {
    /// Number of streams.
    pub n: usize,
    /// Added to what is read, and to what divides.
    pub eps: f32,
    /// Factor on what is written.
    pub magnitude: f32,
    /// Added to the weights of that kind.
    pub post_eps: f32,
    /// Rounds that make the matrix doubly stochastic; `None`: streams do not mix.
    pub rounds: Option<usize>,
}

impl StreamShape {
    /// Whether rows of `width` numbers hold what is read alone, that and what is written, or these and the mixture.
    #[inline]
    pub fn fits(&self, width: usize) -> bool {
        let mixing = 2 * self.n + self.n * self.n;
        width == self.n || width == if self.rounds.is_some() { mixing } else { 2 * self.n }
    }
}
