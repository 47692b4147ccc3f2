//! The planner's promises, by examples; random cases are `plan_random`. Cuts are as good as the best of all possible
//! ones, memory is never exceeded, and equal workers get equal work.

use std::ops::Range;

use brigade_engine::kernels::KvType;
use brigade_gguf::Gguf;
use brigade_plan::{
    Balance, ByClass, DraftFacts, HandCut, Keep, LayerFacts, LinkFacts, LoadingMemory, ModelFacts,
    Plan, PlanError, PlanSettings, ProductClass, WorkerFacts, plan, plan_by_hand, plan_line,
};
use brigade_synth::{Arch, FileType, Shape, Spec};

/// The reference model of the benchmarks in Q4_K_M: 32 layers, and a head worth more than two of them.
fn reference() -> ModelFacts {
    let elements = 15_204_352;
    let bits = |elements: u64, bits: u64| elements * bits / 8;
    let layer = LayerFacts {
        weight_bytes: bits(elements, 5),
        elements: few_bits(elements),
        kv_bytes: 4 * 64 * 2 * 2,
        kv_small_bytes: 0,
        ..LayerFacts::default()
    };
    let vocab = 32_000 * 1024;
    ModelFacts {
        name: "0.6b".to_owned(),
        layers: vec![layer; 32],
        embedding_bytes: bits(vocab, 5),
        head_bytes: bits(vocab, 5),
        head_elements: few_bits(vocab),
        drafts: DraftFacts::default(),
        cut_bytes: (0..32).map(|i| if i == 0 { 0 } else { 4096 }).collect(),
        scratch_bytes_per_row: 100_000,
        logits_bytes: 128_000,
        loading: LoadingMemory::default(),
        n_ctx_train: 4096,
        stored: Default::default(),
    }
}

/// Elements of weights of few bits.
pub fn few_bits(elements: u64) -> ByClass<u64> {
    ByClass::only(ProductClass::Nibble, elements)
}

/// Equal workers with so much memory each.
pub fn workers(n: usize, memory: u64) -> Vec<WorkerFacts> {
    let worker = |i| WorkerFacts {
        name: format!("w{i}"),
        memory,
        gbps: 10.0,
        gops: ByClass::all(200.0),
        link: None,
        host: None,
        holds: 0..0,
        node: None,
        disk: None,
    };
    (0..n).map(worker).collect()
}

pub fn slowest(plan: &Plan) -> f64 {
    plan.stages.iter().map(|s| s.time.unit_us(&plan.settings)).fold(0.0, f64::max)
}

pub fn layers(plan: &Plan) -> Vec<Range<usize>> {
    plan.stages.iter().map(|s| s.layers.clone()).collect()
}

fn no_cut_by_hand_beats_the_planner() {
    let (model, workers) = (reference(), workers(3, 4 << 30));
    let settings = PlanSettings { max_seqs: 1, ..PlanSettings::default() };
    let own = slowest(&plan(&model, &workers, &settings).unwrap());
    for first in 1..31 {
        for second in first + 1..32 {
            let cut = HandCut::Borders(vec![first, second]);
            let plan = plan_by_hand(&model, &workers, &settings, &cut).unwrap();
            assert_eq!(layers(&plan), [0..first, first..second, second..32]);
            assert!(slowest(&plan) >= own * (1.0 - 1e-9), "{cut}");
            assert!(plan.stages.iter().all(|s| s.memory.total() <= 4 << 30), "{cut}");
        }
    }
}

