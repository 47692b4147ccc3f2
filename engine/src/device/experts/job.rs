//! All that experts do with a few rows, as one run of the CPU's threads: those of a stage on the CPU, and those that lie beside a GPU.

use super::ExpertMatrices;
use crate::device::{Device, Rows, Scratch};
use crate::kernels::{ExpertRun, ExpertsJob, Vector};
use crate::ops::{ExpertRows, Routing};

/// A projection of each expert.
#[derive(Clone, Copy)]
pub struct ExpertWay<'a> {
    /// Matrices of all experts, of one shape.
    pub w: &'a ExpertMatrices,
    /// `[n_expert, rows]`.
    pub bias: Option<&'a Vector>,
}

/// Projections of a layer's experts.
pub struct ExpertWays<'a> {
    /// `[n_ff, width]` each.
    pub up: ExpertWay<'a>,
    /// Gate of the same size as `up`, where the activation has one.
    pub gate: Option<ExpertWay<'a>>,
    /// `[width, n_ff]` each.
    pub down: ExpertWay<'a>,
}

impl Device {
    /// Outputs of the experts for their rows, `[n_pairs, width]`, with the bits of single steps. `activate` gets the
    /// outputs of the up matrices, which it changes, and those of the gates. `None` where steps must follow one
    /// another: with a device, and for many rows.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn run_experts(
        &self,
        scratch: &Scratch,
        routing: &Routing,
        x: ExpertRows<&Rows>,
        ways: &ExpertWays<'_>,
        activate: &(dyn Fn(&mut [f32], &mut [f32]) + Sync),
    ) -> Option<Rows> {
        let spans = match self.there {
            Some(_) => return None,
            None => &routing.lists().spans,
        };
        let most_rows = spans.iter().map(|(_, pairs)| pairs.len()).max()?;
        if !self.compute.runs_experts_whole(most_rows) {
            return None;
        }
        let mut own = None;
        let (x, is_one) = match x {
            ExpertRows::OfPairs(x) => (x, false),
            // All experts read the same row; it may be sent to one of them more than once.
            ExpertRows::Routed(x) if x.n_rows() == 1 && most_rows == 1 => (x, true),
            ExpertRows::Routed(x) => {
                let own = own.insert(scratch.take(routing.n_pairs(), x.cols()));
                self.rows_of_pairs(x, routing, own);
                (&*own, false)
            }
        };
        let run = |(expert, pairs): &(usize, std::ops::Range<usize>)| ExpertRun {
            rows: if is_one { 0..1 } else { pairs.clone() },
            pairs: pairs.clone(),
            up: ways.up.w.matrix(*expert).on_host(),
            gate: ways.gate.as_ref().map(|gate| gate.w.matrix(*expert).on_host()),
            down: ways.down.w.matrix(*expert).on_host(),
        };
        let runs: Vec<_> = spans.iter().map(run).collect();
        let (n_pairs, n_ff, width) = (routing.n_pairs(), ways.up.w.rows(), ways.down.w.rows());
        let mut up = scratch.take(n_pairs, n_ff);
        let mut gate = scratch.take(if ways.gate.is_some() { n_pairs } else { 0 }, n_ff);
        let mut out = scratch.take(n_pairs, width);
        self.compute.run_experts(ExpertsJob {
            x: x.act(),
            runs: &runs,
            between: &|run, gate, up| {
                let expert = spans[run].0;
                self.add_bias_of(expert, ways.up, up);
                ways.gate.iter().for_each(|way| self.add_bias_of(expert, *way, gate));
                activate(gate, up);
            },
            up: up.host_mut(),
            gate: gate.host_mut(),
            out: out.host_mut(),
        });
        if let Some(bias) = ways.down.bias {
            self.add_expert_biases(routing, bias, &mut out);
        }
        Some(out)
    }

    /// Adds an expert's bias to rows of its own, where it has one.
    fn add_bias_of(&self, expert: usize, way: ExpertWay<'_>, out: &mut [f32]) {
        if let Some(bias) = way.bias {
            let n = way.w.rows();
            self.compute.add_bias(out, &bias[expert * n..][..n]);
        }
    }
}
