//! Puts a state together from its records.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use brigade_engine::batch::{CopyName, TokenMark};
use brigade_engine::kernels::KV_PAGE;
use brigade_proto::failure::{Failure, FailureKind};
use bytes::Bytes;

use super::store::{Read, Store};
use super::wire::At;
use crate::copies::parts::bad;
use crate::copies::piece::Piece;
use crate::copies::store::{BlockPieces, Head, Pieces};
use crate::records::record::{Bundle, Id, Part, Record};
use crate::records::{Key, Kind};

/// A layer that is put together, as far as it is.
struct Layer {
    no: u32,
    /// The key of its records, beside the keys of tokens.
    line: Key,
    has_pages: bool,
    print: Option<blake3::Hash>,
    blocks: BTreeMap<u32, BlockPieces>,
}

/// A state that is put together, as far as it is.
struct Made<'a> {
    store: &'a Store,
    layers: Vec<Layer>,
    kind: Option<Kind>,
    used: Vec<Id>,
    nbytes: u64,
    limit: u64,
}

/// The state of `layers` at position `len`, checked and in memory; `limit` bytes at most. Blocks.
///
/// # Errors
/// WrongPhase where a record is missing or damaged; BadMessage for keys that are not of this position, and for too many bytes.
pub fn state(
    store: &Store,
    at: &At,
    len: u32,
    layers: Range<u32>,
    limit: u64,
) -> Result<Pieces, Failure> {
    let full = len as usize / KV_PAGE;
    let (chain, tail) = (&at.keys.chain, at.tail);
    if chain.len() <= full || (tail.is_none() && !(len as usize).is_multiple_of(KV_PAGE)) {
        return Err(bad(format!("prefix.keys are not of position {len}")));
    }
    let layer = |no: u32| {
        let line = at.keys.line(no);
        let line = line.ok_or_else(|| bad(format!("prefix.keys have no layer {no}")))?;
        Ok(Layer { no, line, has_pages: true, print: None, blocks: BTreeMap::new() })
    };
    let all: Vec<Layer> = layers.clone().map(layer).collect::<Result<_, Failure>>()?;
    let (kind, used) = Default::default();
    let mut made = Made { store, layers: all, kind, used, nbytes: 0, limit };
    if tail.is_some() {
        made.rests(chain[full], tail)?;
    }
    // A page's records of all layers lie in one file.
    for chain in &chain[1..=full] {
        made.page(*chain, tail.is_none())?;
    }
    store.touch(made.used.iter());
    let (name, mark) = (CopyName([0; 16]), TokenMark([0; 16]));
    let print = |layer: &Layer| layer.print.ok_or_else(|| missing(layer.no, "no record was read"));
    let prints = made.layers.iter().map(print).collect::<Result<_, _>>()?;
    let head = Head { name, kind: made.kind.unwrap_or_default(), layers, prints };
    let blocks = made.layers.into_iter().flat_map(|layer| layer.blocks.into_values()).collect();
    Ok(Pieces { head, len, mark, blocks })
}

impl Made<'_> {
    /// Adds the records that are valid at the position alone.
    fn rests(&mut self, chain: Key, tail: Option<Key>) -> Result<(), Failure> {
        let read = self.read(chain, tail, |_| true)?;
        for (layer, read) in self.layers.iter_mut().zip(&read) {
            let about = &read.record().about;
            (layer.has_pages, layer.print) = (about.has_pages, Some(about.print));
            for (of, bytes) in parts(read.record(), &read.bytes) {
                let block = block_of(&mut layer.blocks, layer.no, of.block, of.paged);
                block.rest = (!bytes.is_empty()).then_some(Piece::Memory(bytes));
            }
        }
        Ok(())
    }

    /// The next page of all layers that have pages.
    fn page(&mut self, chain: Key, must_be_alone: bool) -> Result<(), Failure> {
        let read = self.read(chain, None, |layer| layer.has_pages)?;
        let paged = self.layers.iter_mut().filter(|layer| layer.has_pages);
        for (layer, read) in paged.zip(&read) {
            let record = read.record();
            if must_be_alone && !record.about.alone {
                return Err(missing(
                    layer.no,
                    "the prefix needs its state too, and there are only pages",
                ));
            }
            if *layer.print.get_or_insert(record.about.print) != record.about.print {
                return Err(missing(layer.no, "its records are of different weights"));
            }
            for (of, bytes) in parts(record, &read.bytes) {
                block_of(&mut layer.blocks, layer.no, of.block, of.paged)
                    .pages
                    .push((1, Piece::Memory(bytes)));
            }
        }
        Ok(())
    }

    /// A record of each of some layers.
    fn read(
        &mut self,
        chain: Key,
        tail: Option<Key>,
        of: impl Fn(&Layer) -> bool,
    ) -> Result<Vec<Read>, Failure> {
        let layers: Vec<&Layer> = self.layers.iter().filter(|layer| of(layer)).collect();
        let ids: Vec<Id> =
            layers.iter().map(|layer| Id { chain, line: layer.line, tail }).collect();
        let read = self.store.read(&ids).map_err(|error| {
            let absent = layers.iter().zip(&ids).find(|(_, id)| !self.store.has(id));
            let (no, why) = match (absent, error.kind()) {
                (Some((layer, _)), io::ErrorKind::NotFound) => {
                    (layer.no, "there is no record".into())
                }
                _ => (layers[0].no, error.to_string()),
            };
            missing(no, &why)
        })?;
        for Read { bundle, bytes, .. } in &read {
            self.check_kind(bundle)?;
            self.nbytes += bytes.len() as u64;
        }
        if self.nbytes > self.limit {
            let (nbytes, limit) = (self.nbytes, self.limit);
            return Err(bad(format!("records of {nbytes} bytes; there is room for {limit}")));
        }
        self.used.extend(ids);
        Ok(read)
    }

    /// Checks that all bundles of a state are of one kind. The caller compares the kind with its own.
    fn check_kind(&mut self, bundle: &Bundle) -> Result<(), Failure> {
        if *self.kind.get_or_insert(bundle.kind) == bundle.kind {
            Ok(())
        } else {
            Err(Failure::refusal(FailureKind::WrongPhase, "records of several kinds"))
        }
    }
}

fn missing(layer: u32, why: &str) -> Failure {
    let why = format!("records of layer {layer} are not here: {why}");
    Failure::refusal(FailureKind::WrongPhase, why)
}

fn block_of(
    blocks: &mut BTreeMap<u32, BlockPieces>,
    layer: u32,
    block: u32,
    paged: bool,
) -> &mut BlockPieces {
    let fresh = || BlockPieces { layer, block, paged, pages: Vec::new(), rest: None };
    blocks.entry(block).or_insert_with(fresh)
}

/// The bytes of each block in a record.
fn parts<'r>(record: &'r Record, bytes: &Bytes) -> Vec<(&'r Part, Bytes)> {
    let mut begin = 0;
    let part = |part: &'r Part| {
        let end = begin + part.nbytes as usize;
        let bytes = bytes.slice(begin..end);
        begin = end;
        (part, bytes)
    };
    record.parts.iter().map(part).collect()
}
