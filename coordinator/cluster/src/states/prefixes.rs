//! Records of prefixes on the workers of a line: finds them, writes them, and loads states from them.
//!
//! A layer's state depends on more than the tokens. All of that is hashed into the layer's **line**: the weights of
//! all layers up to it, the kernels, the cache's type, and other facts that the workers report. Where values lose
//! bits between workers, the cuts before the layer count too. So records are of use on any line that would compute
//! the same bits.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use brigade_engine::batch::SlotId;
use brigade_engine::kernels::KV_PAGE;
use brigade_line::stages::prefix_names::{Key, Names};
use brigade_line::stages::states::{From, PrefixChoice, PutSlot};
use brigade_proto::address::Address;
use brigade_proto::control::Feature;
use brigade_proto::copies::{
    PrefixAt, PrefixFound, PrefixKeys, PrefixOwners, PrefixSave, PrefixesReply, PrefixesRequest,
    PutBackRequest, prefixes_request::Ask,
};
use brigade_proto::limits::{COPY_NAME_BYTES, HASH_BYTES, MAX_CHUNK_BYTES};
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::members::conn::{Conn, WorkerError};
use crate::members::facts;
use crate::members::placed_stage::{Identity, PlacedStage};
use crate::states::choose::{Has, covered};
use crate::states::transfer::StageStates;

/// How long workers may take to say which records they have, or to drop them.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long a state may take to be written.
const SAVE_WITHIN: Duration = Duration::from_secs(600);

/// How long a state may take to be loaded; then it is computed.
const LOAD_WITHIN: Duration = Duration::from_secs(60);

/// Begins what lines are made of.
const LINE: &[u8] = b"brigade line 1";

/// Records that one worker has of a prompt, for some layers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Here {
    worker: usize,
    layers: Range<u32>,
    pages: u32,
    alone: bool,
    positions: BTreeSet<u32>,
    page_bytes: u64,
    rest_bytes: u64,
}

impl Here {
    fn reaches(&self, len: u32, has_rest: bool) -> bool {
        if has_rest {
            self.positions.contains(&len)
        } else {
            self.alone && len <= self.pages * KV_PAGE as u32
        }
    }

    /// About what some of its layers take up to a position.
    fn nbytes(&self, len: u32, layers: &Range<u32>) -> u64 {
        let pages =
            u64::from(len / KV_PAGE as u32) * self.page_bytes / u64::from(self.pages.max(1));
        (pages + self.rest_bytes) * layers.len() as u64 / self.layers.len().max(1) as u64
    }
}

/// The longest beginning of a prompt of so many tokens of which `stages` can have all their layers.
fn choose(stages: &[Range<u32>], here: &[Here], n_tokens: u32) -> Option<PrefixChoice> {
    let most = n_tokens.checked_sub(1)?;
    let page = KV_PAGE as u32;
    let ends = here.iter().filter(|here| here.alone);
    let ends = ends.map(|here| ((here.pages * page).min(most / page * page), false));
    let rests = here.iter().flat_map(|here| here.positions.iter().map(|len| (*len, true)));
    let candidates: BTreeSet<(u32, bool)> =
        ends.chain(rests).filter(|(len, _)| (1..=most).contains(len)).collect();
    candidates.into_iter().rev().find_map(|(len, has_rest)| {
        let there: Vec<&Here> = here.iter().filter(|here| here.reaches(len, has_rest)).collect();
        let has: Vec<Has> =
            there.iter().map(|here| Has::of(here.worker, here.layers.clone())).collect();
        let has: Vec<&Has> = has.iter().collect();
        let of = |(stage, layers)| covered(stage, layers, &has);
        let sources: Vec<Vec<From>> = stages.iter().enumerate().map(of).collect::<Option<_>>()?;
        let takes = |from: &From| {
            let of = |here: &&&Here| {
                here.worker == from.worker && here.layers.contains(&from.layers.start)
            };
            there.iter().find(of).map_or(0, |here| here.nbytes(len, &from.layers))
        };
        let nbytes = sources.iter().map(|from| from.iter().map(takes).sum()).max().unwrap_or(0);
        Some(PrefixChoice { len, has_rest, sources, nbytes })
    })
}

