//! A stage of two devices: routed experts of some layers lie with the host and are computed there, all the rest is a GPU's. No byte
//! depends on which layers these are. Machines without a Vulkan driver skip.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use brigade_engine::batch::{SeqPart, SlotId, Want};
use brigade_engine::device::{Device, DeviceOptions, Devices, ExpertCounts, Visits, gpus};
use brigade_engine::stage::{KeptWeights, Stage, StageConfig};
use brigade_engine::weights::{TensorBytes, TensorSource};
use brigade_gguf::{Gguf, GgufError, TensorInfo};
use brigade_gpu::{Gpu, TransferQueue};
use brigade_model_tests::each::each;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig, ONE_SEQUENCE};

/// Models of every form that experts have: with and without shared experts, biases, groups, a width of their own, weights before
/// them, norms for each branch, and beside every kind of mixer.
const MODELS: [&str; 12] = [
    "deepseek2",
    "gemma4-moe",
    "glm4moe",
    "gpt-oss-mxfp4",
    "granitehybrid",
    "grovemoe",
    "kimi-k3",
    "kimi-linear",
    "llama4",
    "nemotron_h_moe",
    "qwen3next",
    "qwen3vlmoe",
];

/// Models among these whose experts differ most: plain ones, with biases, with two mixtures in a layer, and with
/// weights before them.
const SENT: [&str; 4] = ["qwen3vlmoe", "gpt-oss-mxfp4", "grovemoe", "llama4"];

/// Rows of the prompt, and of one of its ubatches: what is left for the last one is a single row.
const PROMPT: usize = 15;
/// Rows of a text that is long enough for experts to be used again.
const LONG: usize = 30;
const N_UBATCH: usize = 7;
/// Room for copies of some of a small model's experts.
const ROOM_FOR_COPIES: u64 = 100_000;
/// Steps of decode before which all memory has been taken once.
const WARM: u32 = 10;

/// The first GPU as a card with a transfer queue, which is the queue of kernels under another name where it has no other.
static TRANSFERRING: LazyLock<Arc<Gpu>> = LazyLock::new(|| {
    let options = DeviceOptions { apart: true, ..DeviceOptions::default() };
    let own = Gpu::devices().unwrap()[0].transfer_queue;
    let queue = if own == TransferQueue::Kernels { TransferQueue::Shared } else { own };
    Arc::new(Gpu::open_with(0, &options, Some(queue)).unwrap())
});

/// That GPU as a stage's device.
fn transferring(_stage: usize) -> Device {
    let device = Device::beside_host(TRANSFERRING.clone(), "vulkan:0", 1, None).unwrap();
    assert!(device.sends_beside());
    device
}

/// Logits as bits with experts of layers before `host_experts` beside the GPU.
fn logits(path: &Path, tokens: &[u32], config: &LineConfig) -> Vec<u32> {
    let rows = Line::open(path, config).logits(tokens, N_UBATCH);
    rows.into_iter().flatten().map(f32::to_bits).collect()
}

fn where_experts_lie_changes_no_byte() {
    if let Err(reason) = gpus() {
        return println!("skipped: {reason}");
    }
    let golden = Golden::repository();
    let differ = Mutex::new(Vec::new());
    each(&MODELS, |name| {
        let path = golden.named(name);
        let tokens = &golden.manifest.tokens[..PROMPT];
        let n_layer = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
        let on = |kernels, host_experts: usize| {
            let host_experts = host_experts as u32;
            LineConfig { kernels: Some(kernels), host_experts, ..LineConfig::default() }
        };
        let want = logits(&path, tokens, &on("unfused", 0));
        for n in [0, n_layer.div_ceil(2), n_layer] {
            // Once as memory that both see, once as a card's own.
            let config = LineConfig { apart: n == n_layer, ..on("vulkan:0", n) };
            if logits(&path, tokens, &config) != want {
                differ.lock().unwrap().push(format!("{name} with {n} layers of {n_layer}"));
            }
        }
    });
    let differ = differ.into_inner().unwrap();
    println!("{} models, each with experts of no, half and all layers on the host", MODELS.len());
    assert!(differ.is_empty(), "other bits: {}", differ.join(", "));
}

