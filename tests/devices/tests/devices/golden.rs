//! Golden models in far memory: the bits of the table `unfused`, whether all ops run there or some fall back to the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_device_tests::{Far, FarCounts};
use brigade_engine::device::{Device, ExpertUses, Visits};
use brigade_engine::gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig};
use brigade_synth::{AdapterSpec, Arch, FileType, Shape, Spec, write_adapter};

/// Models of which far memory has every op.
const WHOLE: [&str; 7] =
    ["llama", "llama-q4_k", "llama-q6_k", "granitehybrid", "mamba2", "qwen3moe", MADE];

/// Models among these that are run without each of their ops in turn.
const WITHOUT_EACH: [&str; 3] = ["llama", "granitehybrid", MADE];

/// Models with ops that it lacks, and one of these.
const LACKING: [(&str, &str); 3] = [("jamba", "Mamba"), ("qwen3next", "Delta"), ("rwkv7", "Wkv7")];

/// A quantised `qwen3moe` that is made here. The golden one is in `BRIGADE_TEST_DATA`.
const MADE: &str = "qwen3moe-q8_0";

/// Rows of a prompt, and of one of its ubatches.
const N_PROMPT: usize = 60;
const N_UBATCH: usize = 37;
/// Tokens that are drawn behind it.
const N_DRAWN: usize = 8;

/// Room for copies of all experts of that model.
const ROOM: u64 = 1 << 30;

/// Results of one pass: the bits of logits.
type Bits = Vec<u32>;

/// The model of that name, if it is here.
fn model(name: &str) -> Option<PathBuf> {
    if name != MADE {
        let all = Golden::folders();
        let found = all.iter().find(|golden| golden.manifest.models.contains_key(name));
        return found.map(|golden| golden.named(name));
    }
    // Tests run at the same time, and one may read what another makes.
    static PATH: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let make = || {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("far-qwen3moe.gguf");
        let spec = Spec {
            arch: Arch::named("qwen3moe").unwrap(),
            shape: Shape::named("golden-wide-moe").unwrap(),
            quant: *FileType::ALL.iter().find(|ty| ty.name() == "Q8_0").unwrap(),
            seed: 43,
            header_only: false,
        };
        brigade_synth::write(&spec, &path).unwrap();
        path
    };
    Some(PATH.get_or_init(make).clone())
}

/// The golden prompt's first tokens.
fn prompt() -> Vec<u32> {
    Golden::repository().manifest.tokens[..N_PROMPT].to_vec()
}

