//! The form of records. A bundle has records that were written together, each with a hash of its bytes, behind a head
//! that lists them. It is of kept prefixes, whose records have keys, or of the checkpoint of one sequence.

use std::io;
use std::ops::Range;

use blake3::Hash;
use brigade_proto::limits::MAX_LAYERS;
use bytes::Bytes;
use prost::Message;

use super::{Key, Kind};

/// Begins every bundle; another number is another form.
const MAGIC: &[u8; 8] = b"brgpfx\x00\x01";

/// Bytes of a check.
pub const CHECK_BYTES: usize = 16;

/// Bytes before the head: the magic, and how long it is.
pub const PREAMBLE_BYTES: usize = MAGIC.len() + 4;

/// Bytes of a head at most: some hundred for each layer.
const MAX_HEAD_BYTES: usize = 4 << 20;

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// Stands for the tokens of its page and of all before it; of a rest, of all full pages before its position.
    pub chain: Key,
    /// Stands for everything else that it depends on: its layer, the weights up to there, and the way they are
    /// computed.
    pub line: Key,
    /// For a rest: the hash of the tokens behind the last full page.
    pub tail: Option<Key>,
}

/// The bytes of one block's state in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Place within the layer.
    pub block: u32,
    /// Whether the block has pages.
    pub paged: bool,
    /// Bytes; 0 where a rest has nothing of it.
    pub nbytes: u64,
}

/// The contents and properties of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The record's key.
    pub id: Id,
    /// Layer of the model.
    pub layer: u32,
    /// The fingerprint of the layer's weights.
    pub print: Hash,
    /// Positions up to its end.
    pub len: u32,
    /// Whether the layer has pages; where it has, a rest needs those before it.
    pub has_pages: bool,
    /// Whether at a page's end pages are all that the layer needs.
    pub alone: bool,
    /// In a checkpoint, the full pages that it has, up to `len`; 0: a rest. A prefix's record has one page, or a tail.
    pub pages: u32,
}

/// A layer's part of a page, or the part of a state that is good for one position alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's contents and properties.
    pub about: About,
    /// The blocks' parts, one after the other.
    pub parts: Vec<Part>,
    /// Where its bytes begin in the bundle.
    offset: u64,
    check: [u8; CHECK_BYTES],
}

impl Record {
    /// Bytes of all its parts.
    pub fn nbytes(&self) -> u64 {
        self.parts.iter().map(|part| part.nbytes).sum()
    }
}

/// A record that is to be written.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// The record's contents and properties.
    pub about: About,
    /// Blocks, whether they have pages, and their bytes.
    pub parts: Vec<(u32, bool, Bytes)>,
}

/// The cluster and the owner of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// The hash that stands for the coordinator's records.
    pub realm: Key,
    /// The hash of the owner.
    pub owner: Key,
}

/// The sequence that a checkpoint is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The sequence's name.
    pub name: Key,
    /// First and end of the stage's layers.
    pub layers: Range<u32>,
    /// Fingerprints of their weights, in order.
    pub prints: Vec<Hash>,
    /// The position that is whole with this bundle, and the mark of its tokens; `None`: more follows.
    pub at: Option<(u32, Key)>,
}

/// The head of a bundle: its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The cluster and the owner.
    pub whose: Whose,
    /// The sequence; `None`: the records are of kept prefixes.
    pub checkpoint: Option<Checkpoint>,
    /// The hash of the properties that the states depend on.
    pub kind: Kind,
    /// The records, in the order of their bytes.
    pub records: Vec<Record>,
    /// Bytes before the records' own.
    head_bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(bytes = "vec", tag = "1")]
    realm: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    owner: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    kind: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    records: Vec<RecordHead>,
    #[prost(message, optional, tag = "5")]
    checkpoint: Option<CheckpointHead>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckpointHead {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(uint32, tag = "2")]
    layer_begin: u32,
    #[prost(bytes = "vec", tag = "3")]
    prints: Vec<u8>,
    #[prost(uint32, tag = "4")]
    len: u32,
    /// Empty: no position is whole with it.
    #[prost(bytes = "vec", tag = "5")]
    mark: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RecordHead {
    #[prost(bytes = "vec", tag = "1")]
    chain: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    line: Vec<u8>,
    /// Empty: it is a page.
    #[prost(bytes = "vec", tag = "3")]
    tail: Vec<u8>,
    #[prost(uint32, tag = "4")]
    layer: u32,
    #[prost(bytes = "vec", tag = "5")]
    print: Vec<u8>,
    #[prost(uint32, tag = "6")]
    len: u32,
    #[prost(bool, tag = "7")]
    has_pages: bool,
    #[prost(bool, tag = "8")]
    alone: bool,
    #[prost(message, repeated, tag = "9")]
    parts: Vec<PartHead>,
    #[prost(bytes = "vec", tag = "10")]
    check: Vec<u8>,
    #[prost(uint32, tag = "11")]
    pages: u32,
}

