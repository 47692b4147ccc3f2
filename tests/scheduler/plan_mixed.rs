//! Lines of unlike machines: cuts that are planned by what workers say of themselves, judged by the true speed of each type
//! of weights.

use std::ops::Range;

use brigade_cluster::worker_facts;
use brigade_engine::kernels::KvType;
use brigade_gguf::Gguf;
use brigade_plan::{
    Balance, ByClass, LayerFacts, ModelFacts, PlanSettings, ProductClass, WorkerFacts, plan,
};
use brigade_proto::control::{Capabilities, ProductSpeeds};
use brigade_quant::GgmlType;
use brigade_spec::{OUTPUT, layer_of};
use brigade_synth::{Arch, FileType, Shape, Spec};
use proptest::prelude::*;

use super::plan_random::{all_cuts, no_layers};

/// The types of weights here.
const TYPES: [GgmlType; 5] =
    [GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::F16];

/// A machine of one core: memory read, 10^9 bytes a second, and products of many rows, 10^9 operations a second, for each of
/// [`TYPES`].
#[derive(Clone, Debug)]
struct Machine {
    gbps: f64,
    gops: [f64; TYPES.len()],
}

/// As a worker of one thread measured itself in November 2026 on one processor, by `--kernels avx2`, `avxvnni` and `avx512`, with
/// memory as other machines have it. Q5_K's figures are Q4_K's by the ratios of the bench `kernels`. Those of AVX-512 without
/// VNNI, which has no such instruction for bytes, are estimates.
const AVX2: Machine = Machine { gbps: 20.0, gops: [290.0, 280.0, 196.0, 184.0, 127.0] };
const AVX512: Machine = Machine { gbps: 15.0, gops: [400.0, 390.0, 280.0, 260.0, 230.0] };
const AVX_VNNI: Machine = Machine { gbps: 40.0, gops: [336.0, 325.0, 301.0, 364.0, 127.0] };
const AVX512_VNNI: Machine = Machine { gbps: 46.0, gops: [593.0, 602.0, 582.0, 623.0, 248.0] };

/// The error of a worker's measure of a class, up and down by turns.
const MEASURE_ERROR: f64 = 0.02;

/// A model, and for each layer and the head the elements of each type that a row multiplies with.
#[derive(Clone, Debug)]
struct Case {
    facts: ModelFacts,
    layers: Vec<[f64; TYPES.len()]>,
    head: [f64; TYPES.len()],
}

impl Machine {
    /// What a worker there says, the `index`-th of a line; `by_class`: it measures every class, and not one alone.
    fn capabilities(&self, index: usize, by_class: bool) -> Capabilities {
        let measured = |class: ProductClass| {
            let of = TYPES.iter().position(|ty| *ty == class.measured_type()).unwrap();
            let is_up = (index + class as usize).is_multiple_of(2);
            self.gops[of] * (1.0 + if is_up { MEASURE_ERROR } else { -MEASURE_ERROR })
        };
        let ByClass { nibble, halves, byte, float } = ByClass::from_fn(measured);
        Capabilities {
            host_id: index.to_string(),
            threads: 1,
            memory_limit: 1 << 40,
            gb_per_second: self.gbps,
            gop_per_second: nibble,
            products: by_class.then_some(ProductSpeeds { q6_k: halves, q8_0: byte, f16: float }),
            ..Capabilities::default()
        }
    }

    /// The true time of a row's products with these elements, in microseconds.
    fn products_us(&self, elements: &[f64]) -> f64 {
        elements.iter().zip(self.gops).map(|(n, gops)| 2.0 * n / gops * 1e-3).sum()
    }
}

impl Case {
    /// The true time of a unit of work in layers `range` on a machine.
    fn unit_us(&self, machine: &Machine, range: &Range<usize>, settings: &PlanSettings) -> f64 {
        let batch = f64::from(settings.decode_batch);
        let typical = f64::from(settings.typical_positions);
        let read_us = |bytes: f64| bytes / machine.gbps * 1e-3;
        let layer = |at: usize| {
            let layer = &self.facts.layers[at];
            let read = layer.read_bytes(batch) / batch
                + layer.cache_read(typical)
                + 2.0 * layer.state_bytes() as f64;
            let products = machine.products_us(&self.layers[at]);
            read_us(read).max(products) + settings.prompt_per_generated * products
        };
        let layers: f64 = range.clone().map(layer).sum();
        if range.end < self.layers.len() || range.is_empty() {
            return layers;
        }
        let read = read_us(self.facts.head_bytes as f64 / batch);
        layers + read.max(machine.products_us(&self.head))
    }

