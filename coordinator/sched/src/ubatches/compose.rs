//! Composes the next ubatch: which decode rows, which prompt rows, and which sequences it opens, copies and
//! closes.
//!
//! Rows of decoding sequences come first, and of these the longest waiting first. With `D` decoding sequences
//! in `G` groups, a ubatch takes at most `D / G` of them. Prompt rows fill up what [`Sizing`] still allows: of
//! the owner whose turn it is, the oldest sequence first.
//!
//! Membership in a group is not stored. At most `G` ubatches with decode rows are in flight, so ubatches that have
//! become unequal are equal again after one round.

use std::collections::VecDeque;

use brigade_engine::batch::{SeqOp, SeqPart, UBatch, Want};

use crate::SchedConfig;
use crate::drafts::ahead::NextWindow;
use crate::drafts::chains::Drafted;
use crate::drafts::drafting::Drafting;
use crate::events::{KeptId, LineSpec, Micros, Share, Work};
use crate::line::Line;
use crate::memory::checkpoints;
use crate::sequence::{Admitted, Half, Live, SeqNo};
use crate::ubatches::groups::Chosen;
use crate::ubatches::in_flight::{InFlight, InWindow, Wanted, WantedKind};
use crate::ubatches::sizing::{Beside, Sizing};

/// Composes a ubatch and notes it as in flight; `None` when the line is full or nothing is to do.
pub(crate) fn compose(
    now: Micros,
    config: &SchedConfig,
    line: &mut Line,
    live: &mut Live,
    mut drafting: Drafting<'_>,
) -> Option<UBatch> {
    let times = line.times.clone();
    let spec = line.spec;
    let sizing = Sizing { times: &times, spec: &spec, config };
    let n_decoding = live.n_decoding();
    let groups = sizing.decode_groups(n_decoding, line.groups);
    line.groups = Some(Chosen { n_decoding, groups });
    let mut draft = Draft::new(now, line.spec, config);
    for (kept, part) in std::mem::take(&mut line.settling) {
        draft.settle(line, kept, part);
    }
    if !live.has_streams() {
        let rows = sizing.chunk(line.burst_rows, live.prompt_rows_left());
        let rows = if live.leaves_room() { rows.min(sizing.short_chunk()) } else { rows };
        if line.in_flight.len() >= sizing.prefill_in_flight(rows) {
            return draft.settled(line);
        }
        draft.take_prompts(sizing, line, live, rows, &drafting);
    } else {
        let limit = sizing.decode_in_flight(groups.count);
        if line.n_in_flight() >= limit {
            draft.take_windows(sizing, line, live, &mut drafting);
            return draft.settled(line);
        }
        let decode_rows = if line.decodes_in_flight(live) < groups.count { groups.rows } else { 0 };
        let beside = Beside {
            group_rows: groups.rows.saturating_mul(live.widest_decoding()).min(line.spec.max_rows),
            in_flight: limit,
            is_ahead: live.next_prompt_is_ahead(),
            leaves_room: live.leaves_room(),
        };
        if line.prefill_owed {
            let rows = sizing.mixed_rows(0, beside);
            draft.take_prompts(sizing, line, live, rows, &drafting);
            draft.take_ready(sizing, line, live, decode_rows, &mut drafting);
        } else {
            draft.take_ready(sizing, line, live, decode_rows, &mut drafting);
            let rows = sizing.mixed_rows(draft.decode_rows, beside);
            draft.take_prompts(sizing, line, live, rows, &drafting);
        }
        if draft.prompt_rows > 0 {
            let rows = draft.decode_rows + draft.prompt_rows;
            draft.gap_bound = sizing.gap_bound(rows, beside);
        } else {
            draft.take_windows(sizing, line, live, &mut drafting);
        }
    }
    // Ops alone are worth a trip only when no other ubatch will come to carry them.
    let only_ops = draft.parts.is_empty();
    let has_ops = !line.ops.is_empty() || !live.draws.is_empty();
    if only_ops && (!has_ops || !line.in_flight.is_empty()) {
        return None;
    }
    draft.take_draws(live);
    if !only_ops {
        line.prefill_owed = draft.prompt_rows == 0 && !live.prefilling.is_empty();
    }
    line.ops.append(&mut draft.checkpoints);
    Some(draft.send(line))
}

