//! Texts as vectors: the rows that the head's norm makes of their tokens, pooled.
//!
//! Several texts of a request are in the line at once, so that its stages work on different ones, and texts of an
//! encoder fill its ubatches.

use brigade_dialect::pooling::Pooling;
use brigade_line::adapters::AdapterWish;
use brigade_line::handle::Failure;
use brigade_line::request::{Limits, Request as SeqRequest};
use brigade_line::vector::pool;
use tokio::task::JoinSet;

use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;

/// Texts of one request in the line at once, where as many sequences may be. Each brings rows as large as its
/// tokens are many.
const AT_ONCE: usize = 8;

/// Limit of tokens of one request's texts in the line at once, unless a single text is longer. Requests that arrive
/// later then find no more than this many rows before them.
const TOKENS_AT_ONCE: usize = 8192;

/// Most tokens of all texts of a request.
pub const MAX_REQUEST_TOKENS: usize = 300_000;

/// Counts the tokens of a request's texts while they are read.
#[derive(Debug, Default)]
pub(crate) struct Tokens(usize);

impl Tokens {
    /// Takes in a text of the field `field`.
    ///
    /// # Errors
    /// The texts have more tokens than a request may have.
    pub fn add(&mut self, field: &str, text: Vec<u32>) -> Result<Vec<u32>, ApiError> {
        self.0 = self.0.saturating_add(text.len());
        if self.0 > MAX_REQUEST_TOKENS {
            let message = format!(
                "{field} has more than {MAX_REQUEST_TOKENS} tokens in all, the most of one request: send its texts in several \
                 requests"
            );
            return Err(ApiError::field(field, message));
        }
        Ok(text)
    }
}

/// Refuses several prompts that have more tokens in all than one request may.
///
/// # Errors
/// 400, with what to do.
pub(crate) fn check_prompts(n_tokens: usize, limits: &Limits) -> Result<(), ApiError> {
    let most = MAX_REQUEST_TOKENS.max(limits.n_ctx as usize);
    if n_tokens <= most {
        return Ok(());
    }
    let message = format!(
        "prompt has more than {most} tokens in all, the most of one request: send its prompts in several requests"
    );
    Err(ApiError::field("prompt", message))
}

/// How many of some texts, whose lengths these are, go into the line beside those that are there: as many as keep all
/// together small, and one at least.
fn may_join(running: &[usize], next: usize, at_once: usize) -> bool {
    running.is_empty()
        || (running.len() < at_once && running.iter().sum::<usize>() + next <= TOKENS_AT_ONCE)
}

type Pooled = (usize, Result<Vec<f32>, Failure>);

/// A vector for each of `texts`, `[n_texts][n_embd]`.
///
/// # Errors
/// A text is too long, or the line fails.
pub(crate) async fn vectors(
    app: &App,
    name: &Name,
    texts: Vec<Vec<u32>>,
    pooling: Pooling,
    lora: Option<&[AdapterWish]>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let adapters = app.adapters_of(lora)?;
    let at_once = AT_ONCE.min(app.max_seqs as usize).max(1);
    let mut vectors = vec![Vec::new(); texts.len()];
    let mut running: JoinSet<Pooled> = JoinSet::new();
    // By number, tokens of those that are in the line.
    let mut lengths: Vec<(usize, usize)> = Vec::new();
    for (index, tokens) in texts.into_iter().enumerate() {
        let n_tokens = tokens.len();
        let all = |lengths: &[(usize, usize)]| lengths.iter().map(|(_, n)| *n).collect::<Vec<_>>();
        while !may_join(&all(&lengths), n_tokens, at_once) {
            let done = take_one(&mut running, name, &mut vectors).await?;
            lengths.retain(|(index, _)| Some(*index) != done);
        }
        lengths.push((index, n_tokens));
        let request = SeqRequest::hidden(tokens, pooling, &app.limits.now())?.named(&name.id);
        let request = request.adapted(adapters.clone());
        let request = request.owned(name.usage.share(), name.usage.force(), None);
        name.usage.submitted(n_tokens, n_tokens);
        let sequence = app.engine.submit(app.next_id(), request).await?;
        running.spawn(async move { (index, pool(sequence, pooling).await) });
    }
    while !running.is_empty() {
        take_one(&mut running, name, &mut vectors).await?;
    }
    Ok(vectors)
}

async fn take_one(
    running: &mut JoinSet<Pooled>,
    name: &Name,
    vectors: &mut [Vec<f32>],
) -> Result<Option<usize>, ApiError> {
    let Some(ended) = running.join_next().await else { return Ok(None) };
    let (index, pooled) = ended.map_err(|error| {
        let reason = format!("a text's rows were not read: {error}");
        ApiError::from(Failure::Internal { reason })
    })?;
    vectors[index] = pooled.inspect_err(|failure| name.usage.failed(failure))?;
    name.usage.computed();
    Ok(Some(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_holds_so_many_tokens_and_has_few_in_the_line() {
        let mut tokens = Tokens::default();
        for _ in 0..MAX_REQUEST_TOKENS / 1000 {
            assert!(tokens.add("input", vec![1; 1000]).is_ok());
        }
        let error = tokens.add("input", vec![1]).unwrap_err();
        let message = error.body().to_string();
        assert!(error.status() == 400 && message.contains("several requests"), "{message}");
        for (running, next, may) in [
            (&[][..], TOKENS_AT_ONCE * 4, true),
            (&[100; 7], 100, true),
            (&[100; 8], 100, false),
            (&[TOKENS_AT_ONCE - 10], 10, true),
            (&[TOKENS_AT_ONCE - 10], 11, false),
        ] {
            assert_eq!(may_join(running, next, AT_ONCE), may, "{running:?} and {next}");
        }
    }
}