    /// How many times as long the slowest stage takes as with the best of all cuts, where the line is cut by what its workers say.
    fn loses(&self, machines: &[Machine], workers: &[WorkerFacts], settings: &PlanSettings) -> f64 {
        let cut = plan(&self.facts, workers, settings).unwrap();
        let stages = cut.stages.iter();
        let chosen = stages.map(|s| self.unit_us(&machines[s.worker], &s.layers, settings));
        let slowest = |cut: &Vec<Range<usize>>| {
            let us = machines.iter().zip(cut).map(|(m, range)| self.unit_us(m, range, settings));
            us.fold(0.0, f64::max)
        };
        let all = all_cuts(self.layers.len(), machines.len());
        chosen.fold(0.0, f64::max) / all.iter().map(slowest).fold(f64::INFINITY, f64::min)
    }

    /// The first `n` layers of this model, and the others and the head of `rest`.
    fn then(&self, n: usize, rest: &Self) -> Self {
        let mut mixed = rest.clone();
        mixed.facts.layers[..n].copy_from_slice(&self.facts.layers[..n]);
        mixed.layers[..n].copy_from_slice(&self.layers[..n]);
        mixed
    }
}

/// A synthetic model of 32 layers, from a file with nothing but the header.
fn model(quant: &str) -> Case {
    let spec = Spec {
        arch: Arch::named("llama").unwrap(),
        shape: Shape::named("0.6b").unwrap(),
        quant: FileType::named(quant).unwrap(),
        seed: 1,
        header_only: true,
    };
    let name = format!("brigade-plan-mixed-{}-{quant}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    brigade_synth::write(&spec, &path).unwrap();
    let file = Gguf::open_header_only(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let facts = ModelFacts::from_gguf(&file, KvType::F16).unwrap();
    let mut layers = vec![[0.0; TYPES.len()]; facts.layers.len()];
    let mut head = [0.0; TYPES.len()];
    for tensor in file.tensors().iter().filter(|tensor| tensor.n_dims > 1) {
        let ty = TYPES.iter().position(|ty| *ty == tensor.ty).unwrap();
        match layer_of(&tensor.name) {
            Some(layer) => layers[layer][ty] += tensor.n_elems() as f64,
            None if tensor.name == OUTPUT => head[ty] += tensor.n_elems() as f64,
            None => {}
        }
    }
    Case { facts, layers, head }
}

fn a_mixed_line_is_cut_within_a_twentieth_of_the_best_cut() {
    let [q4, q5, q6, q8, f16] = ["Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16"].map(model);
    let cases = [
        ("16 layers of F16, Q4_K_M", f16.then(16, &q4)),
        ("8 layers of Q8_0, Q4_K_M", q8.then(8, &q4)),
        ("Q4_K_M", q4),
        ("Q5_K_M", q5),
        ("Q6_K", q6),
        ("Q8_0", q8),
        ("F16", f16),
    ];
    let lines = [
        ("avx2, vnni", vec![AVX2, AVX512_VNNI]),
        ("vnni, avx2", vec![AVX512_VNNI, AVX2]),
        ("avx512, vnni", vec![AVX512, AVX512_VNNI]),
        ("avx2, avx-vnni, vnni", vec![AVX2, AVX_VNNI, AVX512_VNNI]),
        ("vnni, avx512, avx2", vec![AVX512_VNNI, AVX512, AVX2]),
    ];
    let mut worst_of_one_figure = 1.0f64;
    for (name, case) in &cases {
        for (line, machines) in &lines {
            for work in [Balance::DECODE, Balance::MIXED, Balance::PREFILL] {
                let prompt_per_generated = work.prompt_per_generated();
                let settings = PlanSettings { prompt_per_generated, ..PlanSettings::default() };
                let loses = |by_class: bool| {
                    let say = |(i, m): (usize, &Machine)| m.capabilities(i, by_class);
                    let told: Vec<_> = machines.iter().enumerate().map(say).collect();
                    let workers = worker_facts(told.iter().map(|caps| ("w", caps)));
                    case.loses(machines, &workers, &settings)
                };
                let (loses, of_one_figure) = (loses(true), loses(false));
                println!("{name}; {line}; {work}: {loses:.3} (by one figure {of_one_figure:.3})");
                assert!(loses <= 1.05, "{name}, {line}, {work}: {loses}");
                worst_of_one_figure = worst_of_one_figure.max(of_one_figure);
            }
        }
    }
    assert!(
        worst_of_one_figure > 1.2,
        "one figure for all classes does well: {worst_of_one_figure}"
    );
}

/// Machines whose speeds for two types of a class are within so much of the class's figure.
const TYPE_ERROR: f64 = 0.02;

/// Numbers for each of [`TYPES`].
fn of_types(numbers: Range<f64>) -> impl Strategy<Value = [f64; TYPES.len()]> {
    prop::array::uniform5(numbers)
}

/// A worker that measured each class exactly, and its machine.
fn any_machine() -> impl Strategy<Value = (WorkerFacts, Machine)> {
    let classes = prop::array::uniform4(50f64..1000.0);
    let errors = of_types(1.0 - TYPE_ERROR..1.0 + TYPE_ERROR);
    (5f64..100.0, classes, errors).prop_map(|(gbps, [nibble, halves, byte, float], errors)| {
        let gops = ByClass { nibble, halves, byte, float };
        let of_type = |i: usize| gops[ProductClass::of(TYPES[i])] * errors[i];
        let machine = Machine { gbps, gops: std::array::from_fn(of_type) };
        let (memory, link, host, holds, node, disk) = (1 << 40, None, None, 0..0, None, None);
        let name = format!("{gbps} GB/s");
        (WorkerFacts { name, memory, gbps, gops, link, host, holds, node, disk }, machine)
    })
}

fn by_class(elements: &[f64]) -> ByClass<u64> {
    let of_type = |(ty, n): (GgmlType, &f64)| ByClass::only(ProductClass::of(ty), *n as u64);
    TYPES.into_iter().zip(elements).map(of_type).sum()
}

/// Layers of random types.
fn any_case() -> impl Strategy<Value = Case> {
    let layers = prop::collection::vec((1u64..50, of_types(0.0..2e7)), 1..8);
    (layers, 0u64..100, of_types(0.0..5e7)).prop_map(|(layers, head_bytes, head)| {
        let layer = |(bytes, elements): &(u64, [f64; TYPES.len()])| LayerFacts {
            weight_bytes: bytes << 20,
            elements: by_class(elements),
            ..LayerFacts::default()
        };
        let facts = ModelFacts {
            cut_bytes: vec![0; layers.len()],
            layers: layers.iter().map(layer).collect(),
            embedding_bytes: 1 << 20,
            head_bytes: head_bytes << 20,
            head_elements: by_class(&head),
            ..no_layers()
        };
        let layers = layers.into_iter().map(|(_, elements)| elements).collect();
        Case { facts, layers, head }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    fn layers_of_any_types_are_cut_well_over_machines_of_any_speeds(
        case in any_case(),
        line in prop::collection::vec(any_machine(), 1..4),
        prompt_per_generated in 0f64..10.0,
    ) {
        let (workers, machines): (Vec<_>, Vec<_>) = line.into_iter().unzip();
        let settings = PlanSettings { prompt_per_generated, ..PlanSettings::default() };
        let loses = case.loses(&machines, &workers, &settings);
        prop_assert!(loses <= (1.0 + TYPE_ERROR) / (1.0 - TYPE_ERROR) + 1e-6, "{}", loses);
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        a_mixed_line_is_cut_within_a_twentieth_of_the_best_cut,
        layers_of_any_types_are_cut_well_over_machines_of_any_speeds;
];