/// A ubatch of the copies, closes and other changes that the line has, noted as in flight.
pub(crate) fn only_ops(now: Micros, config: &SchedConfig, line: &mut Line) -> UBatch {
    Draft::new(now, line.spec, config).send(line)
}

/// A ubatch being filled.
struct Draft {
    now: Micros,
    spec: LineSpec,
    checkpoint_every: Option<u32>,
    opens: Vec<SeqOp>,
    /// Draws of sequences whose masks were not there.
    draws: Vec<SeqOp>,
    /// Checkpoints of sequences that have rows in the ubatch.
    checkpoints: Vec<SeqOp>,
    parts: Vec<SeqPart>,
    computed: Vec<(SeqNo, u32)>,
    wanted: VecDeque<Wanted>,
    rows_left: u32,
    logits_rows_left: u32,
    decode_rows: u32,
    /// Parts that tokens are to be drawn from.
    drawn_parts: u32,
    /// Rows of windows.
    in_windows: u32,
    /// Rows of windows behind others of their sequences.
    window_rows: u32,
    prompt_rows: u32,
    /// With prompt rows beside streams: bound of the time between two tokens of a stream.
    gap_bound: Option<Micros>,
}

impl Draft {
    fn new(now: Micros, spec: LineSpec, config: &SchedConfig) -> Self {
        Self {
            now,
            spec,
            checkpoint_every: config.checkpoint_every,
            opens: Vec::new(),
            draws: Vec::new(),
            checkpoints: Vec::new(),
            parts: Vec::new(),
            computed: Vec::new(),
            wanted: VecDeque::new(),
            rows_left: spec.max_rows,
            logits_rows_left: config.max_logits_rows.max(1),
            decode_rows: 0,
            drawn_parts: 0,
            in_windows: 0,
            window_rows: 0,
            prompt_rows: 0,
            gap_bound: None,
        }
    }

    /// Takes all draws that were put off, in the order in which they were asked for.
    fn take_draws(&mut self, live: &mut Live) {
        for no in std::mem::take(&mut live.draws).into_iter().rev() {
            let Some(sequence) = live.of(no) else { continue };
            let (slot, pos, share) = (sequence.slot, sequence.sent - 1, sequence.share);
            self.draws.push(SeqOp::Draw { slot });
            let kind = WantedKind::Token;
            let (is_draw, ahead) = (true, None);
            self.wanted.push_front(Wanted { seq: no, slot, pos, kind, is_draw, share, ahead });
        }
        self.draws.reverse();
    }

    /// One row each of the `limit` sequences that have waited longest, and of their companions; or a window, where one runs
    /// ahead.
    fn take_ready(
        &mut self,
        sizing: Sizing<'_>,
        line: &mut Line,
        live: &mut Live,
        limit: u32,
        drafting: &mut Drafting<'_>,
    ) {
        let mut n_left = limit.min(live.ready.len() as u32);
        while n_left > 0 {
            n_left -= 1;
            let Some(sequence) = live.ready.front().and_then(|no| live.of(*no)) else { break };
            // Drafts that were right before the sequence was taken back are computed again.
            let rows = (sequence.n_tokens() - sequence.sent).max(sequence.n_slots());
            if rows > self.rows_left {
                break;
            }
            let Some(no) = live.ready.pop_front() else { break };
            let room = self.rows_left - rows - n_left.min(self.rows_left - rows);
            let window = drafting
                .first(sizing, line, live, no, room)
                .or_else(|| drafting.of_nothing(sizing, line, live, no));
            let n_sent = match window {
                Some(window) => self.add_window(live, no, &window),
                None if rows > live.of(no).map_or(0, Admitted::n_slots) => {
                    self.add_window(live, no, &NextWindow::of_nothing(self.spec))
                }
                None => {
                    if !drafting.lends
                        && let Some(sequence) = live.get_mut(no)
                    {
                        line.take_spare(sequence);
                    }
                    // The window comes behind its checkpoint, if one is due. A state that is taken back has no
                    // checkpoint.
                    self.add_halves(live, no, 1, rows - 1);
                    self.take_back(live, no);
                    rows
                }
            };
            self.decode_rows += n_sent;
        }
    }

