//! Going on with what the coordinator before this one had begun: its requests are read again, and their streams written
//! again from the beginning, out of tokens that were noted and of those that are still to be drawn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::Method;

use super::error::ApiError;
use super::params::Common;
use super::streams::Resumable;
use super::tally::{Line, Owner, Tally};
use super::{App, Stamp, chat, completions, trace};
use crate::clock;
use crate::journal::{Opened, Recovered};

/// Goes on with the requests of the coordinator before this one, each by itself.
pub fn go_on(app: &App, recovered: Vec<Recovered>) {
    for request in recovered {
        let label = request.opened.label.clone();
        match app.access.owner_again(request.opened.owner) {
            Ok(owner) => drop(tokio::spawn(one(app.clone(), request, owner))),
            Err(error) => {
                tracing::warn!(request = label, error = %error.body(), "does not go on after a restart");
                request.entry.over();
            }
        }
    }
}

/// Goes on with one of them, to its end.
async fn one(app: App, recovered: Recovered, owner: Option<Owner>) {
    let (opened, resumable) = app.streams.begin_again(recovered);
    let (label, stream) = (opened.label.clone(), resumable.stream.clone());
    tracing::info!(request = label, stream = opened.id, "goes on after a restart");
    let tally = Arc::new(Tally::default());
    if let Some(owner) = owner {
        // Its limits let it begin once: they do not end it now.
        if let Ok(ticket) = owner.account.begin(Instant::now()) {
            tally.runs(Arc::new(ticket));
        }
        tally.belongs_to(owner);
    }
    let name = trace::Name { id: label.as_str().into(), tally };
    let _line = Line {
        id: name.id.clone(),
        method: Method::POST,
        path: opened.path.clone(),
        model: app.text.name().to_string(),
        status: 200,
        started: Instant::now(),
        tally: name.tally.clone(),
        audit: app.audit.clone(),
    };
    let again = Again { stamp: Stamp::again(&app, &opened), app, name, opened, resumable };
    let gone_on = match again.opened.path.as_str() {
        chat::PATH => chat::go_on(again).await,
        completions::PATH => completions::go_on(again).await,
        other => Err(ApiError::server(format!("{other:?} has no resumable answers"))),
    };
    if let Err(error) = gone_on {
        tracing::warn!(request = label, error = %error.body(), "cannot go on after a restart");
        // Whoever has come back for it hears why.
        stream.fail(&error);
    }
}

/// A request that goes on.
pub(super) struct Again {
    pub app: App,
    pub name: trace::Name,
    pub stamp: Stamp,
    pub opened: Opened,
    pub resumable: Resumable,
}

impl Opened {
    /// Makes what was read again from its body what it was: its seed may have been drawn, and some of its time has
    /// passed.
    pub(super) fn restore(&self, common: &mut Common) {
        common.seed = self.seed;
        let passed = Duration::from_secs(clock::unix_now().saturating_sub(self.created));
        common.within = common.within.map(|within| within.saturating_sub(passed));
    }
}

impl Stamp {
    /// That of an answer which was begun by another coordinator.
    fn again(app: &App, opened: &Opened) -> Self {
        Self { id: opened.id.clone(), created: opened.created, ..Self::new(app, "") }
    }

    /// What the next coordinator must know of a request, to go on with its answer.
    pub(super) fn opened(&self, name: &trace::Name, path: &str, common: &Common) -> Opened {
        Opened {
            id: self.id.clone(),
            path: path.to_owned(),
            owner: name.tally.key_number(),
            label: name.id.to_string(),
            created: self.created,
            seed: common.seed,
            prompts: Vec::new(),
            sequences: 0,
            body: String::new(),
        }
    }
}