#[derive(Clone, PartialEq, Message)]
struct PartHead {
    #[prost(uint32, tag = "1")]
    block: u32,
    #[prost(bool, tag = "2")]
    paged: bool,
    #[prost(uint64, tag = "3")]
    nbytes: u64,
}

/// The bytes of a bundle of a sequence's checkpoint before those of its records, which follow in order.
pub fn checkpoint_head(of: &Checkpoint, kind: Kind, records: &[NewRecord]) -> Vec<u8> {
    let (len, mark) = of.at.map(|(len, mark)| (len, mark.to_vec())).unwrap_or_default();
    let checkpoint = CheckpointHead {
        name: of.name.into(),
        layer_begin: of.layers.start,
        prints: of.prints.iter().flat_map(|print| *print.as_bytes()).collect(),
        len,
        mark,
    };
    let nobody = Whose { realm: [0; 16], owner: [0; 16] };
    let head = Head { checkpoint: Some(checkpoint), ..head_with(nobody, kind, records) };
    begun(&head.encode_to_vec(), 0)
}

fn head_with(whose: Whose, kind: Kind, records: &[NewRecord]) -> Head {
    Head {
        realm: whose.realm.into(),
        owner: whose.owner.into(),
        kind: kind.into(),
        records: records.iter().map(head_of).collect(),
        checkpoint: None,
    }
}

/// The bytes of a bundle of these records of kept prefixes.
pub fn encode(whose: Whose, kind: Kind, records: &[NewRecord]) -> Vec<u8> {
    let head = head_with(whose, kind, records);
    let nbytes: usize = records.iter().flat_map(|r| &r.parts).map(|(.., bytes)| bytes.len()).sum();
    let mut bytes = begun(&head.encode_to_vec(), nbytes);
    for (.., part) in records.iter().flat_map(|record| &record.parts) {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The bytes of a bundle before those of its records, with room for so many: a head between its length and its check.
pub fn begun(head: &[u8], nbytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREAMBLE_BYTES + head.len() + CHECK_BYTES + nbytes);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
    bytes.extend_from_slice(head);
    let check = check(&[&bytes]);
    bytes.extend_from_slice(&check);
    bytes
}

fn head_of(record: &NewRecord) -> RecordHead {
    let about = &record.about;
    let parts: Vec<&[u8]> = record.parts.iter().map(|(.., bytes)| &bytes[..]).collect();
    let part = |(block, paged, bytes): &(u32, bool, Bytes)| PartHead {
        block: *block,
        paged: *paged,
        nbytes: bytes.len() as u64,
    };
    RecordHead {
        chain: about.id.chain.into(),
        line: about.id.line.into(),
        tail: about.id.tail.map(Vec::from).unwrap_or_default(),
        layer: about.layer,
        print: about.print.as_bytes().to_vec(),
        len: about.len,
        has_pages: about.has_pages,
        alone: about.alone,
        parts: record.parts.iter().map(part).collect(),
        check: check(&parts).into(),
        pages: about.pages,
    }
}

/// Bytes of the head that follows a preamble, with its check; `None`: this begins no bundle.
pub fn head_bytes(preamble: &[u8]) -> Option<usize> {
    let len = preamble.strip_prefix(MAGIC)?.first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    (len <= MAX_HEAD_BYTES).then_some(len + CHECK_BYTES)
}

impl Bundle {
    /// Decodes a bundle's head from its first bytes, which must include all of the head. `None`: it is damaged, or no
    /// bundle.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let end = PREAMBLE_BYTES + head_bytes(bytes.get(..PREAMBLE_BYTES)?)?;
        let (head, found) = bytes.get(..end)?.split_last_chunk::<CHECK_BYTES>()?;
        if check(&[head]) != *found {
            return None;
        }
        let head = Head::decode(&head[PREAMBLE_BYTES..]).ok()?;
        let head_bytes = end as u64;
        let mut offset = head_bytes;
        let mut records = Vec::with_capacity(head.records.len());
        for of in &head.records {
            let record = of.record(offset)?;
            offset = offset.checked_add(record.nbytes())?;
            records.push(record);
        }
        let whose = Whose { realm: key(&head.realm)?, owner: key(&head.owner)? };
        let kind = head.kind.as_slice().try_into().ok()?;
        let checkpoint = match head.checkpoint {
            Some(of) => Some(of.checkpoint()?),
            None => None,
        };
        Some(Self { whose, kind, checkpoint, records, head_bytes })
    }

    /// Decodes a bundle all of whose bytes are here. `None`: any of it is damaged, or it is no bundle.
    pub fn verified(bytes: &Bytes) -> Option<Self> {
        let bundle = Self::decode(bytes)?;
        let is_good = |record: &Record| {
            let Range { start, end } = bundle.place(record);
            verify(record, bytes.slice(start as usize..end as usize)).is_ok()
        };
        let is_whole = bundle.nbytes() == bytes.len() as u64;
        (is_whole && bundle.records.iter().all(is_good)).then_some(bundle)
    }

    /// Bytes of all of it.
    pub fn nbytes(&self) -> u64 {
        self.head_bytes + self.records.iter().map(Record::nbytes).sum::<u64>()
    }

    /// Where the bytes of a record are.
    pub fn place(&self, record: &Record) -> Range<u64> {
        record.offset..record.offset + record.nbytes()
    }
}

