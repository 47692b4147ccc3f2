//! Checks frames that arrived, before anything is allocated or computed from them.
//!
//! These are pure functions: bytes and limits go in, a verdict comes out. Accepted frames are well-formed and within
//! the stage's limits. The stage itself decides whether a frame fits the states of its sequences.

use prost::Message;

use crate::control::WireType;
use crate::count::count_fields;
pub use crate::frame_error::FrameError;
use crate::limits::*;
use crate::pipeline::{
    Boundary, Constraint, LaneFrame, SamplerSetup, SeqOp, SeqPart, Ubatch, Want, lane_frame, seq_op,
};
use crate::sampling::check_numbers;

/// The limits of a stage, from its spec and its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Rows of a ubatch.
    pub max_rows: u32,
    /// Number of sequence slots.
    pub max_seqs: u32,
    /// Number of KV pages.
    pub n_blocks: u32,
    /// Positions of a sequence.
    pub max_ctx: u32,
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
    /// f32 values of an incoming boundary row; `None` on the first stage.
    pub input_width: Option<u32>,
}

impl FrameLimits {
    /// Bytes that a lane frame within these limits can have, but not more than
    /// [`MAX_FRAME_BYTES`].
    pub fn max_frame_bytes(&self) -> usize {
        let token_bytes = 5;
        let row = 4 * self.input_width.unwrap_or(0) as usize + token_bytes;
        let rows = row.saturating_mul(self.max_rows as usize);
        rows.saturating_add(MAX_FRAME_OPS_BYTES).min(MAX_FRAME_BYTES)
    }
}

/// Shape of an accepted boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundaryShape {
    /// Rows, equal to the ubatch's.
    pub n_rows: usize,
    /// f32 values a row.
    pub width: usize,
    /// Type of the raw values.
    pub dtype: WireType,
}

/// Values of a Q8_0 block.
pub const Q8_0_VALUES: usize = 32;
/// Bytes of a Q8_0 block: the scale and a byte for each value.
pub const Q8_0_BYTES: usize = 2 + Q8_0_VALUES;

/// Bytes of a boundary row of `width` values; `None` for an unknown type.
pub fn wire_row_bytes(dtype: WireType, width: usize) -> Option<usize> {
    match dtype {
        WireType::Unspecified => None,
        WireType::F32 => Some(4 * width),
        WireType::F16 | WireType::Bf16 => Some(2 * width),
        WireType::Q80 => Some(width.div_ceil(Q8_0_VALUES) * Q8_0_BYTES),
    }
}

/// Decodes and checks a ubatch frame from raw bytes: what a stage does with a message, in one
/// pure function (the fuzz target).
///
/// # Errors
/// Any [`FrameError`].
pub fn decode_lane_frame(bytes: &[u8], limits: &FrameLimits) -> Result<LaneFrame, FrameError> {
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(over("frame bytes", bytes.len() as u64, MAX_FRAME_BYTES as u64));
    }
    count_fields::<LaneFrame>(bytes)?;
    let frame = LaneFrame::decode(bytes).map_err(|e| FrameError::Decode(e.to_string()))?;
    match &frame.body {
        None => return Err(FrameError::Missing("frame.body")),
        Some(lane_frame::Body::Ubatch(ubatch)) => {
            check_ubatch(ubatch, limits)?;
        }
        Some(lane_frame::Body::Open(_) | lane_frame::Body::Abort(_)) => {}
    }
    Ok(frame)
}

/// Checks a ubatch against the stage's limits. `Ok(None)` on the first stage, which has no
/// boundary.
///
/// # Errors
/// Any [`FrameError`] but `Decode`.
pub fn check_ubatch(
    ubatch: &Ubatch,
    limits: &FrameLimits,
) -> Result<Option<BoundaryShape>, FrameError> {
    at_most("ubatch.ops count", ubatch.ops.len() as u64, MAX_OPS as u64)?;
    at_most("ubatch.parts count", ubatch.parts.len() as u64, u64::from(limits.max_seqs))?;
    at_most("ubatch.timings count", ubatch.timings.len() as u64, MAX_STAGES as u64)?;
    below("ubatch.lane", ubatch.lane, MAX_LANES)?;
    for op in &ubatch.ops {
        check_op(op, limits)?;
    }
    let mut rows: u64 = 0;
    for part in &ubatch.parts {
        rows += part.tokens.len() as u64;
        at_most("ubatch rows", rows, u64::from(limits.max_rows))?;
        check_part(part, limits)?;
    }
    check_slots_once(&ubatch.parts)?;
    check_boundary(ubatch.boundary.as_ref(), rows, limits.input_width)
}

