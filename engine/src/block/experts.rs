//! The matrices of a mixture's experts, and their work for the rows that a router sends them.

use super::BlockCx;
use super::linear::Linear;
use super::lora::{self, Lora, RowAdapters};
use super::mlp::activate;
use crate::arch::Activation;
use crate::device::{ExpertMatrices, ExpertProduct, ExpertRows, Routing, Rows};
use crate::error::ModelError;
use crate::kernels::Vector;
use crate::weights::WeightLoader;

/// Experts of one size.
pub(super) struct Experts {
    n_ff: usize,
    activation: Activation,
    /// Whether weights multiply what an expert reads, not what it gives.
    weigh_input: bool,
    /// Where the activation has one.
    gate: Option<Projections>,
    up: Projections,
    down: Projections,
}

/// A projection for each expert.
struct Projections {
    weights: ExpertMatrices,
    /// `[n_expert, rows]`, where the file has it.
    bias: Option<Vector>,
    /// Of each expert.
    adapters: Vec<Vec<Lora>>,
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
            true if loader.has(&fused) => {
                Linear::fused_experts(loader, &fused, n, n_ff, width)?.map(Some)
            }
            true => [
                Some(Linear::experts(loader, &name("gate"), n, n_ff, width)?),
                Some(Linear::experts(loader, &name("up"), n, n_ff, width)?),
            ],
            false => [None, Some(Linear::experts(loader, &name("up"), n, n_ff, width)?)],
        };
        let down = Linear::experts(loader, &name("down"), n, width, n_ff)?;
        let mut load = |part: &str, experts: Vec<Linear>| {
            let name = format!("{stem}.ffn_{part}_{suffix}.bias");
            Projections::load(experts, &name, loader)
        };
        Ok(Self {
            n_ff,
            activation,
            weigh_input,
            gate: gate.map(|gate| load("gate", gate)).transpose()?,
            up: load("up", up.unwrap_or_default())?,
            down: load("down", down)?,
        })
    }

    /// Adds the weighted outputs of the chosen experts to `out`, in the width that they work in.
    pub(super) fn add(&self, cx: &BlockCx<'_>, x: &Rows, routing: &Routing, out: &mut Rows) {
        let (width, n_pairs) = (x.cols(), routing.n_pairs());
        // Adapters are for pairs by the rows that they are of.
        let adapters = (!cx.adapters.is_empty())
            .then(|| cx.adapters.picked(routing.rows().iter().map(|row| *row as usize)));
        let mut own = None;
        let input = if self.weigh_input || adapters.is_some() {
            let own = own.insert(cx.scratch.take(n_pairs, width));
            cx.device.rows_of_pairs(x, routing, own);
            if self.weigh_input {
                cx.device.weigh_pairs(routing, own);
            }
            ExpertRows::OfPairs(own)
        } else {
            ExpertRows::Routed(x)
        };
        let mut up = cx.scratch.take(n_pairs, self.n_ff);
        let mut gate = cx.scratch.take(if self.gate.is_none() { 0 } else { n_pairs }, self.n_ff);
        let mut both = vec![(&self.up, &mut up)];
        both.extend(self.gate.as_ref().map(|projections| (projections, &mut gate)));
        project(cx, (routing, adapters.as_ref()), input, both);
        activate(cx.device, self.activation, &gate, &mut up);
        let mut expert_out = cx.scratch.take(n_pairs, width);
        let down = vec![(&self.down, &mut expert_out)];
        project(cx, (routing, adapters.as_ref()), ExpertRows::OfPairs(&up), down);
        cx.device.add_pairs(out, &expert_out, routing, self.weigh_input);
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        self.gate.iter().chain([&self.up, &self.down]).map(Projections::nbytes).sum()
    }
}

/// Projections of the same rows; their products run in one fork-join. `adapters` are those of the pairs.
fn project(
    cx: &BlockCx<'_>,
    (routing, adapters): (&Routing, Option<&RowAdapters>),
    x: ExpertRows<'_>,
    mut outs: Vec<(&Projections, &mut Rows)>,
) {
    let products = outs.iter_mut();
    let products =
        products.map(|(projections, out)| ExpertProduct { w: &projections.weights, out });
    let mut products: Vec<_> = products.collect();
    cx.device.expert_products(cx.scratch, routing, x, &mut products);
    for (projections, out) in outs {
        if let (Some(adapters), ExpertRows::OfPairs(x)) = (adapters, x) {
            projections.adapt(cx, (routing, adapters), x, out);
        }
        if let Some(bias) = &projections.bias {
            cx.device.add_expert_biases(routing, bias, out);
        }
    }
}

impl Projections {
    /// Those of `experts`, which are of one tensor, with the bias `name` `{rows, n_expert}` where the file has it.
    fn load(
        experts: Vec<Linear>,
        name: &str,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (n, rows) = (experts.len(), experts.first().map_or(0, Linear::rows));
        let (weights, adapters) = experts.into_iter().map(Linear::into_parts).unzip();
        let bias = match loader.has(name) {
            true => Some(loader.values(name, &[rows, n])?),
            false => None,
        };
        Ok(Self { weights: loader.together(weights)?, bias, adapters })
    }

    /// Adds what adapters add for each pair.
    fn adapt(
        &self,
        cx: &BlockCx<'_>,
        (routing, adapters): (&Routing, &RowAdapters),
        x: &Rows,
        out: &mut Rows,
    ) {
        let mut out = out.to_write();
        for (expert, pairs) in routing.spans() {
            let (loras, x) = (&self.adapters[*expert], (x, pairs.clone()));
            lora::add((cx.device, cx.scratch), adapters, loras, x, &mut out.part(pairs.clone()));
        }
    }

    /// Bytes of all matrices.
    fn nbytes(&self) -> usize {
        let adapters = self.adapters.iter().flatten().map(Lora::nbytes).sum::<usize>();
        self.weights.nbytes() + adapters
    }
}