/// The GPU gets experts that lie with the host, for ubatches in which they have many rows, or some. The bits are the
/// same as if none was sent, with memory that both see and with a card's own.
fn experts_that_are_sent_change_no_byte() {
    if let Err(reason) = gpus() {
        return println!("skipped: {reason}");
    }
    let golden = Golden::repository();
    let differ = Mutex::new(Vec::new());
    each(&SENT, |name| {
        let path = golden.named(name);
        let tokens = &golden.manifest.tokens[..PROMPT];
        let config = LineConfig { kernels: Some("unfused"), ..LineConfig::default() };
        let want = logits(&path, tokens, &config);
        for (least, apart) in [(1, false), (2, true)] {
            let config = LineConfig {
                kernels: Some("vulkan:0"),
                host_experts: u32::MAX,
                visits: Visits::From(least),
                apart,
                ..LineConfig::default()
            };
            let mut line = Line::open(&path, &config);
            let rows = line.logits(tokens, N_UBATCH);
            let got: Vec<u32> = rows.into_iter().flatten().map(f32::to_bits).collect();
            let stage = &line.stages()[0];
            let ExpertCounts { device_rows: here, host_rows: host, sent_bytes: bytes, .. } =
                stage.expert_counts();
            println!(
                "{name}, from {least} rows: {here} rows here, {host} with the host, {bytes} bytes sent"
            );
            assert!(bytes > 0 && here > 0, "{name}: nothing was sent");
            assert_eq!(host == 0, least == 1, "{name}, from {least} rows");
            if got != want {
                differ.lock().unwrap().push(format!("{name} from {least} rows"));
            }
        }
    });
    let differ = differ.into_inner().unwrap();
    assert!(differ.is_empty(), "other bits: {}", differ.join(", "));
}

/// The bits are the same where experts come by a queue of their own, some for a ubatch and some as copies that stay and
/// go, while the queue of kernels computes.
fn experts_by_a_queue_of_their_own_change_no_byte() {
    if let Err(reason) = gpus() {
        return println!("skipped: {reason}");
    }
    let golden = Golden::repository();
    let (differ, n_with_experts) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    each(&MODELS, |name| {
        let path = golden.named(name);
        let tokens = &golden.manifest.tokens[..PROMPT];
        let config = LineConfig { kernels: Some("unfused"), ..LineConfig::default() };
        let want = logits(&path, tokens, &config);
        for (least, copies) in [(1, 0), (2, ROOM_FOR_COPIES)] {
            let config = LineConfig {
                kernels: Some("vulkan:0"),
                host_experts: u32::MAX,
                visits: Visits::From(least),
                copies,
                ..LineConfig::default()
            };
            let mut line = Line::open_on(&path, &config, &transferring);
            let rows = line.logits(tokens, N_UBATCH);
            let got: Vec<u32> = rows.into_iter().flatten().map(f32::to_bits).collect();
            let bytes = line.stages()[0].expert_counts().sent_bytes;
            println!("{name}, from {least} rows, {copies} bytes of copies: {bytes} bytes sent");
            let has_experts = line.stages()[0].facts().host_expert_bytes > 0;
            assert_eq!(bytes > 0, has_experts, "{name}, from {least} rows");
            n_with_experts.fetch_add(u64::from(has_experts), Ordering::Relaxed);
            if got != want {
                differ.lock().unwrap().push(format!("{name} from {least} rows, {copies} bytes"));
            }
        }
    });
    let n_with_experts = n_with_experts.into_inner() / 2;
    println!("{n_with_experts} models with experts of the host");
    assert!(n_with_experts >= 10, "{n_with_experts} models");
    let differ = differ.into_inner().unwrap();
    assert!(differ.is_empty(), "other bits: {}", differ.join(", "));
}

/// A random choice of all that says where experts are computed, and when.
fn random_config(
    random: &mut impl FnMut(usize) -> usize,
    n_layer: usize,
    bytes: u64,
) -> LineConfig {
    let visits = match random(3) {
        0 => Visits::Never,
        _ => Visits::From(1 + random(5)),
    };
    LineConfig {
        kernels: Some("vulkan:0"),
        cuts: if random(3) == 0 { vec![1 + random(n_layer - 1)] } else { Vec::new() },
        host_experts: random(n_layer + 1) as u32,
        visits,
        // Of none, of a few that come and go, and of nearly all.
        copies: bytes * random(5) as u64 / 4,
        apart: random(2) == 1,
        threads: 1 + random(2),
        ..LineConfig::default()
    }
}