/// The records that a worker reports, as far as they are of this prompt; `None` for an invalid report.
fn here(worker: usize, found: PrefixFound, names: &Names) -> Option<Here> {
    let PrefixFound { layer_begin, layer_end, pages, alone, page_bytes, rest_bytes, .. } = found;
    let (tails, rest) = found.tails.as_chunks::<COPY_NAME_BYTES>();
    let n_pages = names.whole_chain().len() as u32 - 1;
    let is_sound = tails.len() == found.positions.len() && rest.is_empty() && pages <= n_pages;
    if !is_sound || layer_begin >= layer_end {
        return None;
    }
    let n_tokens = names.tokens().len() as u32;
    let is_ours = |(len, tail): &(&u32, &Key)| **len <= n_tokens && names.tail(**len) == **tail;
    let positions = found.positions.iter().zip(tails).filter(is_ours).map(|(len, _)| *len);
    Some(Here {
        worker,
        layers: layer_begin..layer_end,
        pages,
        alone,
        positions: positions.collect(),
        page_bytes,
        rest_bytes,
    })
}

impl StageStates {
    /// Whether every worker of the line keeps records.
    pub(crate) fn all_keep_prefixes(&self) -> bool {
        let knows =
            |stage: &PlacedStage| facts::knows(stage.conn.capabilities(), Feature::Prefixes);
        let n = self.stages.iter().filter(|stage| knows(stage)).count();
        if n > 0 && n < self.stages.len() && !self.lines.initialized() {
            let without = self.stages.iter().filter(|stage| !knows(stage));
            let without: Vec<&str> = without.map(|stage| stage.conn.name()).collect();
            tracing::debug!(
                ?without,
                "these workers keep no records of prefixes: they were started without --prefix-ram and --prefix-disk"
            );
        }
        n == self.stages.len()
    }

    /// Whether every worker of the line notices that a slot was changed while its state is written.
    pub(crate) fn all_notice_changes(&self) -> bool {
        let notices =
            |stage: &PlacedStage| facts::knows(stage.conn.capabilities(), Feature::ChangedSlots);
        self.stages.iter().all(notices)
    }

    async fn ask(&self, conn: &Conn, ask: Ask) -> Result<PrefixesReply, String> {
        let Identity { epoch, coordinator_id } = self.identity.clone();
        let within = if matches!(ask, Ask::Save(_)) { SAVE_WITHIN } else { ANSWER_WITHIN };
        let request = PrefixesRequest { epoch, coordinator_id, ask: Some(ask) };
        let call = async {
            let reply = conn.copies().prefixes(request).await;
            reply.map(|reply| reply.into_inner()).map_err(|status| conn.error(&status))
        };
        let worker = conn.name().to_string();
        let reason = format!("it did not answer about records within {} s", within.as_secs());
        let reply = timeout(within, conn.while_alive(call)).await;
        let reply = reply.unwrap_or(Err(WorkerError::Stalled { worker, reason }));
        reply.map_err(|error| error.to_string())
    }

    /// Asks all stages; the answers in their order.
    async fn ask_all(
        &self,
        of: impl Fn(&PlacedStage) -> Ask,
    ) -> Result<Vec<PrefixesReply>, String> {
        let mut asked = JoinSet::new();
        for (i, stage) in self.stages.iter().enumerate() {
            let (ask, states, stage) = (of(stage), self.clone(), stage.clone());
            asked.spawn(async move { (i, states.ask(&stage.conn, ask).await) });
        }
        let mut replies: Vec<PrefixesReply> = vec![PrefixesReply::default(); self.stages.len()];
        let mut failed = None;
        // A state is written by all that can, even if one cannot.
        while let Some(reply) = asked.join_next().await {
            let (i, reply) =
                reply.map_err(|error| format!("a task ended without a result: {error}"))?;
            match reply {
                Ok(reply) => replies[i] = reply,
                Err(why) => failed = Some(why),
            }
        }
        failed.map_or(Ok(replies), Err)
    }

