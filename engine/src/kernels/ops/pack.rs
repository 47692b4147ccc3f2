//! Packing weights when they are loaded, and what that takes.

use bytemuck::Zeroable;

use crate::kernels::aligned::AlignedBytes;
use crate::kernels::compute::Compute;
use crate::kernels::error::KernelError;
use crate::kernels::format::{FormatVisitor, PanelFormat, with_format};
use crate::kernels::simd::LANES;
use crate::kernels::tiles::out_rows::Rows;
use crate::kernels::tiles::pack::{PackedMatrix, is_float};
use crate::quant::GgmlType;

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
