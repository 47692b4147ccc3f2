//! The matrices of a mixture's experts, and their work for the rows that a router sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mlp::activate;
use crate::batch::AdapterUse;
use crate::block::linear::Linear;
use crate::block::lora::{self, Adapted, ExpertLora};
use crate::block::{BlockCx, RowAdapters};
use crate::device::{
    Away, Device, ExpertJob, ExpertLayer, ExpertMatrices, ExpertShares, ExpertWay, ExpertWays,
    Guests, RoutingShare, Rows, Scratch, Sent,
};
use crate::kernels::{KernelError, Vector};
use crate::ops::{ExpertRows, Routing};
use crate::spec::{Activation, ModelError};
use crate::weights::WeightLoader;

/// Numbers of experts of layers, as they are loaded.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Experts of one size.
pub(super) struct Experts {
    /// The layer that they are of.
    layer: ExpertLayer,
    n_ff: usize,
    activation: Activation,
    /// Whether weights multiply what an expert reads, not what it gives.
    weigh_input: bool,
    /// Projections of the gate, where the activation has one.
    gate: Option<Projections>,
    up: Projections,
    down: Projections,
}

/// Number of experts, and the computation of one.
#[derive(Clone, Copy)]
pub(super) struct ExpertsShape {
    pub(super) n: usize,
    /// Width inside an expert.
    pub(super) n_ff: usize,
    /// Width of the rows that they work in.
    pub(super) width: usize,
    pub(super) activation: Activation,
    /// Whether weights multiply what an expert reads, not what it gives.
    pub(super) weigh_input: bool,
}

/// A projection for each expert.
struct Projections {
    weights: ExpertMatrices,
    /// `[n_expert, rows]`, where the file has it.
    bias: Option<Vector>,
    adapters: Vec<ExpertLora>,
}

/// Device and memory that experts are computed with: those of the stage, or those beside it.
pub(super) struct Place<'a> {
    device: &'a Device,
    scratch: &'a Scratch,
    adapters: &'a RowAdapters,
    /// Copies of some that are computed with instead.
    guests: Option<Guests<'a>>,
}

impl<'a> BlockCx<'a> {
    /// The stage's device and memory, for experts.
    pub(super) fn experts_place(&self) -> Place<'a> {
        let (device, scratch, adapters) = (self.device, self.scratch, self.rows.adapters);
        Place { device, scratch, adapters, guests: None }
    }
}

/// A projection, and the matrices that are computed with.
type Way<'a> = (&'a Projections, &'a ExpertMatrices);

impl Experts {
    /// Loads experts from `<stem>.ffn_{gate,up,down}_<suffix>` (or `ffn_gate_up_<suffix>`).
    pub(super) fn load(
        stem: &str,
        suffix: &str,
        shape: ExpertsShape,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        loader.loading_experts(|loader| Self::load_in_place(stem, suffix, shape, loader))
    }

    fn load_in_place(
        stem: &str,
        suffix: &str,
        shape: ExpertsShape,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let ExpertsShape { n, n_ff, width, activation, weigh_input } = shape;
        let name = |part: &str| format!("{stem}.ffn_{part}_{suffix}.weight");
        let fused = name("gate_up");
        let [gate, up] = if !activation.is_gated() {
            [None, Some(Linear::experts(loader, &name("up"), n, n_ff, width)?)]
        } else if loader.has(&fused) {
            Linear::fused_experts(loader, &fused, n, n_ff, width)?.map(Some)
        } else {
            [
                Some(Linear::experts(loader, &name("gate"), n, n_ff, width)?),
                Some(Linear::experts(loader, &name("up"), n, n_ff, width)?),
            ]
        };
        let down = Linear::experts(loader, &name("down"), n, width, n_ff)?;
        let mut load = |part: &str, experts: Vec<Linear>| {
            let name = format!("{stem}.ffn_{part}_{suffix}.bias");
            Projections::load(experts, &name, loader)
        };
        Ok(Self {
            layer: ExpertLayer {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                name: format!("{stem}.{suffix}"),
            },
            n_ff,
            activation,
            weigh_input,
            gate: gate.map(|gate| load("gate", gate)).transpose()?,
            up: load("up", up.unwrap_or_default())?,
            down: load("down", down)?,
        })
    }