    /// The hash of each layer's line: everything beside tokens that its state depends on.
    async fn lines(&self) -> Result<Arc<Vec<Key>>, String> {
        let ask = async || {
            let replies = self.ask_all(|_| Ask::Facts(true)).await?;
            let of = |(stage, reply): (&PlacedStage, &PrefixesReply)| {
                let (prints, rest) = reply.prints.as_chunks::<HASH_BYTES>();
                let is_sound = rest.is_empty() && prints.len() == stage.layers.len();
                is_sound.then(|| (prints.to_vec(), reply.kind.clone()))
            };
            let all: Option<Vec<_>> = self.stages.iter().zip(&replies).map(of).collect();
            let all = all.ok_or("a worker has other layers than it was given")?;
            Ok(Arc::new(lines_of(&all, self.cuts_lose_bits)))
        };
        self.lines.get_or_try_init(ask).await.cloned()
    }

    fn keys(&self, lines: &[Key], chain: &[Key], layers: Range<usize>) -> PrefixKeys {
        PrefixKeys {
            chain: joined(chain),
            layer_begin: layers.start as u32,
            lines: joined(&lines[layers]),
        }
    }

    /// Finds the longest prefix of a prompt that all stages can have.
    ///
    /// # Errors
    /// A worker did not answer.
    pub(crate) async fn find_names(&self, names: &Names) -> Result<Option<PrefixChoice>, String> {
        let lines = self.lines().await?;
        let all =
            |_: &PlacedStage| Ask::Find(self.keys(&lines, names.whole_chain(), 0..lines.len()));
        let replies = self.ask_all(all).await?;
        let found = replies.into_iter().enumerate().flat_map(|(worker, reply)| {
            reply.found.into_iter().filter_map(move |found| here(worker, found, names))
        });
        let found: Vec<Here> = found.collect();
        let stages: Vec<Range<u32>> = self.stages.iter().map(PlacedStage::layer_range).collect();
        Ok(choose(&stages, &found, names.tokens().len() as u32))
    }

    /// Writes the state of the kept sequence in `slot`, as long as nothing has changed it since that ubatch; bytes that
    /// were written.
    ///
    /// # Errors
    /// Why a stage's part is not written.
    pub(crate) async fn save_names(
        &self,
        slot: SlotId,
        unchanged_since: Option<u64>,
        names: &Names,
    ) -> Result<u64, String> {
        let lines = self.lines().await?;
        let len = names.tokens().len() as u32;
        let save = |stage: &PlacedStage| {
            let keys = self.keys(&lines, names.whole_chain(), stage.layers.clone());
            Ask::Save(PrefixSave {
                slot: slot.0,
                len,
                at: Some(PrefixAt { keys: Some(keys), tail: joined(&[names.tail(len)]) }),
                realm: joined(&[names.realm()]),
                owner: joined(&[names.owner]),
                unchanged_since,
            })
        };
        let replies = self.ask_all(save).await?;
        Ok(replies.iter().map(|reply| reply.saved_bytes).sum())
    }

    /// For each stage, the keys of its records at a position.
    ///
    /// # Errors
    /// A worker did not answer.
    pub(crate) async fn prefixes_at(
        &self,
        names: &Names,
        len: u32,
        has_rest: bool,
    ) -> Result<Vec<Option<PrefixAt>>, String> {
        let lines = self.lines().await?;
        let tail = if has_rest { joined(&[names.tail(len)]) } else { Bytes::new() };
        let at = |stage: &PlacedStage| {
            let keys = self.keys(&lines, names.chain(len), stage.layers.clone());
            Some(PrefixAt { keys: Some(keys), tail: tail.clone() })
        };
        Ok(self.stages.iter().map(at).collect())
    }

