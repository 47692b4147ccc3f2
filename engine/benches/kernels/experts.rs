//! Routed experts as decode runs them, beside the memory that their weights are read from: rows of several sequences through 8 of
//! 128 experts. Cases are named `experts-TYPE`.
//!
//! Each runs on the machine's own table and on `unfused`, which has the bits of experts beside a GPU. Each runs as
//! one run of the threads and as one step after the other, in turn.

use std::sync::Arc;

use crate::common::{Bench, beside, values};
use brigade_engine::device::{
    Device, ExpertJob, ExpertMatrices, ExpertWay, ExpertWays, Rows, Scratch,
};
use brigade_engine::kernels::{ChooseBy, Compute, ExpertChoice, ExpertWeights, select};
use brigade_engine::ops::{ExpertRows, Routing};
use brigade_quant::{GgmlType, quantize_row};

const N_EXPERT: usize = 128;
const N_USED: usize = 8;
/// Width of rows, and of experts inside: as in models of 30 billion weights of which 3 work for a token.
const WIDTH: usize = 2048;
const N_FF: usize = 768;
/// Choices of experts that are taken in turn, so that weights come from memory.
const CHOICES: usize = 61;
/// Numbers of sequences that decode.
const ROWS: [usize; 3] = [1, 4, 16];
const TYPES: [GgmlType; 3] = [GgmlType::Q4_K, GgmlType::MXFP4, GgmlType::Q8_0];

/// The experts of a layer.
struct Layer {
    device: Device,
    up: ExpertMatrices,
    gate: ExpertMatrices,
    down: ExpertMatrices,
}

/// Measures the cases that the filter lets run.
pub fn measure(bench: &Bench) {
    let threads = bench.compute.pool().threads();
    let own = bench.compute.kernels().name;
    for ty in TYPES.into_iter().filter(|ty| bench.wants(&format!("experts-{}", ty.name()))) {
        for table in [own, "unfused"] {
            let kernels = select(Some(table)).expect("a table of this machine");
            let compute = Compute::new(kernels, threads, None).expect("threads start");
            let layer = Layer::new(compute, ty);
            for n_rows in ROWS {
                layer.measure(bench, ty, table, n_rows);
            }
        }
    }
}

impl Layer {
    fn new(compute: Compute, ty: GgmlType) -> Self {
        let device = Device::from(compute);
        let experts = |rows: usize, cols: usize| {
            let mut row = vec![0; ty.row_bytes(cols).expect("whole blocks")];
            quantize_row(ty, &values(cols, 3), &mut row).expect("a type with a quantiser");
            let bytes = row.repeat(rows);
            let pack = |_| Arc::new(device.pack(ty, rows, cols, &bytes).expect("packs"));
            device.experts((0..N_EXPERT).map(pack).collect()).expect("of one type")
        };
        let (up, gate, down) = (experts(N_FF, WIDTH), experts(N_FF, WIDTH), experts(WIDTH, N_FF));
        Self { device, up, gate, down }
    }

    /// Routings of so many rows, and how many experts each needs.
    fn routings(&self, n_rows: usize) -> Vec<(Routing, usize)> {
        let routing = |choice: usize| {
            let mut known = Vec::new();
            for row in 0..n_rows {
                // Eight different ones, of which two rows may share some.
                let first = (choice * 37 + row * 53) % N_EXPERT;
                let step = 2 * ((choice + row) % 7) + 1;
                known.extend((0..N_USED).map(|i| ((first + i * step) % N_EXPERT) as u32));
            }
            let mut distinct = known.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let (by, weights) = (ChooseBy::Known(&known), ExpertWeights::Normed(1.0));
            let choice = ExpertChoice { n_expert: N_EXPERT, n_used: N_USED, by, weights };
            let probs = Rows::new(vec![1.0; n_rows * N_EXPERT], N_EXPERT);
            (self.device.route(&choice, &probs), distinct.len())
        };
        (0..CHOICES).map(routing).collect()
    }

    fn measure(&self, bench: &Bench, ty: GgmlType, table: &str, n_rows: usize) {
        let routings = self.routings(n_rows);
        let of_one = (self.up.nbytes() + self.gate.nbytes() + self.down.nbytes()) / N_EXPERT;
        let n_read: usize = routings.iter().map(|(_, n)| n).sum();
        let bytes = (n_read * of_one) as f64 / CHOICES as f64;
        let scratch = self.device.scratch();
        let run = |i: usize, at_once: bool| {
            let mut x = scratch.take(n_rows, WIDTH);
            self.device.fill(&mut x, 0.5);
            // Another choice each time: what is read was not read last.
            let routing = &routings[(2 * i + usize::from(at_once)) % CHOICES].0;
            let pairs = if at_once {
                self.at_once(&scratch, &x, routing)
            } else {
                self.by_steps(&scratch, &x, routing)
            };
            let mut sum = scratch.zeros(n_rows, WIDTH);
            self.device.add_pairs(&mut sum, &pairs, routing, false);
        };
        let both = bench.seconds_of([&mut |i| run(i, true), &mut |i| run(i, false)]);
        for (way, seconds) in ["at once", "by steps"].into_iter().zip(both) {
            println!(
                "experts-{ty:6} {table:9} rows {n_rows:3} {way:8} {:9.1} us  {}",
                seconds * 1e6,
                beside(bytes / seconds, "GB/s", bench.limits.memory, "memory"),
            );
        }
    }

    fn at_once(&self, scratch: &Scratch, x: &Rows, routing: &Routing) -> Rows {
        let way = |w| ExpertWay { w, bias: None };
        let ways =
            ExpertWays { up: way(&self.up), gate: Some(way(&self.gate)), down: way(&self.down) };
        let activate = |gate: &mut [f32], up: &mut [f32]| self.device.silu_mul_inplace(up, gate);
        let x = ExpertRows::Routed(x);
        let out = self.device.run_experts(scratch, routing, x, &ways, &activate);
        out.expect("few rows on the CPU")
    }

    fn by_steps(&self, scratch: &Scratch, x: &Rows, routing: &Routing) -> Rows {
        let take = |cols| scratch.take(routing.n_pairs(), cols);
        let (mut up, mut gate, mut out) = (take(N_FF), take(N_FF), take(WIDTH));
        let mut products =
            [ExpertJob { w: &self.up, out: &mut up }, ExpertJob { w: &self.gate, out: &mut gate }];
        self.device.expert_products(scratch, routing, ExpertRows::Routed(x), &mut products);
        self.device.silu_mul_inplace(&mut up, &gate);
        let mut down = [ExpertJob { w: &self.down, out: &mut out }];
        self.device.expert_products(scratch, routing, ExpertRows::OfPairs(&up), &mut down);
        out
    }
}
