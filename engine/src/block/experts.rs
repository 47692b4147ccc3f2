//! The matrices of a mixture's experts, and their work for the rows that a router sends them.

use std::ops::Range;

use super::BlockCx;
use super::linear::{Linear, Projection, project_all};
use super::mlp::activate;
use super::routing::Routing;
use crate::arch::Activation;
use crate::device::Rows;
use crate::error::ModelError;
use crate::kernels::Vector;
use crate::weights::WeightLoader;

/// Experts of one size.
pub(super) struct Experts {
    n_ff: usize,
    activation: Activation,
    /// Whether weights multiply what an expert reads, not what it gives.
    weigh_input: bool,
    /// Empty where the activation has no gate.
    gate: Vec<Linear>,
    up: Vec<Linear>,
    down: Vec<Linear>,
    /// Of gates, ways up and ways down, `[n_expert, rows]` each, where the file has them.
    biases: [Option<Vector>; 3],
}

impl Experts {
    /// Loads `n` experts that are `n_ff` wide inside, and work in rows of `width`, from `<stem>.ffn_{gate,up,down}_<suffix>`
    /// (or `ffn_gate_up_<suffix>`).
    pub(super) fn load(
        (stem, suffix): (&str, &str),
        [n, n_ff, width]: [usize; 3],
        (activation, weigh_input): (Activation, bool),
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.ffn_{part}_{suffix}.weight");
        let fused = name("gate_up");
        let [gate, up] = match activation.is_gated() {
            true if loader.has(&fused) => Linear::fused_experts(loader, &fused, n, n_ff, width)?,
            true => [
                Linear::experts(loader, &name("gate"), n, n_ff, width)?,
                Linear::experts(loader, &name("up"), n, n_ff, width)?,
            ],
            false => [Vec::new(), Linear::experts(loader, &name("up"), n, n_ff, width)?],
        };
        let mut bias = |part: &str, rows: usize| {
            let name = format!("{stem}.ffn_{part}_{suffix}.bias");
            match loader.has(&name) {
                true => loader.values(&name, &[rows, n]).map(Some),
                false => Ok(None),
            }
        };
        let biases = [bias("gate", n_ff)?, bias("up", n_ff)?, bias("down", width)?];
        let down = Linear::experts(loader, &name("down"), n, width, n_ff)?;
        Ok(Self { n_ff, activation, weigh_input, gate, up, down, biases })
    }

    /// Adds the weighted outputs of the chosen experts to `out`, in the width that they work in.
    pub(super) fn add(&self, cx: &BlockCx<'_>, x: &Rows, routing: &Routing, out: &mut Rows) {
        let (width, n_pairs) = (x.cols(), routing.rows.len());
        let mut gathered = cx.scratch.take(n_pairs, width);
        cx.device.gather_rows(x, &routing.rows, &mut gathered);
        if self.weigh_input {
            cx.device.scale_rows(&mut gathered, width, &routing.weights());
        }
        let adapters = cx.adapters.picked(routing.rows.iter().map(|row| *row as usize));
        let mut up = cx.scratch.take(n_pairs, self.n_ff);
        let mut gate = cx.scratch.take(if self.gate.is_empty() { 0 } else { n_pairs }, self.n_ff);
        let mut both = jobs(&self.up, &gathered, &routing.spans, &mut up);
        if !self.gate.is_empty() {
            both.extend(jobs(&self.gate, &gathered, &routing.spans, &mut gate));
        }
        project_all((cx.device, cx.scratch), &adapters, &mut both);
        drop(both);
        let [gate_bias, up_bias, down_bias] = &self.biases;
        add_biases(cx, gate_bias.as_deref(), &routing.spans, &mut gate);
        add_biases(cx, up_bias.as_deref(), &routing.spans, &mut up);
        activate(cx.device, self.activation, &gate, &mut up);
        let mut expert_out = cx.scratch.take(n_pairs, width);
        let mut down = jobs(&self.down, &up, &routing.spans, &mut expert_out);
        project_all((cx.device, cx.scratch), &adapters, &mut down);
        drop(down);
        add_biases(cx, down_bias.as_deref(), &routing.spans, &mut expert_out);
        cx.device.add_shares(out, &expert_out, &routing.shares(self.weigh_input));
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        [&self.gate, &self.up, &self.down].into_iter().flatten().map(Linear::nbytes).sum()
    }
}

/// Adds to the rows of each expert its bias of `biases`, `[n_expert, width]`.
fn add_biases(
    cx: &BlockCx<'_>,
    biases: Option<&[f32]>,
    spans: &[(usize, Range<usize>)],
    out: &mut Rows,
) {
    let Some(biases) = biases else { return };
    let width = out.cols();
    let mut out = out.to_write();
    for (expert, pairs) in spans {
        cx.device.add_bias(&mut out.part(pairs.clone()), &biases[expert * width..][..width]);
    }
}

/// One projection for each expert that has rows; `out[n_pairs, rows of a matrix]`.
fn jobs<'a>(
    experts: &'a [Linear],
    x: &'a Rows,
    spans: &[(usize, Range<usize>)],
    out: &'a mut Rows,
) -> Vec<Projection<'a>> {
    let mut left = out.to_write();
    let mut jobs = Vec::with_capacity(spans.len());
    for (expert, pairs) in spans {
        let w = &experts[*expert];
        let (mine, rest) = left.split_at(pairs.len());
        left = rest;
        jobs.push(w.job_of(x, pairs.clone(), mine));
    }
    jobs
}