/// Random placements, thresholds, rooms for copies and ubatches, with moves of experts while rows come: one answer.
fn random_places_give_one_answer(n_cases: usize) {
    if let Err(reason) = gpus() {
        return println!("skipped: {reason}");
    }
    let golden = Golden::repository();
    let (n_all, n_differ) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let counts = [const { AtomicU64::new(0) }; 4];
    each(&SENT, |name| {
        let path = golden.named(name);
        let tokens = &golden.manifest.tokens[..LONG.min(golden.manifest.tokens.len())];
        let spec = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap();
        let config = LineConfig { kernels: Some("unfused"), ..LineConfig::default() };
        let want = logits(&path, tokens, &config);
        let host = LineConfig {
            kernels: Some("vulkan:0"),
            host_experts: u32::MAX,
            ..LineConfig::default()
        };
        let bytes = Line::open(&path, &host).stages()[0].facts().host_expert_bytes;
        let mut state = 1 + name.len() as u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for case in 0..n_cases.div_ceil(SENT.len()) {
            let config = random_config(&mut random, spec.n_layer(), bytes);
            let n_ubatch = [1, 1, 3, 7, 15][random(5)];
            let has_transfers = random(2) == 1;
            let mut line = if has_transfers {
                Line::open_on(&path, &config, &transferring)
            } else {
                Line::open(&path, &config)
            };
            let rows = line.logits(tokens, n_ubatch);
            let got: Vec<u32> = rows.into_iter().flatten().map(f32::to_bits).collect();
            for stage in line.stages() {
                let n = stage.expert_counts();
                let all = [n.device_rows, n.host_rows, n.copy_rows, n.sent_bytes];
                counts.iter().zip(all).for_each(|(sum, n)| _ = sum.fetch_add(n, Ordering::Relaxed));
            }
            n_all.fetch_add(1, Ordering::Relaxed);
            if got != want {
                let LineConfig { cuts, host_experts, visits, copies, .. } = &config;
                let what = format!(
                    "{name} case {case}, transfer queue {has_transfers}: cuts {cuts:?}, {host_experts} layers, {visits:?}, {copies} bytes of copies, ubatches of {n_ubatch}"
                );
                n_differ.lock().unwrap().push(what);
            }
        }
    });
    let [here, host, copies, sent] = counts.each_ref().map(|n| n.load(Ordering::Relaxed));
    println!(
        "{} cases: {here} rows on the GPU, of which {copies} with copies, {host} with the host, {sent} bytes sent",
        n_all.load(Ordering::Relaxed)
    );
    let differ = n_differ.into_inner().unwrap();
    assert!(differ.is_empty(), "other bits: {}", differ.join("; "));
    assert!(here > 0 && host > 0 && copies > 0 && sent > 0, "every place is used");
}

fn a_few_random_places_give_one_answer() {
    random_places_give_one_answer(12);
}

fn two_thousand_random_places_give_one_answer() {
    random_places_give_one_answer(2000);
}

/// Counts for a step of decode, in a stage whose experts of layers before `n` lie with the host.
fn step(line: &mut Line, tokens: &[u32]) -> (u64, u64) {
    let mut ops = vec![Line::open_slot(0, Some(Line::greedy()))];
    let mut last = (0, 0);
    for (pos, token) in (0..WARM).zip(tokens) {
        let (waits, handed) = (line.stages()[0].n_waits(), line.stages()[0].handed());
        let (slot, tokens) = (SlotId(0), vec![*token]);
        let part = SeqPart { slot, pos, tokens, want: Want::Sample, mu: None, ahead: None };
        line.run(std::mem::take(&mut ops), vec![part]);
        let stage = &line.stages()[0];
        last = (stage.n_waits() - waits, stage.handed().recorded - handed.recorded);
    }
    last
}

