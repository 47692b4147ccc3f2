//! Copies of sequences' states as messages, and messages as copies: the one place that knows how the two correspond.
//!
//! A copy has a head (the sequence, the layers and their fingerprints), items, and an end. An item is the state of one
//! block: some of its pages, or the rest, which is its recurrent state. The end names the position that all items belong
//! to, with the mark (a hash) of the tokens before it.

use std::sync::Arc;

use blake3::Hash;
use brigade_engine::batch::{CopyName, TokenMark};
use brigade_proto::copies::{CopyEnd, CopyHead, CopyItem, CopyPart, copy_part::Part};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{
    COPY_CHUNK_BYTES, COPY_NAME_BYTES, HASH_BYTES, MAX_CHUNK_BYTES, MAX_LAYERS,
};
use bytes::Bytes;

use super::QUEUE_BYTES;
use super::buffers::Buffers;
use super::store::{Head, Item, What};
use crate::machine::memory::make_room;

/// Bytes of the largest item. It is queued as a whole, so it never exceeds the sender's queue.
pub const MAX_ITEM_BYTES: u64 = QUEUE_BYTES as u64;

/// The message that says whose copies follow.
pub fn head(head: &Head) -> CopyPart {
    let prints: Vec<u8> = head.prints.iter().flat_map(|print| *print.as_bytes()).collect();
    part(Part::Head(CopyHead {
        name: head.name.0.to_vec().into(),
        kind: head.kind.to_vec().into(),
        layer_begin: head.layers.start,
        layer_end: head.layers.end,
        prints: prints.into(),
    }))
}

/// The messages of one item.
pub fn item(item: Item, data: Bytes) -> impl Iterator<Item = CopyPart> {
    let announced = announce(item, data.len() as u64);
    let chunks = (0..data.len())
        .step_by(COPY_CHUNK_BYTES)
        .map(move |begin| chunk(data.slice(begin..data.len().min(begin + COPY_CHUNK_BYTES))));
    std::iter::once(announced).chain(chunks)
}

/// The message that says which item's bytes follow.
fn announce(item: Item, nbytes: u64) -> CopyPart {
    let (n_pages, first_page) = match item.what {
        What::Pages { first, n } => (n, first),
        What::Rest { .. } => (0, 0),
    };
    let Item { layer, block, paged, .. } = item;
    part(Part::Item(CopyItem { layer, block, paged, n_pages, first_page, nbytes }))
}

/// A message with some of an item's bytes: [`COPY_CHUNK_BYTES`] at most.
fn chunk(bytes: Bytes) -> CopyPart {
    part(Part::Data(bytes))
}

/// The message that ends a copy; `None`: it is not whole yet.
pub fn end(at: Option<(u32, TokenMark)>) -> CopyPart {
    let (len, mark) = at.map_or((0, Bytes::new()), |(len, mark)| (len, mark.0.to_vec().into()));
    part(Part::End(CopyEnd { len, mark }))
}

/// The message after which a sequence's copies are dropped.
pub fn forget(name: CopyName) -> CopyPart {
    part(Part::Forget(name.0.to_vec().into()))
}

fn part(part: Part) -> CopyPart {
    CopyPart { part: Some(part) }
}

/// A step in the assembly of a copy from messages.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// A part is here whole. The position of a rest is not known before the end; it is 0 here.
    Item(Item, Bytes),
    /// The copy ends; with the position that it is whole at.
    End(Option<(u32, TokenMark)>),
    /// The sequence's copies are not needed any more.
    Forget(CopyName),
}

/// Messages on their way to copies. Memory grows with the bytes that have come, never with those announced.
#[derive(Debug, Default)]
pub struct Assembler {
    head: Option<Head>,
    item: Option<(Item, u64)>,
    data: Vec<u8>,
    /// Where its memory comes from.
    buffers: Arc<Buffers>,
}

impl Assembler {
    /// An assembler with this pool of buffers.
    pub fn new(buffers: Arc<Buffers>) -> Self {
        Self { buffers, ..Self::default() }
    }

