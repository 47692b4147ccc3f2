//! Converts ubatches, boundaries and result rows between wire messages and engine types. No other file of
//! this crate converts these.
//!
//! Incoming messages have passed the checks of `brigade_proto::frame`; only therefore are lengths trusted. Values are
//! little-endian on the wire. An incoming boundary is copied once, into an aligned buffer of a [`BufferPool`]. An
//! outgoing f32 boundary is not copied at all.

use std::sync::{Arc, Mutex, PoisonError};

use brigade_engine::batch::{
    AdapterUse, Ahead, Boundary, Companion, Constraint, CopyName, DraftedToken, Grammar, Marker,
    NotBefore, PageId, Planes, RowOutput, RowValue, SamplerSetup, SeqOp, SeqPart, SlotId,
    TokenMark, UBatch, Want,
};
use brigade_engine::error::{BatchError, SnapshotError};
use brigade_proto::control::WireType;
use brigade_proto::failure::{Failure, FailureKind, cut_reason};
use brigade_proto::frame::{BoundaryShape, FrameError, Q8_0_BYTES, Q8_0_VALUES};
use brigade_proto::pipeline as pb;
use brigade_proto::sampling::settings_from_wire;
use brigade_quant::{Block, BlockQ8_0, Quantize};
use bytes::Bytes;
use half::{bf16, f16};

#[cfg(target_endian = "big")]
compile_error!("boundaries are reinterpreted as little-endian bytes");

/// Idle buffers kept; more in flight than this are freed when they come back.
const POOLED_BUFFERS: usize = 8;

/// Recycled boundary buffers of one stage.
#[derive(Clone, Debug, Default)]
pub struct BufferPool(Arc<Mutex<Vec<Vec<f32>>>>);

impl BufferPool {
    /// An empty buffer, with the room of an earlier one where there is one.
    pub fn take(&self) -> Vec<f32> {
        let mut buffer =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Gives a buffer back.
    pub fn give(&self, buffer: Vec<f32>) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < POOLED_BUFFERS {
            idle.push(buffer);
        }
    }
}

/// An f32 buffer seen as bytes; back to its pool when the transport has let go of it.
struct PooledBytes {
    values: Vec<f32>,
    pool: BufferPool,
}

impl AsRef<[u8]> for PooledBytes {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.values)
    }
}

impl Drop for PooledBytes {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.values));
    }
}

/// The boundary of a checked frame, in an aligned buffer.
pub fn boundary_from_wire(raw: &[u8], shape: BoundaryShape, pool: &BufferPool) -> Boundary {
    let mut data = pool.take();
    // Written once, with no clearing before: at these sizes each pass over memory counts.
    match shape.dtype {
        WireType::F16 => {
            data.extend(raw.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()));
        }
        WireType::Bf16 => {
            data.extend(raw.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()));
        }
        WireType::Q80 => widen_q8_0(raw, shape.width, &mut data),
        WireType::F32 | WireType::Unspecified => {
            data.extend(raw.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
        }
    }
    Boundary { n_rows: shape.n_rows, data }
}

const _: () = assert!(size_of::<BlockQ8_0>() == Q8_0_BYTES);

/// A boundary of rows of `width` values as a wire message of type `dtype`.
///
/// # Errors
/// [`FrameError::Mismatch`]: the boundary's size does not agree with its rows and width.
pub fn boundary_to_wire(
    boundary: Boundary,
    width: u32,
    dtype: WireType,
    pool: &BufferPool,
) -> Result<pb::Boundary, FrameError> {
    let Boundary { n_rows, data: values } = boundary;
    let (value, expected) = (values.len() as u64, n_rows as u64 * u64::from(width));
    if value != expected {
        return Err(FrameError::Mismatch { field: "boundary values", value, expected });
    }
    let (dtype, data) = match dtype {
        WireType::F16 => (dtype, narrow(values, pool, |x| f16::from_f32(x).to_le_bytes())),
        WireType::Bf16 => (dtype, narrow(values, pool, |x| bf16::from_f32(x).to_le_bytes())),
        WireType::Q80 => (dtype, narrow_q8_0(values, width as usize, pool)),
        WireType::F32 | WireType::Unspecified => {
            let pool = pool.clone();
            (WireType::F32, Bytes::from_owner(PooledBytes { values, pool }))
        }
    };
    Ok(pb::Boundary { dtype: dtype.into(), n_rows: n_rows as u32, width, data })
}

fn narrow(values: Vec<f32>, pool: &BufferPool, to_bytes: impl Fn(f32) -> [u8; 2]) -> Bytes {
    let mut bytes = Vec::with_capacity(values.len() * 2);
    for &value in &values {
        bytes.extend_from_slice(&to_bytes(value));
    }
    pool.give(values);
    bytes.into()
}

