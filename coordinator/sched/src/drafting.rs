//! Which drafts are sent: what the drafter has to say, cut to the windows that are worth their rows.

use brigade_draft::{Draft, Drafter, OwnerId, StreamId};
use brigade_spec::Prefixes;

use super::ahead::NextWindow;
use super::events::{Micros, Request, RequestId, Share, Work};
use super::line::Line;
use super::namespace::Namespace;
use super::replay::Pending;
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
    ) -> Option<NextWindow> {
        let most = room.min(MAX_WINDOW_ROWS);
        let (draft, windows) = self.drafted(sizing, (line, live), no, most)?;
        let n_sure = n_unsent(live, no);
        let n_drafts = match line.spec.prefixes {
            // Rows that are read again come alone, so that there is a state behind them: else the next wrong draft would
            // have them read again, too.
            Prefixes::Whole if n_sure > 1 => 0,
            Prefixes::All | Prefixes::Whole | Prefixes::None => windows.rows.saturating_sub(n_sure),
        };
        let window = self.cut(line, live, no, (draft, windows), n_drafts)?;
        Some(self.asking(sizing, (line, live), no, window))
    }

    /// A window of what is sure alone, where the model's own block is to draft behind it.
    pub fn of_nothing(
        &self,
        sizing: Sizing<'_>,
        at: (&Line, &Live),
        no: SeqNo,
    ) -> Option<NextWindow> {
        let window = self.asking(sizing, at, no, NextWindow::of_nothing(at.0.spec));
        (window.asked > 0).then_some(window)
    }

    /// A sequence's next window, with what the model's own block is to draft behind it.
    fn asking(
        &self,
        sizing: Sizing<'_>,
        at: (&Line, &Live),
        no: SeqNo,
        window: NextWindow,
    ) -> NextWindow {
        let n_rows = n_unsent(at.1, no) + window.drafts.tokens.len() as u32;
        NextWindow { asked: self.asked(sizing, at, no, n_rows).unwrap_or(0), ..window }
    }

    /// The window behind those that a sequence has in flight.
    pub fn further(
        &mut self,
        sizing: Sizing<'_>,
        (line, live): (&mut Line, &mut Live),
        no: SeqNo,
        room: u32,
    ) -> Option<NextWindow> {
        let n_windows = live.of(no)?.n_windows() as u32;
        let most = room.min(MAX_WINDOW_ROWS);
        let (draft, windows) = self.drafted(sizing, (line, live), no, most)?;
        if n_windows >= windows.count {
            return None;
        }
        let window = self.cut(line, live, no, (draft, windows), windows.rows)?;
        let is_any = !window.drafts.tokens.is_empty();
        is_any.then(|| self.asking(sizing, (line, live), no, window))
    }

    /// How many tokens the model's own block is to draft behind a sequence's next `n_rows` rows: what the windows in flight by
    /// then and the one behind them have room for. `None`: nobody would use them.
    fn asked(
        &self,
        sizing: Sizing<'_>,
        (line, live): (&Line, &Live),
        no: SeqNo,
        n_rows: u32,
    ) -> Option<u32> {
        let drafter = self.drafter.as_deref().filter(|_| line.spec.ahead)?;
        let sequence = live.of(no).filter(|s| s.own_drafts && may_run_ahead(s))?;
        if live.prefilling.iter().any(|other| *other != no) {
            return None;
        }
        let Work::Generate { max_tokens, .. } = sequence.work else { return None };
        // The first of them would stand behind the token that is drawn.
        let end = sequence.end_ahead(max_tokens, line.spec.block_positions);
        let room = end.saturating_sub(sequence.sent + n_rows + 1);
        let most = line.spec.own_drafts.min(room);
        let mut odds = drafter.model_odds(stream(sequence.request), most as usize);
        odds.truncate(n_likely(&odds).max(1));
        if odds.is_empty() {
            return None;
        }
        let mean = odds.iter().map(|odds| f64::from(*odds)).sum::<f64>() / odds.len() as f64;
        // Those that are less likely are not sent; others may be likely enough.
        let mean = mean.max(LEAST_ODDS.into());
        let n_streams = live.n_decoding() + usize::from(sequence.own_left() > 0);
        let windows = self.windows(sizing, (line, live), sequence, (mean, n_streams));
        let of_use = (windows.rows * windows.count - 1).min(odds.len() as u32);
        (of_use > 0).then_some(of_use)
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
        let n_streams = live.n_decoding();
        let windows = self.windows(sizing, (line, live), sequence, (mean, n_streams));
        let windows = match windows {
            Windows::NONE => return None,
            windows if draft.is_proven => windows,
            _ if sizing.is_worth_trying(mean, n_streams) => Windows::TRY,
            _ => return None,
        };
        Some((draft, windows))
    }

    /// The windows that suit a sequence whose drafts are right with probability `odds`, beside others.
    fn windows(
        &self,
        sizing: Sizing<'_>,
        (line, live): (&Line, &Live),
        sequence: &Admitted,
        (odds, n_streams): (f64, usize),
    ) -> Windows {
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
        sizing.windows(odds, n_streams, Leave { most, another_may_come })
    }

    /// The first `n` drafts as a window, with planes for as many windows as there are to be.
    fn cut(
        &mut self,
        line: &mut Line,
        live: &mut Live,
        no: SeqNo,
        (mut draft, windows): (Draft, Windows),
        n: u32,
    ) -> Option<NextWindow> {
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
        Some(NextWindow { drafts: draft, in_planes, asked: 0 })
    }
}

