//! Counts the fields of a message before it is decoded.
//!
//! Decoding makes a value of a hundred bytes from a field of two. So a message within its cap of bytes could
//! still fill the memory. The repeated fields of every message are therefore counted first, over its bytes,
//! and each count has a named cap. Counts are over the whole message, since a field may be split into parts
//! that decoding joins.

use prost::Message;

use crate::frame_error::FrameError;
use crate::limits::*;
use crate::{control as c, copies as k, pipeline as p};

/// A message whose repeated fields have caps.
pub trait Countable: Message {
    /// The message's repeated fields, and the messages in it that have some.
    const SHAPE: Shape;
}

/// The fields of a message that count.
#[derive(Debug)]
pub struct Shape(&'static [Field]);

/// A field by its number in the `.proto` file.
type Field = (u64, Kind);

#[derive(Debug)]
enum Kind {
    /// A message that has repeated fields.
    One(&'static Shape),
    /// A repeated message, with its cap.
    Many(Cap, &'static Shape),
    /// Repeated integers, packed or not.
    Numbers(Cap),
    /// A repeated text, with its cap.
    Texts(Cap),
}

/// A cap by its name; `index` is its place among those of one message.
#[derive(Clone, Copy, Debug)]
struct Cap {
    index: usize,
    field: &'static str,
    most: usize,
}

/// Caps a message has at most.
const MAX_CAPS: usize = 9;

const fn cap(index: usize, field: &'static str, most: usize) -> Cap {
    assert!(index < MAX_CAPS);
    Cap { index, field, most }
}

const FLAT: Shape = Shape(&[]);

/// Counts the fields of an encoded `M`.
///
/// # Errors
/// OverLimit for a count over its cap; Decode for bytes that are no message.
pub fn count_fields<M: Countable>(bytes: &[u8]) -> Result<(), FrameError> {
    count(&M::SHAPE, bytes, &mut [0; MAX_CAPS])
}

fn count(shape: &Shape, bytes: &[u8], counts: &mut [usize; MAX_CAPS]) -> Result<(), FrameError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let value: &[u8] = match key & 7 {
            0 => {
                varint(&mut rest)?;
                &[0]
            }
            1 => take(&mut rest, 8)?,
            2 => {
                let len = varint(&mut rest)?;
                take(&mut rest, usize::try_from(len).unwrap_or(usize::MAX))?
            }
            5 => take(&mut rest, 4)?,
            other => return Err(malformed(&format!("wire type {other}"))),
        };
        let Some((_, kind)) = shape.0.iter().find(|(number, _)| *number == key >> 3) else {
            continue;
        };
        match kind {
            Kind::One(inner) => count(inner, value, counts)?,
            Kind::Many(cap, inner) => {
                add(cap, 1, counts)?;
                count(inner, value, counts)?;
            }
            Kind::Texts(cap) => add(cap, 1, counts)?,
            // The last byte of each integer has its highest bit clear.
            Kind::Numbers(cap) => {
                add(cap, value.iter().filter(|byte| **byte < 0x80).count(), counts)?;
            }
        }
    }
    Ok(())
}

fn add(cap: &Cap, n: usize, counts: &mut [usize; MAX_CAPS]) -> Result<(), FrameError> {
    let total = counts[cap.index] + n;
    counts[cap.index] = total;
    if total <= cap.most {
        return Ok(());
    }
    Err(FrameError::OverLimit { field: cap.field, value: total as u64, limit: cap.most as u64 })
}

fn varint(rest: &mut &[u8]) -> Result<u64, FrameError> {
    let mut value = 0;
    for (i, byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if *byte < 0x80 {
            *rest = &rest[i + 1..];
            return Ok(value);
        }
    }
    Err(malformed("an integer without an end"))
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], FrameError> {
    let (value, after) = rest.split_at_checked(len).ok_or_else(|| malformed("a cut field"))?;
    *rest = after;
    Ok(value)
}

fn malformed(what: &str) -> FrameError {
    FrameError::Decode(what.to_owned())
}

/// Messages without repeated fields.
macro_rules! flat {
    ($($message:ty),* $(,)?) => {
        $(impl Countable for $message {
            const SHAPE: Shape = FLAT;
        })*
    };
}

flat!(
    c::JoinReply,
    c::EnrolRequest,
    c::EnrolReply,
    c::HelloRequest,
    c::TensorChunk,
    c::PushReply,
    c::FetchEvent,
    c::LoadRequest,
    c::LoadEvent,
    c::UnloadRequest,
    c::UnloadReply,
    c::HealthRequest,
    c::HealthReply,
    c::RetireRequest,
    c::RetireReply,
    c::DrainRequest,
    c::DrainReply,
    c::SnapshotRequest,
    c::StateChunk,
    c::RestoreRequest,
    c::RestoreReply,
    p::ResultsRequest,
    p::LaneEvent,
    p::Failure,
    k::KeepRequest,
    k::KeepReply,
    k::CopyPart,
    k::FindRequest,
    k::FetchRequest,
    k::PrefixesRequest,
    k::PutBackReply,
    k::SettleRequest,
    k::SettleReply,
    k::WeightsPart,
);

const CAPABILITIES: Shape = Shape(&[
    (1, Kind::Texts(cap(0, "capabilities.architectures count", MAX_ABILITIES))),
    (2, Kind::Texts(cap(1, "capabilities.quant_types count", MAX_ABILITIES))),
    (3, Kind::Numbers(cap(2, "capabilities.wire_types count", MAX_ABILITIES))),
    (4, Kind::Texts(cap(3, "capabilities.kernel_tables count", MAX_ABILITIES))),
    (14, Kind::Numbers(cap(4, "capabilities.kv_types count", MAX_ABILITIES))),
]);

impl Countable for c::JoinRequest {
    const SHAPE: Shape = Shape(&[(4, Kind::One(&CAPABILITIES))]);
}

impl Countable for c::HelloReply {
    const SHAPE: Shape = Shape(&[(3, Kind::One(&CAPABILITIES))]);
}

impl Countable for c::PrepareRequest {
    const SHAPE: Shape = Shape(&[
        (6, Kind::Many(cap(0, "prepare.tensors count", MAX_TENSORS), &FLAT)),
        (7, Kind::Many(cap(1, "prepare.files count", MAX_FILES), &FLAT)),
    ]);
}

impl Countable for c::FetchRequest {
    const SHAPE: Shape = Shape(&[
        (7, Kind::Many(cap(0, "fetch.spans count", MAX_SPANS), &FLAT)),
        (8, Kind::Texts(cap(1, "fetch.private_hosts count", MAX_PRIVATE_HOSTS))),
    ]);
}

impl Countable for c::GatherRequest {
    const SHAPE: Shape = Shape(&[
        (3, Kind::Many(cap(0, "gather.blobs count", MAX_GATHERED), &FLAT)),
        (4, Kind::Many(cap(1, "gather.holders count", MAX_HOLDERS), &FLAT)),
    ]);
}

impl Countable for k::WeightsRequest {
    const SHAPE: Shape =
        Shape(&[(1, Kind::Many(cap(0, "weights.blobs count", MAX_GATHERED), &FLAT))]);
}

impl Countable for c::PrepareReply {
    // A header beside the tensors.
    const SHAPE: Shape =
        Shape(&[(3, Kind::Many(cap(0, "reply.missing count", MAX_TENSORS + 1), &FLAT))]);
}

const FOUND: Shape =
    Shape(&[(6, Kind::Numbers(cap(1, "found.positions count", MAX_FOUND * COPY_POSITIONS)))]);

impl Countable for k::FindReply {
    const SHAPE: Shape = Shape(&[(1, Kind::Many(cap(0, "reply.found count", MAX_FOUND), &FOUND))]);
}

const PREFIX_FOUND: Shape = Shape(&[(
    5,
    Kind::Numbers(cap(1, "reply.found.positions count", MAX_PREFIX_RUNS * PREFIX_POSITIONS)),
)]);

impl Countable for k::PrefixesReply {
    const SHAPE: Shape =
        Shape(&[(3, Kind::Many(cap(0, "reply.found count", MAX_PREFIX_RUNS), &PREFIX_FOUND))]);
}

impl Countable for k::PutBackRequest {
    const SHAPE: Shape =
        Shape(&[(7, Kind::Many(cap(0, "put_back.sources count", MAX_COPY_SOURCES), &FLAT))]);
}

const DRY: Shape =
    Shape(&[(5, Kind::Numbers(cap(6, "sampler.dry.breakers count", MAX_FRAME_BIAS)))]);
const NOT_BEFORE: Shape =
    Shape(&[(2, Kind::Numbers(cap(4, "sampler.not_before count", MAX_FRAME_BIAS)))]);
const CONSTRAINT: Shape = Shape(&[
    (2, Kind::Many(cap(7, "constraint parts count", MAX_FRAME_MARKERS), &FLAT)),
    (4, Kind::Numbers(cap(7, "constraint parts count", MAX_FRAME_MARKERS))),
    (5, Kind::Many(cap(7, "constraint parts count", MAX_FRAME_MARKERS), &FLAT)),
]);
const SAMPLER: Shape = Shape(&[
    (10, Kind::Many(cap(4, "sampler.logit_bias count", MAX_FRAME_BIAS), &FLAT)),
    (13, Kind::One(&DRY)),
    (19, Kind::One(&NOT_BEFORE)),
    (20, Kind::One(&CONSTRAINT)),
]);
const BLOCKS: Kind = Kind::Numbers(cap(1, "ops.blocks count", MAX_BLOCKS as usize));
const OPEN: Shape = Shape(&[(2, BLOCKS), (3, Kind::One(&SAMPLER))]);
const COPY: Shape = Shape(&[(4, BLOCKS), (5, Kind::One(&SAMPLER))]);
const ADAPT: Shape =
    Shape(&[(2, Kind::Many(cap(8, "adapt.adapters count", MAX_FRAME_ADAPTERS), &FLAT))]);
const OP: Shape = Shape(&[(1, Kind::One(&OPEN)), (2, Kind::One(&COPY)), (7, Kind::One(&ADAPT))]);
const PART: Shape = Shape(&[(3, Kind::Numbers(cap(3, "part.tokens count", MAX_ROWS as usize)))]);
const UBATCH: Shape = Shape(&[
    (4, Kind::Many(cap(0, "ubatch.ops count", MAX_OPS), &OP)),
    (5, Kind::Many(cap(2, "ubatch.parts count", MAX_SEQS as usize), &PART)),
    (6, Kind::Many(cap(5, "ubatch.timings count", MAX_STAGES), &FLAT)),
]);

impl Countable for p::LaneFrame {
    const SHAPE: Shape = Shape(&[(2, Kind::One(&UBATCH))]);
}

const SAMPLED: Shape =
    Shape(&[(3, Kind::Many(cap(1, "sampled.top count", MAX_FRAME_TOPS), &FLAT))]);
const ROW: Shape = Shape(&[(3, Kind::One(&SAMPLED))]);

impl Countable for p::ResultFrame {
    const SHAPE: Shape = Shape(&[
        (4, Kind::Many(cap(0, "result.rows count", MAX_ROWS as usize), &ROW)),
        (6, Kind::Many(cap(2, "result.timings count", MAX_STAGES), &FLAT)),
    ]);
}
