//! Packing weights when they are loaded, and what that takes.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Zeroable;

use crate::aligned::AlignedBytes;
use crate::compute::Compute;
use crate::format::{FormatVisitor, PanelFormat, with_format};
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;
use crate::tiles::products::pack::{PackedMatrix, panel_bytes};
use brigade_ops::Buffer;
use brigade_quant::GgmlType;
use brigade_quant::{DeviceError, KernelError};

/// Weights of a file, to be packed.
struct Source<'a> {
    ty: GgmlType,
    rows: usize,
    cols: usize,
    /// `[rows, cols]`, row after row.
    bytes: &'a [u8],
    row_bytes: usize,
    panel_bytes: usize,
}

impl<'a> Source<'a> {
    fn new(ty: GgmlType, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, KernelError> {
        let panel_bytes = panel_bytes(ty, cols)?;
        let row_bytes = ty.row_bytes(cols).unwrap_or(usize::MAX);
        if row_bytes.checked_mul(rows) != Some(bytes.len()) {
            return Err(KernelError::Length { ty, rows, cols, bytes: bytes.len() });
        }
        Ok(Self { ty, rows, cols, bytes, row_bytes, panel_bytes })
    }

    /// Bytes of all panels.
    fn packed_bytes(&self) -> usize {
        self.rows.div_ceil(LANES) * self.panel_bytes
    }

    /// Packs the panels from number `first` on that `out` has room for. All of it is written, and nothing read.
    fn pack(&self, compute: &Compute, first: usize, out: &mut [u8]) {
        let (ty, row_bytes) = (self.ty, self.row_bytes);
        if out.is_empty() || row_bytes == 0 {
            return;
        }
        let n_panels = out.len() / self.panel_bytes;
        let panels = Rows::new(out, self.panel_bytes);
        compute.pool().run(n_panels, &|p, _| {
            // SAFETY: the pool hands out each panel once.
            let panel = unsafe { panels.rows(p..p + 1) };
            let source = &self.bytes[(first + p) * LANES * row_bytes..];
            let source = &source[..source.len().min(LANES * row_bytes)];
            pack_panel(ty, source, row_bytes, panel);
        });
    }

    fn packed(&self, data: AlignedBytes) -> PackedMatrix {
        let Self { ty, rows, cols, .. } = *self;
        PackedMatrix { ty, rows, cols, data, scale: 1.0 }
    }
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
        let source = Source::new(ty, rows, cols, bytes)?;
        let mut data = AlignedBytes::zeroed(source.packed_bytes())?;
        source.pack(compute, 0, &mut data);
        Ok(source.packed(data))
    }

    /// [`PackedMatrix::pack`] to a device's memory, or to what it copies from: the packed weights are nowhere else. `keep`
    /// is told how many bytes they are, how many a panel is, and what writes a range of them. It returns the memory in which they
    /// lie.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack`], and those of `keep`.
    pub fn pack_with(
        compute: &Compute,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
        keep: impl FnOnce(
            usize,
            usize,
            &mut dyn FnMut(Range<usize>, &mut [u8]),
        ) -> Result<Arc<dyn Buffer>, DeviceError>,
    ) -> Result<Self, KernelError> {
        let source = Source::new(ty, rows, cols, bytes)?;
        let (all, panel) = (source.packed_bytes(), source.panel_bytes);
        let memory = keep(all, panel, &mut |range, out| {
            source.pack(compute, range.start.checked_div(panel).unwrap_or(0), out);
        })?;
        Ok(source.packed(AlignedBytes::with_device(all, memory)))
    }

    /// A matrix `[rows, cols]` of type `ty` that has no weights: it can be asked for its shape, and not multiplied with.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack`] for the type and the columns.
    pub fn hollow(ty: GgmlType, rows: usize, cols: usize) -> Result<Self, KernelError> {
        panel_bytes(ty, cols)?;
        Ok(Self { ty, rows, cols, data: AlignedBytes::zeroed(0)?, scale: 1.0 })
    }

    /// Bytes that packing a matrix `[rows, cols]` of type `ty` takes, without packing one.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack`] for the type and the columns.
    pub fn packed_bytes(ty: GgmlType, rows: usize, cols: usize) -> Result<u64, KernelError> {
        Ok(rows.div_ceil(LANES) as u64 * panel_bytes(ty, cols)? as u64)
    }
}

/// Most bytes of a record, of all formats.
const MAX_RECORD: usize = 4096;

/// Packs up to sixteen rows of `row_bytes`; missing ones are zero rows. Values are made in the first-level cache, and
/// then written in order: memory of a GPU may be write-combined, and is slow where lines are not written whole.
fn pack_panel(ty: GgmlType, source: &[u8], row_bytes: usize, panel: &mut [u8]) {
    struct Pack<'a> {
        source: &'a [u8],
        row_bytes: usize,
        panel: &'a mut [u8],
    }
    impl FormatVisitor for Pack<'_> {
        type Out = ();
        fn visit<Q: PanelFormat>(self) {
            const { assert!(Q::RECORD <= MAX_RECORD) };
            let block_bytes = size_of::<Q::Block>();
            let mut made = [0; MAX_RECORD];
            let made = &mut made[..Q::RECORD];
            for (unit, record) in self.panel.chunks_exact_mut(Q::RECORD).enumerate() {
                let mut rows = [Q::Block::zeroed(); LANES];
                for (r, row) in rows.iter_mut().enumerate() {
                    let at = r * self.row_bytes + unit * block_bytes;
                    if let Some(block) = self.source.get(at..at + block_bytes) {
                        *row = bytemuck::pod_read_unaligned(block);
                    }
                }
                Q::pack(&rows, made);
                record.copy_from_slice(made);
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
    // Rows that are missing stay zero.
    let mut made = [[0; N]; COLUMNS * LANES];
    for (i, panel) in panel.chunks_mut(COLUMNS * LANES).enumerate() {
        for (r, row) in source.chunks_exact(row_bytes).enumerate() {
            let (row, _) = row[i * COLUMNS * N..].as_chunks::<N>();
            for (column, value) in made.chunks_exact_mut(LANES).zip(row) {
                column[r] = *value;
            }
        }
        panel.copy_from_slice(&made[..panel.len()]);
    }
}
