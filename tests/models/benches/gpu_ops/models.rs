//! Whole models, some layers of them: what the host's clock says of a ubatch, and which kernels the device's time goes to.

use std::sync::Arc;
use std::time::Instant;

use brigade_engine::batch::{
    PageId, SamplerSetup, SamplingParams, SeqOp, SeqPart, SlotId, UBatch, Want,
};
use brigade_engine::device::{DeviceName, Devices, KernelTime};
use brigade_engine::kernels::{KV_PAGE, KvType};
use brigade_engine::stage::{Stage, StageConfig};
use brigade_gguf::Gguf;
use brigade_synth::{Arch, FileType, Shape, Spec};

use crate::Options;
use crate::warm::Warm;

/// Architecture, size, types of weights, and how many layers there are.
const MODELS: [(&str, &str, &str, usize); 4] = [
    ("llama", "0.6b", "Q4_K_M", 28),
    ("llama", "8b", "Q4_K_M", 16),
    ("granitehybrid", "3b", "Q4_K_M", 8),
    ("qwen3moe", "30b-a3b", "Q4_K_M", 8),
];
/// Sequences, and rows of each: decode of one, a small batch, a large one, a prompt.
const UBATCHES: [(usize, usize); 4] = [(1, 1), (8, 1), (32, 1), (1, 512)];
/// Positions that each sequence has room for.
const POSITIONS: usize = 1024;
/// Ubatches that are measured.
const TIMES: usize = 8;
/// Kernels that are printed of each.
const LONGEST: usize = 14;

pub fn run(options: &Options, warm: &mut Warm) -> Result<(), String> {
    for (arch, size, quant, n_layer) in MODELS {
        if !options.wants(&format!("{arch} {size} {quant}")) {
            continue;
        }
        let size = if options.small { "tiny-moe" } else { size };
        let path = std::env::temp_dir().join(format!("brigade-ops-{arch}-{size}-{quant}.gguf"));
        if !path.is_file() {
            let named = Shape::named(size).map_err(|error| error.to_string())?;
            let shape = Shape { n_layer: named.n_layer.min(n_layer), ..named.clone() };
            let (arch, quant) = (Arch::named(arch), FileType::named(quant));
            let arch = arch.map_err(|error| error.to_string())?;
            let quant = quant.map_err(|error| error.to_string())?;
            let spec = Spec { arch, shape, quant, seed: 1, header_only: false };
            brigade_synth::write(&spec, &path).map_err(|error| error.to_string())?;
        }
        let model = Arc::new(Gguf::open(&path).map_err(|error| error.to_string())?);
        println!("### {arch} {size} {quant}, at most {n_layer} layers\n");
        let mut stage = load(options, &model, false)?;
        let mut took = Vec::new();
        for (n_parts, n_rows) in UBATCHES {
            pass(&mut stage, n_parts, n_rows)?;
            warm.up()?;
            took.push(pass(&mut stage, n_parts, n_rows)?);
        }
        drop(stage);
        let mut stage = load(options, &model, true)?;
        for ((n_parts, n_rows), took) in UBATCHES.into_iter().zip(took) {
            warm.up()?;
            stage.kernel_times();
            pass(&mut stage, n_parts, n_rows)?;
            print(n_parts, n_rows, took, &stage.kernel_times());
        }
    }
    Ok(())
}

/// Prints a ubatch's time by the host's clock, and its longest kernels.
fn print(n_parts: usize, n_rows: usize, took: f64, times: &[KernelTime]) {
    let of_device: f64 = times.iter().map(|time| time.took.as_secs_f64()).sum::<f64>() * 1e6;
    let n = (TIMES + 1) as f64;
    let runs: u32 = times.iter().map(|time| time.runs).sum();
    println!(
        "{n_parts} sequences of {n_rows} rows: {:.0} us a ubatch by the host's clock, of kernels {:.0} us in {:.0} runs\n",
        took * 1e6,
        of_device / n,
        f64::from(runs) / n,
    );
    println!("| kernel | constants | groups | runs | us | share |\n|---|---|---|---|---|---|");
    for KernelTime { name, constants, groups, runs, took } in times.iter().take(LONGEST) {
        let took = took.as_secs_f64() * 1e6;
        println!(
            "| {name} | {constants:?} | {groups:?} | {:.1} | {:.1} | {:.1} % |",
            f64::from(*runs) / n,
            took / n,
            took / of_device * 100.0
        );
    }
    println!();
}

fn load(options: &Options, model: &Arc<Gguf>, timed: bool) -> Result<Stage, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let devices = Devices::new(options.of_gpu(timed));
    let name: DeviceName = format!("vulkan:{}", options.device).parse()?;
    let device = devices.open(&name, 8, None).map_err(|e| text(&e))?;
    let described = brigade_models::described(model).map_err(|error| text(&error))?;
    let n_slots = 32;
    let config = StageConfig {
        n_slots,
        n_blocks: (n_slots * POSITIONS / KV_PAGE) as u32,
        kv_type: KvType::F16,
        n_ctx: POSITIONS as u32,
        max_rows: 512,
        windows: false,
        control_vectors: None,
        host_experts: 0,
        own_drafts: false,
    };
    let layers = 0..brigade_models::describe(model).map_err(|e| text(&e))?.n_layer();
    Stage::load(&described, model.clone(), layers, config, device, &mut |_| {})
        .map_err(|e| text(&e))
}

/// Seconds of a ubatch: the median of some, behind one that compiles.
fn pass(stage: &mut Stage, n_parts: usize, n_rows: usize) -> Result<f64, String> {
    let greedy = SamplerSetup { params: SamplingParams::greedy(), ..SamplerSetup::default() };
    let pages = (POSITIONS / KV_PAGE) as u32;
    let open = |slot: SlotId| SeqOp::Open {
        slot,
        blocks: (slot.0 * pages..(slot.0 + 1) * pages).map(PageId).collect(),
        sampler: Some(Arc::new(greedy.clone())),
        request: "bench".into(),
    };
    let mut run = |ops: Vec<SeqOp>, parts: Vec<SeqPart>| {
        let start = Instant::now();
        let ran = stage.forward(&UBatch { id: 0, ops, parts }, None);
        ran.map(|_| start.elapsed().as_secs_f64()).map_err(|error| error.to_string())
    };
    let slots = || (0..n_parts as u32).map(SlotId);
    let close = || slots().map(|slot| SeqOp::Close { slot }).collect();
    let mut times = Vec::new();
    for time in 0..=TIMES {
        // A prompt is read from its beginning each time; decode goes on.
        let is_first = time == 0 || n_rows > 1;
        let part = |slot: SlotId| SeqPart {
            slot,
            pos: if is_first { 0 } else { (time * n_rows) as u32 },
            tokens: (0..n_rows as u32).map(|i| (i * 7 + slot.0) % 300).collect(),
            want: Want::Sample,
            mu: None,
            ahead: None,
        };
        let ops = if is_first { slots().map(open).collect() } else { Vec::new() };
        let took = run(ops, slots().map(part).collect())?;
        if time > 0 {
            times.push(took);
        }
        if n_rows > 1 || time == TIMES {
            run(close(), Vec::new())?;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
