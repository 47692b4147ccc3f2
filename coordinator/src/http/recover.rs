//! Going on with what the coordinator before this one had begun: its requests are read again, and their streams written
//! again from the beginning, out of tokens that were noted and of those that are still to be drawn.

use super::error::ApiError;
use super::events::{DONE, Of};
use super::{App, Stamp, chat, completions};
use crate::journal::{Opened, Recovered};

/// Goes on with the requests of the coordinator before this one, each by itself.
pub fn go_on(app: &App, recovered: Vec<Recovered>) {
    for request in recovered {
        let (opened, resumable) = app.streams.begin_again(request);
        let (app, stream) = (app.clone(), resumable.stream.clone());
        tracing::info!(request = opened.label, stream = opened.id, "goes on after a restart");
        tokio::spawn(async move {
            let label = opened.label.clone();
            let gone_on = match opened.kind.as_str() {
                chat::KIND => chat::go_on(app, opened, resumable).await,
                completions::KIND => completions::go_on(app, opened, resumable).await,
                other => Err(ApiError::server(format!("{other:?} is no form of answer"))),
            };
            if let Err(error) = gone_on {
                tracing::warn!(request = label, error = %error.body(), "cannot go on after a restart");
                // Whoever has come back for it hears why; an error is a stream that was given up.
                let _ = stream.push(Of::End, error.body().to_string());
                let _ = stream.push(Of::End, DONE.to_owned());
            }
        });
    }
}

impl Stamp {
    /// That of an answer which was begun by another coordinator.
    pub(super) fn again(app: &App, opened: &Opened) -> Self {
        Self { id: opened.id.clone(), created: opened.created, ..Self::new(app, "") }
    }
}
