//! Handing a resumable request over to the next coordinator: the journal entry that one writes, and the request that
//! the next one restores from it.

use std::time::Duration;

use brigade_line::clock;
use brigade_line::journal::Opened;

use crate::answer::stamp::Stamp;
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::resumable::Resumable;
use crate::request::params::Common;

/// A request that goes on.
pub(crate) struct Handover {
    pub app: App,
    pub name: Name,
    pub stamp: Stamp,
    pub opened: Opened,
    pub resumable: Resumable,
}

/// Refuses a request of the journal whose number of sequences is not that of its body.
pub(crate) fn check_sequences(opened: &Opened, n: usize) -> Result<(), ApiError> {
    if opened.sequences == opened.prompts.len() * n {
        Ok(())
    } else {
        Err(ApiError::server(
            "the journal of the previous server was damaged: send the request again",
        ))
    }
}

impl Common {
    /// Restores the values that cannot be read from the body again: the seed may have been drawn, and some of the
    /// time has passed.
    pub(crate) fn restore(&mut self, opened: &Opened) {
        self.seed = opened.seed;
        let passed = Duration::from_secs(clock::unix_now().saturating_sub(opened.created));
        self.within = self.within.map(|within| within.saturating_sub(passed));
        // A chat template may write the date, so the first rendering is kept.
        if let Some(companion) = &opened.companion {
            self.companion.set_tokens(companion);
        }
    }
}

impl Stamp {
    /// The stamp of an answer that another coordinator began: its id and creation time stay.
    pub(crate) fn handed_over(app: &App, opened: &Opened) -> Self {
        Self { id: opened.id.clone(), created: opened.created, ..Self::new(app, "") }
    }

    /// The journal entry from which the next coordinator can go on with the answer.
    pub(crate) fn opened(&self, name: &Name, path: &str, common: &Common) -> Opened {
        Opened {
            id: self.id.clone(),
            path: path.to_owned(),
            owner: name.usage.key_number(),
            label: name.id.to_string(),
            created: self.created,
            seed: common.seed,
            prompts: Vec::new(),
            companion: common.companion.tokens(),
            sequences: 0,
            body: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_counts_other_sequences_than_the_body_is_damaged() {
        let opened = |prompts: usize, sequences: usize| Opened {
            id: "chatcmpl-1".to_owned(),
            path: "/v1/completions".to_owned(),
            owner: None,
            label: "req-1".to_owned(),
            created: 0,
            seed: 1,
            prompts: vec![vec![1]; prompts],
            companion: None,
            sequences,
            body: "{}".to_owned(),
        };
        assert!(check_sequences(&opened(2, 6), 3).is_ok());
        for (prompts, sequences) in [(2, 5), (2, 7), (0, 3)] {
            let error = check_sequences(&opened(prompts, sequences), 3).unwrap_err();
            assert_eq!(error.status(), 500);
            assert!(
                error.body()["error"]["message"].to_string().contains("send the request again")
            );
        }
    }
}
