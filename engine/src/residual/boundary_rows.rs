//! The rows of a ubatch on their way through the layers: the residual stream, and rows that the model keeps
//! beside it for later layers, oldest first. All of them cross a cut, tensor after tensor.

use crate::batch::Boundary;
use crate::device::{Device, Fetched, Rows, Scratch};
use crate::spec::BoundarySpec;

/// Hidden rows `[n_rows, n_embd]` with the tensors beside them, `[n_rows, width]` each.
#[derive(Default)]
pub(crate) struct BoundaryRows {
    pub(crate) hidden: Rows,
    pub(crate) beside: Vec<Rows>,
}

/// Rows that leave a stage, on their way to the host.
pub(crate) struct FetchedRows {
    n_rows: usize,
    hidden: Fetched,
    beside: Vec<Fetched>,
}

impl FetchedRows {
    /// One tensor after the other.
    pub(crate) fn into_boundary(self) -> Boundary {
        let Self { n_rows, hidden, beside } = self;
        let mut data = hidden.into_vec();
        data.reserve_exact(beside.iter().map(|tensor| tensor.len()).sum());
        beside.iter().for_each(|tensor| data.extend_from_slice(tensor));
        Boundary { n_rows, data }
    }
}

impl BoundaryRows {
    /// The stream with nothing beside it.
    pub(crate) fn stream(hidden: Rows) -> Self {
        Self { hidden, beside: Vec::new() }
    }

    /// Takes a boundary apart that is as large as `spec` says.
    pub(crate) fn from_boundary(boundary: Boundary, spec: &BoundarySpec) -> Self {
        let Boundary { n_rows, data: mut hidden } = boundary;
        let mut beside = Vec::with_capacity(spec.widths.len() - 1);
        for width in spec.widths[1..].iter().rev() {
            beside.push(Rows::new(hidden.split_off(hidden.len() - n_rows * width), *width));
        }
        beside.reverse();
        Self { hidden: Rows::new(hidden, spec.widths[0]), beside }
    }

    /// Drops values beside the stream that no layer behind a cut reads. By `spec`, these are the tensors that it does
    /// not count, and of the others all columns but the last.
    pub(crate) fn leave_behind(&mut self, device: &Device, scratch: &Scratch, spec: &BoundarySpec) {
        let kept = &spec.widths[1..];
        self.beside.truncate(kept.len());
        for (tensor, width) in self.beside.iter_mut().zip(kept) {
            let width = (*width).min(tensor.cols());
            device.keep_last(scratch, tensor, width);
        }
    }

    /// The first `n` streams of a model that has several, each `[n_rows, n_embd]`.
    pub(crate) fn streams(&self, n: usize) -> impl Iterator<Item = &Rows> {
        std::iter::once(&self.hidden).chain(&self.beside[..n - 1])
    }

    /// As [`Self::streams`], mutable.
    pub(crate) fn streams_mut(&mut self, n: usize) -> impl Iterator<Item = &mut Rows> {
        std::iter::once(&mut self.hidden).chain(&mut self.beside[..n - 1])
    }

    /// Keeps the stream as it is beside it, and goes on with `stream`.
    pub(crate) fn restart(&mut self, stream: Rows) {
        self.beside.push(std::mem::replace(&mut self.hidden, stream));
    }

    /// The tensors of so many rows, for the host.
    pub(crate) fn fetched(self, n_rows: usize) -> FetchedRows {
        let beside = self.beside.into_iter().map(Rows::fetched).collect();
        FetchedRows { n_rows, hidden: self.hidden.fetched(), beside }
    }

    /// Moves all of them to the scratch's memory, where they are not in the host's anyway; but for the tensor beside the stream
    /// that the host reads, if there is one.
    pub(crate) fn adopted(self, scratch: &Scratch, of_host: Option<usize>) -> Self {
        let adopt = |(i, rows)| if Some(i) == of_host { rows } else { scratch.adopt(rows) };
        let beside = self.beside.into_iter().enumerate().map(adopt).collect();
        Self { hidden: scratch.adopt(self.hidden), beside }
    }

    /// Rows `picked`, in this order.
    pub(crate) fn picked(
        &self,
        device: &Device,
        scratch: &Scratch,
        picked: impl Iterator<Item = usize>,
    ) -> Self {
        let picked: Vec<u32> = picked.map(|row| row as u32).collect();
        let gather = |tensor: &Rows| {
            if tensor.is_empty() {
                return Rows::default();
            }
            device.picked_rows(scratch, tensor, &picked)
        };
        let beside = self.beside.iter().map(gather).collect();
        Self { hidden: gather(&self.hidden), beside }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Scratch;

    fn beside(rows: &BoundaryRows) -> Vec<&[f32]> {
        rows.beside.iter().map(|tensor| &tensor[..]).collect()
    }

    #[test]
    fn tensors_cross_a_cut_in_order() {
        let spec = BoundarySpec { widths: vec![2, 3, 1], exact: false };
        let data: Vec<f32> = (0..4 * spec.width()).map(|i| i as f32).collect();
        let carried =
            BoundaryRows::from_boundary(Boundary { n_rows: 4, data: data.clone() }, &spec);
        assert_eq!(carried.hidden[..], data[..8]);
        assert_eq!(beside(&carried), [&data[8..20], &data[20..]]);
        assert_eq!(carried.fetched(4).into_boundary(), Boundary { n_rows: 4, data });
        let empty = BoundaryRows::from_boundary(Boundary::default(), &spec);
        assert_eq!(empty.beside.len(), 2);
        assert_eq!(empty.fetched(0).into_boundary(), Boundary::default());
    }

    #[test]
    fn only_what_is_read_behind_a_cut_crosses_it() {
        let numbers = |n: usize| (0..n).map(|i| i as f32).collect::<Vec<f32>>();
        let mut carried = BoundaryRows::stream(Rows::new(vec![0.5; 2], 1));
        let (wide, narrow) = (Rows::new(numbers(6), 3), Rows::new(numbers(4), 2));
        carried.beside = vec![wide, narrow, Rows::default(), Rows::new(numbers(2), 1)];
        let spec = BoundarySpec { widths: vec![1, 2, 0, 0], exact: false };
        let device = Device::cpu(crate::kernels::select(None).unwrap(), 1, None).unwrap();
        carried.leave_behind(&device, &device.scratch(), &spec);
        let kept: [&[f32]; 3] = [&[1.0, 2.0, 4.0, 5.0], &[], &[]];
        assert_eq!(beside(&carried), kept);
        let boundary = carried.fetched(2).into_boundary();
        assert_eq!(boundary.data.len(), 2 * spec.width());
        let again = BoundaryRows::from_boundary(boundary, &spec);
        assert_eq!(beside(&again), kept);
    }

    #[test]
    fn a_stream_begun_on_the_way_crosses_as_well_and_its_buffer_goes_back() {
        let scratch = Scratch::default();
        let run = || {
            let mut carried = BoundaryRows::stream(Rows::new(vec![1.0, 2.0], 2));
            for value in [3.0, 4.0] {
                let mut stream = scratch.take(1, 2);
                stream.fill(value);
                carried.restart(stream);
            }
            carried.fetched(1).into_boundary().data
        };
        assert_eq!(run(), [4.0, 4.0, 1.0, 2.0, 3.0, 3.0]);
        let warm = scratch.n_grown();
        run();
        assert_eq!((warm, scratch.n_grown()), (2, 2));
    }
}