/// Blocks of drafts are worth layers to some keys and nothing to others: no cut does better by those that it serves worse.
fn a_cut_is_for_keys_whose_drafts_are_right_and_for_others() {
    let (workers, settings) = (workers(2, 4 << 30), PlanSettings::default());
    let mut cuts = Vec::new();
    for layers_worth in [1, 3, 12] {
        let mut model = reference();
        let LayerFacts { weight_bytes, elements, .. } = model.layers[0];
        model.drafts = DraftFacts {
            weight_bytes: layers_worth * weight_bytes,
            elements: elements.map(|n| layers_worth * n),
            entry_elements: layers_worth * elements.sum() / 2,
            ..DraftFacts::default()
        };
        let of_cut = |first: usize| {
            let plan =
                plan_by_hand(&model, &workers, &settings, &HandCut::Borders(vec![first])).unwrap();
            let drafting = plan.stages.iter().map(|s| s.time.drafting_unit_us(&settings));
            [slowest(&plan), drafting.fold(0.0, f64::max)]
        };
        let all: Vec<[f64; 2]> = (1..32).map(of_cut).collect();
        let best = [0, 1].map(|i| all.iter().map(|us| us[i]).fold(f64::INFINITY, f64::min));
        let worse = |us: &[f64; 2]| (us[0] / best[0]).max(us[1] / best[1]);
        let chosen = plan(&model, &workers, &settings).unwrap().stages[0].layers.end;
        let least = all.iter().map(worse).fold(f64::INFINITY, f64::min);
        assert!(worse(&all[chosen - 1]) <= least * (1.0 + 1e-9), "{layers_worth}: {chosen}");
        cuts.push(chosen);
    }
    // Without blocks it is 17; the more they take the fewer layers are beside them.
    assert!(cuts.is_sorted() && cuts[0] >= 17 && cuts[2] > cuts[0], "{cuts:?}");
}

fn a_line_takes_the_workers_that_its_cut_names_and_no_fewer() {
    let (model, settings) = (reference(), PlanSettings::default());
    let cut = HandCut::shares("2,1,1").unwrap();
    let line = |n| plan_line(&model, &workers(n, 4 << 30), &settings, Some(&cut));
    let names = |plan: &Plan| plan.stages.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&line(3).unwrap()), ["w0", "w1", "w2"]);
    assert_eq!(names(&line(5).unwrap()), ["w0", "w1", "w2"], "the others are spare");
    let error = line(2).unwrap_err().to_string();
    assert!(error.contains("3 shares, and there are 2 workers"), "{error}");
}

fn two_equal_workers_share_the_reference_model_by_work() {
    let decode_only =
        PlanSettings { prompt_per_generated: 0.0, typical_positions: 0, ..PlanSettings::default() };
    let plan = plan(&reference(), &workers(2, 4 << 30), &decode_only).unwrap();
    println!("{}", plan.explain());
    assert_eq!(layers(&plan), [0..17, 17..32]);
    // 34.16 layers of work; 17 of 17.16 are done while the slower one does its 17.16.
    assert!(plan.balance() * 2.0 > 1.98, "{}", plan.balance());
    assert!(plan.explain().contains("the head costs as much as 2.16"), "{}", plan.explain());
}

fn prompts_alone_are_shared_by_layers() {
    let settings = PlanSettings { prompt_per_generated: 1e6, ..PlanSettings::default() };
    let plan = plan(&reference(), &workers(2, 4 << 30), &settings).unwrap();
    assert_eq!(layers(&plan), [0..16, 16..32]);
}

fn each_goal_is_reached_at_the_cost_of_the_other() {
    let cut_for = |balance: Balance| {
        let settings = PlanSettings {
            prompt_per_generated: balance.prompt_per_generated(),
            typical_positions: 0,
            ..PlanSettings::default()
        };
        plan(&reference(), &workers(2, 4 << 30), &settings).unwrap()
    };
    let [prefill, mixed, decode] = [Balance::PREFILL, Balance::MIXED, Balance::DECODE].map(cut_for);
    let sizes = |plan: &Plan| layers(plan).iter().map(ExactSizeIterator::len).collect::<Vec<_>>();
    assert_eq!((sizes(&prefill), sizes(&decode)), (vec![16, 16], vec![17, 15]));
    // 32 of 34 layers' time; with the head worth 2.16 of them, 34.16 of 36.3.
    let at = |plan: &Plan, balance| (plan.balance_of(balance) * 200.0).round();
    assert_eq!((at(&prefill, Balance::PREFILL), at(&decode, Balance::PREFILL)), (200.0, 188.0));
    assert_eq!((at(&prefill, Balance::DECODE), at(&decode, Balance::DECODE)), (188.0, 199.0));
    // Between the two, the chosen goal counts: no other cut is better at it.
    assert!(mixed.balance() >= prefill.balance_of(Balance::MIXED));
    assert!(mixed.balance() >= decode.balance_of(Balance::MIXED));
    assert!(prefill.describe_balance().starts_with("2.00x of 2 in prefill, 1.88x"));
}

