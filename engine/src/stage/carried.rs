//! The rows of a ubatch on their way through the layers: the residual stream, and what the architecture
//! sends along beside it (rows that were kept of it, oldest first). All of it crosses a cut, tensor after
//! tensor.

use super::wanted::gather_wanted;
use crate::arch::BoundarySpec;
use crate::batch::Boundary;
use crate::state::PartRows;

/// Hidden rows `[n_rows, n_embd]` with the tensors beside them, `[n_rows, width]` each.
#[derive(Default)]
pub(super) struct Carried {
    pub(super) hidden: Vec<f32>,
    pub(super) beside: Vec<Vec<f32>>,
}

impl Carried {
    /// Takes a boundary apart that is as large as `spec` says.
    pub(super) fn from_boundary(boundary: Boundary, spec: &BoundarySpec) -> Self {
        let Boundary { n_rows, data: mut hidden } = boundary;
        let mut beside = Vec::with_capacity(spec.widths.len() - 1);
        for width in spec.widths[1..].iter().rev() {
            beside.push(hidden.split_off(hidden.len() - n_rows * width));
        }
        beside.reverse();
        Self { hidden, beside }
    }

    /// Keeps the stream as it is beside it, and goes on with `stream`.
    pub(super) fn restart(&mut self, stream: Vec<f32>) {
        self.beside.push(std::mem::replace(&mut self.hidden, stream));
    }

    /// One tensor after the other.
    pub(super) fn into_boundary(self, n_rows: usize) -> Boundary {
        let mut data = self.hidden;
        self.beside.iter().for_each(|tensor| data.extend_from_slice(tensor));
        Boundary { n_rows, data }
    }

    /// The rows of `parts` that pass through the head.
    pub(super) fn wanted(&self, parts: &[PartRows], n_rows: usize) -> Self {
        let gather = |tensor: &Vec<f32>| match tensor.len().checked_div(n_rows) {
            Some(width) => gather_wanted(parts, width, tensor),
            None => Vec::new(),
        };
        Self { hidden: gather(&self.hidden), beside: self.beside.iter().map(gather).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_cross_a_cut_in_order() {
        let spec = BoundarySpec { widths: vec![2, 3, 1] };
        let data: Vec<f32> = (0..4 * spec.width()).map(|i| i as f32).collect();
        let carried = Carried::from_boundary(Boundary { n_rows: 4, data: data.clone() }, &spec);
        assert_eq!(carried.hidden, data[..8]);
        assert_eq!(carried.beside, [data[8..20].to_vec(), data[20..].to_vec()]);
        assert_eq!(carried.into_boundary(4), Boundary { n_rows: 4, data });
        let empty = Carried::from_boundary(Boundary::default(), &spec);
        assert_eq!(empty.beside.len(), 2);
        assert_eq!(empty.into_boundary(0), Boundary::default());
    }
}