impl CheckpointHead {
    fn checkpoint(&self) -> Option<Checkpoint> {
        let (prints, rest) = self.prints.as_chunks::<{ blake3::OUT_LEN }>();
        let end = self.layer_begin.checked_add(prints.len() as u32);
        let end = end.filter(|end| *end <= MAX_LAYERS && rest.is_empty())?;
        let at = match self.mark.as_slice() {
            [] => None,
            mark => Some((self.len, key(mark)?)),
        };
        let prints = prints.iter().map(|print| Hash::from_bytes(*print)).collect();
        Some(Checkpoint { name: key(&self.name)?, layers: self.layer_begin..end, prints, at })
    }
}

impl RecordHead {
    fn record(&self, offset: u64) -> Option<Record> {
        let tail = match self.tail.as_slice() {
            [] => None,
            tail => Some(key(tail)?),
        };
        let id = Id { chain: key(&self.chain)?, line: key(&self.line)?, tail };
        let print: [u8; blake3::OUT_LEN] = self.print.as_slice().try_into().ok()?;
        let part = |p: &PartHead| Part { block: p.block, paged: p.paged, nbytes: p.nbytes };
        let parts: Vec<Part> = self.parts.iter().map(part).collect();
        parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.nbytes))?;
        let about = About {
            id,
            layer: self.layer,
            print: Hash::from_bytes(print),
            len: self.len,
            has_pages: self.has_pages,
            alone: self.alone,
            pages: self.pages,
        };
        Some(Record { about, parts, offset, check: self.check.as_slice().try_into().ok()? })
    }
}

/// The bytes of a record, if they are those that were written.
///
/// # Errors
/// The bytes are not those that were written.
pub fn verify(record: &Record, bytes: Bytes) -> io::Result<Bytes> {
    if bytes.len() as u64 == record.nbytes() && check(&[&bytes]) == record.check {
        Ok(bytes)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "its bytes are not what was written"))
    }
}

/// Sixteen bytes as a key; `None` for another length.
pub fn key(bytes: &[u8]) -> Option<Key> {
    bytes.try_into().ok()
}

fn check(parts: &[&[u8]]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_BYTES]);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tail: Option<Key>, parts: Vec<(u32, bool, Bytes)>) -> NewRecord {
        let about = About {
            id: Id { chain: [1; 16], line: [2; 16], tail },
            layer: 3,
            print: blake3::hash(b"3"),
            len: 70,
            has_pages: true,
            alone: false,
            pages: 0,
        };
        NewRecord { about, parts }
    }

    #[test]
    fn a_bundle_says_what_it_has_and_any_damage_shows() {
        let whose = Whose { realm: [4; 16], owner: [5; 16] };
        let page = record(None, vec![(0, true, vec![7; 10].into()), (1, true, vec![8; 5].into())]);
        let rest =
            record(Some([6; 16]), vec![(0, true, Bytes::new()), (256, false, vec![9; 3].into())]);
        let bytes = encode(whose, [7; 32], &[page, rest]);
        let bundle = Bundle::decode(&bytes).unwrap();
        assert_eq!((bundle.whose, bundle.kind, bundle.records.len()), (whose, [7; 32], 2));
        assert_eq!(bundle.nbytes(), bytes.len() as u64);
        let of = |bundle: &Bundle, bytes: &[u8], i: usize| {
            let record = &bundle.records[i];
            let Range { start, end } = bundle.place(record);
            let bytes = bytes.get(start as usize..end as usize).unwrap_or_default();
            verify(record, Bytes::copy_from_slice(bytes))
        };
        assert_eq!(of(&bundle, &bytes, 0).unwrap(), [[7; 10].as_slice(), &[8; 5]].concat());
        assert_eq!(of(&bundle, &bytes, 1).unwrap(), [9; 3].as_slice());
        assert_eq!(bundle.records[1].about.id.tail, Some([6; 16]));
        let huge = u64::MAX - 10;
        let part = PartHead { block: 0, paged: true, nbytes: huge };
        let mut head = head_with(whose, [7; 32], &[]);
        head.records.push(RecordHead { parts: vec![part], ..head_of(&record(None, vec![])) });
        assert_eq!(
            Bundle::decode(&begun(&head.encode_to_vec(), 0)),
            None,
            "more than there can be"
        );
        for n in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[n] ^= 0x10;
            let whole = Bundle::decode(&damaged)
                .is_some_and(|bundle| (0..2).all(|i| of(&bundle, &damaged, i).is_ok()));
            assert!(!whole, "byte {n}");
            let cut = Bundle::decode(&bytes[..n]);
            assert!(cut.is_none_or(|cut| of(&cut, &bytes[..n], 1).is_err()), "cut at {n}");
        }
    }
}
