//! Resumes the streams of a coordinator that was killed. Their requests are parsed again from the journal. Their
//! events are written again from the beginning: first from the tokens in the journal, then from new ones.

use brigade_proto::task;
use std::sync::Arc;
use std::time::Instant;

use axum::http::Method;
use brigade_line::journal::{Opened, Recovered};

use crate::answer::handover::Handover;
use crate::answer::stamp::Stamp;
use crate::app::App;
use crate::clients::name::Name;
use crate::clients::usage::{Line, Owner, RequestUsage};
use crate::error::ApiError;
use crate::events::resumable::Resumable;
use crate::openai::chat;
use crate::openai::completions;

/// Goes on with the requests of the coordinator before this one, each by itself. Their streams can be read on when this
/// returns.
pub fn go_on(app: &App, recovered: Vec<Recovered>) {
    for request in recovered {
        let label = request.opened.label.clone();
        match app.door.access.owner_again(request.opened.owner) {
            Ok(owner) => {
                let share = owner.as_ref().map(|owner| owner.share);
                let tenant = share.filter(|share| share.leaves_room).map(|share| share.owner);
                let (opened, resumable) = app.door.streams.begin_again(request, tenant);
                drop(task::spawn(one(app.clone(), opened, resumable, owner)));
            }
            Err(error) => {
                tracing::warn!(request = label, error = %error.body(), "does not go on after a restart");
                request.entry.over();
            }
        }
    }
}

/// Goes on with one of them, to its end.
async fn one(app: App, opened: Opened, resumable: Resumable, owner: Option<Owner>) {
    let (label, stream) = (opened.label.clone(), resumable.stream.clone());
    tracing::info!(request = label, stream = opened.id, "goes on after a restart");
    let usage = Arc::new(RequestUsage::default());
    if let Some(owner) = owner {
        // Its limits let it begin once: they do not end it now.
        if let Ok(ticket) = owner.account.begin(Instant::now()) {
            usage.runs(Arc::new(ticket));
        }
        usage.belongs_to(owner);
    }
    usage.is_for(app.text.name());
    let name = Name { id: label.as_str().into(), usage };
    let _line = Line {
        id: name.id.clone(),
        method: Method::POST,
        path: opened.path.clone(),
        status: 200,
        started: Instant::now(),
        usage: name.usage.clone(),
        audit: app.door.audit.clone(),
    };
    let handover =
        Handover { stamp: Stamp::handed_over(&app, &opened), app, name, opened, resumable };
    let gone_on = match handover.opened.path.as_str() {
        chat::PATH => chat::go_on(handover).await,
        completions::PATH => completions::go_on(handover).await,
        other => Err(ApiError::server(format!("{other:?} has no resumable answers"))),
    };
    if let Err(error) = gone_on {
        tracing::warn!(request = label, error = %error.body(), "cannot go on after a restart");
        // A client that has come back gets the error.
        stream.fail(&error);
    }
}