    /// Windows behind those that sequences have in flight.
    fn take_windows(
        &mut self,
        sizing: Sizing<'_>,
        line: &mut Line,
        live: &mut Live,
        drafting: &mut Drafting<'_>,
    ) {
        for no in live.running_ahead() {
            let slot = live.of(no).map(|s| s.slot);
            if self.parts.iter().any(|part| Some(part.slot) == slot) {
                continue;
            }
            if let Some(window) = drafting.further(sizing, line, live, no, self.rows_left) {
                self.window_rows += self.add_window(live, no, &window);
            }
        }
    }

    /// Adds the operations that must precede a sequence's next part.
    fn take_back(&mut self, live: &mut Live, no: SeqNo) {
        let ahead = live.get_mut(no).and_then(|s| s.ahead.as_mut());
        self.opens.extend(ahead.and_then(|ahead| ahead.take_back()));
    }

    /// Adds a window; how many rows it has.
    fn add_window(&mut self, live: &mut Live, no: SeqNo, window: &NextWindow) -> u32 {
        let Some(sequence) = live.get_mut(no) else { return 0 };
        self.open(sequence);
        self.take_back(live, no);
        let of_prompt = live.of(no).map_or(0, Admitted::own_left);
        let part = live.next_window(self.now, no, window);
        let (run, share) = live.of(no).map_or((0, Share::default()), |s| (s.run(), s.share));
        let (slot, n_rows) = (part.slot, part.tokens.len() as u32);
        let known = part.ahead.map_or(0, |ahead| ahead.known);
        self.wanted.extend((known..n_rows).map(|i| Wanted {
            seq: no,
            slot,
            pos: part.pos + i,
            kind: WantedKind::Token,
            is_draw: false,
            share,
            ahead: Some(InWindow {
                run,
                next: part.tokens.get(i as usize + 1).copied(),
                left: n_rows - 1 - i,
            }),
        }));
        let sent = live.of(no).map_or(0, Admitted::all_sent);
        self.computed.push((no, sent));
        self.rows_left -= n_rows;
        // Rows of a prompt are of use though nothing is drawn from them.
        self.in_windows += n_rows - of_prompt.saturating_sub(1);
        self.drawn_parts += 1;
        self.parts.push(part);
        n_rows
    }

    /// Adds the rows that a kept sequence lacks: it is of use to those behind this ubatch.
    fn settle(&mut self, line: &mut Line, kept: KeptId, part: SeqPart) {
        if part.tokens.len() as u32 > self.rows_left {
            return line.settling.push((kept, part));
        }
        self.rows_left -= part.tokens.len() as u32;
        self.parts.push(part);
        if let Some(kept) = line.kept.get_mut(kept) {
            kept.filled = true;
            line.settled.push(kept.id);
        }
    }

    /// Sends what there is beside rows that have to wait, if anything.
    fn settled(self, line: &mut Line) -> Option<UBatch> {
        (!self.parts.is_empty()).then(|| self.send(line))
    }

    /// Takes at most `limit` prompt rows: first of the owner whose turn it is, and of its sequences the oldest first.
    fn take_prompts(
        &mut self,
        sizing: Sizing<'_>,
        line: &Line,
        live: &mut Live,
        limit: u32,
        drafting: &Drafting<'_>,
    ) {
        let mut left = limit.min(self.rows_left);
        // Sequences that end at a mark here: the rows behind it have to come in another ubatch.
        let mut cut = Vec::new();
        while let Some(at) = live.next_prompt_but(&cut) {
            let no = live.prefilling[at];
            let Some(sequence) = live.get_mut(no) else { break };
            let (mut rows, of_companion) = sequence.next_rows(left, self.rows_left);
            if sequence.whole {
                rows = self.rows_of_whole(sequence.prompt_left(), left);
            } else if matches!(sequence.work, Work::Logits | Work::Hidden(_)) {
                match sequence.reported_left() {
                    0 => {
                        rows = rows.min(self.logits_rows_left);
                        self.logits_rows_left -= rows;
                    }
                    reported => rows = rows.min(reported),
                }
            }
            if rows + of_companion == 0 {
                break;
            }
            let all_sent = rows + of_companion == sequence.prompt_left();
            let first = if all_sent { drafting.of_nothing(sizing, line, live, no) } else { None };
            match first {
                Some(window) => drop(self.add_window(live, no, &window)),
                None => self.add_halves(live, no, rows, of_companion),
            }
            self.prompt_rows += rows + of_companion;
            left = left.saturating_sub(rows + of_companion);
            if all_sent {
                live.prefilling.remove(at);
            } else if live.of(no).is_some_and(Admitted::is_at_mark) {
                cut.push(no);
            } else {
                break;
            }
        }
    }