/// Far memory without some ops, as a stage's device.
fn far(lacks: &[&'static str]) -> (Arc<Far>, impl Fn(usize) -> Device + use<>) {
    let far = Arc::new(Far::without(lacks).unwrap());
    let of_stages = far.clone();
    (far, move |_| Device::beside_host(of_stages.clone(), "far", 1, None).unwrap())
}

fn bits(rows: Vec<Vec<f32>>) -> Bits {
    rows.into_iter().flatten().map(f32::to_bits).collect()
}

/// Logits of the prompt where the host computes what every device has to.
fn unfused(path: &Path) -> Bits {
    let config = LineConfig { kernels: Some("unfused"), ..LineConfig::default() };
    bits(Line::open(path, &config).logits(&prompt(), N_UBATCH))
}

/// The same in far memory without some ops, and what ran there.
fn in_far(path: &Path, lacks: &[&'static str]) -> (Bits, FarCounts) {
    let (far, device) = far(lacks);
    let mut line = Line::open_on(path, &LineConfig::default(), &device);
    far.take_counts();
    let logits = line.logits(&prompt(), N_UBATCH);
    (bits(logits), far.take_counts())
}

fn models_run_whole_in_far_memory() {
    for name in WHOLE {
        let Some(path) = model(name) else {
            println!("{name:14} skipped: it is in BRIGADE_TEST_DATA");
            continue;
        };
        let (logits, counts) = in_far(&path, &[]);
        let FarCounts { ran, fell_back, reads } = &counts;
        let n_fell_back = counts.n_fell_back();
        println!(
            "{name:14} {} ops ran there, {n_fell_back} fell back, the host read {reads} times: {ran:?}",
            counts.n_ran()
        );
        assert!(logits == unfused(&path), "{name}: other bits");
        assert!(fell_back.is_empty(), "{name}: {fell_back:?}");
        assert_eq!(*reads, 0, "{name}: the host looked at what no op needs");
        assert!(ran["Products"] > 0, "{name}: {ran:?}");
    }
}

fn models_that_need_what_it_lacks_fall_back() {
    for (name, op) in LACKING {
        let path = model(name).unwrap();
        let (logits, counts) = in_far(&path, &[]);
        println!(
            "{name:14} {} ops ran there, {} fell back, the host read {} times: {:?}",
            counts.n_ran(),
            counts.n_fell_back(),
            counts.reads,
            counts.fell_back
        );
        assert!(logits == unfused(&path), "{name}: other bits");
        assert!(counts.fell_back.get(op).is_some_and(|n| *n > 0), "{name}: {counts:?}");
        assert!(counts.n_ran() > counts.n_fell_back(), "{name}: {counts:?}");
    }
}

/// Whichever op is taken away, the host computes it, and no other code notices.
fn any_op_may_be_taken_away() {
    for name in WITHOUT_EACH {
        let path = model(name).unwrap();
        let (want, whole) = in_far(&path, &[]);
        for op in whole.ran.keys() {
            let (logits, counts) = in_far(&path, &[op]);
            println!("{name:14} without {op:16} {} fell back", counts.n_fell_back());
            assert!(logits == want, "{name} without {op}: other bits");
            let others = |counts: &FarCounts| {
                let mut ran = counts.ran.clone();
                // Copies put back what the host computed. Experts without an op of theirs are multiplied one by one.
                for changes in ["Copy", "ExpertProducts", "Products", "RowsOfPairs", op] {
                    ran.remove(changes);
                }
                ran
            };
            assert_eq!(others(&counts), others(&whole), "{name} without {op}");
            match *op {
                "ExpertProducts" => assert!(!counts.ran.contains_key(op), "{counts:?}"),
                // Memory is made ready with some, which every device has.
                _ => {
                    let n = |ops: &BTreeMap<_, usize>| ops.get(op).copied().unwrap_or(0);
                    assert!(n(&counts.fell_back) > 0 || *op == "Map", "{name} without {op}");
                    let n_again = n(&counts.fell_back) + n(&counts.ran);
                    assert_eq!(n_again, n(&whole.ran), "{name} without {op}");
                }
            }
        }
    }
}

/// A line of a stage in far memory, one of the host, and one in other far memory.
fn lines_may_mix_devices() {
    for name in WITHOUT_EACH {
        let path = model(name).unwrap();
        let (_, other) = far(&["RmsNorm", "Route"]);
        let (_, device) = far(&[]);
        let host = || Device::cpu(brigade_engine::kernels::unfused(), 1, None).unwrap();
        let on = |stage: usize| match stage {
            0 => device(stage),
            1 => host(),
            _ => other(stage),
        };
        let config = LineConfig { cuts: vec![1, 2], ..LineConfig::default() };
        let logits = bits(Line::open_on(&path, &config, &on).logits(&prompt(), N_UBATCH));
        assert!(logits == unfused(&path), "{name}: other bits");
    }
}

/// Experts of the host's memory: computed there, sent to far memory for a ubatch, or copied to stay.
fn experts_may_lie_with_the_host() {
    let path = model(MADE).unwrap();
    let want = {
        let config = LineConfig { kernels: Some("unfused"), ..LineConfig::default() };
        Line::open(&path, &config).generate(&prompt(), N_DRAWN, N_UBATCH)
    };
    let ways = [(Visits::Never, 0), (Visits::From(2), 0), (Visits::Never, 1 << 20)];
    for (visits, copies) in ways {
        let (_, device) = far(&[]);
        let config = LineConfig { host_experts: u32::MAX, visits, copies, ..LineConfig::default() };
        let mut line = Line::open_on(&path, &config, &device);
        let tokens = line.generate(&prompt(), N_DRAWN, N_UBATCH);
        let counts = line.stages()[0].expert_counts();
        println!("{visits:?}, {copies} bytes of copies: {counts:?}");
        assert_eq!(tokens, want, "{visits:?}, {copies} bytes of copies");
        assert!(counts.host_rows > 0, "{counts:?}");
        assert_eq!(counts.sent_bytes > 0, visits != Visits::Never || copies > 0, "{counts:?}");
    }
}

/// A stage begins with copies of the experts that one before it used most, as far as there is room. No token depends on it.
fn a_stage_begins_with_what_another_has_learned() {
    let path = model(MADE).unwrap();
    let open = |copies: u64, earlier_uses: &[ExpertUses]| {
        let (_, device) = far(&[]);
        let earlier_uses = earlier_uses.to_vec();
        let host_experts = u32::MAX;
        let config = LineConfig { host_experts, copies, earlier_uses, ..LineConfig::default() };
        Line::open_on(&path, &config, &device)
    };
    let counts = |line: &mut Line| line.stages()[0].expert_counts();
    assert!(open(0, &[]).stages()[0].use_counts().is_none(), "no room, nothing is counted");
    let mut line = open(ROOM, &[]);
    let learned = line.stages()[0].use_counts().unwrap();
    assert_eq!(counts(&mut line).sent_bytes, 0, "nothing is known: nothing is copied");
    let want = line.generate(&prompt(), N_DRAWN, N_UBATCH);
    let hits_before = counts(&mut line).copy_rows;
    drop(line);
    assert!(learned.n_counted() > 0);
    let uses = learned.read();
    println!("learned: {uses:?}");
    // Room for all, for some, and for none of them.
    let all = counts(&mut open(ROOM, &uses)).sent_bytes;
    assert!(all > 0 && all <= ROOM);
    for (room, least, most) in [(ROOM, all, all), (all / 2, 1, all / 2), (1, 0, 0)] {
        let mut line = open(room, &uses);
        let begun = counts(&mut line);
        println!("{room} bytes: {begun:?}");
        assert!((least..=most).contains(&begun.sent_bytes), "{room} bytes: {begun:?}");
        let tokens = line.generate(&prompt(), N_DRAWN, N_UBATCH);
        assert_eq!(tokens, want, "{room} bytes");
        if room == ROOM {
            let hits = counts(&mut line).copy_rows;
            assert!(hits > hits_before, "{hits} hits, without a record {hits_before}");
        }
    }
    // Those of another model are nothing to it.
    let foreign =
        |uses: &ExpertUses| ExpertUses { layer: format!("a.{}", uses.layer), ..uses.clone() };
    let larger = |uses: &ExpertUses| ExpertUses { counts: vec![9.0; 999], ..uses.clone() };
    for uses in [uses.iter().map(foreign).collect::<Vec<_>>(), uses.iter().map(larger).collect()] {
        let mut line = open(ROOM, &uses);
        assert_eq!(counts(&mut line).sent_bytes, 0);
        assert_eq!(line.generate(&prompt(), N_DRAWN, N_UBATCH), want);
    }
}

/// Adapters of experts, used by a whole prompt: products of pairs of some rows, and an op that far memory lacks.
fn adapters_of_experts_may_be_used() {
    let path = model(MADE).unwrap();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("far-adapter.gguf");
    let spec = AdapterSpec { rank: 5, alpha: 8.0, seed: 1 };
    write_adapter(&Gguf::open(&path).unwrap(), &spec, &file).unwrap();
    let config = LineConfig { adapters: vec![file], uses: vec![(0, 2.0)], ..LineConfig::default() };
    let host = |_| Device::cpu(brigade_engine::kernels::unfused(), 1, None).unwrap();
    let want = bits(Line::open_on(&path, &config, &host).logits(&prompt(), N_UBATCH));
    assert!(want != unfused(&path), "the adapter changes nothing");
    for lacks in [&[][..], &["ExpertProducts"]] {
        let (far, device) = far(lacks);
        let mut line = Line::open_on(&path, &config, &device);
        far.take_counts();
        assert!(bits(line.logits(&prompt(), N_UBATCH)) == want, "{lacks:?}: other bits");
        let counts = far.take_counts();
        println!("an adapter, without {lacks:?}: {counts:?}");
        assert!(counts.fell_back.contains_key("AddToPairs"), "{counts:?}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        models_run_whole_in_far_memory,
        models_that_need_what_it_lacks_fall_back,
        any_op_may_be_taken_away,
        lines_may_mix_devices,
        experts_may_lie_with_the_host,
        a_stage_begins_with_what_another_has_learned,
        adapters_of_experts_may_be_used;
];
