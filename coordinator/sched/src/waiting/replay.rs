//! Requests whose line was lost: their tokens so far, and whether they get another line.
//!
//! A sequence's state is gone with its line, but it follows from the tokens. The same tokens give the same
//! bits on any line, and the draw for a position depends on the seed and the position alone. So a request
//! that had a place waits for the next line. There its prompt and its answer so far are computed as one
//! prompt, and it goes on with the next token. Nothing is reported twice.
//!
//! A request may itself break the lines. One that was on two lost lines in a row, and got no further on the second
//! than before, is a suspect and runs alone. If a third line is lost under it, this request alone ends, with the
//! reason.

use std::borrow::Cow;

use brigade_engine::batch::{CopyName, PageId};

use crate::events::{Micros, Request, RequestId, Unfinished};
use crate::memory::prefix::{Beginning, Hold};
use crate::sequence::{Admitted, Half};

/// A request under which so many lines were lost since it last got further than ever ends with an error;
/// one less, and it runs alone.
const MOST_LOSSES: u32 = 3;

/// A request without a place: a new one, or one whose line was lost.
#[derive(Debug)]
pub(crate) struct Pending {
    pub request: Request,
    /// Tokens that were reported.
    pub generated: Vec<u32>,
    /// Logits rows that were reported.
    pub rows_returned: u32,
    /// Positions that had come back computed, on the line on which most of them did.
    pub furthest: u32,
    /// Lines lost under it since it last got further than ever.
    pub losses: u32,
    /// Whether it had a place before.
    pub interrupted: bool,
    /// The name of its state's copies.
    pub name: Option<CopyName>,
    /// The pages it had: a stage that stays loaded still holds its state there.
    pub blocks: Vec<PageId>,
    /// Every stage of the line that came can go back to this position.
    pub restorable: Option<u32>,
    /// Mirostat's, after its last token.
    pub mu: Option<f32>,
    /// Whether the model's own block is to read its rows too.
    pub own_drafts: bool,
    /// The time since which no line can hold the request; `None` while there is one, or was none yet.
    pub without_line_since: Option<Micros>,
    /// The request's cached beginning, if it was looked up.
    pub begins: Option<Beginning>,
    /// When it came to the queue.
    pub came: Micros,
    /// Requests of its owner that came after it and went before it.
    pub overtaken: u32,
    /// Set where the request could have a place, and waits for what another one reads.
    pub hold: Option<Hold>,
    /// What the request has waited for: up to which position and from where. It does not wait again where that took
    /// too long.
    pub held: Option<Hold>,
}

impl Pending {
    pub fn new(request: Request) -> Self {
        Self {
            name: request.copy_name(),
            blocks: Vec::new(),
            restorable: None,
            mu: None,
            own_drafts: false,
            request,
            generated: Vec::new(),
            rows_returned: 0,
            furthest: 0,
            losses: 0,
            interrupted: false,
            without_line_since: None,
            begins: None,
            came: 0,
            overtaken: 0,
            hold: None,
            held: None,
        }
    }

    /// A request that another scheduler had begun.
    pub fn gone_on(mut request: Request, generated: Vec<u32>, mu: Option<f32>) -> Self {
        request.has_generated(generated.len());
        Self { generated, mu, interrupted: true, ..Self::new(request) }
    }

    /// A sequence that was on the line when it was lost for `reason`, or taken down as planned; an error if lines
    /// were lost under it too often.
    pub fn interrupted(
        sequence: Admitted,
        reason: &str,
        planned: bool,
    ) -> Result<Self, (RequestId, Unfinished)> {
        // A sequence that had sent nothing cannot have broken the line.
        let broke = sequence.is_on_stages() && !sequence.restoring && !planned;
        let losses = sequence.losses + u32::from(broke);
        if losses >= MOST_LOSSES {
            let reason = format!("{reason}; it was on {losses} lines in a row that were lost");
            let error = Unfinished::LineLost { reason, generated: sequence.generated() };
            return Err((sequence.request, error));
        }
        Ok(Self { losses, ..Self::of(sequence) })
    }

    /// A sequence whose state could not be put back.
    pub fn without_copies(sequence: Admitted) -> Self {
        Self { name: None, blocks: Vec::new(), ..Self::of(sequence) }
    }

    fn of(sequence: Admitted) -> Self {
        let Admitted { request: id, label, work, adapters, share, deadline, copied, .. } = sequence;
        let (companion, drafts) = (sequence.companion, sequence.drafts);
        let companion =
            companion.map(|companion| companion.tokens[..companion.n_prompt as usize].into());
        let (mut prompt, n_prompt) = (sequence.tokens, sequence.n_prompt);
        let generated = prompt.split_off(n_prompt as usize);
        let borders = [].into();
        let mut request = Request {
            id,
            label,
            prompt,
            work,
            adapters,
            share,
            namespace: Some(sequence.space.namespace),
            deadline,
            copied,
            companion,
            drafts,
            borders,
        };
        request.has_generated(generated.len());
        Self {
            request,
            generated,
            rows_returned: sequence.rows_returned,
            furthest: sequence.furthest,
            losses: sequence.losses,
            interrupted: true,
            name: sequence.name,
            blocks: sequence.blocks,
            restorable: None,
            mu: sequence.mu,
            own_drafts: false,
            without_line_since: None,
            begins: None,
            came: 0,
            overtaken: 0,
            hold: None,
            held: None,
        }
    }

    /// The request's companion as a request of its own, to be given places; it is computed like its sequence.
    pub fn companion(&self) -> Option<Self> {
        let prompt = self.request.companion.as_ref()?.to_vec();
        let request = Request { prompt, companion: None, ..self.request.clone() };
        let (generated, interrupted) = (self.generated.clone(), self.interrupted);
        Some(Self { generated, interrupted, name: None, ..Self::new(request) })
    }

    /// No line came for it.
    pub fn given_up(self, within: Micros, reason: &str) -> (RequestId, Unfinished) {
        let reason = match within / 1_000_000 {
            0 => reason.to_owned(),
            s => format!("{reason}; no line that can hold it came up within {s} s"),
        };
        let generated = self.generated.len() as u32;
        (self.request.id, Unfinished::LineLost { reason, generated })
    }

    /// Ends it because its deadline passed.
    pub fn too_late(self) -> (RequestId, Unfinished) {
        (self.request.id, Unfinished::TooLate { generated: self.generated.len() as u32 })
    }

    /// All tokens of one of its halves that are known; `None` if there is no such half.
    pub fn known(&self, half: Half) -> Option<Cow<'_, [u32]>> {
        let prompt = match half {
            Half::Own => &self.request.prompt[..],
            Half::Companion => self.request.companion.as_deref()?,
        };
        Some(match self.generated[..] {
            [] => Cow::Borrowed(prompt),
            _ => Cow::Owned([prompt, &self.generated].concat()),
        })
    }

    /// All tokens of it that are known.
    pub fn tokens(&self) -> Vec<u32> {
        [self.request.prompt.as_slice(), &self.generated].concat()
    }
}
