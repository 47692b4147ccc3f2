//! What can be said against a request before a model is loaded or fetched for it: loads are costly for all others.
//!
//! The request's handler runs once with the model's text side alone, which takes no request. So everything that handlers
//! check is checked, in every API. Of a model that is not on this machine nothing is known; its requests are refused for
//! what no model would take.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;

use crate::app::{App, Door};
use crate::error::ApiError;
use crate::events::resumable::position;
use crate::fleet::{Chosen, Meant, NEED_A_LINE, Presence};
use crate::request::bodies;

/// A request that runs without a line, to be checked.
pub(crate) struct Trial {
    request: Request,
    /// Whether its model has been read.
    knows_model: bool,
}

impl Trial {
    /// The trial of a request; `None`: it needs no line, or the line of its model is up.
    pub(crate) fn of(request: &Request, model: &Chosen, door: &Arc<Door>) -> Option<Self> {
        // The body of a client that comes back for a stream has nothing new.
        let comes_back = !matches!(position(request.headers()), Ok(None));
        let is_run =
            request.method() == Method::POST && NEED_A_LINE.contains(&request.uri().path());
        if comes_back || !is_run {
            return None;
        }
        let here = model.here();
        let app = match &here {
            Some(member) if matches!(member.presence(), None | Some(Presence::Loaded)) => {
                return None;
            }
            Some(member) => member.app().clone(),
            None => App::of_no_model(door.clone()),
        };
        let mut request = bodies::once_more(request)?;
        request.extensions_mut().insert(Meant(app));
        Some(Self { request, knows_model: here.is_some() })
    }

    /// Checks the request; `next` would answer it.
    ///
    /// # Errors
    /// The error that the handler would give once the model is there.
    pub(crate) async fn check(self, next: Next) -> Result<(), ApiError> {
        let answer = next.run(self.request).await;
        match answer.extensions().get::<ApiError>() {
            Some(error) if error.is_final(self.knows_model) => Err(error.clone()),
            // What an answer without a line says is not what the client wants.
            _ => Ok(()),
        }
    }
}
