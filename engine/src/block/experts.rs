//! The matrices of a mixture's experts, and their work for the rows that a router sends them.

use std::sync::Arc;

use super::BlockCx;
use super::linear::Linear;
use super::lora::{self, ExpertLora};
use super::mlp::activate;
use crate::batch::AdapterUse;
use crate::device::{ExpertMatrices, ExpertProduct, ExpertRows, Routing, RoutingPart, Rows};
use crate::kernels::Vector;
use crate::spec::{Activation, ModelError};
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
    adapters: Vec<ExpertLora>,
}

/// Rows that use the same adapters, some of which are for these experts.
type Adapted<'a> = (RoutingPart<'a>, &'a [AdapterUse]);

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
        let adapted = self.adapted(cx, routing, x.n_rows());
        let mut own = None;
        let input = if self.weigh_input || !adapted.is_empty() {
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
        project(cx, (routing, &adapted), input, both);
        activate(cx.device, self.activation, &gate, &mut up);
        let mut expert_out = cx.scratch.take(n_pairs, width);
        let down = vec![(&self.down, &mut expert_out)];
        project(cx, (routing, &adapted), ExpertRows::OfPairs(&up), down);
        cx.device.add_pairs(out, &expert_out, routing, self.weigh_input);
    }

    /// The rows, of `n_rows`, that use adapters which the experts have, in runs.
    fn adapted<'a>(
        &self,
        cx: &'a BlockCx<'_>,
        routing: &'a Routing,
        n_rows: usize,
    ) -> Vec<Adapted<'a>> {
        let is_used = |uses: &[AdapterUse]| {
            self.projections().flat_map(|of| &of.adapters).any(|lora| lora.is_used(uses))
        };
        let all = 0..n_rows;
        let runs = cx.adapters.within(&all).filter(|(_, uses)| is_used(uses));
        runs.map(|(rows, uses)| (cx.device.pairs_of_rows(routing, rows), uses)).collect()
    }

    fn projections(&self) -> impl Iterator<Item = &Projections> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        self.projections().map(Projections::nbytes).sum()
    }
}

/// Projections of the same rows; their products run in one fork-join. Where rows are adapted, `x` has those of pairs.
fn project(
    cx: &BlockCx<'_>,
    (routing, adapted): (&Routing, &[Adapted<'_>]),
    x: ExpertRows<'_>,
    mut outs: Vec<(&Projections, &mut Rows)>,
) {
    let products = outs.iter_mut();
    let products =
        products.map(|(projections, out)| ExpertProduct { w: &projections.weights, out });
    let mut products: Vec<_> = products.collect();
    cx.device.expert_products(cx.scratch, routing, x, &mut products);
    for (projections, out) in outs {
        if let ExpertRows::OfPairs(x) = x {
            let loras = &projections.adapters;
            for (rows, uses) in adapted {
                lora::add_to_experts((cx.device, cx.scratch), (rows, uses), loras, x, out);
            }
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
        let parts = experts.into_iter().map(Linear::into_parts);
        let (weights, adapters): (Vec<_>, Vec<_>) =
            parts.map(|(weight, adapters)| (Arc::new(weight), adapters)).unzip();
        let bias = match loader.has(name) {
            true => Some(loader.values(name, &[rows, n])?),
            false => None,
        };
        let adapters = ExpertLora::together(loader, adapters)?;
        Ok(Self { weights: loader.together(weights)?, bias, adapters })
    }

    /// Bytes of all matrices.
    fn nbytes(&self) -> usize {
        self.weights.nbytes() + self.adapters.iter().map(ExpertLora::nbytes).sum::<usize>()
    }
}
