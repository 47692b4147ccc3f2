//! The waiting queue. Requests of one owner are admitted in order, except that those with mostly cached prompts may
//! overtake ([`overtake`](crate::waiting::overtake)). Owners take turns ([`fair`](crate::waiting::fair)). The queue
//! is bounded; a request that finds it full is told when to come back. Requests whose line was lost stand at its
//! front.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use brigade_spec::Prefixes;

use crate::events::{
    LineSpec, Micros, NoCompanion, QueueFull, Rejection, Request, RequestId, Share, TooLong, Work,
    has_companion,
};
use crate::line::Line;
use crate::memory::prefix::Hold;
use crate::waiting::fair::{self, Owners};
use crate::waiting::replay::Pending;

/// Bounds of the advice in [`QueueFull`], seconds.
const RETRY_AFTER_S: std::ops::RangeInclusive<u64> = 1..=60;

/// Weight of the newest interval between two ends in their running mean.
const RECENT: f64 = 0.1;

/// Requests that have no place on the line.
#[derive(Debug)]
pub(crate) struct Waiting {
    queue: VecDeque<Pending>,
    /// Requests that an earlier line could hold and this one cannot, in order.
    parked: Vec<Pending>,
    limit: usize,
    last_end: Option<Micros>,
    /// Running mean of the time between two ends of admitted requests, once there were two.
    end_interval_us: Option<f64>,
}

impl Waiting {
    pub fn new(limit: usize) -> Self {
        let (queue, parked) = (VecDeque::new(), Vec::new());
        Self { queue, parked, limit, last_end: None, end_interval_us: None }
    }

    pub fn len(&self) -> usize {
        self.queue.len() + self.parked.len()
    }

    pub fn contains(&self, id: RequestId) -> bool {
        self.queue.iter().chain(&self.parked).any(|pending| pending.request.id == id)
    }

    /// Appends, or says when a place is likely to be free. In a full queue, the owner with most requests there loses
    /// its newest one to an owner that has fewer. That request is returned, with the time to come back.
    pub fn push(
        &mut self,
        now: Micros,
        request: Request,
    ) -> Result<Option<(RequestId, u64)>, Rejection> {
        // Requests that had a place do not take one in the queue.
        let waiting = self.n_new();
        let mut displaced = None;
        if waiting >= self.limit {
            let retry_after_s = self.retry_after_s();
            let most = fair::most_waiting(&self.counts(), request.share);
            let newest = most.and_then(|owner| {
                let of = |p: &Pending| !p.interrupted && p.request.share.owner == owner;
                self.queue.iter().rposition(of).and_then(|at| self.queue.remove(at))
            });
            match newest {
                Some(pending) => displaced = Some((pending.request.id, retry_after_s)),
                None => {
                    return Err(Rejection::QueueFull(QueueFull { waiting, retry_after_s }));
                }
            }
        }
        self.queue.push_back(Pending { came: now, ..Pending::new(request) });
        Ok(displaced)
    }

    /// Requests that never had a place.
    fn n_new(&self) -> usize {
        self.queue.iter().filter(|pending| !pending.interrupted).count()
    }

    /// Whether a new request would need another one's place in the queue.
    pub fn is_full(&self) -> bool {
        self.n_new() >= self.limit
    }

    /// Requests in the queue, first come first.
    pub fn queue(&self) -> impl Iterator<Item = &Pending> {
        self.queue.iter()
    }

