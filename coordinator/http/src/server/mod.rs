//! The layers in front of all handlers: connections, checks that every request passes, and addresses for operators.

pub(crate) mod admin;
pub(crate) mod before_loading;
pub(crate) mod content_encoding;
pub(crate) mod cors;
pub(crate) mod guard;
pub(crate) mod hosts;
pub(crate) mod https;
pub(crate) mod page;
pub(crate) mod recover;
pub(crate) mod refusals;
pub(crate) mod router;
pub(crate) mod serve;
pub(crate) mod socket;
pub(crate) mod status;
pub(crate) mod strict;
pub(crate) mod trace;
pub(crate) mod while_loading;
