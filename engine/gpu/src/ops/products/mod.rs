//! Products of rows of activations with packed weights, and the 8-bit form in which most of them read rows.
//!
//! Weights are the engine's packed panels as they are. Quantised ones are multiplied in integers within a block of 32
//! columns, and in f32 between blocks, which are added in their order; float ones in f32, in runs of 256 columns. So a
//! row's bits depend on nothing but the row.

mod format;

use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::facts::GpuKind;
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

use format::Format;
pub use format::WeightType;

static QUANTIZE: Shader = shader!("quantize");
static FEW: Shader = shader!("product_few");
static MANY: Shader = shader!("product_many");
static FLOATS_FEW: Shader = shader!("product_floats_few");
static FLOATS_MANY: Shader = shader!("product_floats_many");

/// Values of a block of activations.
const BLOCK: usize = 32;
/// Bytes of one in its 8-bit form.
const BLOCK_BYTES: usize = 64;
/// Rows of a panel.
const LANES: usize = 16;
/// Most rows that a kernel of few rows takes.
const FEW_ROWS: usize = 8;

/// Packed weights `[rows, cols]` on the device.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Their type.
    pub ty: WeightType,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// What products are multiplied with when they are complete.
    pub scale: f32,
    /// The panels, as the engine packs them: [`WeightType::packed_bytes`].
    pub panels: Span<'a>,
}

/// One product of several: `out[i, o] = Σ_k x[i, k] * w[o, k]`.
#[derive(Debug)]
pub struct Product<'a> {
    /// Weights `[out features, cols]`.
    pub w: Weights<'a>,
    /// Activations `[n_rows, cols]`: f32, or blocks of [`Gpu::quantize`] where the weights' type
    /// [wants them](WeightType::wants_blocks).
    pub x: Span<'a>,
    /// How many rows there are.
    pub n_rows: usize,
    /// `[n_rows, w.rows]`, f32.
    pub out: SpanMut<'a>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct QuantizePush {
    x: u64,
    blocks: u64,
    n_blocks: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    panels: u64,
    x: u64,
    y: u64,
    panel_words: u32,
    /// Columns, or blocks of them.
    length: u32,
    rows: u32,
    n_rows: u32,
    scale: f32,
    pad: u32,
}

impl Gpu {
    /// Bytes of the 8-bit form of rows with so many `values` in all.
    pub fn quantized_bytes(values: usize) -> usize {
        values / BLOCK * BLOCK_BYTES
    }

    /// Writes the 8-bit form of rows `x` (`[n_rows, cols]`, `cols` a multiple of 32) to `out`, of
    /// [`Gpu::quantized_bytes`], at an address that is a multiple of 16.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn quantize(&self, x: Span<'_>, out: SpanMut<'_>) {
        let values = x.values();
        assert!(values.is_multiple_of(BLOCK), "quantize: {values} values in blocks of {BLOCK}");
        assert_eq!(out.len(), Self::quantized_bytes(values), "quantize: bytes of the blocks");
        assert!(out.address().is_multiple_of(16), "quantize: blocks are aligned to 16 bytes");
        let n_blocks = values / BLOCK;
        let (x, blocks) = (x.address(), out.address());
        let push = QuantizePush { x, blocks, n_blocks: count(n_blocks), pad: 0 };
        // SAFETY: the kernel reads the blocks of `x` and writes those of `out`, which has as many (checked).
        unsafe { self.dispatch(Order::After, &QUANTIZE, &[], &push, lines(n_blocks.div_ceil(32))) };
    }

    /// `out = x * wᵀ` for `n_rows` rows; see [`Product`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn product(&self, w: &Weights<'_>, x: Span<'_>, n_rows: usize, out: SpanMut<'_>) {
        self.products([Product { w: *w, x, n_rows, out }]);
    }

    /// Several products, none of which reads what another writes: they run beside each other.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn products<'a>(&self, jobs: impl IntoIterator<Item = Product<'a>>) {
        let mut order = Order::After;
        for job in jobs {
            if self.one_product(order, job) {
                order = Order::Beside;
            }
        }
    }

    /// Records a product, and says whether there was something to compute.
    fn one_product(&self, order: Order, job: Product<'_>) -> bool {
        let Product { w, x, n_rows, out } = job;
        let format = w.ty.format();
        let row_bytes = format.map_or(w.cols * 4, |_| Self::quantized_bytes(w.cols));
        assert_eq!(w.panels.len(), w.ty.packed_bytes(w.rows, w.cols), "product: bytes of weights");
        assert_eq!(x.len(), n_rows * row_bytes, "product: bytes of activations");
        assert_eq!(out.values(), n_rows * w.rows, "product: values of the output");
        let alignment = if format.is_some() { 16 } else { 4 };
        assert!(x.address().is_multiple_of(alignment), "product: alignment of activations");
        assert!(w.panels.address().is_multiple_of(4), "product: alignment of weights");
        if n_rows == 0 || w.rows == 0 {
            return false;
        }
        let push = Push {
            panels: w.panels.address(),
            x: x.address(),
            y: out.address(),
            panel_words: count(w.ty.panel_bytes(w.cols) / 4),
            length: count(if format.is_some() { w.cols / BLOCK } else { w.cols }),
            rows: count(w.rows),
            n_rows: count(n_rows),
            scale: w.scale,
            pad: 0,
        };
        let enough = if self.facts().kind == GpuKind::Software { 1 } else { ENOUGH };
        let kernel = Kernel::of(w.ty, format, n_rows, w.rows.div_ceil(LANES), enough);
        // SAFETY: the kernel reads the panels of `w` and the rows of `x`, and writes `n_rows` rows of `w.rows` values to
        // `out`; all of them are as long as that (checked).
        unsafe { self.dispatch(order, kernel.shader, &kernel.constants, &push, kernel.groups) };
        true
    }
}