    /// The same, to be changed.
    pub fn queue_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.queue.iter_mut()
    }

    /// One waits for what another one reads.
    pub fn hold(&mut self, at: usize, hold: Hold) {
        if let Some(pending) = self.queue.get_mut(at) {
            (pending.hold, pending.held) = (Some(hold), Some(hold));
        }
    }

    /// Lets requests have a place that have waited long enough for a beginning that another one computes.
    pub fn review_holds(&mut self, lasts: impl Fn(&Hold) -> bool) {
        for pending in &mut self.queue {
            pending.hold = pending.hold.filter(&lasts);
        }
    }

    /// Requests that wait while another one computes the beginning that they share.
    pub fn n_held(&self) -> usize {
        self.queue.iter().filter(|pending| pending.hold.is_some()).count()
    }

    /// How many requests of each owner wait that never had a place.
    fn counts(&self) -> BTreeMap<u64, (Share, usize)> {
        let mut counts = BTreeMap::new();
        for pending in self.queue.iter().filter(|pending| !pending.interrupted) {
            let share = pending.request.share;
            counts.entry(share.owner).or_insert((share, 0)).1 += 1;
        }
        counts
    }

    /// Owners of requests that wait.
    pub fn owners(&self) -> BTreeSet<u64> {
        self.queue.iter().map(|pending| pending.request.share.owner).collect()
    }

    pub fn remove(&mut self, id: RequestId) -> Option<Pending> {
        let is = |pending: &Pending| pending.request.id == id;
        if let Some(at) = self.parked.iter().position(is) {
            return Some(self.parked.remove(at));
        }
        let at = self.queue.iter().position(is)?;
        self.queue.remove(at)
    }

    /// Requests whose line was lost.
    pub fn interrupted(&self) -> impl Iterator<Item = &Pending> {
        self.queue.iter().chain(&self.parked).filter(|pending| pending.interrupted)
    }

    /// The line that comes can go back to these positions of those that wait.
    pub fn restorable(&mut self, found: &BTreeMap<RequestId, u32>) {
        for pending in self.queue.iter_mut().chain(&mut self.parked) {
            pending.restorable = found.get(&pending.request.id).copied();
        }
    }

    /// One loses its place again, and is the next to get one.
    pub fn go_back(&mut self, pending: Pending) {
        self.queue.push_front(pending);
    }

    /// The index of the next request. Requests that had a place come first, in order. Then comes the first request of
    /// the owner that is next, among those that may take a place. No request overtakes it, so that a large request
    /// gets its room some day. Held requests have no turn.
    pub fn turn(&self, owners: &Owners, line: &Line) -> Option<usize> {
        let at = self.queue.iter().position(|pending| pending.hold.is_none())?;
        let first = self.queue.get(at)?;
        if first.interrupted || !first.request.share.leaves_room && self.is_of_one_owner() {
            return Some(at);
        }
        let (waiting, places) = (self.owners(), line.places());
        let mut seen = BTreeSet::new();
        let free = self.queue.iter().enumerate().filter(|(_, p)| p.hold.is_none());
        let heads = free.filter(|(_, p)| seen.insert(p.request.share.owner));
        let may = |(_, pending): &(usize, &Pending)| {
            let needs = line.needs(&pending.request);
            owners.may_admit(pending.request.share, needs, places, &waiting)
        };
        let rank =
            |(at, pending): &(usize, &Pending)| (owners.rank_for_place(pending.request.share), *at);
        heads.filter(may).min_by_key(rank).map(|(at, _)| at)
    }

    fn is_of_one_owner(&self) -> bool {
        let mut owners = self.queue.iter().map(|pending| pending.request.share.owner);
        let first = owners.next();
        owners.all(|owner| Some(owner) == first)
    }

    pub fn get(&self, at: usize) -> Option<&Pending> {
        self.queue.get(at)
    }

    pub fn front(&self) -> Option<&Pending> {
        self.queue.front()
    }

    pub fn take(&mut self, at: usize) -> Option<Pending> {
        self.queue.remove(at)
    }

    /// Takes out those whose deadline has passed.
    pub fn late(&mut self, now: Micros) -> Vec<Pending> {
        self.take_if(|pending| pending.request.deadline.is_some_and(|deadline| deadline <= now))
    }

    fn take_if(&mut self, which: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let (mut out, parked) = std::mem::take(&mut self.parked).into_iter().partition(&which);
        self.parked = parked;
        let (queued, queue): (Vec<_>, Vec<_>) = self.queue.drain(..).partition(&which);
        self.queue = queue.into();
        out.extend(queued);
        out
    }

    /// The line was lost: `interrupted`, oldest first, wait for the next one ahead of all others. The
    /// queue's limit is not for them: they had a place.
    pub fn line_lost(&mut self, now: Micros, interrupted: Vec<Pending>) {
        for pending in interrupted.into_iter().rev() {
            self.queue.push_front(pending);
        }
        for pending in self.queue.iter_mut().chain(&mut self.parked) {
            pending.without_line_since.get_or_insert(now);
            (pending.hold, pending.held, pending.begins) = (None, None, None);
        }
    }

    /// A request that had a place under another scheduler waits behind those that had one here, ahead of all others.
    /// `fits`: whether the line can hold it, if there is one.
    pub fn go_on(&mut self, now: Micros, mut pending: Pending, fits: Option<bool>) {
        if fits != Some(true) {
            pending.without_line_since = Some(now);
        }
        if fits == Some(false) {
            return self.parked.push(pending);
        }
        let at = self.queue.iter().take_while(|other| other.interrupted).count();
        self.queue.insert(at, pending);
    }

    /// A line came up. Takes out those that can never run on it, with the reason; but those that waited
    /// for it since another one was lost go on waiting, for a larger one.
    pub fn line_came(&mut self, line: &LineSpec) -> Vec<(RequestId, Rejection)> {
        let mut out = Vec::new();
        let all = std::mem::take(&mut self.parked).into_iter().chain(self.queue.drain(..));
        let mut fits = VecDeque::new();
        for mut pending in all.collect::<Vec<_>>() {
            match check_fits(&pending.request, line) {
                Ok(()) => {
                    pending.without_line_since = None;
                    fits.push_back(pending);
                }
                Err(_) if pending.without_line_since.is_some() => self.parked.push(pending),
                Err(why) => out.push((pending.request.id, why)),
            }
        }
        self.queue = fits;
        out
    }

    /// Takes out those that have waited longer than `within` for a line that can hold them.
    pub fn give_up(&mut self, now: Micros, within: Micros) -> Vec<Pending> {
        self.take_if(|pending| {
            pending.without_line_since.is_some_and(|since| now.saturating_sub(since) >= within)
        })
    }

    /// An admitted request ended: places become free at this pace.
    pub fn note_end(&mut self, now: Micros) {
        if let Some(last) = self.last_end {
            let interval = now.saturating_sub(last) as f64;
            let mean = self.end_interval_us.unwrap_or(interval);
            self.end_interval_us = Some(mean + RECENT * (interval - mean));
        }
        self.last_end = Some(now);
    }

    /// A place in the queue is free as soon as one admitted request ends.
    fn retry_after_s(&self) -> u64 {
        let seconds = self.end_interval_us.map_or(0, |us| (us / 1e6).ceil() as u64);
        seconds.clamp(*RETRY_AFTER_S.start(), *RETRY_AFTER_S.end())
    }
}