fn equal_workers_are_within_one_layer_of_ideal() {
    for n in 1..=16 {
        let settings = PlanSettings::default();
        let whole = plan(&reference(), &workers(1, 64 << 30), &settings).unwrap();
        let parts = plan(&reference(), &workers(n, 64 << 30), &settings).unwrap();
        let layer = whole.stages[0].time.unit_us(&settings) / 32.0;
        let ideal = slowest(&whole) / n as f64;
        assert!(slowest(&parts) < ideal + layer, "{n} workers: {}", parts.explain());
    }
}

fn faster_workers_get_more() {
    let mut workers = workers(2, 8 << 30);
    (workers[0].gbps, workers[0].gops) = (30.0, ByClass::all(600.0));
    let plan = plan(&reference(), &workers, &PlanSettings::default()).unwrap();
    let n: Vec<usize> = layers(&plan).iter().map(ExactSizeIterator::len).collect();
    assert!((24..=27).contains(&n[0]), "{}", plan.explain());
}

fn a_slow_link_moves_the_cut() {
    let mut model = reference();
    model.cut_bytes[1..].iter_mut().for_each(|bytes| *bytes = 1 << 20);
    model.cut_bytes[10] = 1 << 10;
    let mut workers = workers(2, 8 << 30);
    workers[0].link = Some(LinkFacts { gbps: 0.05, latency_us: 100.0 });
    let plan = plan(&model, &workers, &PlanSettings::default()).unwrap();
    assert_eq!(layers(&plan)[0], 0..10, "{}", plan.explain());
}

fn what_does_not_fit_is_told_in_bytes_with_remedies() {
    let error = plan(&reference(), &workers(2, 200 << 20), &PlanSettings::default()).unwrap_err();
    let PlanError::DoesNotFit(shortage) = &error else { panic!("{error}") };
    assert!(!shortage.short.is_empty() && shortage.needed > shortage.available, "{shortage:?}");
    let text = error.to_string();
    println!("{text}");
    for says in ["w1 lacks", "makes it fit: one more worker with", "--ctx ", "--ubatch ", "MiB"] {
        assert!(text.contains(says), "{text} does not say {says}");
    }
}

fn workers_are_reordered_when_only_that_fits() {
    let mut model = reference();
    // A layer that only the large worker holds, at the end of the line.
    model.layers[31].weight_bytes = 3 << 30;
    let mut workers = workers(3, 300 << 20);
    workers[0].memory = 4 << 30;
    let plan = plan(&model, &workers, &PlanSettings::default()).unwrap();
    assert_eq!(plan.stages.last().unwrap().worker, 0, "{}", plan.explain());
    assert!(plan.notes[0].contains("reordered"), "{:?}", plan.notes);
}

fn kv_cache_takes_what_is_left_and_says_when_it_is_less() {
    let settings = PlanSettings { max_seqs: 64, ..PlanSettings::default() };
    let rich = plan(&reference(), &workers(2, 16 << 30), &settings).unwrap();
    assert_eq!(rich.capacity.n_blocks, 64 * 64);
    assert!(rich.notes.is_empty(), "{:?}", rich.notes);
    let poor = plan(&reference(), &workers(2, 1 << 30), &settings).unwrap();
    assert!((64..64 * 64).contains(&poor.capacity.n_blocks), "{:?}", poor.capacity);
    assert!(poor.notes[0].contains("memory is short"), "{:?}", poor.notes);
    // One page more would not fit, or would cost too much speed; here memory is what limits.
    let page: u64 =
        poor.stages.iter().map(|s| s.memory.kv).max().unwrap() / u64::from(poor.capacity.n_blocks);
    assert!(poor.stages.iter().any(|s| s.memory_left < 2 * page), "{}", poor.explain());
}

fn a_plan_is_json() {
    let plan = plan(&reference(), &workers(2, 8 << 30), &PlanSettings::default()).unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["stages"][1]["layers"]["end"], 32);
    assert_eq!(json["stages"][1]["head"], true);
}

