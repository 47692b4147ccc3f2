//! Reads a state from its records, part by part.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use brigade_engine::batch::{CopyName, TokenMark};
use brigade_engine::kernels::KV_PAGE;
use brigade_proto::failure::{Failure, FailureKind};
use bytes::Bytes;

use super::store::{Read, Store};
use super::wire::At;
use crate::copies::parts::bad;
use crate::copies::source::{Source, check_room};
use crate::copies::store::{Head, Item, What};
use crate::records::Key;
use crate::records::record::{Bundle, Id, Part, Record};

/// A layer whose records are read.
struct Layer {
    no: u32,
    /// The key of its records, beside the keys of tokens.
    line: Key,
    has_pages: bool,
}

/// The state of some layers at a position, in records.
pub struct RecordSource {
    store: Arc<Store>,
    at: At,
    len: u32,
    head: Head,
    layers: Vec<Layer>,
    /// The rests of all layers are step 0; then comes the first page of all of them, and so on.
    step: usize,
    /// Layers before the next one whose record of this step is to be read.
    at_layer: usize,
}

impl RecordSource {
    /// The records of `layers` at position `len`. Nothing is read yet.
    ///
    /// # Errors
    /// WrongPhase where the first record of a layer is missing; BadMessage for keys that are not of this position.
    pub fn open(store: Arc<Store>, at: At, len: u32, layers: Range<u32>) -> Result<Self, Failure> {
        let full = len as usize / KV_PAGE;
        let is_whole = full > 0 && (len as usize).is_multiple_of(KV_PAGE);
        if at.keys.chain.len() <= full || (at.tail.is_none() && !is_whole) {
            return Err(bad(format!("prefix.keys are not of position {len}")));
        }
        let layer = |no: u32| {
            let line = at.keys.line(no);
            let line = line.ok_or_else(|| bad(format!("prefix.keys have no layer {no}")))?;
            Ok(Layer { no, line, has_pages: true })
        };
        let all: Vec<Layer> = layers.clone().map(layer).collect::<Result<_, Failure>>()?;
        let (name, kind, prints) = (CopyName([0; 16]), Default::default(), Vec::new());
        let head = Head { name, kind, layers, prints };
        let step = usize::from(at.tail.is_none());
        let mut source = Self { store, at, len, head, layers: all, step, at_layer: 0 };
        source.describe()?;
        Ok(source)
    }

    /// Learns from the first record of each layer what it is of.
    fn describe(&mut self) -> Result<(), Failure> {
        let ids = self.ids(self.step);
        for (at, (bundle, record)) in self.found(&ids)?.into_iter().enumerate() {
            let about = &bundle.records[record].about;
            self.layers[at].has_pages = about.has_pages;
            self.head.prints.push(about.print);
            self.head.kind = bundle.kind;
        }
        Ok(())
    }

    /// The records that a step still has, with their layers' indexes.
    fn ids(&self, step: usize) -> Vec<(usize, Id)> {
        let At { keys, tail } = &self.at;
        let (page, tail) = match step {
            0 => (self.len as usize / KV_PAGE, *tail),
            page => (page, None),
        };
        let layers = self.layers.iter().enumerate().skip(self.at_layer);
        let of_step = layers.filter(|(_, layer)| step == 0 || layer.has_pages);
        let id = |layer: &Layer| Id { chain: keys.chain[page], line: layer.line, tail };
        of_step.map(|(at, layer)| (at, id(layer))).collect()
    }

    /// Where these records are: their bundles, and their places there.
    fn found(&self, ids: &[(usize, Id)]) -> Result<Vec<(Arc<Bundle>, usize)>, Failure> {
        let found = ids.iter().map(|(at, id)| {
            let found = self.store.find(id);
            found.ok_or_else(|| missing(self.layers[*at].no, "there is no record"))
        });
        found.collect()
    }