/// Checks of a request that do not depend on the line.
pub(crate) fn check_sense(request: &Request) -> Result<(), Rejection> {
    if request.prompt.is_empty() {
        return Err(Rejection::Invalid("the prompt has no tokens; give at least one"));
    }
    if matches!(request.work, Work::Generate { max_tokens: 0, .. }) {
        return Err(Rejection::Invalid("max_tokens is 0; ask for at least one token"));
    }
    let has_companion = match &request.work {
        Work::Generate { sampler, .. } => has_companion(sampler),
        Work::Logits | Work::Hidden(_) => false,
    };
    match &request.companion {
        None if !has_companion => Ok(()),
        Some(companion) if has_companion && !companion.is_empty() => Ok(()),
        _ => Err(Rejection::Invalid(
            "a draw with a companion needs the companion's tokens, and tokens need such a draw",
        )),
    }
}

/// Checks that the request can ever run on `line`.
pub(crate) fn check_fits(request: &Request, line: &LineSpec) -> Result<(), Rejection> {
    if line.prefixes == Prefixes::None {
        return check_text(request, line);
    }
    let pages = u64::from(line.n_blocks) * u64::from(line.block_positions);
    let limit = pages.min(u64::from(line.max_positions));
    let companion = request.companion.as_ref().map(|companion| companion.len());
    let of_companion = companion.zip(request.companion_positions());
    for (prompt, needed) in
        [(request.prompt.len(), request.positions())].into_iter().chain(of_companion)
    {
        if needed > limit {
            let prompt = prompt as u64;
            return Err(Rejection::TooLong(TooLong { prompt, max_tokens: needed - prompt, limit }));
        }
    }
    match request.companion {
        Some(_) => check_companion(request, line).map_err(Rejection::NoCompanion),
        None => Ok(()),
    }
}

