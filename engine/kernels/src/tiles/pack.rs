//! Weights in the order in which the kernels read them, prepared once when they are loaded.
//!
//! A packed matrix is a series of panels. Each holds sixteen weight rows; the last one is filled up with zero
//! rows. A panel is contiguous, and a product streams it from its first byte to its last. Panels of integer
//! formats are described in [`crate::format`]. Panels of floats hold, column after column, sixteen values of
//! the source's own type.

use std::sync::Arc;

use crate::aligned::{AlignedBytes, DeviceMemory};
use crate::simd::LANES;
use brigade_quant::GgmlType;

/// Weights `[rows, cols]`, packed.
pub struct PackedMatrix {
    pub(crate) ty: GgmlType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) panel_bytes: usize,
    pub(crate) data: AlignedBytes,
    /// What products are multiplied with.
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
    pub fn copied_to(&self, memory: Arc<dyn DeviceMemory>) -> Self {
        let data = AlignedBytes::with_device(self.data.len(), memory);
        Self { data, ..*self }
    }

    /// The memory that the panels lie in, if it is a device's.
    #[inline]
    pub fn with_device(&self) -> Option<&dyn DeviceMemory> {
        self.data.with().map(|memory| &**memory)
    }

    /// What products are multiplied with when they are complete.
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

    /// The source type.
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

    /// Panels of sixteen rows.
    #[inline]
    pub(crate) fn n_panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    #[inline]
    pub(crate) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Panel `p`.
    #[inline]
    pub(crate) fn panel(&self, p: usize) -> &[u8] {
        &self.data[p * self.panel_bytes..][..self.panel_bytes]
    }

    /// Whether products read the 8-bit form of the activations.
    #[inline]
    pub(crate) fn wants_blocks(&self) -> bool {
        !is_float(self.ty)
    }
}

/// Whether products with this type are taken in f32.
#[inline]
pub(crate) fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}