/// Experts that lie with the host are counted. The host waits once for each of their layers, for rows and routing
/// together, and once for what leaves the stage. Steps of decode are recorded once. A rehearsal finds all kernels.
fn experts_beside_are_counted_and_waited_for_once() {
    if let Err(reason) = gpus() {
        return println!("skipped: {reason}");
    }
    let golden = Golden::repository();
    for name in ["qwen3vlmoe", "gpt-oss-mxfp4", "nemotron_h_moe"] {
        let path = golden.named(name);
        let spec = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap();
        let n_layer = spec.n_layer();
        let mut of_all = None;
        for n in [n_layer, n_layer.div_ceil(2), 0] {
            let config = LineConfig {
                kernels: Some("vulkan:0"),
                host_experts: n as u32,
                ..LineConfig::default()
            };
            let mut line = Line::open(&path, &config);
            line.stages()[0].rehearse().unwrap();
            let compiled = line.stages()[0].n_kernels();
            let (waits, recorded) = step(&mut line, &golden.manifest.tokens);
            let missed = line.stages()[0].n_kernels() - compiled;
            let facts = line.stages()[0].facts();
            let (all, beside) = (facts.weight_bytes, facts.host_expert_bytes);
            println!(
                "{name}, {n} layers: {beside} of {all} bytes with the host, {waits} waits in a step, {recorded} batches \
                 recorded again, {missed} kernels missed"
            );
            let n_beside = spec.layers[..n].iter().filter(|layer| layer.has_experts()).count();
            assert_eq!(waits, 1 + n_beside as u64, "{name}, {n} layers: waits");
            assert_eq!((recorded, missed), (0, 0), "{name}, {n} layers");
            assert_eq!(beside > 0, n_beside > 0, "{name}, {n} layers");
            assert_eq!(all, *of_all.get_or_insert(all), "{name}: bytes of all weights");
        }
    }
}

/// A model's tensors, which notes the layers that were asked for.
struct Watched {
    model: Arc<Gguf>,
    layers: Mutex<BTreeSet<usize>>,
}

impl TensorSource for Watched {
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<TensorBytes<'a>, GgufError> {
        self.layers.lock().unwrap().extend(brigade_spec::layer_of(&tensor.name));
        self.model.data(tensor).map(TensorBytes::from)
    }
}

/// When another number of layers has its experts with the host, only the layers between are loaded anew.
fn layers_whose_experts_move_are_loaded_anew() {
    if let Err(reason) = gpus() {
        return println!("skipped: {reason}");
    }
    let golden = Golden::repository();
    let model = Arc::new(Gguf::open(golden.named("qwen3vlmoe")).unwrap());
    let devices = Devices::default();
    let mut kept = KeptWeights::default();
    // Bytes of a layer's experts: the first stage has those of one with the host.
    let mut of_one = None;
    let mut before = 0;
    for (host_experts, read) in [(1, 0..4), (3, 1..3), (3, 0..0), (0, 0..3), (u32::MAX, 0..4)] {
        let source = Arc::new(Watched { model: model.clone(), layers: Mutex::default() });
        let config = StageConfig { host_experts, ..ONE_SEQUENCE };
        let stage = Stage::load_keeping(
            &brigade_models::described(&model).unwrap(),
            source.clone(),
            0..4,
            config,
            devices.open(&"vulkan:0".parse().unwrap(), 1, None).unwrap(),
            &mut kept,
            &mut |_| {},
        )
        .unwrap();
        let layers = source.layers.lock().unwrap().clone();
        assert_eq!(layers, read.collect(), "{before} to {host_experts}");
        let beside = stage.facts().host_expert_bytes;
        let one = *of_one.get_or_insert(beside);
        assert_eq!(beside, one * u64::from(host_experts.min(4)), "{host_experts} layers");
        before = host_experts;
        kept = stage.into_kept();
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        where_experts_lie_changes_no_byte,
        experts_that_are_sent_change_no_byte,
        experts_by_a_queue_of_their_own_change_no_byte,
        a_few_random_places_give_one_answer,
        two_thousand_random_places_give_one_answer ignored("takes an hour: at night"),
        layers_whose_experts_move_are_loaded_anew;
    alone: experts_beside_are_counted_and_waited_for_once;
];