/// Checks that `line` can run a sequence with its companion.
fn check_companion(request: &Request, line: &LineSpec) -> Result<(), NoCompanion> {
    let page = u64::from(line.block_positions);
    let pages = request.positions().div_ceil(page)
        + request.companion_positions().unwrap_or(0).div_ceil(page);
    if !line.companions {
        return Err(NoCompanion::OlderWorker);
    }
    if line.n_slots < 2 {
        return Err(NoCompanion::OneSlot);
    }
    if line.max_rows < 2 {
        return Err(NoCompanion::OneRow);
    }
    if pages <= line.n_blocks.into() { Ok(()) } else { Err(NoCompanion::FewPages) }
}

/// The same as [`check_fits`], for a text on the line of an encoder.
fn check_text(request: &Request, line: &LineSpec) -> Result<(), Rejection> {
    if !matches!(request.work, Work::Hidden(_)) {
        return Err(Rejection::Invalid("the model is an encoder; ask for a text's rows"));
    }
    let pages = u64::from(line.n_blocks) * u64::from(line.block_positions);
    let limit = pages.min(line.max_positions.into()).min(line.max_rows.into());
    let needed = request.positions();
    if needed <= limit {
        Ok(())
    } else {
        Err(Rejection::TooLong(TooLong { prompt: needed, max_tokens: 0, limit }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use brigade_engine::batch::{Companion, SamplerSetup};

    use super::*;

    fn request(id: u64, prompt: usize) -> Request {
        Request { copied: true, ..Request::new(RequestId(id), vec![1; prompt], Work::Logits) }
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let mut waiting = Waiting::new(1);
        waiting.push(0, request(1, 1)).unwrap();
        let full =
            |retry_after_s| Err(Rejection::QueueFull(QueueFull { waiting: 1, retry_after_s }));
        assert_eq!(waiting.push(0, request(2, 1)), full(1));
        for second in [10, 17, 24] {
            waiting.note_end(second * 1_000_000);
        }
        assert_eq!(waiting.push(0, request(2, 1)), full(7));
        waiting.note_end(10_000 * 1_000_000);
        assert_eq!(waiting.push(0, request(2, 1)), full(60));
    }

    #[test]
    fn in_a_full_queue_whoever_has_most_there_makes_place() {
        let of = |id, owner| {
            let share = Share { owner, weight: 4, leaves_room: true };
            Request { share, ..request(id, 1) }
        };
        let mut waiting = Waiting::new(3);
        for id in 1..=3 {
            assert_eq!(waiting.push(0, of(id, 7)), Ok(None));
        }
        assert!(waiting.push(0, of(4, 7)).is_err(), "not for itself");
        assert_eq!(waiting.push(0, of(5, 8)), Ok(Some((RequestId(3), 1))), "its newest goes");
        assert!(waiting.push(0, of(6, 8)).is_err(), "two against two");
        assert_eq!(waiting.owners(), BTreeSet::from([7, 8]));
    }

    #[test]
    fn requests_are_of_one_owner_until_another_one_comes() {
        let of = |id, owner| {
            let share = Share { owner, ..Share::default() };
            Request { share, ..request(id, 1) }
        };
        let mut waiting = Waiting::new(9);
        for (id, owner, is_one) in [(1, 7, true), (2, 7, true), (3, 8, false), (4, 8, false)] {
            waiting.push(0, of(id, owner)).unwrap();
            assert_eq!(waiting.is_of_one_owner(), is_one, "{id}");
        }
    }

    #[test]
    fn what_another_scheduler_had_begun_waits_behind_those_that_were_begun_here() {
        let begun = |id| Pending::gone_on(request(id, 1), vec![7], None);
        let mut waiting = Waiting::new(9);
        waiting.push(0, request(1, 1)).unwrap();
        waiting.line_lost(0, vec![Pending { interrupted: true, ..Pending::new(request(2, 1)) }]);
        waiting.go_on(5, begun(3), Some(true));
        waiting.go_on(5, begun(4), None);
        waiting.go_on(5, begun(5), Some(false));
        let order: Vec<u64> = waiting.queue.iter().map(|pending| pending.request.id.0).collect();
        assert_eq!(order, [2, 3, 4, 1]);
        assert!(waiting.contains(RequestId(5)), "it waits for a larger line");
        assert_eq!(waiting.give_up(15, 10).len(), 4, "all but the one that fits");
        assert_eq!(waiting.queue.len(), 1);
    }

    #[test]
    fn what_cannot_fit_is_told_with_both_numbers() {
        let line = LineSpec {
            n_stages: 1,
            n_blocks: 2,
            n_slots: 1,
            n_kept: 0,
            prefixes: Prefixes::All,
            block_positions: 64,
            max_positions: 4096,
            max_rows: 512,
            companions: true,
            ahead: false,
            grows: true,
            own_drafts: 0,
        };
        assert_eq!(check_fits(&request(1, 128), &line), Ok(()));
        let why = check_fits(&request(1, 129), &line).unwrap_err();
        assert!(why.to_string().contains("the prompt has 129"), "{why}");
        assert!(why.to_string().contains("128 tokens"), "{why}");
    }

    #[test]
    fn a_companion_needs_a_line_for_two_sequences() {
        let line = LineSpec {
            n_stages: 1,
            n_blocks: 4,
            n_slots: 2,
            n_kept: 0,
            prefixes: Prefixes::All,
            block_positions: 64,
            max_positions: 192,
            max_rows: 2,
            companions: true,
            ahead: false,
            grows: true,
            own_drafts: 0,
        };
        let beside = |prompt, companion: usize| {
            let sampler =
                SamplerSetup { companion: Some(Companion { scale: 2.0 }), ..Default::default() };
            let (sampler, stop_tokens) = (Arc::new(sampler), [].into());
            let work = Work::Generate { max_tokens: 10, sure: 10, sampler, stop_tokens };
            Request { work, companion: Some(vec![1; companion].into()), ..request(1, prompt) }
        };
        let refused = |request: &Request, line: &LineSpec| {
            check_sense(request).and_then(|()| check_fits(request, line)).unwrap_err().to_string()
        };
        let fits = beside(118, 118);
        assert_eq!(check_sense(&fits).and_then(|()| check_fits(&fits, &line)), Ok(()));
        for (line, why) in [
            (LineSpec { companions: false, ..line }, NoCompanion::OlderWorker),
            (LineSpec { n_slots: 1, ..line }, NoCompanion::OneSlot),
            (LineSpec { max_rows: 1, ..line }, NoCompanion::OneRow),
            (LineSpec { n_blocks: 3, ..line }, NoCompanion::FewPages),
        ] {
            assert_eq!(check_fits(&fits, &line), Err(Rejection::NoCompanion(why)));
        }
        let why = refused(&beside(1, 183), &line);
        assert!(why.contains("193 (183 of the prompt"), "{why}");
        assert!(refused(&beside(1, 0), &line).contains("needs the companion"));
        assert!(
            refused(&Request { companion: None, ..fits.clone() }, &line)
                .contains("needs the companion")
        );
        let alone = Request { companion: Some([1].into()), ..request(1, 1) };
        assert!(refused(&alone, &line).contains("needs the companion"), "logits have none");
    }
}
