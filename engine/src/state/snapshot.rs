//! The byte form of one sequence's state on one stage.
//!
//! It begins with magic, version, identity (what the state belongs to), length in positions, and token
//! history. Then come fingerprints of the layers' weights, sections by layer and block, and a BLAKE3 hash of
//! all before it. All numbers are little-endian. Each layer has its own fingerprint and its own sections, so
//! that a stage with other layers can take those that it has. This file knows the layout, not what a section
//! means.

use crate::error::SnapshotError;

/// Version written and read.
pub const SNAPSHOT_VERSION: u32 = 3;

const MAGIC: [u8; 4] = *b"BRGS";
const HASH_BYTES: usize = blake3::OUT_LEN;

/// Bytes of a [`LayerPrint`].
const PRINT_BYTES: usize = 4 + HASH_BYTES;

/// Identity of a layer's weights: the layer's number, and a hash of the tensors that it computes with.
pub type LayerPrint = (u32, blake3::Hash);

/// Writes a snapshot section by section.
pub struct SnapshotWriter {
    bytes: Vec<u8>,
}

impl SnapshotWriter {
    /// Starts a snapshot of a sequence of `len` positions. `identity` names the model and the cache
    /// type; a reader refuses another one. `layers` are those whose state follows, and those without
    /// any between them.
    pub fn new(identity: &str, len: u32, history: &[u32], layers: &[LayerPrint]) -> Self {
        let mut writer = Self { bytes: MAGIC.to_vec() };
        writer.u32(SNAPSHOT_VERSION);
        writer.blob(identity.as_bytes());
        writer.u32(len);
        writer.blob(bytemuck::cast_slice(history));
        let print = |(layer, hash): &LayerPrint| {
            layer.to_le_bytes().into_iter().chain(*hash.as_bytes()).collect::<Vec<u8>>()
        };
        writer.blob(&layers.iter().flat_map(print).collect::<Vec<u8>>());
        writer
    }

    /// Appends the state of one block of one layer.
    pub fn section(&mut self, layer: usize, block: usize, state: &[u8]) {
        self.u32(layer as u32);
        self.u32(block as u32);
        self.blob(state);
    }

    /// Seals the snapshot, and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        let hash = blake3::hash(&self.bytes);
        self.bytes.extend_from_slice(hash.as_bytes());
        self.bytes
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn blob(&mut self, blob: &[u8]) {
        self.bytes.extend_from_slice(&(blob.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(blob);
    }
}

/// A snapshot whose bytes have been checked.
#[derive(Debug)]
pub struct SnapshotReader<'a> {
    /// Identity of the stage and sequence that it was taken of.
    pub identity: String,
    /// Positions the state has seen.
    pub len: u32,
    /// The tokens of those positions, where the writing stage kept them.
    pub history: Vec<u32>,
    /// The layers it was taken from.
    pub layers: Vec<LayerPrint>,
    sections: Vec<(u32, u32, &'a [u8])>,
}

impl<'a> SnapshotReader<'a> {
    /// Checks the whole of `bytes`, which must be of `identity`.
    ///
    /// # Errors
    /// As [`SnapshotReader::open`], and another identity.
    pub fn new(bytes: &'a [u8], identity: &str) -> Result<Self, SnapshotError> {
        let reader = Self::open(bytes)?;
        if reader.identity != identity {
            let found = &reader.identity;
            return Err(SnapshotError::Foreign(format!("it is of {found}, wanted {identity}")));
        }
        Ok(reader)
    }

    /// Checks the whole of `bytes`, of whatever it is a snapshot.
    ///
    /// # Errors
    /// Another version, a wrong hash, or a length that runs out of the bytes.
    pub fn open(bytes: &'a [u8]) -> Result<Self, SnapshotError> {
        let mut cursor = Cursor { rest: bytes };
        let version = |found: String| SnapshotError::Version { expected: SNAPSHOT_VERSION, found };
        if cursor.take(MAGIC.len()).ok() != Some(&MAGIC) {
            return Err(version("other first bytes".to_owned()));
        }
        let found = cursor.u32()?;
        if found != SNAPSHOT_VERSION {
            return Err(version(format!("version {found}")));
        }
        let body = bytes.len().checked_sub(HASH_BYTES).ok_or_else(truncated)?;
        if blake3::hash(&bytes[..body]).as_bytes() != &bytes[body..] {
            return Err(SnapshotError::Damaged("its hash does not match".to_owned()));
        }
        cursor.rest = cursor.rest.get(..body - MAGIC.len() - 4).ok_or_else(truncated)?;
        let identity = String::from_utf8_lossy(cursor.blob()?).into_owned();
        let len = cursor.u32()?;
        let history: Vec<u32> = bytemuck::pod_collect_to_vec(cursor.blob()?);
        if !history.is_empty() && history.len() != len as usize {
            let n = history.len();
            return Err(SnapshotError::Damaged(format!("{n} tokens for {len} positions")));
        }
        let layers = prints(cursor.blob()?)?;
        let mut sections = Vec::new();
        while !cursor.rest.is_empty() {
            sections.push((cursor.u32()?, cursor.u32()?, cursor.blob()?));
        }
        Ok(Self { identity, len, history, layers, sections })
    }

    /// Checks that a layer had these weights when the snapshot was taken.
    ///
    /// # Errors
    /// The layer had others, or the snapshot was taken from a stage that does not have it.
    pub fn check_layer(&self, print: &LayerPrint) -> Result<(), SnapshotError> {
        let (layer, hash) = print;
        match self.layers.iter().find(|(l, _)| l == layer) {
            Some((_, found)) if found == hash => Ok(()),
            Some(_) => {
                let why = format!("it is of a model with other weights in layer {layer}");
                Err(SnapshotError::Foreign(why))
            }
            None => Err(SnapshotError::Foreign(format!("it has no state of layer {layer}"))),
        }
    }

    /// Layer, block and state of each section, in the order written.
    pub fn sections(&self) -> &[(u32, u32, &'a [u8])] {
        &self.sections
    }

    /// The state of one block of one layer.
    ///
    /// # Errors
    /// The snapshot was taken from a stage that does not have that layer.
    pub fn section(&self, layer: usize, block: usize) -> Result<&'a [u8], SnapshotError> {
        let found = self.sections.iter().find(|s| (s.0 as usize, s.1 as usize) == (layer, block));
        found.map(|s| s.2).ok_or_else(|| {
            SnapshotError::Foreign(format!("it has no state of layer {layer}, block {block}"))
        })
    }
}

fn prints(bytes: &[u8]) -> Result<Vec<LayerPrint>, SnapshotError> {
    let (prints, rest) = bytes.as_chunks::<PRINT_BYTES>();
    if !rest.is_empty() {
        return Err(truncated());
    }
    let print = |bytes: &[u8; PRINT_BYTES]| {
        let (layer, hash) = bytes.split_first_chunk::<4>().ok_or_else(truncated)?;
        let hash = blake3::Hash::from_slice(hash).map_err(|_| truncated())?;
        Ok((u32::from_le_bytes(*layer), hash))
    };
    prints.iter().map(print).collect()
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], SnapshotError> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, SnapshotError> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn blob(&mut self) -> Result<&'a [u8], SnapshotError> {
        let bytes = self.take(8)?;
        let n = bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        self.take(usize::try_from(n).map_err(|_| truncated())?)
    }
}