fn check_op(op: &SeqOp, limits: &FrameLimits) -> Result<(), FrameError> {
    let slot_limit = limits.max_seqs;
    match op.op.as_ref().ok_or(FrameError::Missing("ubatch.ops.op"))? {
        seq_op::Op::Open(open) => {
            below("open.slot", open.slot, slot_limit)?;
            check_blocks(&open.blocks, limits)?;
            check_request(&open.request)?;
            open.sampler.as_ref().map_or(Ok(()), |s| check_sampler(s, limits))
        }
        seq_op::Op::Copy(copy) => {
            below("copy.src", copy.src, slot_limit)?;
            below("copy.dst", copy.dst, slot_limit)?;
            at_most("copy.len", copy.len.into(), limits.max_ctx.into())?;
            check_blocks(&copy.blocks, limits)?;
            check_request(&copy.request)?;
            copy.sampler.as_ref().map_or(Ok(()), |s| check_sampler(s, limits))
        }
        seq_op::Op::Truncate(cut) => {
            below("truncate.slot", cut.slot, slot_limit)?;
            at_most("truncate.len", cut.len.into(), limits.max_ctx.into())?;
            cut.from.map_or(Ok(()), |from| below("truncate.from", from, slot_limit))
        }
        seq_op::Op::Close(close) => below("close.slot", close.slot, slot_limit),
        seq_op::Op::Draw(draw) => below("draw.slot", draw.slot, slot_limit),
        seq_op::Op::Draft(draft) => below("draft.slot", draft.slot, slot_limit),
        seq_op::Op::Grow(grow) => {
            below("grow.slot", grow.slot, slot_limit)?;
            check_blocks(&grow.blocks, limits)
        }
        seq_op::Op::Name(name) => {
            below("name.slot", name.slot, slot_limit)?;
            match name.name.len() {
                0 => Ok(()),
                n => equal("name bytes", n as u64, COPY_NAME_BYTES as u64),
            }
        }
        seq_op::Op::Adapt(adapt) => {
            below("adapt.slot", adapt.slot, slot_limit)?;
            at_most("adapt.adapters count", adapt.adapters.len() as u64, MAX_ADAPTERS as u64)?;
            let adapters = &adapt.adapters;
            adapters
                .iter()
                .try_for_each(|used| below("adapt.adapter", used.adapter, MAX_ADAPTERS as u32))?;
            if adapters.iter().all(|used| used.scale.is_finite()) {
                Ok(())
            } else {
                Err(FrameError::Invalid { field: "adapt.scale", why: "it is not finite" })
            }
        }
        seq_op::Op::Checkpoint(taken) => {
            below("checkpoint.slot", taken.slot, slot_limit)?;
            at_most("checkpoint.len", taken.len.into(), limits.max_ctx.into())?;
            equal("checkpoint.mark bytes", taken.mark.len() as u64, COPY_NAME_BYTES as u64)
        }
    }
}

fn check_blocks(blocks: &[u32], limits: &FrameLimits) -> Result<(), FrameError> {
    at_most("blocks count", blocks.len() as u64, limits.n_blocks.into())?;
    blocks.iter().try_for_each(|&block| below("block id", block, limits.n_blocks))
}

/// An id goes into log lines as it is: short, and without line breaks.
fn check_request(id: &str) -> Result<(), FrameError> {
    at_most("request bytes", id.len() as u64, MAX_REQUEST_ID_BYTES as u64)?;
    if id.chars().any(char::is_control) {
        let why = "it has control characters";
        return Err(FrameError::Invalid { field: "request", why });
    }
    Ok(())
}

fn check_sampler(sampler: &SamplerSetup, limits: &FrameLimits) -> Result<(), FrameError> {
    check_numbers(sampler)?;
    let top = sampler.top_logprobs.unwrap_or(0);
    at_most("sampler.top_logprobs", top.into(), MAX_TOP_LOGPROBS.into())?;
    at_most("sampler.logit_bias count", sampler.logit_bias.len() as u64, MAX_LOGIT_BIAS as u64)?;
    for entry in &sampler.logit_bias {
        below("sampler.logit_bias.token", entry.token, limits.n_vocab)?;
        if entry.bias.is_nan() || entry.bias == f32::INFINITY {
            let why = "a bias is finite or -inf";
            return Err(FrameError::Invalid { field: "sampler.logit_bias.bias", why });
        }
    }
    if let Some(dry) = &sampler.dry {
        check_tokens("sampler.dry.breakers", &dry.breakers, limits)?;
    }
    if let Some(not_before) = &sampler.not_before {
        check_tokens("sampler.not_before.tokens", &not_before.tokens, limits)?;
    }
    sampler.constraint.as_ref().map_or(Ok(()), |c| check_constraint(c, limits))
}

fn check_tokens(
    field: &'static str,
    tokens: &[u32],
    limits: &FrameLimits,
) -> Result<(), FrameError> {
    at_most(field, tokens.len() as u64, MAX_SAMPLER_TOKENS as u64)?;
    tokens.iter().try_for_each(|&token| below(field, token, limits.n_vocab))
}

