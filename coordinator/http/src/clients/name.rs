//! What a request is known by to its handlers: its id, and what is counted of it.

use std::sync::Arc;

use crate::clients::usage::RequestUsage;

/// A request's id, for the handlers, and what they count of it for its line.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) id: Arc<str>,
    pub(crate) usage: Arc<RequestUsage>,
}
