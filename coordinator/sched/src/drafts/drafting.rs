//! Chooses the drafts to send: the drafter's proposals, cut to the windows that are worth their rows.

use brigade_draft::{Draft, Drafter, OwnerId, Source, StreamId};
use brigade_spec::Prefixes;

use crate::SchedConfig;
use crate::drafts::ahead::NextWindow;
use crate::drafts::windows::{
    Drafts, LEAST_CHANCE, LEAST_ODDS, Leave, MAX_WINDOW_ROWS, Windows, even_odds,
};
use crate::events::{Micros, Request, RequestId, Share, Work};
use crate::line::Line;
use crate::memory::namespace::Namespace;
use crate::sequence::{Admitted, Live, SeqNo};
use crate::ubatches::sizing::Sizing;
use crate::waiting::replay::Pending;

/// Drafts whose odds are looked at to choose windows.
const ODDS_OF: usize = 8;

/// While a size is tried, others are sent of a size that was measured, unless the new one makes tokens come so much faster.
const MUCH_FASTER: f64 = 1.25;

/// A proposal for the next tokens of a sequence.
struct Found {
    draft: Draft,
    /// The windows that suit it.
    windows: Windows,
    /// Tokens in a microsecond that come with them, where a text drafts that has shown to be right; otherwise 0.
    of_text: f64,
}

/// The drafter of a step, and whether it may draft now.
pub(crate) struct Drafting<'a> {
    pub now: Micros,
    /// The drafter; `None`: no speculation.
    pub drafter: Option<&'a mut (dyn Drafter + 'static)>,
    /// No request waits for a place.
    pub lends: bool,
}

/// A request as drafters know it.
pub(crate) fn stream(request: RequestId) -> StreamId {
    StreamId(request.0)
}