/// Leaves out what is hardly right any more, since all before it would have to be.
fn cut_unlikely(draft: &mut Draft) {
    let n = n_likely(&draft.odds);
    draft.tokens.truncate(n);
    draft.odds.truncate(n);
}

/// Of tokens behind each other that are right with such odds, how many may well be right together.
fn n_likely(odds: &[f32]) -> usize {
    let mut all_right = 1.0;
    let likely = odds.iter().take_while(|odds| {
        all_right *= **odds;
        all_right >= LEAST_CHANCE
    });
    likely.count()
}

/// Sure tokens of a sequence that were not sent.
fn n_unsent(live: &Live, no: SeqNo) -> u32 {
    live.of(no).map_or(0, |s| s.n_tokens().saturating_sub(s.sent))
}

/// Who drafts for a line's sequences.
pub(super) type Who = Option<Box<dyn Drafter>>;

/// Whose texts the drafts of a request are from.
fn owner(share: Share, namespace: Namespace) -> OwnerId {
    OwnerId { key: share.owner, space: namespace.number() }
}

/// Decides whether the model's own block reads what a request reads that is about to get its place.
pub(super) fn choose_own(drafter: &mut Who, line: &Line, pending: &mut Pending) {
    let request = &pending.request;
    let may = line.spec.ahead && line.spec.own_drafts > 0 && may_draft(request);
    let of = owner(request.share, request.namespace());
    pending.own_drafts = may && drafter.as_mut().is_some_and(|drafter| drafter.wants_model(of));
}

/// Tells the drafter of a sequence that may run ahead.
pub(super) fn begin(drafter: &mut Who, live: &Live, no: SeqNo) {
    let sequence = live.of(no).filter(|sequence| may_run_ahead(sequence));
    if let (Some(drafter), Some(sequence)) = (drafter, sequence) {
        let of = owner(sequence.share, sequence.space.namespace);
        let expected = sequence.drafts.as_deref().unwrap_or(&[]);
        let n_prompt = sequence.n_prompt as usize;
        drafter.begin(stream(sequence.request), of, &sequence.tokens, n_prompt, expected);
    }
}

/// Whether drafts of a request can be verified, and may be made.
fn may_draft(request: &Request) -> bool {
    let Work::Generate { sampler, .. } = &request.work else { return false };
    request.drafts.is_some() && sampler.can_verify() && request.guide.is_none()
}

/// Whether drafts of a sequence can be verified, and may be made.
pub(super) fn may_run_ahead(sequence: &Admitted) -> bool {
    let Work::Generate { sampler, .. } = &sequence.work else { return false };
    sequence.drafts.is_some() && sampler.can_verify() && sequence.guide.is_none()
}
