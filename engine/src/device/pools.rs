//! Pools of rows by a gate, and runs of values that rows and states exchange.

use super::values::Values;
use brigade_gpu::{GatedSpans, Purpose, Span};

use super::with_room;
use super::{Device, Memory, Rows};
use crate::kernels::{GatedRow, Vector};

/// Neighbouring values of rows, or of what sequences remember.
#[derive(Clone, Copy)]
pub struct ValuesAt<'a> {
    of: Source<'a>,
    first: usize,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Rows(&'a Rows),
    States(&'a Memory<f32>),
}

/// One row that goes into a pool.
#[derive(Clone, Copy)]
pub struct GatedAt<'a> {
    /// What is averaged.
    pub values: ValuesAt<'a>,
    /// How much it counts, before the softmax over the pool's rows.
    pub gates: ValuesAt<'a>,
}

impl<'a> ValuesAt<'a> {
    /// Those of rows, from number `first` on.
    pub fn of_rows(rows: &'a Rows, first: usize) -> Self {
        Self { of: Source::Rows(rows), first }
    }

    /// Those of states, from number `first` on.
    pub fn of_states(states: &'a Memory<f32>, first: usize) -> Self {
        Self { of: Source::States(states), first }
    }

    fn on_host(self, n: usize) -> &'a [f32] {
        let all: &[f32] = match self.of {
            Source::Rows(rows) => rows,
            Source::States(states) => states,
        };
        &all[self.first..self.first + n]
    }

    fn span(self, n: usize) -> Option<Span<'a>> {
        let all = match self.of {
            Source::Rows(rows) => rows.span(),
            Source::States(states) => states.span(),
        };
        let [first, end] = [self.first, self.first + n].map(|n| n * size_of::<f32>());
        Some(all?.part(first..end))
    }
}

impl<'a> GatedAt<'a> {
    fn on_host(&self, width: usize) -> GatedRow<'a> {
        GatedRow { values: self.values.on_host(width), gates: self.gates.on_host(width) }
    }

    fn spans(&self, width: usize) -> Option<GatedSpans<'a>> {
        Some(GatedSpans { values: self.values.span(width)?, gates: self.gates.span(width)? })
    }
}

impl Device {
    /// Makes a row of `out` `[n_pools, width]` of each pool's rows
    /// ([`Compute::pool_gated`](crate::kernels::Compute::pool_gated)).
    ///
    /// # Panics
    /// If a pool has no rows, or shapes disagree.
    pub fn pool_gated(&self, pools: &[Vec<GatedAt<'_>>], width: usize, out: &mut Rows) {
        let there: Option<Vec<Vec<_>>> =
            pools.iter().map(|rows| rows.iter().map(|row| row.spans(width)).collect()).collect();
        if let (Some(there), Some((gpu, out))) = (there, self.gpu_of(out)) {
            return gpu.pool_gated(&there, width, out);
        }
        let here: Vec<Vec<_>> =
            pools.iter().map(|rows| rows.iter().map(|row| row.on_host(width)).collect()).collect();
        self.compute.pool_gated(&here, width, out);
    }

    /// Adds to each row of `out` `[n_rows, width]` the row of `table` `[_, width]` that `picked` names for it.
    ///
    /// # Panics
    /// If there are not as many names as rows, or a row has another width; on the host also if it names no row.
    pub fn add_picked(&self, out: &mut Rows, table: &Vector, picked: &[u32]) {
        let width = out.cols();
        assert_eq!(picked.len(), out.n_rows(), "add_picked: a row for each");
        if let Some((gpu, out)) = self.gpu_of(out) {
            let rows = gpu.buffer(size_of::<f32>() * out.values(), Purpose::Activations);
            let mut rows = with_room("rows of a table", rows);
            let list = gpu.upload(bytemuck::cast_slice(picked));
            gpu.gather_rows(table.on_gpu(gpu), width, list, rows.span_mut());
            return gpu.add(out, rows.span());
        }
        for (out, row) in out.chunks_exact_mut(width).zip(picked) {
            let row = &table[*row as usize * width..][..width];
            out.iter_mut().zip(row).for_each(|(out, row)| *out += row);
        }
    }

    /// Copies `width` values for each of `places`: those of `rows` from the first number on to those of `states` from the
    /// second on.
    ///
    /// # Panics
    /// If a place lies outside.
    pub fn keep_parts(
        &self,
        rows: &Rows,
        states: &mut Memory<f32>,
        width: usize,
        places: &[[usize; 2]],
    ) {
        if let (Some(gpu), Some(from), Some(to)) = (&self.gpu, rows.span(), states.span_mut()) {
            return gpu.copy_parts(from, to, width, places);
        }
        copy_parts(rows, states, width, places);
    }

    /// The way back of [`Device::keep_parts`]: from `states` to `rows`.
    ///
    /// # Panics
    /// If a place lies outside.
    pub fn bring_parts(
        &self,
        states: &Memory<f32>,
        rows: &mut Rows,
        width: usize,
        places: &[[usize; 2]],
    ) {
        if let (Some(from), Some((gpu, to))) = (states.span(), self.gpu_of(rows)) {
            return gpu.copy_parts(from, to, width, places);
        }
        copy_parts(states, rows, width, places);
    }

    /// As [`Device::keep_parts`], from rows to others.
    ///
    /// # Panics
    /// If a place lies outside.
    pub fn move_parts(&self, from: &Rows, to: &mut Rows, width: usize, places: &[[usize; 2]]) {
        if let (Some(from), Some((gpu, to))) = (from.span(), self.gpu_of(to)) {
            return gpu.copy_parts(from, to, width, places);
        }
        copy_parts(from, to, width, places);
    }
}

fn copy_parts(from: &[f32], to: &mut [f32], width: usize, places: &[[usize; 2]]) {
    for [at, place] in places {
        to[*place..place + width].copy_from_slice(&from[*at..at + width]);
    }
}