/// Blocks of a row never hold values of another: what a token becomes does not depend on its neighbours.
fn narrow_q8_0(values: Vec<f32>, width: usize, pool: &BufferPool) -> Bytes {
    let row_bytes = width.div_ceil(Q8_0_VALUES) * Q8_0_BYTES;
    let mut bytes = Vec::with_capacity(values.len() / width.max(1) * row_bytes);
    for block in values.chunks(width.max(1)).flat_map(|row| row.chunks(Q8_0_VALUES)) {
        let mut padded = [0.0; Q8_0_VALUES];
        padded[..block.len()].copy_from_slice(block);
        bytes.extend_from_slice(bytemuck::bytes_of(&BlockQ8_0::quantize(&padded)));
    }
    pool.give(values);
    bytes.into()
}

fn widen_q8_0(raw: &[u8], width: usize, data: &mut Vec<f32>) {
    let row_bytes = width.div_ceil(Q8_0_VALUES) * Q8_0_BYTES;
    for row in raw.chunks_exact(row_bytes.max(1)) {
        let mut left = width;
        for block in row.as_chunks::<Q8_0_BYTES>().0 {
            let mut values = [0.0; Q8_0_VALUES];
            bytemuck::pod_read_unaligned::<BlockQ8_0>(block).dequantize(&mut values);
            let n = left.min(Q8_0_VALUES);
            data.extend_from_slice(&values[..n]);
            left -= n;
        }
    }
}

/// The engine's ubatch of a checked frame.
///
/// # Errors
/// [`FrameError`] for what the checks do not cover; a checked frame has none.
pub fn ubatch_from_wire(frame: &pb::Ubatch) -> Result<UBatch, FrameError> {
    let ops = frame.ops.iter().map(op_from_wire).collect::<Result<_, _>>()?;
    let parts = frame.parts.iter().map(part_from_wire).collect::<Result<_, _>>()?;
    Ok(UBatch { id: frame.id, ops, parts })
}

fn op_from_wire(op: &pb::SeqOp) -> Result<SeqOp, FrameError> {
    Ok(match op.op.as_ref().ok_or(FrameError::Missing("ubatch.ops.op"))? {
        pb::seq_op::Op::Open(open) => SeqOp::Open {
            slot: SlotId(open.slot),
            blocks: open.blocks.iter().copied().map(PageId).collect(),
            sampler: open.sampler.as_ref().map(|s| Arc::new(sampler_from_wire(s))),
            request: open.request.as_str().into(),
        },
        pb::seq_op::Op::Copy(copy) => SeqOp::Copy {
            src: SlotId(copy.src),
            dst: SlotId(copy.dst),
            len: copy.len,
            blocks: copy.blocks.iter().copied().map(PageId).collect(),
            sampler: copy.sampler.as_ref().map(|s| Arc::new(sampler_from_wire(s))),
            request: copy.request.as_str().into(),
        },
        pb::seq_op::Op::Truncate(cut) => {
            let (slot, len) = (SlotId(cut.slot), cut.len);
            let to = cut.to.map_or(slot, SlotId);
            let planes = cut.from.map(|from| Planes { from: SlotId(from), to });
            SeqOp::Truncate { slot, len, planes }
        }
        pb::seq_op::Op::Close(close) => SeqOp::Close { slot: SlotId(close.slot) },
        pb::seq_op::Op::Draw(draw) => SeqOp::Draw { slot: SlotId(draw.slot) },
        pb::seq_op::Op::Draft(draft) => SeqOp::Draft { slot: SlotId(draft.slot) },
        pb::seq_op::Op::Grow(grow) => SeqOp::Grow {
            slot: SlotId(grow.slot),
            blocks: grow.blocks.iter().copied().map(PageId).collect(),
        },
        pb::seq_op::Op::Adapt(adapt) => {
            let used = adapt.adapters.iter().map(|used| {
                let pb::AdapterUse { adapter, scale } = *used;
                AdapterUse { adapter, scale }
            });
            SeqOp::Adapt { slot: SlotId(adapt.slot), adapters: used.collect() }
        }
        pb::seq_op::Op::Name(name) => {
            let (slot, bytes) = (SlotId(name.slot), &name.name[..]);
            let named = (!bytes.is_empty()).then(|| sixteen("name", bytes).map(CopyName));
            SeqOp::Name { slot, name: named.transpose()? }
        }
        pb::seq_op::Op::Checkpoint(taken) => SeqOp::Checkpoint {
            slot: SlotId(taken.slot),
            len: taken.len,
            mark: TokenMark(sixteen("checkpoint.mark", &taken.mark)?),
            plane: taken.plane.map(SlotId),
            parting: taken.parting,
        },
    })
}