    /// Sends rows and their routing to where the experts lie, if that is not here: for [`Experts::sum`], before which the device
    /// may be told what else it has to do.
    pub(super) fn send(&self, device: &Device, x: &Rows, routing: &Routing) -> Option<Sent> {
        device.send(&self.up.weights, x, routing)
    }

    /// The sum of the weighted outputs of the chosen experts, in the width that they work in, which begins with `onto` or zeros.
    /// `sent` is what [`Experts::send`] gave for the same rows.
    pub(super) fn sum(
        &self,
        here: &Place<'_>,
        x: &Rows,
        routing: &Routing,
        sent: Option<Sent>,
        onto: Option<Rows>,
    ) -> Rows {
        let Place { device, scratch, .. } = *here;
        let Some(sent) = sent else {
            let pairs = self.of_pairs(here, x, routing);
            let zeros = |scratch: &Scratch| scratch.zeros(x.n_rows(), x.cols());
            let mut sum = onto.unwrap_or_else(|| zeros(scratch));
            device.add_pairs(&mut sum, &pairs, routing, self.weigh_input);
            return sum;
        };
        let away = device.away(sent);
        let sum = self.sum_away(here, x, routing, &away, onto);
        if !away.is_rehearsal {
            device.learn(self.layer.id, &away.routing, &self.matrices());
        }
        sum
    }

    /// [`Experts::sum`] of rows that were sent.
    fn sum_away(
        &self,
        here: &Place<'_>,
        x: &Rows,
        routing: &Routing,
        away: &Away<'_>,
        onto: Option<Rows>,
    ) -> Rows {
        let Place { device, scratch, adapters, .. } = *here;
        let zeros = |scratch: &Scratch| scratch.zeros(x.n_rows(), x.cols());
        if away.is_rehearsal {
            self.rehearse_apart(here, x, &away.routing);
        } else if let Some(pairs) = self.of_pairs_apart(here, x, away) {
            let mut sum = onto.unwrap_or_else(|| zeros(scratch));
            device.add_pairs(&mut sum, &pairs, &away.routing, self.weigh_input);
            return sum;
        }
        let place = Place { device: away.device, scratch: away.scratch, adapters, guests: None };
        let pairs = if away.is_rehearsal {
            away.scratch.zeros(routing.n_pairs(), x.cols())
        } else {
            device.on_host(|| self.of_pairs(&place, &away.x, &away.routing))
        };
        match onto {
            // The order of the sum is that of its bits: what it begins with lies here.
            Some(mut sum) => {
                device.add_pairs(&mut sum, &pairs, routing, self.weigh_input);
                sum
            }
            None => {
                let mut sum = zeros(away.scratch);
                away.device.add_pairs(&mut sum, &pairs, &away.routing, self.weigh_input);
                device.bring(scratch, &sum)
            }
        }
    }

    /// Outputs of the chosen experts for each pair, where some experts are computed with the stage's device and the
    /// others where they lie. `None` where all are computed where they lie.
    fn of_pairs_apart(&self, here: &Place<'_>, x: &Rows, away: &Away<'_>) -> Option<Rows> {
        let Place { device, scratch, adapters, .. } = *here;
        if self.are_adapted(adapters, x.n_rows()) {
            return None;
        }
        let ExpertShares { with_copy, visiting, staying } =
            device.shares(self.layer.id, &away.routing, &self.matrices())?;
        let mut pairs = scratch.take(away.routing.n_pairs(), x.cols());
        let mut compute = |share: &RoutingShare, guests: Guests<'_>| {
            let place = Place { device, scratch, adapters, guests: Some(guests) };
            let rows = self.of_pairs(&place, x, &share.routing);
            device.place_rows(&rows, &share.pairs, &mut pairs);
            // The device computes them while the next ones are sent.
            device.begin();
        };
        if let Some((share, guests)) = with_copy {
            compute(&share, guests);
        }
        let there = Place { device: away.device, scratch: away.scratch, adapters, guests: None };
        let stay = || device.on_host(|| self.of_pairs(&there, &away.x, &staying.routing));
        let stayed = if visiting.is_empty() {
            stay()
        } else {
            let stayed = std::thread::scope(|scope| {
                let stayed = scope.spawn(stay);
                for share in &visiting {
                    let guests = device.guests(&share.experts, &self.matrices());
                    compute(share, guests.expect("places were counted"));
                }
                stayed.join()
            });
            stayed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        device.place_rows(&stayed, &staying.pairs, &mut pairs);
        Some(pairs)
    }