    /// Rows of a text that is sent whole or not at all: all `n` of it, or 0. Where nothing is in the ubatch yet, it may
    /// have more rows than `left`, up to the most that a ubatch holds.
    fn rows_of_whole(&self, n: u32, left: u32) -> u32 {
        let room = if self.parts.is_empty() { self.rows_left } else { left };
        if n <= room { n } else { 0 }
    }

    /// Adds the next rows of a sequence and of its companion. The companion's come first: they have to stand before a draw.
    fn add_halves(&mut self, live: &mut Live, no: SeqNo, own: u32, of_companion: u32) {
        for (half, rows) in [(Half::Companion, of_companion), (Half::Own, own)] {
            if rows > 0 {
                self.add(live, no, half, rows);
            }
        }
        let sent = live.of(no).map_or(0, Admitted::all_sent);
        self.computed.push((no, sent));
    }

    /// Opens a sequence that is new, and copies its state where that is due.
    fn open(&mut self, sequence: &mut Admitted) {
        if !sequence.opened {
            sequence.opened = true;
            self.opens.extend(sequence.open_ops());
            self.opens.extend(checkpoints::early_name(self.checkpoint_every, sequence));
        }
        self.checkpoints.extend(checkpoints::due(&self.spec, self.checkpoint_every, sequence));
    }

    /// Adds the next `rows` rows of one of the two, opening it first if it is new.
    fn add(&mut self, live: &mut Live, no: SeqNo, half: Half, rows: u32) {
        let sequence = live.get_mut(no).expect("queues name live sequences only").half_mut(half);
        self.open(sequence);
        let part = live.next_part(no, half, rows);
        let last = part.pos + rows - 1;
        let (kind, positions) = match part.want {
            Want::Nothing | Want::Companion => (WantedKind::Token, 0..0),
            Want::Sample | Want::Verify => (WantedKind::Token, last..last + 1),
            Want::HiddenFirst => (WantedKind::Logits, part.pos..part.pos + 1),
            Want::HiddenLast => (WantedKind::Logits, last..last + 1),
            Want::Logits | Want::Hidden => (WantedKind::Logits, part.pos..last + 1),
        };
        self.drawn_parts += u32::from(matches!(part.want, Want::Sample | Want::Verify));
        let (slot, share) = (part.slot, live.of(no).map(|s| s.share).unwrap_or_default());
        self.wanted.extend(positions.map(|pos| Wanted {
            seq: no,
            slot,
            pos,
            kind,
            is_draw: false,
            share,
            ahead: None,
        }));
        self.rows_left -= rows;
        self.parts.push(part);
    }

    /// Closes and copies first, then opens: a place may pass from one to the other in this very ubatch.
    fn send(self, line: &mut Line) -> UBatch {
        let now = self.now;
        let id = line.next_ubatch;
        line.next_ubatch += 1;
        line.settled.clear();
        let ops = self.draws.into_iter().chain(line.ops.drain(..)).chain(self.opens).collect();
        let ubatch = UBatch { id, ops, parts: self.parts };
        if line.in_flight.is_empty() {
            line.last_progress = now;
        }
        line.in_flight.push_back(InFlight {
            id,
            sent_at: now,
            n_rows: ubatch.n_rows() as u32,
            decode_rows: self.decode_rows + self.window_rows,
            drawn_parts: self.drawn_parts,
            in_windows: self.in_windows,
            tokens: 0,
            tokens_of_windows: 0,
            drafted: Drafted::default(),
            has_stale: false,
            only_windows: self.window_rows > 0 && self.decode_rows + self.prompt_rows == 0,
            gap_bound: self.gap_bound,
            computed: self.computed,
            wanted: self.wanted,
        });
        ubatch
    }
}
