//! What all objects of one answer carry.

use brigade_line::clock;

use super::app::App;

/// What all objects of one answer carry.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) fingerprint: String,
}

impl Stamp {
    pub(super) fn new(app: &App, prefix: &str) -> Self {
        Self {
            id: format!("{prefix}{}", brigade_line::random::id()),
            created: clock::unix_now(),
            model: app.text.name().to_string(),
            fingerprint: concat!("brigade-", env!("CARGO_PKG_VERSION")).to_string(),
        }
    }
}
