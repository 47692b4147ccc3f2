//! A state out of its records.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use brigade_engine::batch::{CopyName, TokenMark};
use brigade_engine::kernels::KV_PAGE;
use brigade_proto::failure::{Failure, FailureKind};
use bytes::Bytes;

use super::record::{Bundle, Id, Record};
use super::store::Store;
use super::wire::At;
use crate::copies::Kind;
use crate::copies::parts::bad;
use crate::copies::piece::Piece;
use crate::copies::store::{BlockPieces, Head, Pieces};

/// A state that is put together, as far as it is.
struct Made<'a> {
    store: &'a Store,
    at: &'a At,
    kind: Option<Kind>,
    blocks: Vec<BlockPieces>,
    prints: Vec<blake3::Hash>,
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
    if at.keys.chain.len() <= full || (at.tail.is_none() && !(len as usize).is_multiple_of(KV_PAGE))
    {
        return Err(bad(format!("prefix.keys are not of position {len}")));
    }
    let (blocks, prints, used) = Default::default();
    let mut made = Made { store, at, kind: None, blocks, prints, used, nbytes: 0, limit };
    for layer in layers.clone() {
        made.layer(layer, full)?;
    }
    store.touch(made.used.iter());
    let (name, mark) = (CopyName([0; 16]), TokenMark([0; 16]));
    let head = Head { name, kind: made.kind.unwrap_or_default(), layers, prints: made.prints };
    Ok(Pieces { head, len, mark, blocks: made.blocks })
}

impl Made<'_> {
    fn layer(&mut self, layer: u32, full: usize) -> Result<(), Failure> {
        let chain = &self.at.keys.chain;
        let line = self.at.keys.line(layer);
        let line = line.ok_or_else(|| bad(format!("prefix.keys have no layer {layer}")))?;
        let mut blocks: BTreeMap<u32, BlockPieces> = BTreeMap::new();
        let mut print = None;
        let mut has_pages = true;
        if self.at.tail.is_some() {
            let id = Id { chain: chain[full], line, tail: self.at.tail };
            let (of, record, bytes) = self.read(layer, id)?;
            (has_pages, print) = (record.about.has_pages, Some(record.about.print));
            self.check_kind(&of)?;
            for (part, bytes) in parts(&record, &bytes) {
                let block = block_of(&mut blocks, layer, part);
                block.rest = (!bytes.is_empty()).then_some(Piece::Memory(bytes));
            }
        }
        for chain in chain[1..=full].iter().filter(|_| has_pages) {
            let (of, record, bytes) = self.read(layer, Id { chain: *chain, line, tail: None })?;
            if self.at.tail.is_none() && !record.about.alone {
                return Err(missing(layer, "pages are not all that it needs"));
            }
            self.check_kind(&of)?;
            if *print.get_or_insert(record.about.print) != record.about.print {
                return Err(missing(layer, "its records are of different weights"));
            }
            for (part, bytes) in parts(&record, &bytes) {
                block_of(&mut blocks, layer, part).pages.push((1, Piece::Memory(bytes)));
            }
        }
        self.prints.push(print.ok_or_else(|| missing(layer, "there is none"))?);
        self.blocks.extend(blocks.into_values());
        Ok(())
    }

    fn read(
        &mut self,
        layer: u32,
        id: Id,
    ) -> Result<(std::sync::Arc<Bundle>, Record, Bytes), Failure> {
        let found = self.store.read(&id);
        let (bundle, at, bytes) = found.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing(layer, "there is none"),
            _ => missing(layer, &error.to_string()),
        })?;
        self.nbytes += bytes.len() as u64;
        if self.nbytes > self.limit {
            let (nbytes, limit) = (self.nbytes, self.limit);
            return Err(bad(format!("records of {nbytes} bytes; there is room for {limit}")));
        }
        self.used.push(id);
        let record = bundle.records[at].clone();
        Ok((bundle, record, bytes))
    }

    /// A state is of one kind: who asked for it compares that with what it computes.
    fn check_kind(&mut self, bundle: &Bundle) -> Result<(), Failure> {
        match *self.kind.get_or_insert(bundle.kind) == bundle.kind {
            true => Ok(()),
            false => Err(Failure::refusal(FailureKind::WrongPhase, "records of several kinds")),
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
    (block, paged): (u32, bool),
) -> &mut BlockPieces {
    let fresh = || BlockPieces { layer, block, paged, pages: Vec::new(), rest: None };
    blocks.entry(block).or_insert_with(fresh)
}

/// The bytes of each block in a record.
fn parts(record: &Record, bytes: &Bytes) -> Vec<((u32, bool), Bytes)> {
    let mut begin = 0;
    let part = |part: &super::record::Part| {
        let end = begin + part.nbytes as usize;
        let bytes = bytes.slice(begin..end);
        begin = end;
        ((part.block, part.paged), bytes)
    };
    record.parts.iter().map(part).collect()
}
