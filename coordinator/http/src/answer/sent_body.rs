//! An answer's body that knows when it has been sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use brigade_line::keys::Ticket;
use hyper::body::{Frame, SizeHint};

/// An answer's body, with its key's place and the values that must live until it has been sent or cannot be.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    body: Body,
    _kept: T,
    ticket: Option<Arc<Option<Ticket>>>,
}

impl<T> Answer<T> {
    pub(crate) fn new(body: Body, kept: T) -> Self {
        Self { body, _kept: kept, ticket: None }
    }

    /// Takes a place of its key, if it has one.
    pub(crate) fn placed(self, ticket: Option<Arc<Option<Ticket>>>) -> Self {
        Self { ticket, ..self }
    }
}

impl<T: Unpin> hyper::body::Body for Answer<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // Before the client has the last byte: its next request finds the place free.
        if (frame.is_none() || self.body.is_end_stream())
            && let Some(ticket) = self.ticket.take()
            && let Some(ticket) = &*ticket
        {
            ticket.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
