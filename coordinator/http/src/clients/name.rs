//! A request's identity for its handlers: its id, and the counters of its usage.

use std::sync::Arc;

use crate::clients::usage::RequestUsage;

/// A request's id, for the handlers, and what they count of it for its line.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) id: Arc<str>,
    pub(crate) usage: Arc<RequestUsage>,
}