    /// The sequence and the layers of the copies that come now.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Takes a message; returns the part that it completes.
    ///
    /// # Errors
    /// BadMessage, naming the field.
    pub fn take(&mut self, message: CopyPart) -> Result<Option<Event>, Failure> {
        let part = message.part.ok_or_else(|| bad("copy.part is missing"))?;
        if self.item.is_some() && !matches!(part, Part::Data(_)) {
            return Err(bad("copy.item ends before its bytes"));
        }
        match part {
            Part::Head(head) => {
                self.head = Some(head_of(&head)?);
                Ok(None)
            }
            Part::Item(announced) => self.begin(&announced),
            Part::Data(data) => self.accept(&data),
            Part::End(end) => {
                let at = (end.len > 0).then(|| Ok((end.len, mark_of(&end.mark)?))).transpose()?;
                self.head.as_ref().ok_or_else(|| bad("copy.end without a head"))?;
                Ok(Some(Event::End(at)))
            }
            Part::Forget(name) => Ok(Some(Event::Forget(name_of(&name)?))),
        }
    }

    /// Bytes that the item will have that is not whole yet.
    pub fn announced(&self) -> u64 {
        self.item.map_or(0, |(_, nbytes)| nbytes)
    }

    /// Bytes of the item that is not whole yet.
    pub fn nbytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// Ends the announced item without its bytes, which stay where they are: in a file of records.
    pub fn skip(&mut self) -> Option<Item> {
        self.item.take().map(|(item, _)| item)
    }

    fn begin(&mut self, announced: &CopyItem) -> Result<Option<Event>, Failure> {
        let head = self.head.as_ref().ok_or_else(|| bad("copy.item without a head"))?;
        let CopyItem { layer, block, paged, n_pages, first_page, nbytes } = *announced;
        if !head.layers.contains(&layer) {
            return Err(bad(format!("copy.item.layer {layer} is not among {:?}", head.layers)));
        }
        let sized = nbytes > 0 && nbytes <= MAX_ITEM_BYTES;
        let paged_well = n_pages == 0 || (paged && nbytes.is_multiple_of(u64::from(n_pages)));
        if !sized || !paged_well || first_page.checked_add(n_pages).is_none() {
            return Err(bad(format!("copy.item has {nbytes} bytes in {n_pages} pages")));
        }
        let what = match n_pages {
            0 => What::Rest { len: 0 },
            n => What::Pages { first: first_page, n },
        };
        self.item = Some((Item { layer, block, paged, what }, nbytes));
        // A buffer that was used before takes no more memory, for any number of bytes.
        let used = usize::try_from(nbytes).ok().and_then(|n| self.buffers.used_before(n));
        self.data = used.unwrap_or_default();
        Ok(None)
    }

    fn accept(&mut self, data: &[u8]) -> Result<Option<Event>, Failure> {
        let Some((item, nbytes)) = self.item else {
            return Err(bad("copy.data without an item"));
        };
        let come = (self.data.len() + data.len()) as u64;
        if data.is_empty() || data.len() > MAX_CHUNK_BYTES || come > nbytes {
            return Err(bad(format!("copy.data brings {come} of {nbytes} bytes")));
        }
        make_room(&mut self.data, data.len(), nbytes)?;
        self.data.extend_from_slice(data);
        if come < nbytes {
            return Ok(None);
        }
        self.item = None;
        let data = self.buffers.share(std::mem::take(&mut self.data));
        Ok(Some(Event::Item(item, data)))
    }
}

fn head_of(head: &CopyHead) -> Result<Head, Failure> {
    let layers = head.layer_begin..head.layer_end;
    if layers.is_empty() || layers.end > MAX_LAYERS {
        return Err(bad(format!("copy.head.layers are {layers:?}")));
    }
    let kind = head.kind.as_ref().try_into().map_err(|_| bad("copy.head.kind has no 32 bytes"))?;
    let (prints, rest) = head.prints.as_chunks::<HASH_BYTES>();
    if prints.len() != layers.len() || !rest.is_empty() {
        return Err(bad(format!("copy.head.prints: {} for layers {layers:?}", prints.len())));
    }
    let prints = prints.iter().map(|print| Hash::from_bytes(*print)).collect();
    Ok(Head { name: name_of(&head.name)?, kind, layers, prints })
}