    /// Gives the sequence in a slot the state that was found; bytes that went from one worker to another.
    ///
    /// # Errors
    /// Why a stage has not got it.
    pub(crate) async fn load_names(
        &self,
        to: PutSlot,
        names: &Names,
        choice: PrefixChoice,
    ) -> Result<u64, String> {
        let PrefixChoice { len, has_rest, .. } = choice;
        let tokens: Vec<u8> =
            names.tokens()[..len as usize].iter().flat_map(|token| token.to_le_bytes()).collect();
        if tokens.len() > MAX_CHUNK_BYTES {
            return Err(format!("{len} tokens are more than a message has"));
        }
        let prefixes = self.prefixes_at(names, len, has_rest).await?;
        let mut puts = Vec::new();
        for (i, prefix) in prefixes.into_iter().enumerate() {
            let is_last = i + 1 == self.stages.len();
            puts.push(PutBackRequest {
                slot: to.slot.0,
                unchanged_since: to.unchanged_since,
                len,
                tokens: if is_last { tokens.clone().into() } else { Bytes::new() },
                sources: self.sources(i, &choice.sources[i])?,
                prefix,
                ..PutBackRequest::default()
            });
        }
        self.put(puts, LOAD_WITHIN).await
    }

    /// Drops all that the workers have of a prompt.
    ///
    /// # Errors
    /// A worker did not do it.
    pub(crate) async fn forget_names(&self, names: &Names) -> Result<(), String> {
        let lines = self.lines().await?;
        let keys = self.keys(&lines, names.whole_chain(), 0..lines.len());
        self.ask_all(|_| Ask::Forget(keys.clone())).await.map(drop)
    }

    /// Drops the records of a realm whose owner is not among `owners`, on all workers that are connected to the server.
    ///
    /// # Errors
    /// A worker did not do it.
    pub(crate) async fn keep_names_of(&self, realm: Key, owners: Vec<Key>) -> Result<(), String> {
        let (realm, owners) = (joined(&[realm]), joined(&owners));
        let ask = Ask::Owners(PrefixOwners { realm, owners });
        let (of_line, of_others) =
            tokio::join!(self.ask_all(|_| ask.clone()), self.ask_others(&ask));
        of_line.map(drop).and(of_others)
    }

    /// Asks all workers that are connected to the server, keep records and have no layers of this line, those of other
    /// models' lines too.
    async fn ask_others(&self, ask: &Ask) -> Result<(), String> {
        let keeps = |conn: &Conn| facts::knows(conn.capabilities(), Feature::Prefixes);
        let mut seen: Vec<Address> =
            self.stages.iter().map(|stage| stage.conn.address().clone()).collect();
        let mut asked = JoinSet::new();
        for list in &self.present {
            let there = list.borrow().clone();
            for conn in there.iter().filter(|conn| keeps(conn)) {
                if seen.contains(conn.address()) {
                    continue;
                }
                seen.push(conn.address().clone());
                let (states, conn, ask) = (self.clone(), conn.clone(), ask.clone());
                asked.spawn(async move { states.ask(&conn, ask).await.map(drop) });
            }
        }
        let mut result = Ok(());
        while let Some(reply) = asked.join_next().await {
            let ended = |error| Err(format!("a task ended without a result: {error}"));
            result = result.and(reply.unwrap_or_else(ended));
        }
        result
    }
}

/// The lines of all layers. `stages` has, for each stage, the fingerprints of its layers and the properties that its
/// states depend on.
fn lines_of(stages: &[(Vec<[u8; HASH_BYTES]>, Bytes)], cuts_lose_bits: bool) -> Vec<Key> {
    let (mut lines, mut last) = (Vec::new(), *blake3::hash(LINE).as_bytes());
    for (prints, kind) in stages {
        for (i, print) in prints.iter().enumerate() {
            let is_cut = cuts_lose_bits && i == 0 && !lines.is_empty();
            let mut hasher = blake3::Hasher::new();
            hasher.update(&last).update(print).update(blake3::hash(kind).as_bytes());
            hasher.update(&[u8::from(is_cut)]);
            last = *hasher.finalize().as_bytes();
            let mut line = Key::default();
            line.copy_from_slice(&last[..size_of::<Key>()]);
            lines.push(line);
        }
    }
    lines
}