/// Facts of a synthetic model, from a file with nothing but the header.
fn synthetic(size: &str, quant: &str, arch: &str) -> ModelFacts {
    let spec = Spec {
        arch: Arch::named(arch).unwrap(),
        shape: Shape::named(size).unwrap(),
        quant: FileType::named(quant).unwrap(),
        seed: 1,
        header_only: true,
    };
    let name = format!("brigade-plan-{}-{size}-{quant}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    brigade_synth::write(&spec, &path).unwrap();
    let model = Gguf::open_header_only(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    ModelFacts::from_gguf(&model, KvType::F16).unwrap()
}

fn facts_of_the_reference_model() {
    let facts = synthetic("0.6b", "Q4_K_M", "llama");
    assert_eq!(facts.layers.len(), 32);
    assert_eq!(facts.layers[7].elements.sum(), 15_204_352);
    assert_eq!(facts.head_elements, ByClass::only(ProductClass::Halves, 32_768_000));
    assert_eq!((facts.layers[7].kv_bytes, facts.layers[7].state_bytes()), (2 * 4 * 64 * 2, 0));
    assert_eq!((facts.cut_bytes[0], facts.cut_bytes[1]), (0, 4096));
    // Between four and six bits an element, packing included.
    let bits = 8.0 * facts.layers[7].weight_bytes as f64 / facts.layers[7].elements.sum() as f64;
    assert!((4.0..6.0).contains(&bits), "{bits} bits");
    let halves = plan(&facts, &workers(2, 4 << 30), &PlanSettings::default()).unwrap();
    println!("{}", halves.explain());
    assert_eq!(layers(&halves), [0..17, 17..32]);
}

fn two_rows_of_rwkv7_cross_a_cut() {
    let facts = synthetic("0.6b", "Q8_0", "rwkv7");
    assert_eq!((facts.cut_bytes[0], facts.cut_bytes[1]), (0, 2 * 4096));
    // The last inputs of both blocks, and a square matrix for each of 16 heads.
    let layer = &facts.layers[3];
    assert_eq!((layer.conv_bytes, layer.scan_bytes), (4 * 2 * 1024, 4 * 16 * 64 * 64));
}

fn facts_of_a_mixture_of_experts() {
    let facts = synthetic("30b-a3b", "Q4_K_M", "qwen3moe");
    let layer = &facts.layers[0];
    assert_eq!(layer.expert_share, 8.0 / 128.0);
    let layers: ByClass<u64> = facts.layers.iter().map(|l| l.elements).sum();
    let active = (layers + facts.head_elements).sum();
    // "30B-A3B": 3.3 thousand million active, of which the embedding is no work.
    assert!((2_900_000_000..3_400_000_000).contains(&active), "{active}");
    let all: u64 = facts.layers.iter().map(|l| l.weight_bytes).sum();
    assert!((14 << 30..22 << 30).contains(&all), "{all}");
    let four = plan(&facts, &workers(4, 10 << 30), &PlanSettings::default()).unwrap();
    assert_eq!(four.stages.len(), 4);
    assert!(four.balance() > 0.95, "{}", four.explain());
}

/// The published shape of Kimi K3 in its own types, as sums of FFNs and mixers. It has 93 layers of 896
/// experts, of which a token uses 16. Three of four layers have a state, and a cut carries all that residual
/// attention keeps.
fn kimi_k3() -> ModelFacts {
    let (expert_bytes, dense_bytes) = (16_000_000_000, 1_100_000_000);
    let layer = |i: usize| LayerFacts {
        weight_bytes: expert_bytes + dense_bytes,
        expert_bytes,
        expert_share: 16.0 / 896.0,
        elements: few_bits(1_100_000_000),
        kv_bytes: if i % 4 == 3 { 2 * 576 } else { 0 },
        kv_small_bytes: 0,
        scan_bytes: if i % 4 == 3 { 0 } else { 96 * 128 * 128 * 4 },
        ..LayerFacts::default()
    };
    let vocab = 163_840 * 7_168;
    ModelFacts {
        name: "k3".to_owned(),
        layers: (0..93).map(layer).collect(),
        embedding_bytes: 2 * vocab,
        head_bytes: 2 * vocab,
        head_elements: few_bits(vocab),
        drafts: DraftFacts::default(),
        cut_bytes: (0..93)
            .map(|c: u64| if c == 0 { 0 } else { (1 + c.div_ceil(12)) * 28_672 })
            .collect(),
        scratch_bytes_per_row: 4_000_000,
        logits_bytes: 655_360,
        loading: LoadingMemory::default(),
        n_ctx_train: 1 << 20,
        stored: Default::default(),
    }
}

/// Eight servers of 512 GB, joined by links of `gbps`.
fn servers(gbps: f64) -> Vec<WorkerFacts> {
    let link = Some(LinkFacts { gbps, latency_us: 100.0 });
    let server = |i| WorkerFacts {
        name: format!("server {i}"),
        memory: 512 << 30,
        gbps: 300.0,
        gops: ByClass::all(20_000.0),
        link,
        host: None,
        holds: 0..0,
        node: None,
        disk: None,
    };
    (0..8).map(server).collect()
}

fn a_model_of_a_terabyte_is_predicted_over_fast_and_slow_links() {
    let model = kimi_k3();
    let settings = PlanSettings { ctx: 8192, max_seqs: 32, ..PlanSettings::default() };
    println!("| links GB/s | test | parallel | tokens/s | busy, least |");
    println!("|---|---|---|---|---|");
    let mut many_prompts = Vec::new();
    for gbps in [12.5, 1.25, 0.05] {
        let workers = servers(gbps);
        let plan = plan(&model, &workers, &settings).unwrap();
        assert_eq!(plan.stages.len(), 8);
        let widest = plan.stages.iter().map(|s| s.cut_bytes).max().unwrap() as f64;
        for p in plan.predict(&model, &workers).unwrap() {
            let (test, parallel, rate) = (p.test, p.parallel, p.tokens_per_second);
            let busy = p.stage_busy.iter().copied().fold(1.0, f64::min);
            println!("| {gbps} | {test} | {parallel} | {rate:.2} | {busy:.3} |");
            // No token passes the widest cut faster than its link carries it.
            assert!(rate > 0.0 && rate <= gbps * 1e9 / widest, "{gbps} {test} {parallel}: {rate}");
            if test == "prefill" && parallel == 32 {
                many_prompts.push((rate, gbps * 1e9 / widest, busy));
            }
            let gaps = (p.gap_p50_ms, p.gap_p99_ms);
            if test == "prefill" {
                assert_eq!(gaps, (None, None));
            } else {
                // Streams that draw so many tokens together wait about that long for each.
                let (p50, p99) = (gaps.0.unwrap(), gaps.1.unwrap());
                let even = parallel as f64 * 1e3 / rate;
                assert!(p50 <= p99 && (0.9 * even..=1.1 * even).contains(&p50), "{p50} {even}");
            }
            if test == "decode" && parallel == 1 {
                // One row reads its share of the weights once: no more than 93 layers' worth.
                let read: f64 = model.layers.iter().map(|l| l.read_bytes(1.0)).sum();
                let bound = 300e9 / (read + model.head_bytes as f64);
                assert!((0.5 * bound..=bound).contains(&rate), "{rate} of {bound}");
            }
        }
    }
    // Fast links leave the stages busy; over a slow one all wait for the bytes of the widest cut.
    assert!(many_prompts[0].2 > 0.85, "{many_prompts:?}");
    let (rate, bound, _) = many_prompts[2];
    assert!(rate > 0.75 * bound, "{many_prompts:?}");
}

fn every_worker_added_is_predicted_to_make_the_line_faster() {
    let facts = synthetic("0.6b", "Q4_K_M", "llama");
    let settings = PlanSettings { max_seqs: 32, ctx: 2048, ..PlanSettings::default() };
    println!("| workers | test | parallel | tokens/s | busy, least | scaling |");
    println!("|---|---|---|---|---|---|");
    let mut alone = Vec::new();
    let mut before = Vec::new();
    for n in [1, 2, 4, 8, 16] {
        let workers = workers(n, 8 << 30);
        let plan = plan(&facts, &workers, &settings).unwrap();
        let now = plan.predict(&facts, &workers).unwrap();
        if n == 1 {
            (alone, before) = (now.clone(), now.clone());
        }
        for ((now, alone), before) in now.iter().zip(&alone).zip(&before) {
            let (test, parallel, rate) = (now.test, now.parallel, now.tokens_per_second);
            let busy = now.stage_busy.iter().copied().fold(1.0, f64::min);
            let scaling = rate / alone.tokens_per_second;
            println!("| {n} | {test} | {parallel} | {rate:.1} | {busy:.3} | {scaling:.2} |");
            // One stream cannot be faster on more workers; it must not be slower.
            let least = match (test, parallel) {
                ("decode", 1) => 0.99,
                _ if n == 1 => 1.0,
                // Eight rows read all weights every round; the stages share that, and little else.
                ("decode", 8) => 0.99,
                _ => 1.05,
            };
            assert!(rate >= least * before.tokens_per_second, "{n} {test} {parallel}: {rate}");
        }
        before = now;
    }
}

fn kept_states_shrink_before_anything_else_and_the_plan_says_so() {
    let settings = PlanSettings { keep: Keep::States(16), ..PlanSettings::default() };
    let attention = plan(&reference(), &workers(2, 1 << 30), &settings).unwrap();
    assert_eq!((attention.capacity.n_slots, attention.capacity.n_kept), (16, 16));
    let mut recurrent = reference();
    recurrent.layers.iter_mut().for_each(|layer| layer.scan_bytes = 4 << 20);
    let roomy = plan(&recurrent, &workers(2, 16 << 30), &settings).unwrap();
    assert_eq!(roomy.capacity.n_kept, 16);
    let all = roomy.stages.iter().map(|s| s.memory.total()).max().unwrap();
    let states = roomy.stages.iter().map(|s| s.memory.state).max().unwrap();
    // Memory for 16 states that run and 6 that are kept, of 32.
    let tight = plan(&recurrent, &workers(2, all - states * 10 / 32), &settings).unwrap();
    println!("{}", tight.explain());
    assert_eq!((tight.capacity.n_blocks, tight.capacity.n_slots), (roomy.capacity.n_blocks, 16));
    assert_eq!((tight.capacity.n_kept, layers(&tight)), (6, layers(&roomy)));
    assert!(tight.explain().contains("6 sequences are kept"), "{}", tight.explain());
}

fn memory_for_kept_states_is_that_of_states_and_their_pages() {
    let workers = workers(2, 4 << 30);
    let with = |model: &ModelFacts, keep: Keep| {
        let settings = PlanSettings { ctx: 1024, keep, ..PlanSettings::default() };
        plan(model, &workers, &settings).unwrap()
    };
    let bytes = |plan: &Plan| -> u64 {
        plan.stages.iter().map(|stage| stage.memory.kv + stage.memory.state).sum()
    };
    let attention = reference();
    let mut recurrent = reference();
    recurrent.layers.iter_mut().for_each(|layer| layer.scan_bytes = 256 << 10);
    for model in [attention, recurrent] {
        let none = with(&model, Keep::NOTHING);
        let page = none.sequence.kv_bytes_per_token * u64::from(none.settings.block_positions);
        let state = none.sequence.scan_bytes;
        for memory in [64 << 20, 256 << 20_u64] {
            let kept = with(&model, Keep::Memory(memory));
            let more = bytes(&kept) - bytes(&none);
            assert!(more <= memory && more + page > memory, "{more} of {memory}");
            let n = u64::from(kept.capacity.n_kept);
            let pages = u64::from(kept.capacity.n_blocks - none.capacity.n_blocks);
            assert_eq!(n * state + pages * page, more);
            assert!(
                n > 0 && pages >= 8 * (memory / (state + 8 * page)),
                "{n} states, {pages} pages"
            );
        }
        let little = with(&model, Keep::Memory(1 << 10));
        assert_eq!(little.capacity.n_blocks, none.capacity.n_blocks);
        match state {
            // Pages of running sequences, while they are idle.
            0 => assert_eq!(little.capacity.n_kept, 64),
            _ => {
                assert_eq!(little.capacity.n_kept, 0);
                let said = little.explain();
                assert!(said.contains("--keep 1.00 KiB is less than the"), "{said}");
            }
        }
    }
    // Running sequences come first: what is short goes from the memory for kept states.
    let mut recurrent = reference();
    recurrent.layers.iter_mut().for_each(|layer| layer.scan_bytes = 256 << 10);
    let settings = PlanSettings { ctx: 1024, ..PlanSettings::default() };
    let none = plan(&recurrent, &workers, &settings).unwrap();
    let most = none.stages.iter().map(|stage| stage.memory.total()).max().unwrap();
    let tight: Vec<WorkerFacts> =
        workers.iter().map(|w| WorkerFacts { memory: most + (32 << 20), ..w.clone() }).collect();
    let kept = plan(&recurrent, &tight, &PlanSettings { keep: Keep::Memory(1 << 30), ..settings });
    let kept = kept.unwrap();
    assert!(kept.capacity.n_kept > 0 && kept.capacity.n_blocks >= none.capacity.n_blocks);
    assert!(kept.stages.iter().all(|stage| stage.memory.total() <= most + (32 << 20)));
    assert!(kept.explain().contains("memory is short"), "{}", kept.explain());
}

/// Unequal workers, one of which is useless: the best order of the others is searched with kept sequences and
/// without.
fn keeping_sequences_changes_no_order() {
    let layer = |weight: u64, expert: u64, elements: u64, kv: u64, scan: u64| LayerFacts {
        expert_matrices: [0; 6],
        weight_bytes: weight << 20,
        same_weights: None,
        expert_bytes: expert << 20,
        expert_share: 0.25,
        routed_bytes: 0,
        elements: few_bits(elements << 20),
        routed_elements: ByClass::all(0),
        kv_bytes: kv << 10,
        window: None,
        kv_small_bytes: 0,
        conv_bytes: 0,
        scan_bytes: scan << 20,
    };
    let model = ModelFacts {
        layers: vec![
            layer(191, 6, 1, 1, 0),
            layer(99, 28, 1, 2, 4),
            layer(134, 40, 2, 1, 3),
            layer(1, 0, 1, 0, 0),
        ],
        embedding_bytes: 146 << 20,
        head_bytes: 49 << 20,
        head_elements: few_bits(49 << 20),
        drafts: DraftFacts::default(),
        cut_bytes: vec![0, 1000, 2000, 3000],
        scratch_bytes_per_row: 1000,
        logits_bytes: 4000,
        loading: LoadingMemory::default(),
        ..reference()
    };
    let worker = |memory: u64, gbps, gops| WorkerFacts {
        name: format!("{gbps} GB/s"),
        memory: memory << 20,
        gbps,
        gops: ByClass::all(gops),
        link: None,
        host: None,
        holds: 0..0,
        node: None,
        disk: None,
    };
    let workers = [worker(699, 77.0, 338.0), worker(434, 21.0, 9.0), worker(200, 2.0, 9.0)];
    let settings =
        PlanSettings { ctx: 256, max_seqs: 4, keep: Keep::NOTHING, ..PlanSettings::default() };
    let none = plan(&model, &workers, &settings).unwrap();
    let one = plan(&model, &workers, &PlanSettings { keep: Keep::States(1), ..settings }).unwrap();
    assert_eq!(one.capacity.n_blocks, none.capacity.n_blocks);
    let order = |plan: &Plan| plan.stages.iter().map(|s| s.worker).collect::<Vec<_>>();
    assert_eq!(order(&one), order(&none));
    assert!(slowest(&one) <= slowest(&none) * (1.0 + 1e-9));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        memory_for_kept_states_is_that_of_states_and_their_pages,
        no_cut_by_hand_beats_the_planner,
        a_cut_is_for_keys_whose_drafts_are_right_and_for_others,
        a_line_takes_the_workers_that_its_cut_names_and_no_fewer,
        two_equal_workers_share_the_reference_model_by_work,
        prompts_alone_are_shared_by_layers,
        each_goal_is_reached_at_the_cost_of_the_other,
        equal_workers_are_within_one_layer_of_ideal,
        faster_workers_get_more,
        a_slow_link_moves_the_cut,
        what_does_not_fit_is_told_in_bytes_with_remedies,
        workers_are_reordered_when_only_that_fits,
        kv_cache_takes_what_is_left_and_says_when_it_is_less,
        a_plan_is_json,
        facts_of_the_reference_model,
        two_rows_of_rwkv7_cross_a_cut,
        facts_of_a_mixture_of_experts,
        a_model_of_a_terabyte_is_predicted_over_fast_and_slow_links,
        every_worker_added_is_predicted_to_make_the_line_faster,
        kept_states_shrink_before_anything_else_and_the_plan_says_so,
        keeping_sequences_changes_no_order;
];