/// A sequence's name as it came over the wire.
///
/// # Errors
/// BadMessage for another number of bytes.
pub fn name_of(bytes: &[u8]) -> Result<CopyName, Failure> {
    Ok(CopyName(sixteen("name", bytes)?))
}

/// A mark of tokens as it came over the wire.
///
/// # Errors
/// As [`name_of`].
pub fn mark_of(bytes: &[u8]) -> Result<TokenMark, Failure> {
    Ok(TokenMark(sixteen("mark", bytes)?))
}

fn sixteen(field: &str, bytes: &[u8]) -> Result<[u8; COPY_NAME_BYTES], Failure> {
    let n = bytes.len();
    bytes
        .try_into()
        .map_err(|_| bad(format!("{field} has {n} bytes, {COPY_NAME_BYTES} are expected")))
}

/// A refusal of what a peer sent.
pub fn bad(why: impl Into<String>) -> Failure {
    Failure::refusal(FailureKind::BadMessage, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_head() -> Head {
        let prints = vec![blake3::hash(b"2"), blake3::hash(b"3")];
        Head { name: CopyName([1; 16]), kind: [2; 32], layers: 2..4, prints }
    }

    fn take_all(messages: Vec<CopyPart>) -> Result<Vec<Event>, Failure> {
        let mut assembler = Assembler::default();
        let events = messages.into_iter().map(|message| assembler.take(message));
        Ok(events.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    #[test]
    fn what_is_sent_is_what_comes() {
        let data = Bytes::from(vec![7; 3 * COPY_CHUNK_BYTES / 2]);
        let pages = Item { layer: 2, block: 1, paged: true, what: What::Pages { first: 4, n: 3 } };
        let rest = Item { layer: 3, block: 0, paged: false, what: What::Rest { len: 0 } };
        let at = Some((300, TokenMark([5; 16])));
        let mut messages = vec![head(&some_head())];
        messages.extend(item(pages, data.clone()));
        messages.extend(item(rest, data.slice(..9)));
        messages.push(end(at));
        messages.push(forget(CopyName([1; 16])));
        let expected = [
            Event::Item(pages, data.clone()),
            Event::Item(rest, data.slice(..9)),
            Event::End(at),
            Event::Forget(CopyName([1; 16])),
        ];
        assert_eq!(take_all(messages).unwrap(), expected);
    }

    #[test]
    fn what_is_no_copy_is_refused_by_name() {
        let some = Item { layer: 2, block: 0, paged: true, what: What::Pages { first: 0, n: 2 } };
        let of = |item: Item, n: usize| super::item(item, vec![0; n].into()).collect::<Vec<_>>();
        let with_head = |more: Vec<CopyPart>| [vec![head(&some_head())], more].concat();
        let data = |n: usize| part(Part::Data(vec![0; n].into()));
        let cases = [
            (of(some, 2), "without a head"),
            (with_head(vec![data(1)]), "without an item"),
            (with_head(of(Item { layer: 4, ..some }, 2)), "layer 4"),
            (with_head(of(some, 3)), "3 bytes in 2 pages"),
            (with_head(vec![of(some, 4)[0].clone(), data(5)]), "5 of 4"),
            (with_head(vec![of(some, 4)[0].clone(), end(None)]), "before its bytes"),
            (vec![part(Part::Forget(vec![0; 3].into()))], "3 bytes"),
            (vec![CopyPart::default()], "copy.part"),
        ];
        for (messages, word) in cases {
            let failure = take_all(messages).unwrap_err();
            assert_eq!(failure.kind(), FailureKind::BadMessage);
            assert!(failure.reason.contains(word), "{word}: {}", failure.reason);
        }
    }
}