fn sixteen(field: &'static str, bytes: &[u8]) -> Result<[u8; 16], FrameError> {
    bytes.try_into().map_err(|_| FrameError::Invalid { field, why: "it has not 16 bytes" })
}

fn part_from_wire(part: &pb::SeqPart) -> Result<SeqPart, FrameError> {
    let want = match pb::Want::try_from(part.want) {
        Ok(pb::Want::Nothing) => Want::Nothing,
        Ok(pb::Want::Sample) => Want::Sample,
        Ok(pb::Want::Companion) => Want::Companion,
        Ok(pb::Want::Verify) => Want::Verify,
        Ok(pb::Want::Logits) => Want::Logits,
        Ok(pb::Want::Hidden) => Want::Hidden,
        Ok(pb::Want::HiddenFirst) => Want::HiddenFirst,
        Ok(pb::Want::HiddenLast) => Want::HiddenLast,
        Err(_) => return Err(FrameError::Invalid { field: "part.want", why: "unknown value" }),
    };
    let pb::SeqPart { slot, pos, mu, .. } = part;
    let (slot, tokens) = (SlotId(*slot), part.tokens.clone());
    let planes = |p: pb::Planes| Planes { from: SlotId(p.from), to: SlotId(p.to) };
    let ahead = part.ahead.map(|a| Ahead {
        sure: a.sure,
        known: a.known,
        planes: a.planes.map(planes),
        drafts: a.drafts,
    });
    Ok(SeqPart { slot, pos: *pos, tokens, want, mu: *mu, ahead })
}

fn sampler_from_wire(s: &pb::SamplerSetup) -> SamplerSetup {
    SamplerSetup {
        params: settings_from_wire(s),
        seed: s.seed,
        top_logprobs: s.top_logprobs,
        not_before: s.not_before.as_ref().map_or_else(NotBefore::default, |not_before| NotBefore {
            pos: not_before.pos,
            tokens: not_before.tokens.as_slice().into(),
        }),
        constraint: s.constraint.as_ref().map(|c| Arc::new(constraint_from_wire(c))),
        companion: s.guidance.map(|g| Companion { scale: g.scale }),
    }
}

fn constraint_from_wire(constraint: &pb::Constraint) -> Constraint {
    Constraint {
        answer_at: constraint.answer_at,
        grammars: constraint
            .grammars
            .iter()
            .map(|g| Grammar { text: g.text.clone(), then_free: g.then_free })
            .collect(),
        first: constraint.first,
        unless: constraint.unless.clone(),
        markers: constraint
            .markers
            .iter()
            .map(|m| Marker { text: m.text.clone(), grammar: m.grammar })
            .collect(),
        later: constraint.later,
        owner: constraint.owner,
    }
}

fn drafted(draft: &DraftedToken) -> pb::Drafted {
    pb::Drafted { token: draft.id, odds: draft.odds }
}

/// A result row as a wire message.
pub fn row_to_wire(row: RowOutput) -> pb::RowResult {
    let value = match row.value {
        RowValue::Sampled(token) => {
            let top = |&(token, logprob): &(u32, f32)| pb::TokenLogprob { token, logprob };
            pb::row_result::Value::Sampled(pb::Sampled {
                token: token.id,
                logprob: token.logprob,
                top: token.top.iter().map(top).collect(),
                mu: token.mu,
                forced: token.forced,
                drafted: token.drafted.iter().map(drafted).collect(),
            })
        }
        RowValue::Logits(values) => {
            // A pool of its own that is dropped at once: logits rows are not boundaries.
            let owner = PooledBytes { values, pool: BufferPool::default() };
            pb::row_result::Value::Logits(Bytes::from_owner(owner))
        }
        RowValue::Hidden(values) => {
            let owner = PooledBytes { values, pool: BufferPool::default() };
            pb::row_result::Value::Hidden(Bytes::from_owner(owner))
        }
        RowValue::Failed(why) => pb::row_result::Value::Failed(cut_reason(why)),
        RowValue::NotYet => pb::row_result::Value::NotYet(true),
        RowValue::Refuted => pb::row_result::Value::Refuted(true),
    };
    pb::RowResult { slot: row.slot.0, pos: row.pos, value: Some(value), mask_us: row.mask_us }
}

/// A stage's refusal as an error for the coordinator.
pub fn snapshot_failure(error: &SnapshotError, what: &str) -> Failure {
    let kind = match error {
        SnapshotError::Version { .. } | SnapshotError::Foreign(_) => FailureKind::Unsupported,
        SnapshotError::Damaged(_) => FailureKind::Corrupt,
        SnapshotError::Sequence(BatchError::Device(_)) => FailureKind::Compute,
        SnapshotError::Sequence(_) => FailureKind::BadMessage,
    };
    Failure::refusal(kind, format!("{what}: {error}"))
}
