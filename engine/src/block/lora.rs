//! Low-rank adapters (LoRA, arXiv 2106.09685): what they add to a projection, and which rows of a ubatch they are for.
//!
//! An adapter adds `s B (A x)` to `W x`. Rows that use an adapter are multiplied with its matrices beside the product
//! of all rows. So a row's result is the same whatever adapters the rows beside it use.

mod experts;

use std::ops::Range;
use std::sync::Arc;

use crate::batch::AdapterUse;
use crate::device::RowsMut;
use crate::device::{Device, Rows, Scratch};
use crate::kernels::PackedMatrix;
use crate::spec::{MAX_ADAPTERS, ModelError};
use crate::state::{PartRows, Sequences};
use crate::weights::{AdapterTensors, WeightLoader};

pub(super) use experts::{Adapted, ExpertLora, add_to_experts};

/// Numbers of adapters inside the model's file, by their places: behind those of all that a user can give.
const FIRST_PLACE: u32 = MAX_ADAPTERS as u32;

/// An adapter's change of one projection.
pub struct Lora {
    /// Number of the adapter, in the order in which the model's adapters were given.
    adapter: u32,
    /// `[rank, in features]`; the parts of a fused projection share it.
    a: Arc<PackedMatrix>,
    /// `[out features, rank]`.
    b: PackedMatrix,
    /// Scale in the adapter's file; 0: only the user's scale counts.
    alpha: f32,
}

impl Lora {
    /// Packs what an adapter's tensors have for the parts of one of a tensor's `n` equal matrices, number `index`. Each
    /// part has some of the matrix's rows.
    pub(super) fn pack<'a>(
        loader: &mut WeightLoader<'a>,
        tensors: &AdapterTensors<'a>,
        index: usize,
        n: usize,
        parts: &[&[usize]],
    ) -> Result<Vec<Self>, ModelError> {
        let AdapterTensors { adapter, alpha, a, b } = *tensors;
        let (cols, rank, rows) = (a.ne[0], a.ne[1], b.ne[1]);
        let (a_ty, a) = loader.slice_of(a, n, index)?;
        let (b_ty, b) = loader.slice_of(b, n, index)?;
        let a = Arc::new(loader.pack(a_ty, rank, cols, &a)?);
        let row_bytes = b.len() / rows;
        let part = |part: &&[usize]| {
            let row = |row: &usize| &b[row * row_bytes..(row + 1) * row_bytes];
            let picked: Vec<u8> = part.iter().flat_map(row).copied().collect();
            let b = loader.pack(b_ty, part.len(), rank, &picked)?;
            Ok(Self { adapter, a: a.clone(), b, alpha })
        };
        parts.iter().map(part).collect()
    }

    /// The adapters that the model's own file has for the projection `<stem>` `[rows, cols]`, those of all places that are
    /// not zeros; none where the file has no adapters.
    pub(super) fn switched(
        loader: &mut WeightLoader<'_>,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<Self>, ModelError> {
        let Some((n, rank)) = loader.switched() else { return Ok(Vec::new()) };
        let a = loader.stack(&format!("{stem}.lora_a"), &[cols, rank, n])?;
        let b = loader.stack(&format!("{stem}.lora_b"), &[rank, rows, n])?;
        let mut loras = Vec::with_capacity(n);
        for place in 0..n {
            let (a_ty, a) = loader.slice_of(a, n, place)?;
            let (b_ty, b) = loader.slice_of(b, n, place)?;
            let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            if is_zero(&a) || is_zero(&b) {
                continue;
            }
            loras.push(Self {
                adapter: FIRST_PLACE + place as u32,
                a: Arc::new(loader.pack(a_ty, rank, cols, &a)?),
                b: loader.pack(b_ty, rows, rank, &b)?,
                alpha: 0.0,
            });
        }
        Ok(loras)
    }

    /// Factor on the change, where the user's scale is `scale`.
    fn scale(&self, scale: f32) -> f32 {
        scale_of(self.alpha, self.b.cols(), scale)
    }

    /// Bytes of its matrices. A matrix that several projections share is counted once over all of them.
    pub(super) fn nbytes(&self) -> usize {
        self.b.nbytes() + self.a.nbytes() / Arc::strong_count(&self.a)
    }
}

/// Factor on a change of this rank, where the user's scale is `scale` and the file's is `alpha`.
pub fn scale_of(alpha: f32, rank: usize, scale: f32) -> f32 {
    if alpha == 0.0 { scale } else { scale * alpha / rank as f32 }
}

/// Adds to `out[n, out features]` what `loras` add for the rows `x[n, in features]`. Several adapters of a row add in the
/// order in which the row names them.
pub(super) fn add(
    device: &Device,
    scratch: &Scratch,
    adapters: &RowAdapters,
    loras: &[Lora],
    x: &Rows,
    out: &mut RowsMut<'_>,
) {
    if loras.is_empty() {
        return;
    }
    for (run, uses) in adapters.within(&(0..x.n_rows())) {
        for used in uses {
            let Some(lora) = loras.iter().find(|lora| lora.adapter == used.adapter) else {
                continue;
            };
            let mut low = scratch.take(run.len(), lora.a.rows());
            device.multiply(&lora.a, &x.part(run.clone()), &mut low);
            let mut change = scratch.take(run.len(), lora.b.rows());
            device.multiply(&lora.b, &low, &mut change);
            device.add_scaled(&mut out.part(run.clone()), &change, lora.scale(used.scale));
        }
    }
}

