//! Weights in the order in which the kernels read them, prepared once when they are loaded.
//!
//! A packed matrix is a series of panels. Each holds sixteen weight rows; the last one is filled up with zero
//! rows. A panel is contiguous, and a product streams it from its first byte to its last. Panels of integer
//! formats are described in [`super::format`]. Panels of floats hold, column after column, sixteen values of
//! the source's own type.

use bytemuck::Zeroable;

use super::aligned::AlignedBytes;
use super::compute::Compute;
use super::error::KernelError;
use super::format::{FormatVisitor, PanelFormat, with_format};
use super::ops::Rows;
use super::simd::LANES;
use crate::quant::GgmlType;

/// Weights `[rows, cols]`, packed.
pub struct PackedMatrix {
    ty: GgmlType,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    data: AlignedBytes,
    /// What products are multiplied with.
    scale: f32,
}

impl PackedMatrix {
    /// Packs `bytes`, the row-major weights `[rows, cols]` of a GGUF tensor of type `ty`.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for a type without a kernel, [`KernelError::Cols`] and
    /// [`KernelError::Length`] for a shape that the bytes do not have, [`KernelError::Memory`].
    pub fn pack(
        compute: &Compute,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<Self, KernelError> {
        let panel_bytes = panel_bytes(ty, cols)?;
        let row_bytes = ty.row_bytes(cols).unwrap_or(usize::MAX);
        if row_bytes.checked_mul(rows) != Some(bytes.len()) {
            return Err(KernelError::Length { ty, rows, cols, bytes: bytes.len() });
        }
        let n_panels = rows.div_ceil(LANES);
        let mut data = AlignedBytes::zeroed(n_panels * panel_bytes)?;
        if row_bytes > 0 && rows > 0 {
            let panels = Rows::new(&mut data, panel_bytes);
            compute.pool().run(n_panels, &|p, _| {
                // SAFETY: the pool hands out each panel once.
                let panel = unsafe { panels.rows(p..p + 1) };
                let source = &bytes[p * LANES * row_bytes..];
                let source = &source[..source.len().min(LANES * row_bytes)];
                pack_panel(ty, source, row_bytes, panel);
            });
        }
        Ok(Self { ty, rows, cols, panel_bytes, data, scale: 1.0 })
    }

    /// Bytes that packing a matrix `[rows, cols]` of type `ty` takes, without packing one.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack`] for the type and the columns.
    pub fn packed_bytes(ty: GgmlType, rows: usize, cols: usize) -> Result<u64, KernelError> {
        Ok(rows.div_ceil(LANES) as u64 * panel_bytes(ty, cols)? as u64)
    }

    /// The same weights times `scale`: products are multiplied with it, once, when they are complete.
    #[must_use]
    pub fn scaled(self, scale: f32) -> Self {
        Self { scale: self.scale * scale, ..self }
    }

    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The source type.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Bytes held, which a product with one row reads once.
    pub fn nbytes(&self) -> usize {
        self.data.len()
    }

    /// Panels of sixteen rows.
    pub(super) fn n_panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Panel `p`.
    pub(super) fn panel(&self, p: usize) -> &[u8] {
        &self.data[p * self.panel_bytes..][..self.panel_bytes]
    }

    /// Whether products read the 8-bit form of the activations.
    pub(super) fn wants_blocks(&self) -> bool {
        !is_float(self.ty)
    }
}

/// Whether products with this type are taken in f32.
fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// Bytes of a panel of rows of `cols` columns.
fn panel_bytes(ty: GgmlType, cols: usize) -> Result<usize, KernelError> {
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

/// Packs up to sixteen rows of `row_bytes`; missing ones are zero rows.
fn pack_panel(ty: GgmlType, source: &[u8], row_bytes: usize, panel: &mut [u8]) {
    struct Pack<'a> {
        source: &'a [u8],
        row_bytes: usize,
        panel: &'a mut [u8],
    }
    impl FormatVisitor for Pack<'_> {
        type Out = ();
        fn visit<Q: PanelFormat>(self) {
            let block_bytes = size_of::<Q::Block>();
            for (unit, record) in self.panel.chunks_exact_mut(Q::RECORD).enumerate() {
                let mut rows = [Q::Block::zeroed(); LANES];
                for (r, row) in rows.iter_mut().enumerate() {
                    let at = r * self.row_bytes + unit * block_bytes;
                    if let Some(block) = self.source.get(at..at + block_bytes) {
                        *row = bytemuck::pod_read_unaligned(block);
                    }
                }
                Q::pack(&rows, record);
            }
        }
    }
    if with_format(ty, Pack { source, row_bytes, panel }).is_none() {
        match ty.block_bytes() {
            2 => pack_floats::<2>(source, row_bytes, panel),
            _ => pack_floats::<4>(source, row_bytes, panel),
        }
    }
}

/// Transposes rows of values of `N` bytes, a few columns of all rows at a time.
fn pack_floats<const N: usize>(source: &[u8], row_bytes: usize, panel: &mut [u8]) {
    /// Columns taken at a time: a cache line of the panel each.
    const COLUMNS: usize = 32;
    let (panel, _) = panel.as_chunks_mut::<N>();
    for (i, panel) in panel.chunks_mut(COLUMNS * LANES).enumerate() {
        for (r, row) in source.chunks_exact(row_bytes).enumerate() {
            let (row, _) = row[i * COLUMNS * N..].as_chunks::<N>();
            for (column, value) in panel.chunks_exact_mut(LANES).zip(row) {
                column[r] = *value;
            }
        }
    }
}
