//! Fields that all objects of one answer have: id, creation time, model name and fingerprint.

use brigade_line::clock;

use crate::app::App;

/// Fields that all objects of one answer have.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

impl Stamp {
    pub(crate) fn new(app: &App, prefix: &str) -> Self {
        Self {
            id: format!("{prefix}{}", brigade_line::random::id()),
            created: clock::unix_now(),
            model: app.text.name().to_string(),
            fingerprint: concat!("brigade-", env!("CARGO_PKG_VERSION")).to_string(),
        }
    }
}