fn joined(keys: &[Key]) -> Bytes {
    keys.as_flattened().to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(worker: usize, layers: Range<u32>, pages: u32, positions: &[u32]) -> Here {
        let positions = positions.iter().copied().collect();
        Here { worker, layers, pages, alone: true, positions, page_bytes: 100, rest_bytes: 10 }
    }

    fn chosen(stages: &[Range<u32>], here: &[Here]) -> Option<(u32, bool)> {
        choose(stages, here, 300).map(|choice| (choice.len, choice.has_rest))
    }

    #[test]
    fn the_longest_beginning_that_all_layers_have_is_chosen() {
        let stages = [0..2, 2..4];
        let both = [at(0, 0..2, 3, &[200]), at(1, 2..4, 4, &[200, 290])];
        assert_eq!(chosen(&stages, &both), Some((200, true)));
        let apart = [at(0, 0..2, 3, &[210]), at(1, 2..4, 4, &[200])];
        assert_eq!(chosen(&stages, &apart), Some((192, false)), "pages alone");
        assert_eq!(chosen(&stages, &both[..1]), None, "nobody has layers 2..4");
        let states = apart.map(|here| Here { alone: false, ..here });
        assert_eq!(chosen(&stages, &states), None, "where a state is needed");
        // One row is left to compute, and the prompt's pages are no more than it has.
        let one = std::slice::from_ref(&(0..1));
        assert_eq!(chosen(one, &[at(0, 0..1, 9, &[300])]), Some((256, false)));
    }

    #[test]
    fn another_cut_takes_layers_from_several_workers() {
        let here = [at(0, 0..3, 2, &[]), at(1, 3..6, 2, &[])];
        let choice = choose(&[0..2, 2..6], &here, 200).unwrap();
        let from = |worker, layers| From { worker, layers };
        assert_eq!(choice.sources, [vec![from(0, 0..2)], vec![from(0, 2..3), from(1, 3..6)]]);
        assert_eq!(choice.nbytes, (110 / 3) + 110);
    }

    #[test]
    fn layers_of_one_worker_are_counted_by_the_record_that_has_them() {
        let large = Here { page_bytes: 1000, ..at(0, 2..4, 2, &[]) };
        let stage = 0..4;
        let here = [at(0, 0..2, 2, &[]), large];
        let choice = choose(std::slice::from_ref(&stage), &here, 200).unwrap();
        assert_eq!(choice.nbytes, 110 + 1010);
    }

    #[test]
    fn a_line_stands_for_all_layers_before_it_and_for_cuts_that_lose_bits() {
        let print = |n: u8| [n; HASH_BYTES];
        let kind = |n: u8| Bytes::from(vec![n; 32]);
        let two = |a: &[u8], b: &[u8], kinds: [u8; 2]| {
            let of = |prints: &[u8]| prints.iter().map(|n| print(*n)).collect::<Vec<_>>();
            [(of(a), kind(kinds[0])), (of(b), kind(kinds[1]))]
        };
        let lines = |stages: &[_], lossy| lines_of(stages, lossy);
        let this = lines(&two(&[1, 2], &[3, 4], [7, 7]), false);
        assert_eq!(this.len(), 4);
        assert_eq!(lines(&two(&[1], &[2, 3, 4], [7, 7]), false), this, "another cut");
        // Other weights, and another kind: from there on.
        let weights = lines(&two(&[1, 9], &[3, 4], [7, 7]), false);
        let kinds = lines(&two(&[1, 2], &[3, 4], [7, 8]), false);
        assert_eq!((weights[0], &kinds[..2]), (this[0], &this[..2]));
        assert!((1..4).all(|i| weights[i] != this[i]) && (2..4).all(|i| kinds[i] != this[i]));
        let lossy = lines(&two(&[1, 2], &[3, 4], [7, 7]), true);
        let moved = lines(&two(&[1], &[2, 3, 4], [7, 7]), true);
        assert_eq!((&lossy[..2], moved[0]), (&this[..2], this[0]), "no cut before them");
        assert!((2..4).all(|i| lossy[i] != this[i]) && (1..4).all(|i| moved[i] != lossy[i]));
    }
}
