//! Causal depthwise convolution over the rows of each sequence. Its state is the rows before them.

use brigade_ops::{Columns, Conv, ConvRows, ScanPart};
use bytemuck::{Pod, Zeroable};

use super::{ColumnsHere, LANES};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::Span;
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static CONV: Shader = shader!("conv");
static STATE: Shader = shader!("conv_state");

/// Rows that one invocation takes; at least as many as a state has.
const PIECE: usize = 16;

/// Kinds of pieces, as `conv.comp` has them: the first of a part, and a whole part.
const FIRST: usize = 1;
const WHOLE: usize = 2;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    pieces: u64,
    states: u64,
    x: u64,
    weight: u64,
    bias: u64,
    result: u64,
    n_units: u32,
    channels: u32,
    stride: u32,
    per_slot: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PushState {
    parts: u64,
    states: u64,
    x: u64,
    n_units: u32,
    channels: u32,
    stride: u32,
    per_slot: u32,
}

/// Destination of the states of parts.
struct Left<'a> {
    parts: &'a [ScanPart],
    /// Address of the first slot's.
    states: u64,
    /// Values from one slot to the next.
    per_slot: u32,
}

impl Gpu {
    /// Records the op [`ConvRows`].
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn conv(&self, op: ConvRows<'_, OnGpu>) {
        op.check();
        let ConvRows { conv, parts, states, at, x, out } = op;
        let Conv { taps, channels, silu, .. } = *conv;
        let (from, stride) = x.place();
        count(out.values());
        let (pieces, n) = self.upload_parts(parts.iter().flat_map(pieces));
        let n_units = n * channels.div_ceil(4 * LANES);
        let (weight, bias) =
            (self.vector(&conv.weight).address(), self.vector(&conv.bias).address());
        let left = Left {
            parts,
            states: states.address() + 4 * at.first as u64,
            per_slot: count(at.per_slot),
        };
        let push = Push {
            pieces,
            states: left.states,
            x: from,
            weight,
            bias,
            result: out.address(),
            n_units: count(n_units),
            channels: channels as u32,
            stride,
            per_slot: left.per_slot,
        };
        let constants = [taps as u32, u32::from(silu)];
        // SAFETY: the kernel reads rows of `x` and the weights, reads and writes the states of the parts' slots, and writes
        // the parts' rows of `out`: all of them are there (checked), and no two parts have one in common.
        unsafe { self.dispatch(Order::After, &CONV, &constants, &push, lines(n_units)) };
        self.conv_states(conv, left, x);
    }

    /// Leaves the states behind the parts of several pieces, which [`Gpu::conv`] has checked.
    fn conv_states(&self, conv: &Conv, left: Left<'_>, x: Columns<Span<'_>>) {
        let Conv { taps, channels, .. } = *conv;
        let Left { parts, states, per_slot } = left;
        let (x, stride) = x.place();
        let long = parts.iter().filter(|part| part.n_rows > PIECE).copied();
        let (parts, n) = self.upload_parts(long);
        let n_units = n * channels.div_ceil(4 * LANES);
        let (n_units, channels) = (count(n_units), channels as u32);
        let push = PushState { parts, states, x, n_units, channels, stride, per_slot };
        let groups = lines(n_units as usize);
        if n > 0 {
            // SAFETY: the kernel reads the parts' last rows of `x` and writes the states of their slots, which are there.
            unsafe { self.dispatch(Order::After, &STATE, &[taps as u32 - 1], &push, groups) };
        }
    }
}

/// A part as pieces, each with its kind in the place of its position.
fn pieces(part: &ScanPart) -> impl Iterator<Item = ScanPart> + use<> {
    let ScanPart { from, slot, first_row, n_rows, .. } = *part;
    (0..n_rows).step_by(PIECE).map(move |start| {
        let n = (n_rows - start).min(PIECE);
        let kind = if start == 0 { FIRST } else { 0 } + if n == n_rows { WHOLE } else { 0 };
        ScanPart { from, slot, first_pos: kind, first_row: first_row + start, n_rows: n }
    })
}