    /// What the stage's device does in [`Experts::sum_away`] where it computes experts with copies or guests: in a rehearsal, with
    /// a pair of each row as those of one expert.
    fn rehearse_apart(&self, here: &Place<'_>, x: &Rows, routing: &Routing) {
        let Place { device, scratch, adapters, .. } = *here;
        let Some((share, guests)) = device.rehearsed_share(routing, &self.matrices()) else {
            return;
        };
        let mut pairs = scratch.take(routing.n_pairs(), x.cols());
        let place = Place { device, scratch, adapters, guests: Some(guests) };
        let rows = self.of_pairs(&place, x, &share.routing);
        device.place_rows(&rows, &share.pairs, &mut pairs);
        let mut sum = scratch.zeros(x.n_rows(), x.cols());
        device.add_pairs(&mut sum, &pairs, routing, self.weigh_input);
    }

    /// The gate, where there is one, and the ways up and down, where experts work.
    fn ways<'a>(&'a self, place: &'a Place<'_>) -> (Option<Way<'a>>, [Way<'a>; 2]) {
        let guests = place.guests.as_ref();
        let n_gates = usize::from(self.gate.is_some());
        let way = |of: &'a Projections, i: usize| {
            (of, guests.map_or(&of.weights, |guests| guests.matrices(i)))
        };
        let gate = self.gate.as_ref().map(|of| way(of, 0));
        (gate, [way(&self.up, n_gates), way(&self.down, n_gates + 1)])
    }

    /// All matrices, in the order of the projections.
    fn matrices(&self) -> Vec<&ExpertMatrices> {
        self.projections().map(|of| &of.weights).collect()
    }

    /// Makes room on the device for experts that visit it.
    pub(super) fn make_room(&self, device: &Device) -> Result<(), KernelError> {
        device.make_room(&self.layer, &self.matrices())
    }

    /// Has the device copy those that it shall have from the beginning.
    pub(super) fn make_copies(&self, device: &Device) {
        device.make_copies(&self.layer, &self.matrices());
    }

    /// Outputs of the chosen experts for each pair.
    fn of_pairs(&self, place: &Place<'_>, x: &Rows, routing: &Routing) -> Rows {
        let Place { device, scratch, .. } = *place;
        let (width, n_pairs) = (x.cols(), routing.n_pairs());
        let adapted = self.adapted(place.adapters, routing, x.n_rows());
        let mut own = None;
        let input = if self.weigh_input || !adapted.is_empty() {
            let own = own.insert(scratch.take(n_pairs, width));
            device.rows_of_pairs(x, routing, own);
            if self.weigh_input {
                device.weigh_pairs(routing, own);
            }
            ExpertRows::OfPairs(&*own)
        } else {
            ExpertRows::Routed(x)
        };
        if adapted.is_empty()
            && let Some(out) = self.at_once(place, input, routing)
        {
            return out;
        }
        let mut up = scratch.take(n_pairs, self.n_ff);
        let mut gate = scratch.take(if self.gate.is_none() { 0 } else { n_pairs }, self.n_ff);
        let (gate_way, [up_way, down_way]) = self.ways(place);
        let mut both = vec![(up_way, &mut up)];
        both.extend(gate_way.map(|way| (way, &mut gate)));
        project(place, routing, &adapted, input, both);
        activate(device, self.activation, &gate, &mut up);
        let mut expert_out = scratch.take(n_pairs, width);
        let down = vec![(down_way, &mut expert_out)];
        project(place, routing, &adapted, ExpertRows::OfPairs(&up), down);
        expert_out
    }

    /// The same as one run of the threads, where the device has that for so many rows.
    fn at_once(&self, place: &Place<'_>, x: ExpertRows<&Rows>, routing: &Routing) -> Option<Rows> {
        let (up, gate, down) = (&self.up, &self.gate, &self.down);
        let gate = gate.as_ref().map(Projections::way);
        let ways = ExpertWays { up: up.way(), gate, down: down.way() };
        let activate = |gate: &mut [f32], up: &mut [f32]| {
            activate(place.device, self.activation, gate, up);
        };
        place.device.run_experts(place.scratch, routing, x, &ways, &activate)
    }

    /// The rows, of `n_rows`, that use adapters which the experts have, in runs.
    fn adapted<'a>(
        &self,
        adapters: &'a RowAdapters,
        routing: &'a Routing,
        n_rows: usize,
    ) -> Vec<Adapted<'a>> {
        let all = 0..n_rows;
        let runs = adapters.within(&all).filter(|(_, uses)| self.have(uses));
        runs.map(|(rows, uses)| Adapted { rows: routing.part(rows), uses }).collect()
    }

    /// Whether some of `n_rows` rows use adapters that the experts have.
    fn are_adapted(&self, adapters: &RowAdapters, n_rows: usize) -> bool {
        adapters.within(&(0..n_rows)).any(|(_, uses)| self.have(uses))
    }

    fn have(&self, uses: &[AdapterUse]) -> bool {
        self.projections().flat_map(|of| &of.adapters).any(|lora| lora.is_used(uses))
    }

    fn projections(&self) -> impl Iterator<Item = &Projections> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        self.projections().map(Projections::nbytes).sum()
    }

    /// Bytes among these that lie elsewhere than in the memory of the stage's device.
    pub(super) fn nbytes_beside(&self) -> usize {
        self.projections().map(Projections::nbytes_beside).sum()
    }
}

