//! Texts as vectors: the rows that the head's norm makes of their tokens, pooled.
//!
//! Several texts of a request are in the line at once, so that its stages work on different ones, and texts of an
//! encoder fill its ubatches.

use brigade_dialect::pooling::Pooling;
use brigade_line::adapters::AdapterWish;
use brigade_line::handle::Failure;
use brigade_line::request::Request as SeqRequest;
use brigade_line::vector::pool;
use tokio::task::JoinSet;

use super::app::App;
use super::error::ApiError;
use super::name::Name;

/// Texts of one request in the line at once, where as many sequences may be. Each brings rows as large as its
/// tokens are many.
const AT_ONCE: usize = 8;

type Pooled = (usize, Result<Vec<f32>, Failure>);

/// A vector for each of `texts`, `[n_texts][n_embd]`.
///
/// # Errors
/// A text is too long, or the line fails.
pub(super) async fn vectors(
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
    for (index, tokens) in texts.into_iter().enumerate() {
        if running.len() == at_once {
            take_one(&mut running, name, &mut vectors).await?;
        }
        let n_tokens = tokens.len();
        let request = SeqRequest::hidden(tokens, pooling, &app.limits.now())?.named(&name.id);
        let request = request.adapted(adapters.clone());
        let request = request.owned(name.tally.share(), name.tally.force(), None);
        name.tally.submitted(n_tokens, 0);
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
) -> Result<(), ApiError> {
    let Some(ended) = running.join_next().await else { return Ok(()) };
    let (index, pooled) = ended.map_err(|error| {
        let reason = format!("a text's rows were not read: {error}");
        ApiError::from(Failure::Internal { reason })
    })?;
    vectors[index] = pooled.inspect_err(|failure| name.tally.failed(failure))?;
    name.tally.computed();
    Ok(())
}
