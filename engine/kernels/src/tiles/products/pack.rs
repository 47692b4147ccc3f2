//! Weights in the order in which the kernels read them, prepared once when they are loaded.
//!
//! A packed matrix is a series of panels. Each holds sixteen weight rows; the last one is filled up with zero
//! rows. A panel is contiguous, and a product streams it from its first byte to its last. Panels of integer
//! formats are described in [`crate::format`]. Panels of floats hold, column after column, sixteen values of
//! the source's own type.

use std::sync::Arc;

use crate::aligned::AlignedBytes;
use crate::format::{FormatVisitor, PanelFormat, with_format};
use crate::simd::LANES;
use brigade_ops::{Buffer, Part, View, Weights};
use brigade_quant::{GgmlType, KernelError};

/// Weights `[rows, cols]`, packed.
pub struct PackedMatrix {
    pub(crate) ty: GgmlType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: AlignedBytes,
    /// Factor on the products.
    pub(crate) scale: f32,
}

impl PackedMatrix {
    /// The same weights times `scale`: products are multiplied with it, once, when they are complete.
    #[must_use]
    #[inline]
    pub fn scaled(self, scale: f32) -> Self {
        Self { scale: self.scale * scale, ..self }
    }

    /// The same weights in memory of a device that has a copy of [`PackedMatrix::bytes`].
    #[must_use]
    pub fn copied_to(&self, memory: Arc<dyn Buffer>) -> Self {
        let data = AlignedBytes::with_device(self.data.len(), memory);
        Self { data, ..*self }
    }

    /// The memory that the panels lie in, if it is a device's.
    #[inline]
    pub fn with_device(&self) -> Option<&Arc<dyn Buffer>> {
        self.data.with()
    }

    /// The weights, as products take them wherever they lie.
    #[inline]
    pub fn weights(&self) -> Weights<View<'_, u8>> {
        let panels = match self.data.with() {
            None => View::Host(&self.data),
            Some(memory) => View::Device(Part::of(&**memory, 0..self.data.len())),
        };
        Weights { ty: self.ty, rows: self.rows, cols: self.cols, scale: self.scale, panels }
    }

    /// The weights, as products on the host take them.
    #[inline]
    pub fn on_host(&self) -> Weights<&[u8]> {
        let panels = self.bytes();
        Weights { ty: self.ty, rows: self.rows, cols: self.cols, scale: self.scale, panels }
    }

    /// Factor on the finished products.
    #[inline]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Output features.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Type of the weights in the file.
    #[inline]
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Bytes held, which a product with one row reads once.
    #[inline]
    pub fn nbytes(&self) -> usize {
        self.data.len()
    }

    /// The panels, one after the other.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }
}

/// Packed weights, as kernels read them.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    pub(crate) ty: GgmlType,
    /// Output features.
    pub(crate) rows: usize,
    /// Input features.
    pub(crate) cols: usize,
    /// Factor on the finished products.
    pub(crate) scale: f32,
    pub(crate) panel_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Panels<'a> {
    /// # Panics
    /// If the bytes are not those of this type and shape.
    #[inline]
    pub(crate) fn of(w: Weights<&'a [u8]>) -> Self {
        let Weights { ty, rows, cols, scale, panels: bytes } = w;
        let panel_bytes = panel_bytes(ty, cols).expect("weights were packed");
        let wanted = rows.div_ceil(LANES) * panel_bytes;
        assert_eq!(bytes.len(), wanted, "bytes of {ty} [{rows}, {cols}]");
        Self { ty, rows, cols, scale, panel_bytes, bytes }
    }

    /// Panels of sixteen rows.
    #[inline]
    pub(crate) fn n_panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes of panel `p`.
    #[inline]
    pub(crate) fn panel(&self, p: usize) -> &'a [u8] {
        &self.bytes[p * self.panel_bytes..][..self.panel_bytes]
    }

    /// Whether products read the 8-bit form of the activations.
    #[inline]
    pub(crate) fn wants_blocks(&self) -> bool {
        !is_float(self.ty)
    }
}

/// Bytes of a panel of rows of `cols` columns.
pub(crate) fn panel_bytes(ty: GgmlType, cols: usize) -> Result<usize, KernelError> {
    struct Record;
    impl FormatVisitor for Record {
        type Out = usize;
        fn visit<Q: PanelFormat>(self) -> usize {
            Q::RECORD
        }
    }
    let record = match with_format(ty, Record) {
        Some(record) => record,
        None if is_float(ty) => LANES * ty.block_bytes(),
        None => return Err(KernelError::Unsupported(ty)),
    };
    let block = ty.block_elems();
    if !cols.is_multiple_of(block) {
        return Err(KernelError::Cols { ty, block, cols });
    }
    Ok(cols / block * record)
}

/// Whether products with this type are taken in f32.
#[inline]
pub(crate) fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}