    /// The first of these records that have `max_bytes` at most.
    fn fitting<'a>(
        &self,
        ids: &'a [(usize, Id)],
        max_bytes: u64,
    ) -> Result<&'a [(usize, Id)], Failure> {
        let (mut n, mut nbytes) = (0, 0);
        for (bundle, at) in self.found(ids)? {
            nbytes += bundle.records[at].nbytes();
            if nbytes > max_bytes {
                break;
            }
            n += 1;
        }
        Ok(&ids[..n])
    }

    fn read(&self, ids: &[(usize, Id)]) -> Result<Vec<Read>, Failure> {
        let only: Vec<Id> = ids.iter().map(|(_, id)| *id).collect();
        let read = self.store.read(&only).map_err(|error| {
            let absent = ids.iter().find(|(_, id)| self.store.find(id).is_none());
            match (absent, error.kind()) {
                (Some((at, _)), io::ErrorKind::NotFound) => {
                    missing(self.layers[*at].no, "there is no record")
                }
                _ => missing(self.layers[ids[0].0].no, &error.to_string()),
            }
        })?;
        for ((at, _), read) in ids.iter().zip(&read) {
            self.check(*at, read)?;
        }
        Ok(read)
    }

    /// Checks that a record is of the same state as the first ones.
    fn check(&self, at: usize, read: &Read) -> Result<(), Failure> {
        let (no, about) = (self.layers[at].no, &read.record().about);
        // The caller compares the kind with its own.
        if read.bundle.kind != self.head.kind {
            return Err(Failure::refusal(FailureKind::WrongPhase, "records of several kinds"));
        }
        if self.head.prints[at] != about.print {
            return Err(missing(no, "its records are of different weights"));
        }
        if self.at.tail.is_none() && !about.alone {
            return Err(missing(no, "the prefix needs its state too, and there are only pages"));
        }
        Ok(())
    }

    /// The items of a record of a step.
    fn items(&self, step: usize, read: &Read) -> Vec<(Item, Bytes)> {
        let what = match step {
            0 => What::Rest { len: self.len },
            page => What::Pages { first: page as u32 - 1, n: 1 },
        };
        let layer = read.record().about.layer;
        let item = |of: &Part| Item { layer, block: of.block, paged: of.paged, what };
        let items = parts(read.record(), &read.bytes);
        items.into_iter().filter(|(_, b)| !b.is_empty()).map(|(of, b)| (item(of), b)).collect()
    }

    /// Goes on behind these records, which are all that a step still had, or some.
    fn pass(&mut self, ids: &[(usize, Id)], is_all: bool) {
        if !is_all {
            self.at_layer = ids.last().map_or(self.at_layer, |(at, _)| at + 1);
            return;
        }
        (self.step, self.at_layer) = (self.step + 1, 0);
        if self.is_done() {
            self.touch();
        }
    }

    fn is_done(&self) -> bool {
        self.step > self.len as usize / KV_PAGE
    }

    /// Notes that all of its records were of use.
    fn touch(&self) {
        let first = usize::from(self.at.tail.is_none());
        let steps = first..=self.len as usize / KV_PAGE;
        for step in steps {
            let ids = self.ids(step);
            self.store.touch(ids.iter().map(|(_, id)| id));
        }
    }
}

impl Source for RecordSource {
    fn head(&self) -> &Head {
        &self.head
    }

    fn position(&self) -> (u32, TokenMark) {
        (self.len, TokenMark([0; 16]))
    }

    fn next(&mut self, max_bytes: u64, most: u64) -> Result<Vec<(Item, Bytes)>, Failure> {
        let (mut part, mut nbytes) = (Vec::new(), 0);
        while !self.is_done() {
            let ids = self.ids(self.step);
            let mut now = self.fitting(&ids, max_bytes.saturating_sub(nbytes))?;
            if now.is_empty() && part.is_empty() {
                now = &ids[..ids.len().min(1)];
                for (bundle, at) in self.found(now)? {
                    check_room(bundle.records[at].nbytes(), most)?;
                }
            }
            let read = self.read(now)?;
            for read in &read {
                nbytes += read.bytes.len() as u64;
                part.extend(self.items(self.step, read));
            }
            let is_all = now.len() == ids.len();
            self.pass(now, is_all);
            if !is_all && !part.is_empty() {
                break;
            }
        }
        Ok(part)
    }
}

fn missing(layer: u32, why: &str) -> Failure {
    let why = format!("records of layer {layer} are not here: {why}");
    Failure::refusal(FailureKind::WrongPhase, why)
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
