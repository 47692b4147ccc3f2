//! Keys of records, read from messages, and lists of records for answers.

use std::ops::Range;

use brigade_engine::kernels::KV_PAGE;
use brigade_proto::copies::{PrefixAt, PrefixFound, PrefixKeys, PrefixOwners};
use brigade_proto::failure::Failure;
use brigade_proto::limits::{
    COPY_NAME_BYTES, MAX_LAYERS, MAX_PREFIX_OWNERS, MAX_PREFIX_PAGES, PREFIX_POSITIONS,
};

use super::store::Store;
use crate::copies::parts::bad;
use crate::records::Key;
use crate::records::record::{Record, key};

/// Keys of a prompt's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The keys for 0, 1, 2 ... full pages.
    pub chain: Vec<Key>,
    /// The range of layers.
    pub layers: Range<u32>,
    /// One key for each layer: the hash of everything beside tokens.
    pub lines: Vec<Key>,
}

/// A position of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The keys up to its last full page.
    pub keys: Keys,
    /// Stands for the tokens behind that; `None`: there are none, and pages are all that is needed.
    pub tail: Option<Key>,
}

impl Keys {
    /// Reads keys from a message.
    ///
    /// # Errors
    /// BadMessage, naming the field.
    pub fn of(keys: &PrefixKeys) -> Result<Self, Failure> {
        let chain = all("keys.chain", &keys.chain, MAX_PREFIX_PAGES + 1)?;
        let lines = all("keys.lines", &keys.lines, MAX_LAYERS as usize)?;
        let end = keys.layer_begin.checked_add(lines.len() as u32);
        let end = end.filter(|end| *end <= MAX_LAYERS && !lines.is_empty());
        let end = end.ok_or_else(|| bad("keys.lines are of layers that no model has"))?;
        if chain.is_empty() {
            return Err(bad("keys.chain is empty"));
        }
        Ok(Self { chain, layers: keys.layer_begin..end, lines })
    }

    /// The key of a layer.
    pub fn line(&self, layer: u32) -> Option<Key> {
        let at = layer.checked_sub(self.layers.start)?;
        self.lines.get(at as usize).copied()
    }

    /// The records of these layers that are here, as runs of layers that have the same positions.
    pub fn find(&self, store: &Store) -> Vec<PrefixFound> {
        let mut found: Vec<PrefixFound> = Vec::new();
        for (layer, line) in self.layers.clone().zip(&self.lines) {
            let Some(of) = self.find_layer(store, layer, *line) else { continue };
            let same = |last: &&mut PrefixFound| {
                last.layer_end == layer
                    && (last.pages, last.alone) == (of.pages, of.alone)
                    && (&last.positions, &last.tails) == (&of.positions, &of.tails)
            };
            match found.last_mut().filter(same) {
                Some(last) => {
                    last.layer_end += 1;
                    last.page_bytes += of.page_bytes;
                    last.rest_bytes += of.rest_bytes;
                }
                None => found.push(of),
            }
        }
        found
    }

    fn find_layer(&self, store: &Store, layer: u32, line: Key) -> Option<PrefixFound> {
        let (pages, first) = store.pages(&self.chain, line);
        let reaches = |n: usize, rest: &Record| !rest.about.has_pages || n <= pages as usize;
        let mut rests = store.rests(&self.chain, line);
        rests.retain(|(n, rest)| reaches(*n, rest) && rest.about.len as usize / KV_PAGE == *n);
        rests.sort_by_key(|(_, rest)| (rest.about.len, rest.about.id.tail));
        let newest = &rests[rests.len().saturating_sub(PREFIX_POSITIONS)..];
        if pages == 0 && newest.is_empty() {
            return None;
        }
        let tails = newest.iter().filter_map(|(_, rest)| rest.about.id.tail);
        Some(PrefixFound {
            layer_begin: layer,
            layer_end: layer + 1,
            pages,
            alone: first.as_ref().is_some_and(|first| first.about.alone),
            positions: newest.iter().map(|(_, rest)| rest.about.len).collect(),
            tails: tails.flatten().collect::<Vec<u8>>().into(),
            page_bytes: first.map_or(0, |first| first.nbytes() * u64::from(pages)),
            rest_bytes: newest.iter().map(|(_, rest)| rest.nbytes()).max().unwrap_or(0),
        })
    }
}

impl At {
    /// Reads a position from a message.
    ///
    /// # Errors
    /// BadMessage, naming the field.
    pub fn of(at: &PrefixAt) -> Result<Self, Failure> {
        let keys = at.keys.as_ref().ok_or_else(|| bad("prefix.keys is missing"))?;
        let tail = match &at.tail[..] {
            [] => None,
            tail => Some(key(tail).ok_or_else(|| bad("prefix.tail has no 16 bytes"))?),
        };
        Ok(Self { keys: Keys::of(keys)?, tail })
    }
}

/// The realm and the owners of a message.
///
/// # Errors
/// BadMessage, naming the field.
pub fn owners(of: &PrefixOwners) -> Result<(Key, Vec<Key>), Failure> {
    let realm = key(&of.realm).ok_or_else(|| bad("owners.realm has no 16 bytes"))?;
    Ok((realm, all("owners.owners", &of.owners, MAX_PREFIX_OWNERS)?))
}

fn all(field: &str, bytes: &[u8], most: usize) -> Result<Vec<Key>, Failure> {
    let (keys, rest) = bytes.as_chunks::<COPY_NAME_BYTES>();
    if !rest.is_empty() || keys.len() > most {
        let n = bytes.len();
        return Err(bad(format!(
            "{field} has {n} bytes: 16 for each id are expected, for {most} ids at most"
        )));
    }
    Ok(keys.to_vec())
}