fn check_constraint(constraint: &Constraint, limits: &FrameLimits) -> Result<(), FrameError> {
    at_most("constraint.answer_at", constraint.answer_at.into(), limits.max_ctx.into())?;
    let n_grammars = constraint.grammars.len();
    at_most("constraint.grammars count", n_grammars as u64, MAX_MARKERS as u64)?;
    for grammar in &constraint.grammars {
        let bytes = grammar.text.len() as u64;
        at_most("constraint.grammars bytes", bytes, MAX_GRAMMAR_BYTES as u64)?;
    }
    at_most("constraint.unless count", constraint.unless.len() as u64, MAX_MARKERS as u64)?;
    for token in &constraint.unless {
        below("constraint.unless", *token, limits.n_vocab)?;
    }
    at_most("constraint.markers count", constraint.markers.len() as u64, MAX_MARKERS as u64)?;
    for marker in &constraint.markers {
        at_most("constraint.markers bytes", marker.text.len() as u64, MAX_MARKER_BYTES as u64)?;
    }
    let named = constraint.markers.iter().map(|marker| marker.grammar).chain(constraint.first);
    named.into_iter().try_for_each(|at| below("constraint grammar index", at, n_grammars as u32))
}

fn check_part(part: &SeqPart, limits: &FrameLimits) -> Result<(), FrameError> {
    below("part.slot", part.slot, limits.max_seqs)?;
    if part.tokens.is_empty() {
        return Err(FrameError::Missing("part.tokens"));
    }
    let end = u64::from(part.pos) + part.tokens.len() as u64;
    at_most("part.pos + tokens", end, limits.max_ctx.into())?;
    if let Some(ahead) = &part.ahead {
        at_most("part.ahead.sure", ahead.sure.into(), part.pos.into())?;
        below("part.ahead.known", ahead.known, part.tokens.len() as u32)?;
        at_most("part.ahead.drafts", ahead.drafts.into(), MAX_DRAFTED)?;
        for plane in ahead.planes.iter().flat_map(|planes| [planes.from, planes.to]) {
            below("part.ahead.planes", plane, limits.max_seqs)?;
        }
    }
    if part.mu.is_some_and(|mu| !mu.is_finite()) {
        return Err(FrameError::Invalid { field: "part.mu", why: "it is not finite" });
    }
    if Want::try_from(part.want).is_err() {
        return Err(FrameError::Invalid { field: "part.want", why: "unknown value" });
    }
    part.tokens.iter().try_for_each(|&token| below("part.tokens", token, limits.n_vocab))
}

fn check_slots_once(parts: &[SeqPart]) -> Result<(), FrameError> {
    let mut slots: Vec<u32> = parts.iter().map(|part| part.slot).collect();
    slots.sort_unstable();
    if slots.windows(2).any(|pair| pair[0] == pair[1]) {
        let why = "a slot appears in two parts of one ubatch";
        return Err(FrameError::Invalid { field: "part.slot", why });
    }
    Ok(())
}

fn check_boundary(
    boundary: Option<&Boundary>,
    rows: u64,
    input_width: Option<u32>,
) -> Result<Option<BoundaryShape>, FrameError> {
    let (boundary, width) = match (boundary, input_width) {
        (None, None) => return Ok(None),
        (Some(_), None) => {
            let why = "the first stage takes no boundary";
            return Err(FrameError::Invalid { field: "boundary", why });
        }
        (None, Some(_)) => return Err(FrameError::Missing("boundary")),
        (Some(boundary), Some(width)) => (boundary, width),
    };
    equal("boundary.n_rows", boundary.n_rows.into(), rows)?;
    equal("boundary.width", boundary.width.into(), width.into())?;
    let unknown = FrameError::Invalid { field: "boundary.dtype", why: "unknown wire type" };
    let dtype = WireType::try_from(boundary.dtype).map_err(|_| unknown.clone())?;
    let row_bytes = wire_row_bytes(dtype, width as usize).ok_or(unknown)?;
    let expected = rows.saturating_mul(row_bytes as u64);
    equal("boundary.data bytes", boundary.data.len() as u64, expected)?;
    Ok(Some(BoundaryShape { n_rows: rows as usize, width: width as usize, dtype }))
}

fn over(field: &'static str, value: u64, limit: u64) -> FrameError {
    FrameError::OverLimit { field, value, limit }
}

/// Checks that `value <= limit`.
pub fn at_most(field: &'static str, value: u64, limit: u64) -> Result<(), FrameError> {
    if value <= limit { Ok(()) } else { Err(over(field, value, limit)) }
}

fn below(field: &'static str, value: u32, end: u32) -> Result<(), FrameError> {
    if value < end { Ok(()) } else { Err(over(field, value.into(), u64::from(end.max(1)) - 1)) }
}

fn equal(field: &'static str, value: u64, expected: u64) -> Result<(), FrameError> {
    if value == expected { Ok(()) } else { Err(FrameError::Mismatch { field, value, expected }) }
}