/// How a product is computed.
struct Kernel {
    shader: &'static Shader,
    constants: Vec<u32>,
    groups: [u32; 3],
}

impl Kernel {
    fn of(
        ty: WeightType,
        format: Option<Format>,
        n_rows: usize,
        panels: usize,
        enough: usize,
    ) -> Self {
        if n_rows <= FEW_ROWS {
            let rows = n_rows.next_power_of_two() as u32;
            let (shader, constants) = match format {
                Some(format) => (&FEW, few(&format, rows)),
                None => (&FLOATS_FEW, vec![float_type(ty), rows]),
            };
            return Self { shader, constants, groups: lines(panels) };
        }
        let tile = tile(n_rows, panels, enough);
        let (shader, mut constants) = match format {
            Some(format) => (&MANY, format.constants().to_vec()),
            None => (&FLOATS_MANY, vec![float_type(ty)]),
        };
        constants.push(tile as u32);
        let groups = panels.div_ceil(tile) * n_rows.div_ceil(LANES * tile);
        Self { shader, constants, groups: lines(groups) }
    }
}

/// Constants of the kernel of up to `rows` rows: shared memory has two sides of 8 KiB, or more where a step needs it.
fn few(format: &Format, rows: u32) -> Vec<u32> {
    let slices = if rows <= 4 { 16 } else { 8 };
    let fit = 8192 / (4 * LANES as u32 * rows * format.parts());
    let side = (fit / slices * slices).clamp(slices, 4 * slices);
    [&format.constants()[..], &[slices * LANES as u32, rows, side]].concat()
}

/// Workgroups that keep a device busy.
const ENOUGH: usize = 128;

/// How many panels, and sixteens of rows, a workgroup takes: what costs least, with the rows that fill up tiles, among
/// those with `enough` workgroups.
fn tile(n_rows: usize, panels: usize, enough: usize) -> usize {
    let tiles = |tile: &usize| n_rows.div_ceil(LANES * tile);
    // A tile reads each row of either side once for `tile` products.
    let cost = |tile: &usize| tiles(tile) * tile * (tile + 1) * 4 / tile;
    let fits = |tile: &usize| panels.div_ceil(*tile) * tiles(tile) >= enough;
    [4, 2].into_iter().filter(fits).chain([1]).min_by_key(cost).unwrap_or(1)
}

/// The number of a float type in the shaders.
fn float_type(ty: WeightType) -> u32 {
    match ty {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        _ => 2,
    }
}