impl Drafting<'_> {
    /// The window of a sequence whose next token is to be sent; `None`: it goes on without drafts. It may have `room` rows
    /// of drafts.
    pub fn first(
        &mut self,
        sizing: Sizing<'_>,
        line: &mut Line,
        live: &mut Live,
        no: SeqNo,
        room: u32,
    ) -> Option<NextWindow> {
        let most = room.min(MAX_WINDOW_ROWS);
        let Found { draft, windows, of_text } = self.drafted(sizing, line, live, no, most)?;
        let n_sure = n_unsent(live, no);
        let n_drafts = match line.spec.prefixes {
            // Rows that are read again come alone, so that there is a state behind them: else the next wrong draft would
            // have them read again, too.
            Prefixes::Whole if n_sure > 1 => 0,
            Prefixes::All | Prefixes::Whole | Prefixes::None => windows.rows.saturating_sub(n_sure),
        };
        let window = self.cut(line, live, no, draft, windows, n_drafts)?;
        Some(self.asking(sizing, line, live, no, window, of_text))
    }

    /// A window of the sure tokens alone, where the model's own block is to draft behind it.
    pub fn of_nothing(
        &self,
        sizing: Sizing<'_>,
        line: &Line,
        live: &Live,
        no: SeqNo,
    ) -> Option<NextWindow> {
        let nothing = NextWindow::of_nothing(line.spec);
        let window = self.asking(sizing, line, live, no, nothing, 0.0);
        (window.asked > 0).then_some(window)
    }

    /// A sequence's next window. The model's own block is asked for drafts behind it if tokens come sooner with those
    /// than with a text's drafts.
    fn asking(
        &self,
        sizing: Sizing<'_>,
        line: &Line,
        live: &Live,
        no: SeqNo,
        window: NextWindow,
        of_text: f64,
    ) -> NextWindow {
        let n_rows = n_unsent(live, no) + window.drafts.tokens.len() as u32;
        let asked = self.asked(sizing, line, live, no, n_rows, of_text);
        NextWindow { asked: asked.unwrap_or(0), ..window }
    }

    /// The window behind those that a sequence has in flight.
    pub fn further(
        &mut self,
        sizing: Sizing<'_>,
        line: &mut Line,
        live: &mut Live,
        no: SeqNo,
        room: u32,
    ) -> Option<NextWindow> {
        let n_windows = live.of(no)?.n_windows() as u32;
        let most = room.min(MAX_WINDOW_ROWS);
        let Found { draft, windows, of_text } = self.drafted(sizing, line, live, no, most)?;
        if n_windows >= windows.count {
            return None;
        }
        let window = self.cut(line, live, no, draft, windows, windows.rows)?;
        let is_any = !window.drafts.tokens.is_empty();
        is_any.then(|| self.asking(sizing, line, live, no, window, of_text))
    }

    /// How many tokens the model's own block is to draft behind a sequence's next `n_rows` rows. They fill the
    /// windows that are in flight by then and the one behind them. `None`: they are not worth the last stage's time,
    /// or drafts `of_text` are as good.
    fn asked(
        &self,
        sizing: Sizing<'_>,
        line: &Line,
        live: &Live,
        no: SeqNo,
        n_rows: u32,
        of_text: f64,
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
        let n_streams = live.n_decoding() + usize::from(sequence.own_left() > 0);
        let odds = even_odds(&odds);
        let drafts = Drafts::ToMake(&odds);
        let windows = self.windows(sizing, line, live, sequence, drafts, n_streams);
        let is_worth = windows.any() && sizing.rate(windows, drafts, n_streams as u32) > of_text;
        is_worth.then(|| windows.n_drafts())
    }

    /// The proposal for a sequence's next tokens, `most` at most.
    fn drafted(
        &mut self,
        sizing: Sizing<'_>,
        line: &mut Line,
        live: &mut Live,
        no: SeqNo,
        most: u32,
    ) -> Option<Found> {
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
        let (first, is_model) = (draft.odds.first()?, draft.source == Source::Model);
        if *first < LEAST_ODDS && !is_model {
            return None;
        }
        let mean = if is_model {
            // The block knows of each; a text does not.
            even_odds(&draft.odds[..n]).pop()?
        } else {
            draft.odds[..n].iter().map(|odds| f64::from(*odds)).sum::<f64>() / n as f64
        };
        let n_streams = live.n_decoding();
        let drafts = Drafts::Had(mean);
        let windows = self.windows(sizing, line, live, sequence, drafts, n_streams);
        let windows = match windows {
            Windows::NONE => return None,
            windows if draft.is_proven => windows,
            _ if sizing.is_worth_trying(mean, n_streams) => Windows::TRY,
            _ => return None,
        };
        let of_text = if draft.is_proven && !is_model {
            sizing.rate(windows, drafts, n_streams as u32)
        } else {
            0.0
        };
        if let Some(ahead) = live.get_mut(no).and_then(|sequence| sequence.ahead.as_mut()) {
            ahead.wanted = windows.n_drafts() + 1;
        }
        Some(Found { draft, windows, of_text })
    }

    /// The windows that suit a sequence with such drafts, beside others.
    fn windows(
        &self,
        sizing: Sizing<'_>,
        line: &Line,
        live: &Live,
        sequence: &Admitted,
        drafts: Drafts<'_>,
        n_streams: usize,
    ) -> Windows {
        let free = line.spec.n_slots.saturating_sub(line.n_running() + line.n_lent);
        let lent = sequence.ahead.as_ref().map_or(0, |a| a.lent(sequence.slot).len() as u32);
        let most = match line.spec.prefixes {
            Prefixes::All => u32::MAX,
            // It has the slots that it was lent, and all free ones that no request waits for.
            Prefixes::Whole if self.lends => free + lent,
            Prefixes::Whole | Prefixes::None => 0,
        };
        let most = most.min(sizing.config.max_windows.unwrap_or(u32::MAX));
        let another_may_come = live.owners.another_may_come(self.now, sequence.share);
        let leave = Leave { most, another_may_come, only_known: false };
        let chosen = sizing.windows(drafts, n_streams, leave);
        if sizing.knows(chosen, n_streams as u32) {
            return chosen;
        }
        // A size is tried in one ubatch at a time: others that are sent before that is back would try it as well.
        let is_tried = line.in_flight.iter().any(|ubatch| !line.times.knows(ubatch.n_rows));
        if is_tried || sequence.n_windows() as u32 >= chosen.count {
            let known = sizing.windows(drafts, n_streams, Leave { only_known: true, ..leave });
            let rate = |windows| sizing.rate(windows, drafts, n_streams as u32);
            if rate(chosen) < MUCH_FASTER * rate(known) {
                return known;
            }
        }
        chosen
    }

    /// The first `n` drafts as a window, with planes for as many windows as there are to be.
    fn cut(
        &mut self,
        line: &mut Line,
        live: &mut Live,
        no: SeqNo,
        mut draft: Draft,
        windows: Windows,
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

/// Drops the drafts at the end that are unlikely to be right, since all drafts before them would have to be right
/// too.
fn cut_unlikely(draft: &mut Draft) {
    let n = n_likely(&draft.odds);
    draft.tokens.truncate(n);
    draft.odds.truncate(n);
}

/// The number of tokens, with these odds one after the other, that may well be right together.
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

/// The drafter of a line's sequences; `None`: no speculation.
pub(crate) type Who = Option<Box<dyn Drafter>>;

/// The owner whose texts a request's drafts may come from.
fn owner(share: Share, namespace: Namespace) -> OwnerId {
    OwnerId { key: share.owner, space: namespace.number() }
}

/// Decides whether the model's own drafting block follows a request that is about to get its place. It does if the
/// request is alone, and its owner's drafts are right often enough to be worth their time.
pub(crate) fn choose_own(
    drafter: &mut Who,
    line: &Line,
    config: &SchedConfig,
    pending: &mut Pending,
) {
    let request = &pending.request;
    let may = line.spec.ahead && line.spec.own_drafts > 0 && may_draft(request);
    let of = owner(request.share, request.namespace());
    let sizing = Sizing { times: &line.times, spec: &line.spec, config };
    let pays = |odds: &[f32]| sizing.own_drafts_pay(&even_odds(odds));
    let most = line.spec.own_drafts as usize;
    let wants = |drafter: &mut Box<dyn Drafter>| drafter.wants_model(of, most, &pays);
    pending.own_drafts = may && drafter.as_mut().is_some_and(wants);
}

/// Tells the drafter of a sequence that may run ahead.
pub(crate) fn begin(drafter: &mut Who, live: &Live, no: SeqNo) {
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
    request.drafts.is_some() && sampler.can_verify() && request.companion.is_none()
}

/// Whether drafts of a sequence can be verified, and may be made.
pub(crate) fn may_run_ahead(sequence: &Admitted) -> bool {
    let Work::Generate { sampler, .. } = &sequence.work else { return false };
    sequence.drafts.is_some() && sampler.can_verify() && sequence.companion.is_none()
}
