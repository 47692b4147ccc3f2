//! Log-probabilities of a prompt's own tokens, for answers that repeat the prompt: how measuring programs such as
//! lm-eval find out how probable a text is.

use brigade_engine::sample::log_probs;
use brigade_line::adapters::AdapterWish;
use brigade_line::generation::TokenPiece;
use brigade_line::handle::SeqEvent;
use brigade_line::request::{MAX_TOP_LOGPROBS, Request};

use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;

/// The tokens of a prompt with their log-probabilities and `top` alternatives each. The first one has none: nothing
/// stands before it.
pub(crate) async fn pieces(
    app: &App,
    name: &Name,
    tokens: &[u32],
    top: u32,
    lora: Option<&[AdapterWish]>,
) -> Result<Vec<TokenPiece>, ApiError> {
    if top > MAX_TOP_LOGPROBS {
        let message = format!("logprobs is {top}: at most {MAX_TOP_LOGPROBS}");
        return Err(ApiError::field("logprobs", message));
    }
    let request = Request::logits(tokens.to_vec(), &app.limits.now())?.named(&name.id);
    let request = request.adapted(app.adapters_of(lora)?);
    let request = request.owned(name.usage.share(), name.usage.force(), None);
    let mut sequence = app.engine.submit(app.next_id(), request).await?;
    let piece = |id: u32| TokenPiece {
        id,
        bytes: app.text.token_bytes(id),
        logprob: None,
        top: Vec::new(),
    };
    let mut pieces: Vec<TokenPiece> = tokens.iter().map(|id| piece(*id)).collect();
    loop {
        match sequence.next().await {
            Some(SeqEvent::Logits { pos, row }) => {
                let at = pos as usize + 1;
                let Some(next) = tokens.get(at).copied() else { continue };
                // A row has as many values as there are tokens: beside the event loop.
                let work = move || log_probs(&row, next, top as usize);
                let counted = tokio::task::spawn_blocking(work).await;
                let counted = counted.map_err(|error| ApiError::server(error.to_string()))?;
                let (own, best) = counted.map_err(|error| ApiError::server(error.to_string()))?;
                (pieces[at].logprob, pieces[at].top) = (Some(own), best);
            }
            Some(SeqEvent::Finished(_)) | None => return Ok(pieces),
            Some(SeqEvent::Failed(failure)) => return Err(failure.into()),
            Some(SeqEvent::Token(_)) => {
                return Err(ApiError::server("a prompt's rows came as tokens"));
            }
        }
    }
}
