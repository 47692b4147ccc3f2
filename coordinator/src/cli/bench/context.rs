//! `bench --depth N`: N tokens that each sequence has behind it when a test begins.
//!
//! They are computed before the clock starts, as prompts of their own, and their states are kept. The
//! sequences of the test begin as copies of them. A test fails if one of its sequences had to begin without
//! its whole context.

use anyhow::{Context, Result, bail};
use brigade_engine::kernels::KV_PAGE;
use brigade_line::handle::Sequence;
use brigade_line::request::Request;
use brigade_plan::MAX_KEEP;

use super::{Bench, Test, finish, random_tokens, request};

/// Sequence numbers of the tokens after contexts, apart from those of the contexts.
const AFTER: u32 = 1 << 24;

/// Positions of a sequence that grows by `more` at this depth. A copy shares a context's full pages only, and there
/// is to be room for both.
pub(super) fn positions(depth: u32, more: u32) -> Result<u32> {
    let sum = depth.checked_add(more).and_then(|n| n.checked_add(KV_PAGE as u32));
    sum.with_context(|| format!("--depth {depth} is beyond any sequence"))
}

/// Sequences to be kept: a context for each stream, and as many of the test, which may end before the last stream has begun.
pub(super) fn kept(streams: u32) -> Result<u32> {
    let n = 2 * streams;
    if n > MAX_KEEP {
        bail!("--depth takes at most {} sequences at once", MAX_KEEP / 2);
    }
    Ok(n)
}

/// Every sequence began behind its whole context and no more; `depth` 0: wherever it did.
pub(super) fn check(sequences: &[Sequence], depth: u32) -> Result<()> {
    match sequences.iter().find(|s| depth > 0 && s.reused() != depth) {
        None => Ok(()),
        Some(other) => bail!(
            "a sequence reused only {} of {depth} tokens: the memory does not hold all contexts; give --depth or --parallel a smaller number",
            other.reused()
        ),
    }
}

impl Bench<'_> {
    /// Computes and keeps every stream's context.
    pub(super) async fn fill(&self, parallel: u32) -> Result<()> {
        let mut sequences = Vec::new();
        for sequence in 0..parallel {
            let filled = request(self.context(sequence), 1, self.session)?;
            sequences.push(self.session.submit(filled).await?);
        }
        for sequence in &mut sequences {
            finish(sequence).await?;
        }
        Ok(())
    }

    fn context(&self, sequence: u32) -> Vec<u32> {
        random_tokens(self.args.depth, sequence, self.session.limits.now().n_vocab)
    }

    /// A request of the test; at a depth its own tokens are others each time, so that no more than the context is
    /// there already.
    pub(super) fn request(&self, test: Test, sequence: u32, depth: u32) -> Result<Request> {
        if depth == 0 {
            return test.request(sequence, self.session);
        }
        let n = self.n_requests.get();
        self.n_requests.set(n + 1);
        let (n_prompt, max_tokens) = test.lengths();
        let mut tokens = self.context(sequence);
        tokens.extend(random_tokens(n_prompt, AFTER + n, self.session.limits.now().n_vocab));
        request(tokens, max_tokens, self.session)
    }
}
