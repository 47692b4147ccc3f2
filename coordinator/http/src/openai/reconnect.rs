//! Clients that come back for a stream of [`Streams`](crate::events::resumable::Streams): with the same POST, or with the stream's
//! address.

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::resumable::position;
use crate::fleet::Fleet;

/// The prefix of streams' addresses.
pub(crate) const STREAMS: &str = "/v1/streams/";

/// A POST: of a client that comes back, or a new one.
pub(crate) enum Posted {
    /// The answer for who comes back.
    Again(Response),
    /// A new request, to be read and run.
    Anew(Request),
}

/// Answers the POST of a client that comes back.
///
/// Its body has nothing new, but it is read all the same. A connection that closes with bytes unread is reset, and a
/// reset loses the part of the answer that is still on its way.
///
/// # Errors
/// The client's stream does not exist, or the request's body cannot be read.
pub(crate) async fn came_back(
    app: &App,
    name: &Name,
    request: Request,
) -> Result<Posted, ApiError> {
    let Some(position) = position(request.headers())? else { return Ok(Posted::Anew(request)) };
    let stream = app.door.streams.get(position.stream(), name)?;
    app.door.bodies.take(request).await?;
    stream.follow(Some(position)).map(Posted::Again)
}

/// Handles `GET /v1/streams/{id}`: the stream's events behind the client's last one.
pub(crate) async fn read_on(
    State(fleet): State<Fleet>,
    Extension(name): Extension<Name>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let position = position(&headers)?;
    if let Some(other) = position.as_ref().filter(|position| position.stream() != id) {
        let message = format!("Last-Event-ID {} is of another stream than {id}", other.id());
        return Err(ApiError::bad_request(message));
    }
    fleet.door().streams.get(&id, &name)?.follow(position)
}

/// `DELETE /v1/streams/{id}`: ends a stream that its client does not want any more.
pub(crate) async fn cancel(
    State(fleet): State<Fleet>,
    Extension(name): Extension<Name>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let streams = &fleet.door().streams;
    streams.remove(&*streams.get(&id, &name)?);
    Ok(StatusCode::NO_CONTENT)
}
