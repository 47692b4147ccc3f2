//! The forms in which products read rows of activations.

use std::sync::OnceLock;

use brigade_ops::Derived;
use bytemuck::{Pod, Zeroable};

use super::BLOCK;
use super::expert_work::ExpertWork;
use super::format::WeightType;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};
use crate::transfer::buffer::GpuBuffer;

static HALF_ROWS: Shader = shader!("half_rows");

/// Most rows that a kernel of few rows takes.
pub(super) const FEW_ROWS: usize = 8;

/// Bytes before the values of a row of [`RowForm::Halves`].
const ROW_HEAD_BYTES: usize = 16;
/// Bytes of a value of f16.
const HALF_BYTES: usize = 2;

/// Forms of rows that products made and keep.
#[derive(Debug, Default)]
struct Kept {
    blocks: OnceLock<GpuBuffer>,
    halves: OnceLock<GpuBuffer>,
}

/// Layout of rows of activations for products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowForm {
    /// `[n_rows, cols]` in f32.
    Floats,
    /// Blocks of 8-bit values: [`Gpu::quantize`].
    Blocks,
    /// Values of f16 with a power of two for each row: [`Gpu::halve`].
    Halves,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    x: u64,
    y: u64,
    cols: u32,
    n_rows: u32,
}

impl RowForm {
    /// Bytes of a row of `cols` values; of [`RowForm::Blocks`] these are whole blocks of 32.
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::Floats => cols * size_of::<f32>(),
            Self::Blocks => Gpu::quantized_bytes(cols),
            Self::Halves => ROW_HEAD_BYTES + self.width(cols) * BLOCK * HALF_BYTES,
        }
    }

    /// Alignment of a row's address.
    pub(super) fn alignment(self) -> u64 {
        match self {
            Self::Floats => 4,
            Self::Blocks | Self::Halves => 16,
        }
    }

    /// Columns of rows, or blocks of them, as kernels count.
    pub(super) fn width(self, cols: usize) -> usize {
        match self {
            Self::Floats => cols,
            Self::Blocks | Self::Halves => cols.div_ceil(BLOCK),
        }
    }
}

impl Gpu {
    /// The form in which products of `n_rows` rows together with weights of this type read them.
    pub fn row_form(&self, ty: WeightType, n_rows: usize) -> RowForm {
        // The other types have values that f16 has not.
        let fits = !matches!(ty, WeightType::F32 | WeightType::BF16);
        if self.has_fast_math() && fits && n_rows > FEW_ROWS {
            RowForm::Halves
        } else if ty.wants_blocks() {
            RowForm::Blocks
        } else {
            RowForm::Floats
        }
    }

    /// The same of products with experts.
    pub fn expert_row_form(&self, ty: WeightType, work: &ExpertWork) -> RowForm {
        self.row_form(ty, work.piece_rows())
    }

    /// Rows `x`, `[_, cols]`, in a form that products read. Another than f32 is made when it is first asked for, and kept in
    /// `derived`.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    ///
    /// # Panics
    /// If another device keeps something of them.
    pub(crate) fn in_form<'a>(
        &self,
        form: RowForm,
        x: Span<'a>,
        cols: usize,
        derived: &'a Derived,
    ) -> Result<Span<'a>, GpuError> {
        let kept = |kept: &'a Derived| kept.kept(Kept::default).expect("rows of one device");
        let kept = match form {
            RowForm::Floats => return Ok(x),
            RowForm::Blocks => &kept(derived).blocks,
            RowForm::Halves => &kept(derived).halves,
        };
        if let Some(made) = kept.get() {
            return Ok(made.span());
        }
        let n_rows = x.values().checked_div(cols).unwrap_or(0);
        let mut made = self.buffer(n_rows * form.row_bytes(cols), Purpose::Activations)?;
        match form {
            RowForm::Floats | RowForm::Blocks => self.quantize(x, made.span_mut()),
            RowForm::Halves => self.halve(x, cols, made.span_mut()),
        }
        Ok(kept.get_or_init(|| made).span())
    }

    /// Writes rows `x` (`[n_rows, cols]`, f32) in the form [`RowForm::Halves`] to `out`, of `n_rows` times
    /// [`RowForm::row_bytes`], at an address that is a multiple of 16. Each row is divided by a power of two, so that no finite
    /// value is too great for f16. A row with an infinity or a NaN is marked: its products are NaN.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn halve(&self, x: Span<'_>, cols: usize, out: SpanMut<'_>) {
        let n_rows = x.values().checked_div(cols).unwrap_or(0);
        assert_eq!(x.values(), n_rows * cols, "halve: values of whole rows");
        assert_eq!(out.len(), n_rows * RowForm::Halves.row_bytes(cols), "halve: bytes of the rows");
        assert!(out.address().is_multiple_of(16), "halve: rows are aligned to 16 bytes");
        if n_rows == 0 {
            return;
        }
        let (x, y) = (x.address(), out.address());
        let push = Push { x, y, cols: count(cols), n_rows: count(n_rows) };
        // SAFETY: the kernel reads `n_rows` rows of `cols` values of `x`, and writes as many rows to `out`, which has room for
        // them (checked).
        unsafe { self.dispatch(Order::After, &HALF_ROWS, &[], &push, lines(n_rows)) };
    }
}
