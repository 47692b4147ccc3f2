//! Mirostat, version 2: keeps the surprise of a text near a goal (Basu et al., arXiv 2007.14966, algorithm 2).

use super::SampleError;
use super::filters::Candidates;
use crate::batch::Mirostat;

/// Inputs of a draw besides the candidates.
pub(super) struct Draw<'a> {
    /// `[n_vocab]`: logits of the row.
    pub row: &'a [f32],
    pub temperature: f32,
    /// `None`: it is the text's first token.
    pub mu: Option<f32>,
    /// Random number of the draw, uniform in 0..1.
    pub u: f64,
}

/// Draws a token; it, and mu for the next one.
pub(super) fn draw(
    goal: &Mirostat,
    candidates: &mut Candidates,
    of: Draw<'_>,
) -> Result<(u32, f32), SampleError> {
    candidates.take_top_k(of.row, 0);
    if candidates.is_empty() {
        return Err(SampleError::NothingLeft);
    }
    let mu = of.mu.unwrap_or_else(|| goal.first_mu());
    candidates.at_temperature(of.temperature);
    candidates.no_more_surprising_than(mu);
    let id = candidates.draw(1.0, of.u);
    let surprise = candidates.surprise(id);
    Ok((id, mu - goal.eta * (surprise - goal.tau)))
}