/// Projections of the same rows; their products run in one fork-join. Where rows are adapted, `x` has those of pairs.
fn project(
    place: &Place<'_>,
    routing: &Routing,
    adapted: &[Adapted<'_>],
    x: ExpertRows<&Rows>,
    mut outs: Vec<(Way<'_>, &mut Rows)>,
) {
    let products = outs.iter_mut().map(|((_, w), out)| ExpertJob { w, out });
    let mut products: Vec<_> = products.collect();
    place.device.expert_products(place.scratch, routing, x, &mut products);
    for ((projections, _), out) in outs {
        if let ExpertRows::OfPairs(x) = x {
            let loras = &projections.adapters;
            for adapted in adapted {
                lora::add_to_experts(place.device, place.scratch, adapted, loras, x, out);
            }
        }
        if let Some(bias) = &projections.bias {
            place.device.add_expert_biases(routing, bias, out);
        }
    }
}

impl Projections {
    /// Loads the projections of `experts`, which are one tensor's, with the bias `name` `{rows, n_expert}` where the
    /// file has it.
    fn load(
        experts: Vec<Linear>,
        name: &str,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (n, rows) = (experts.len(), experts.first().map_or(0, Linear::rows));
        let parts = experts.into_iter().map(Linear::into_parts);
        let (weights, adapters): (Vec<_>, Vec<_>) =
            parts.map(|(weight, adapters)| (Arc::new(weight), adapters)).unzip();
        let bias = if loader.has(name) { Some(loader.values(name, &[rows, n])?) } else { None };
        let adapters = ExpertLora::together(loader, adapters)?;
        Ok(Self { weights: loader.together(weights)?, bias, adapters })
    }

    fn way(&self) -> ExpertWay<'_> {
        ExpertWay { w: &self.weights, bias: self.bias.as_ref() }
    }

    /// Bytes of all matrices.
    fn nbytes(&self) -> usize {
        self.weights.nbytes() + self.adapters.iter().map(ExpertLora::nbytes).sum::<usize>()
    }

    fn nbytes_beside(&self) -> usize {
        let adapters = self.adapters.iter().map(ExpertLora::nbytes_beside).sum::<usize>();
        self.weights.nbytes_beside() + adapters
    }
}
