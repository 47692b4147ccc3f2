//! What a request is known by to its handlers: its id, and what is counted of it.

use std::sync::Arc;

use super::usage::RequestUsage;

/// A request's id, for the handlers, and what they count of it for its line.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) id: Arc<str>,
    pub(super) usage: Arc<RequestUsage>,
}
