//! Which drafts are sent: what the drafter has to say, cut to the windows that are worth their rows.

use brigade_draft::{Draft, Drafter, StreamId};
use brigade_spec::Prefixes;

use super::events::{LineSpec, Micros, RequestId, Work};
use super::line::Line;
use super::sequence::{Admitted, Live, SeqNo};
use super::sizing::Sizing;
use super::windows::{LEAST_ODDS, Leave, MAX_WINDOW_ROWS, Windows};

/// A draft ends where all of it would be right with less than this probability.
const LEAST_CHANCE: f32 = 0.1;

/// Drafts whose odds are looked at to choose windows.
const ODDS_OF: usize = 8;

/// Who drafts, and whether he may now.
pub(super) struct Drafting<'a> {
    pub now: Micros,
    /// `None`: nobody.
    pub drafter: Option<&'a mut (dyn Drafter + 'static)>,
    /// Nobody waits for a place.
    pub lends: bool,
}

/// What a window is made of, behind what is sure.
pub(super) struct Window {
    pub drafts: Draft,
    /// Whether it leaves its state elsewhere than where it found it.
    pub in_planes: bool,
}

impl Window {
    /// Only what is sure.
    pub fn of_nothing(spec: LineSpec) -> Self {
        Self { drafts: Draft::default(), in_planes: spec.prefixes == Prefixes::Whole }
    }
}

/// A request as drafters know it.
pub(super) fn stream(request: RequestId) -> StreamId {
    StreamId(request.0)
}

impl Drafting<'_> {
    /// The window of a sequence whose next token is to be sent; `None`: it goes on without drafts. It may have `room` rows
    /// of drafts.
    pub fn first(
        &mut self,
        sizing: Sizing<'_>,
        (line, live): (&mut Line, &mut Live),
        no: SeqNo,
        room: u32,
    ) -> Option<Window> {
        let most = room.min(MAX_WINDOW_ROWS);
        let (draft, windows) = self.drafted(sizing, (line, live), no, most)?;
        let n_sure = live.of(no).map_or(1, |s| s.n_tokens() - s.sent);
        let n_drafts = match line.spec.prefixes {
            // Rows that are read again come alone, so that there is a state behind them: else the next wrong draft would
            // have them read again, too.
            Prefixes::Whole if n_sure > 1 => 0,
            Prefixes::All | Prefixes::Whole | Prefixes::None => windows.rows.saturating_sub(n_sure),
        };
        self.cut(line, live, no, (draft, windows), n_drafts)
    }

    /// The window behind those that a sequence has in flight.
    pub fn further(
        &mut self,
        sizing: Sizing<'_>,
        (line, live): (&mut Line, &mut Live),
        no: SeqNo,
        room: u32,
    ) -> Option<Window> {
        let n_windows = live.of(no)?.n_windows() as u32;
        let most = room.min(MAX_WINDOW_ROWS);
        let (draft, windows) = self.drafted(sizing, (line, live), no, most)?;
        if n_windows >= windows.count {
            return None;
        }
        let window = self.cut(line, live, no, (draft, windows), windows.rows)?;
        (!window.drafts.tokens.is_empty()).then_some(window)
    }

    /// What may come next of a sequence, at most `most` tokens, and the windows that suit it.
    fn drafted(
        &mut self,
        sizing: Sizing<'_>,
        (line, live): (&mut Line, &mut Live),
        no: SeqNo,
        most: u32,
    ) -> Option<(Draft, Windows)> {
        let drafter = self.drafter.as_deref_mut().filter(|_| line.spec.ahead)?;
        // Prompts come first.
        if most == 0 || !live.prefilling.is_empty() {
            return None;
        }
        let sequence = live.of(no).filter(|s| may_run_ahead(s) && !s.masks_late)?;
        let Work::Generate { max_tokens, .. } = sequence.work else { return None };
        let most = most.min(sequence.room_ahead(max_tokens, line.spec.block_positions));
        if most == 0 {
            return None;
        }
        let in_flight = sequence.drafts_in_flight();
        let mut draft = drafter.draft(stream(sequence.request), &in_flight, most as usize);
        cut_unlikely(&mut draft);
        let n = draft.odds.len().min(ODDS_OF);
        if draft.odds.first().is_none_or(|odds| *odds < LEAST_ODDS) {
            return None;
        }
        let mean = draft.odds[..n].iter().map(|odds| f64::from(*odds)).sum::<f64>() / n as f64;
        let free = line.spec.n_slots.saturating_sub(line.n_running() + line.n_lent);
        let lent = sequence.ahead.as_ref().map_or(0, |a| a.lent(sequence.slot).len() as u32);
        let most = match line.spec.prefixes {
            Prefixes::All => u32::MAX,
            // It has what it was lent, and all that nobody waits for.
            Prefixes::Whole if self.lends => free + lent,
            Prefixes::Whole | Prefixes::None => 0,
        };
        let most = most.min(sizing.config.max_windows.unwrap_or(u32::MAX));
        let another_may_come = live.owners.another_may_come(self.now, sequence.share);
        let n_streams = live.n_decoding();
        let windows = sizing.windows(mean, n_streams, Leave { most, another_may_come });
        let windows = match windows {
            Windows::NONE => return None,
            windows if draft.is_proven => windows,
            _ if sizing.is_worth_trying(mean, n_streams) => Windows::TRY,
            _ => return None,
        };
        Some((draft, windows))
    }

    /// The first `n` drafts as a window, with planes for as many windows as there are to be.
    fn cut(
        &mut self,
        line: &mut Line,
        live: &mut Live,
        no: SeqNo,
        (mut draft, windows): (Draft, Windows),
        n: u32,
    ) -> Option<Window> {
        draft.tokens.truncate(n as usize);
        draft.odds.truncate(n as usize);
        let in_planes = line.spec.prefixes == Prefixes::Whole;
        let sequence = live.get_mut(no)?;
        if in_planes {
            line.lend(sequence, windows.count);
            let has = sequence.ahead.as_ref().is_some_and(|ahead| ahead.has_spare());
            if !has && !draft.tokens.is_empty() {
                return None;
            }
        }
        Some(Window { drafts: draft, in_planes })
    }
}

/// Leaves out what is hardly right any more, since all before it would have to be.
fn cut_unlikely(draft: &mut Draft) {
    let mut all_right = 1.0;
    let likely = draft.odds.iter().take_while(|odds| {
        all_right *= **odds;
        all_right >= LEAST_CHANCE
    });
    let n = likely.count();
    draft.tokens.truncate(n);
    draft.odds.truncate(n);
}

/// Whether drafts of a sequence can be verified, and may be made.
pub(super) fn may_run_ahead(sequence: &Admitted) -> bool {
    let Work::Generate { sampler, .. } = &sequence.work else { return false };
    sequence.drafts.is_some() && sampler.can_verify() && sequence.guide.is_none()
}
