//! Products of rows of activations with packed weights, and the 8-bit form in which most of them read rows.
//!
//! Weights are the engine's packed panels as they are. Quantised ones are multiplied in integers within a block of 32
//! columns, and in f32 between blocks, which are added in their order; float ones in f32, in runs of 256 columns. So a
//! row's bits depend on nothing but the row.
//!
//! With [fast math](crate::DeviceOptions::fast_math), products of more than eight rows are computed in f16 by matrix units,
//! except of weights in F32 and BF16. Their bits are the device's own, and depend on how many rows are together.

pub(crate) mod expert_work;
mod experts;
mod format;
mod forms;
mod kernel;

use brigade_ops::{Product, Products, Weights};
use bytemuck::{Pod, Zeroable};

use super::rowwise::elementwise::count;
use super::rowwise::joining::{self, AS_THEY_ARE, QUANTIZE, QuantizePush};
use crate::commands::Order;
use crate::commands::dispatch::Work;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;

pub use experts::{ExpertTable, FormedExpertProduct};
pub use format::WeightType;
pub use forms::RowForm;
use kernel::{Factors, Kernel};

/// Values of a block of activations.
const BLOCK: usize = 32;
/// Bytes of one in its 8-bit form.
const BLOCK_BYTES: usize = 64;
/// Rows of a panel.
const LANES: usize = 16;

/// One product of several, whose rows are in the form that it reads.
#[derive(Debug)]
pub struct FormedProduct<'a> {
    /// Weights `[out features, cols]`.
    pub w: Weights<Span<'a>>,
    /// Activations `[n_rows, cols]` in the form of [`Gpu::row_form`].
    pub x: Span<'a>,
    /// Number of rows.
    pub n_rows: usize,
    /// `[n_rows, w.rows]`, f32.
    pub out: SpanMut<'a>,
}

/// Push constants of `product_work.glsl`.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Push {
    panels: u64,
    x: u64,
    y: u64,
    experts: u64,
    pieces: u64,
    list: u64,
    panel_words: u32,
    /// Columns, or blocks of them.
    width: u32,
    rows: u32,
    /// Rows, or pieces of them.
    n: u32,
    scale: f32,
    pad: u32,
}

/// Type and shape of weights.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ty: WeightType,
    rows: usize,
    cols: usize,
}

impl Shape {
    /// Bytes of the panels.
    fn packed_bytes(&self) -> usize {
        self.ty.packed_bytes(self.rows, self.cols)
    }

    /// Holds `n_rows` rows of activations to what kernels read.
    ///
    /// # Panics
    /// If they are not as many bytes, or not aligned.
    fn check_rows(&self, form: RowForm, x: Span<'_>, n_rows: usize) {
        count(n_rows * form.width(self.cols));
        assert_eq!(x.len(), n_rows * form.row_bytes(self.cols), "product: bytes of activations");
        let is_aligned = x.address().is_multiple_of(form.alignment());
        assert!(is_aligned, "product: alignment of activations");
    }

    /// Push constants of the product's kernels.
    fn push(&self, form: RowForm) -> Push {
        Push {
            panel_words: count(self.ty.panel_bytes(self.cols) / 4),
            width: count(form.width(self.cols)),
            rows: count(self.rows),
            ..Push::default()
        }
    }
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
        let push = QuantizePush { x, blocks, n_blocks: count(n_blocks), ..QuantizePush::zeroed() };
        let groups = lines(n_blocks.div_ceil(32));
        let work = Work::new(&QUANTIZE, &[AS_THEY_ARE, 0], &push, groups);
        // SAFETY: the kernel reads the blocks of `x` and writes those of `out`, which has as many (checked). Fusion to what
        // makes the values it does that one's work too.
        unsafe { self.dispatch_joined(&work, |last| joining::blocks_of_result(last, &work)) };
    }

    /// Records the op [`Products`]. Other forms of rows are kept with these.
    ///
    /// # Errors
    /// Where there is no room for a form.
    pub(super) fn run_products(&self, op: Products<'_, OnGpu>) -> Result<(), GpuError> {
        // Collected first: what makes another form of rows may not stand between products that run beside each other.
        let jobs: Result<Vec<_>, _> = op.jobs.into_iter().map(|job| self.formed(job)).collect();
        self.products(jobs?);
        Ok(())
    }

    /// A product with its rows in the form that it reads.
    fn formed<'a>(&self, job: Product<'a, OnGpu>) -> Result<FormedProduct<'a>, GpuError> {
        job.check();
        let Product { w, x, forms, rows, out } = job;
        let form = self.row_form(w.ty.into(), rows.len());
        let bytes = form.row_bytes(w.cols);
        let x = self.in_form(form, x, w.cols, forms)?.part(rows.start * bytes..rows.end * bytes);
        Ok(FormedProduct { w, x, n_rows: rows.len(), out })
    }

    /// `out = x * wᵀ` for `n_rows` rows; see [`FormedProduct`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn product(&self, w: &Weights<Span<'_>>, x: Span<'_>, n_rows: usize, out: SpanMut<'_>) {
        self.products([FormedProduct { w: *w, x, n_rows, out }]);
    }

    /// Several products, none of which reads what another writes: they run beside each other.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn products<'a>(&self, jobs: impl IntoIterator<Item = FormedProduct<'a>>) {
        let mut order = Order::After;
        for job in jobs {
            if self.one_product(order, job) {
                order = Order::Beside;
            }
        }
    }

    /// Records a product, and says whether there was something to compute.
    fn one_product(&self, order: Order, job: FormedProduct<'_>) -> bool {
        let FormedProduct { w, x, n_rows, out } = job;
        let ty = w.ty.into();
        let shape = Shape { ty, rows: w.rows, cols: w.cols };
        assert_eq!(w.panels.len(), shape.packed_bytes(), "product: bytes of weights");
        assert_eq!(out.values(), n_rows * w.rows, "product: values of the output");
        assert!(w.panels.address().is_multiple_of(4), "product: alignment of weights");
        let form = self.row_form(ty, n_rows);
        shape.check_rows(form, x, n_rows);
        if n_rows == 0 || w.rows == 0 {
            return false;
        }
        let push = Push {
            panels: w.panels.address(),
            x: x.address(),
            y: out.address(),
            n: count(n_rows),
            scale: w.scale,
            ..shape.push(form)
        };
        let kernel = Kernel::of(self.facts(), Factors { ty, form }, n_rows, w.rows.div_ceil(LANES));
        // SAFETY: the kernel reads the panels of `w` and the rows of `x`, and writes `n_rows` rows of `w.rows` values to
        // `out`; all of them are as long as that (checked).
        unsafe { self.dispatch(order, kernel.shader, &kernel.constants, &push, kernel.groups) };
        true
    }
}