/// The adapters that rows use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowAdapters {
    /// Ascending; rows without adapters are in none of them.
    runs: Vec<(Range<usize>, Arc<[AdapterUse]>)>,
}

impl RowAdapters {
    /// Adapters of the rows of parts.
    pub fn of_parts(parts: &[PartRows], sequences: &Sequences) -> Self {
        let mut all = Self::default();
        for part in parts {
            if let Some(sequence) = sequences.get(part.slot) {
                all.push(part.rows.clone(), &sequence.adapters);
            }
        }
        all
    }

    /// The rows' adapters, and behind them one of the model's own for each row. `places` are its places, whole
    /// numbers.
    pub fn with_places(&self, places: &[f32]) -> Self {
        let mut all = Self::default();
        for (row, place) in places.iter().enumerate() {
            let own = AdapterUse { adapter: FIRST_PLACE + *place as u32, scale: 1.0 };
            let users = self.within(&(row..row + 1)).next().map_or(&[][..], |(_, uses)| uses);
            let is_more = |(run, uses): &(Range<usize>, Arc<[AdapterUse]>)| {
                run.end == row && uses.split_last() == Some((&own, users))
            };
            match all.runs.last_mut().filter(|last| is_more(last)) {
                Some((run, _)) => run.end += 1,
                None => {
                    let uses = users.iter().chain([&own]).copied().collect();
                    all.runs.push((row..row + 1, uses));
                }
            }
        }
        all
    }

    /// Whether no row uses any.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adapters of some of the rows, in the order of their numbers in `rows`.
    pub fn picked(&self, rows: impl IntoIterator<Item = usize>) -> Self {
        let mut picked = Self::default();
        if self.runs.is_empty() {
            return picked;
        }
        for (i, row) in rows.into_iter().enumerate() {
            let at = self.runs.partition_point(|(run, _)| run.end <= row);
            if let Some((_, uses)) = self.runs.get(at).filter(|(run, _)| run.contains(&row)) {
                picked.push(i..i + 1, uses);
            }
        }
        picked
    }

    /// Runs of rows within `rows` that use the same adapters.
    pub fn within(
        &self,
        rows: &Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, &[AdapterUse])> {
        let clipped = self
            .runs
            .iter()
            .map(|(run, uses)| (run.start.max(rows.start)..run.end.min(rows.end), &uses[..]));
        clipped.filter(|(run, _)| !run.is_empty())
    }

    /// Adds rows behind those that are there; rows of equal adapters that follow each other are one run.
    fn push(&mut self, rows: Range<usize>, uses: &Arc<[AdapterUse]>) {
        if uses.is_empty() || rows.is_empty() {
            return;
        }
        match self.runs.last_mut() {
            Some((last, same)) if last.end == rows.start && same == uses => last.end = rows.end,
            _ => self.runs.push((rows, uses.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(all: &[(u32, f32)]) -> Arc<[AdapterUse]> {
        all.iter().map(|&(adapter, scale)| AdapterUse { adapter, scale }).collect()
    }

    #[test]
    fn rows_keep_their_adapters_when_they_are_picked() {
        let (one, two) = (uses(&[(0, 1.0)]), uses(&[(1, 0.5), (0, 2.0)]));
        let mut rows = RowAdapters::default();
        rows.push(0..2, &one);
        rows.push(2..3, &uses(&[]));
        rows.push(3..4, &two);
        rows.push(4..6, &uses(&[(1, 0.5), (0, 2.0)]));
        assert_eq!(rows.runs, [(0..2, one.clone()), (3..6, two.clone())]);
        let picked = rows.picked([5, 2, 0, 1, 3]);
        assert_eq!(picked.runs, [(0..1, two.clone()), (2..4, one.clone()), (4..5, two.clone())]);
        let within: Vec<_> = rows.within(&(1..4)).collect();
        assert_eq!(within, [(1..2, &one[..]), (3..4, &two[..])]);
        assert_eq!(RowAdapters::default().picked([1, 2]), RowAdapters::default());
    }

    #[test]
    fn the_models_own_adapters_come_behind_the_users() {
        let mut rows = RowAdapters::default();
        rows.push(1..3, &uses(&[(1, 0.5)]));
        let all = rows.with_places(&[0.0, 0.0, 2.0, 2.0, 2.0]);
        let own = |place: u32| (FIRST_PLACE + place, 1.0);
        let runs = [
            (0..1, uses(&[own(0)])),
            (1..2, uses(&[(1, 0.5), own(0)])),
            (2..3, uses(&[(1, 0.5), own(2)])),
            (3..5, uses(&[own(2)])),
        ];
        assert_eq!(all.runs, runs);
    }

    #[test]
    fn without_alpha_the_scale_is_the_users() {
        assert_eq!(scale_of(0.0, 8, 0.5), 0.5);
        assert_eq!(scale_of(16.0, 8, 0.5), 1.0);
    }
}