fn truncated() -> SnapshotError {
    SnapshotError::Damaged("it ends too early".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let layers = [(2, blake3::hash(b"2")), (3, blake3::hash(b"3"))];
        let mut writer = SnapshotWriter::new("llama kv f16", 3, &[5, 6, 7], &layers);
        writer.section(2, 0, b"abc");
        writer.section(3, 1, b"");
        writer.finish()
    }

    #[test]
    fn a_history_has_a_token_for_each_position_or_none() {
        let tokens_for = |len: u32, tokens: &[u32]| {
            let bytes = SnapshotWriter::new("m", len, tokens, &[]).finish();
            SnapshotReader::open(&bytes).map(|reader| reader.history)
        };
        assert_eq!(tokens_for(3, &[7, 8, 9]), Ok(vec![7, 8, 9]));
        assert_eq!(tokens_for(3, &[]), Ok(vec![]), "a stage that keeps none");
        for (len, tokens) in [(3, &[7, 8][..]), (1, &[7, 8]), (0, &[7])] {
            let why = tokens_for(len, tokens).unwrap_err().to_string();
            let told = format!("{} tokens for {len} positions", tokens.len());
            assert!(why.contains(&told), "{why}");
        }
    }

    #[test]
    fn reads_what_it_wrote() {
        let bytes = sample();
        let reader = SnapshotReader::new(&bytes, "llama kv f16").unwrap();
        assert_eq!((reader.len, reader.history.as_slice()), (3, [5, 6, 7].as_slice()));
        assert_eq!(reader.section(2, 0), Ok(b"abc".as_slice()));
        assert_eq!(reader.section(3, 1), Ok(b"".as_slice()));
        assert!(matches!(reader.section(4, 0), Err(SnapshotError::Foreign(_))));
        assert_eq!(reader.check_layer(&(3, blake3::hash(b"3"))), Ok(()));
        for (layer, word) in [(2, "other weights in layer 2"), (4, "no state of layer 4")] {
            let refused = reader.check_layer(&(layer, blake3::hash(b"3"))).unwrap_err();
            assert!(refused.to_string().contains(word), "{refused}");
        }
    }

    #[test]
    fn refuses_foreign_and_damaged_bytes() {
        let bytes = sample();
        let foreign = SnapshotReader::new(&bytes, "llama kv f32").unwrap_err();
        assert!(matches!(foreign, SnapshotError::Foreign(_)));
        for n in 0..bytes.len() {
            assert!(SnapshotReader::new(&bytes[..n], "llama kv f16").is_err(), "cut at {n}");
            let mut damaged = bytes.clone();
            damaged[n] ^= 0x40;
            assert!(SnapshotReader::new(&damaged, "llama kv f16").is_err(), "byte {n}");
        }
    }
}
