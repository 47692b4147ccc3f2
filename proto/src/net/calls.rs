//! The gate around every service and every client: the permitted calls of each role, and limits of their sizes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Channel;
use tower::{Layer, Service};

use super::admission::{Caller, OpenCall};
use super::intake::{Gated, Intake};
use crate::failure::{Failure, FailureKind};
use crate::limits::{MAX_CONTROL_BYTES, MAX_FRAME_BYTES, MAX_PIECE_BYTES, MAX_SMALL_BYTES};
use crate::tls::{Role, Who};

const PREPARE: &str = "/brigade.control.Worker/Prepare";
const PUSH: &str = "/brigade.control.Worker/PushTensors";
const RESTORE: &str = "/brigade.control.Worker/Restore";
const SNAPSHOT: &str = "/brigade.control.Worker/Snapshot";
const KEEP: &str = "/brigade.copies.Copies/Keep";
const FIND: &str = "/brigade.copies.Copies/Find";
const FETCH: &str = "/brigade.copies.Copies/Fetch";
const PUT_BACK: &str = "/brigade.copies.Copies/PutBack";
const WEIGHTS: &str = "/brigade.copies.Copies/Weights";
const SETTLE: &str = "/brigade.copies.Copies/Settle";
const PREFIXES: &str = "/brigade.copies.Copies/Prefixes";
const RESULTS: &str = "/brigade.pipeline.Pipeline/Results";

const ENROL: &str = "/brigade.control.Cluster/Enrol";
const CLUSTER: &str = "/brigade.control.Cluster/";
const WORKER: &str = "/brigade.control.Worker/";

/// Checks a peer's role for a call. Services check themselves whether the lane or the epoch is the peer's.
///
/// # Errors
/// Forbidden, for a party of another role, and for a stranger's calls other than enrolment.
fn may_call(who: &Who, path: &str) -> Result<(), Failure> {
    let wanted: &[Role] = match path {
        ENROL => return Ok(()),
        RESULTS | FIND | PUT_BACK | SETTLE | PREFIXES => &[Role::Coordinator],
        KEEP | FETCH | WEIGHTS => &[Role::Worker],
        _ if path.starts_with(WORKER) => &[Role::Coordinator],
        _ if path.starts_with(CLUSTER) => &[Role::Worker],
        _ => &[Role::Coordinator, Role::Worker],
    };
    let may = match who {
        Who::Anybody => true,
        Who::Known(party) => wanted.contains(&party.role),
        Who::Stranger(_) => false,
    };
    if may {
        return Ok(());
    }
    let roles: Vec<&str> = wanted.iter().map(|role| role.name()).collect();
    let why = format!("{path} is for a {}, and the caller is {who}", roles.join(" or a "));
    Err(Failure::refusal(FailureKind::Forbidden, why))
}

/// Header in which a failure travels.
const DETAILS: &str = "grpc-status-details-bin";

/// Bytes of a message that a stranger may send.
fn request_bytes(path: &str) -> usize {
    match path {
        PREPARE => MAX_CONTROL_BYTES,
        PUSH | RESTORE | PUT_BACK | FETCH | PREFIXES => MAX_PIECE_BYTES,
        _ => MAX_SMALL_BYTES,
    }
}

/// Bytes of a message that a worker may answer.
fn reply_bytes(path: &str) -> usize {
    match path {
        PREPARE | FIND | PREFIXES => MAX_CONTROL_BYTES,
        SNAPSHOT | FETCH | WEIGHTS => MAX_PIECE_BYTES,
        RESULTS => MAX_FRAME_BYTES,
        _ => MAX_SMALL_BYTES,
    }
}

/// Puts a [`Gated`] body and an [`Intake`] around every call of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct GateLayer;

impl<S> Layer<S> for GateLayer {
    type Service = Gate<S>;

    fn layer(&self, inner: S) -> Gate<S> {
        Gate { inner }
    }
}

/// A service behind [`GateLayer`].
#[derive(Clone, Debug)]
pub struct Gate<S> {
    inner: S,
}

type Answer<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Gate<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answer<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // Every connection of `Listener` has one.
        let Some(caller) = request.extensions().get::<Caller>().cloned() else {
            return Box::pin(self.inner.call(request));
        };
        let call = caller.begin();
        let path = request.uri().path();
        if let Err(refusal) = may_call(&caller.who(), path) {
            tracing::warn!(peer = %caller.peer(), %refusal, "a call was refused");
            return Box::pin(async move { Ok(refusal.to_status().into_http()) });
        }
        let intake = Intake::new(Some(caller), request_bytes(path), path == PREPARE);
        request.extensions_mut().insert(intake.clone());
        let answer = self.inner.call(request.map({
            let intake = intake.clone();
            |body| Body::new(Gated::new(body, intake))
        }));
        Box::pin(async move {
            let answer = answer.await;
            intake.done();
            Ok(answer?.map(|body| Body::new(Answering { body, _call: call })))
        })
    }
}

/// The body of an answer: until it ends, the call is open.
struct Answering {
    body: Body,
    _call: OpenCall,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A dialled connection. The peer's answers are limited like a peer's requests: no memory is reserved on a claimed
/// length.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Channel,
    who: Who,
}

impl Connection {
    pub(super) fn new(channel: Channel, who: Who) -> Self {
        Self { channel, who }
    }

    /// The peer at its other end.
    pub fn who(&self) -> &Who {
        &self.who
    }
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Answer<Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let max_bytes = reply_bytes(request.uri().path());
        let answer = self.channel.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            drop_bad_details(answer.headers_mut());
            let intake = Intake::new(None, max_bytes, false);
            Ok(answer.map(|body| Body::new(Checked { body: Gated::new(body, intake) })))
        })
    }
}

/// The body of an answer to a call of our own.
struct Checked {
    body: Gated,
}

impl HttpBody for Checked {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            drop_bad_details(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The encoding in which the transport reads a failure's details.
const STANDARD: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Removes a failure that is no base64: the transport would panic over it.
fn drop_bad_details(headers: &mut HeaderMap) {
    let is_bad = |value: &http::HeaderValue| STANDARD.decode(value.as_bytes()).is_err();
    if headers.get_all(DETAILS).iter().any(is_bad) {
        headers.remove(DETAILS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_may_be_as_large_as_what_they_bring() {
        assert_eq!(reply_bytes(RESULTS), MAX_FRAME_BYTES, "rows of logits");
        assert_eq!([SNAPSHOT, FETCH, WEIGHTS].map(reply_bytes), [MAX_PIECE_BYTES; 3]);
        assert_eq!([PREPARE, FIND, PREFIXES].map(reply_bytes), [MAX_CONTROL_BYTES; 3]);
        assert_eq!([PUSH, KEEP, SETTLE].map(reply_bytes), [MAX_SMALL_BYTES; 3]);
    }

    #[test]
    fn what_is_no_base64_never_reaches_the_transport() {
        for good in ["", "AAAA", "CAYSAmhp", "QQ", "QQ=", "QQ==", "QUI", "QUI=", "+/9/"] {
            assert!(STANDARD.decode(good).is_ok(), "{good}");
        }
        for bad in ["A", "AAAAA", "QR", "QUJ", "Q Q=", "QUI==", "====", "!!!!", "-_8"] {
            assert!(STANDARD.decode(bad).is_err(), "{bad}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(DETAILS, "not base64!".parse().unwrap());
        headers.insert("grpc-status", "3".parse().unwrap());
        drop_bad_details(&mut headers);
        assert_eq!(headers.len(), 1);
    }
}
