//! Mirostat, version 2: keeps the surprise of a text near a goal (Basu et al., arXiv 2007.14966, algorithm 2).

use super::SampleError;
use super::filters::Candidates;
use crate::batch::Mirostat;

impl Mirostat {
    /// Draws with the random number `u`; the token, and mu for the next one.
    pub(super) fn draw(
        &self,
        candidates: &mut Candidates,
        row: &[f32],
        temperature: f32,
        mu: Option<f32>,
        u: f64,
    ) -> Result<(u32, f32), SampleError> {
        candidates.take_top_k(row, 0);
        if candidates.is_empty() {
            return Err(SampleError::NothingLeft);
        }
        let mu = mu.unwrap_or_else(|| self.first_mu());
        candidates.at_temperature(temperature);
        candidates.no_more_surprising_than(mu);
        let id = candidates.draw(1.0, u);
        let surprise = candidates.surprise(id);
        Ok((id, mu - self.eta * (surprise - self.tau)))
    }
}
