//! Plans Kimi K3 at its full size, from a file that has only the header. It checks the bytes of layers, of states and
//! over each cut, and the planner's cuts when the bytes over a cut matter.

use std::path::{Path, PathBuf};

use brigade_engine::kernels::KvType;
use brigade_gguf::Gguf;
use brigade_plan::{ModelFacts, Plan, PlanSettings, parse_cluster_file, plan};
use brigade_synth::{Arch, FileType, Shape, Spec};
use brigade_tests::process::run;
use serde_json::Value;

/// Layers from one that keeps its input to the next.
const BLOCK: usize = 12;
const GIB: f64 = (1u64 << 30) as f64;

/// A header that goes with the test.
struct Header(PathBuf);

impl Header {
    fn new(name: &str) -> Self {
        let name = format!("brigade-plan-depth-{name}-{}.gguf", std::process::id());
        let path = std::env::temp_dir().join(name);
        let spec = Spec {
            arch: Arch::named("kimi-k3").unwrap(),
            shape: Shape::named("2.8t").unwrap(),
            quant: FileType::named("MXFP4_MOE").unwrap(),
            seed: 0,
            header_only: true,
        };
        brigade_synth::write(&spec, &path).unwrap();
        Self(path)
    }

    fn facts(&self) -> ModelFacts {
        let model = Gguf::open_header_only(&self.0).unwrap();
        ModelFacts::from_gguf(&model, KvType::F16).unwrap()
    }
}

impl Drop for Header {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `n` equal workers with links of `gbps`, 10^9 bytes a second.
fn cluster(n: usize, gbps: f64) -> String {
    format!(
        "[[worker]]\nmemory = \"400G\"\ngbps = 2000.0\ngops = 400000.0\n\
         link = {{ gbps = {gbps}, latency_us = 100.0 }}\ncount = {n}\n"
    )
}

fn planned(facts: &ModelFacts, n: usize, gbps: f64) -> Plan {
    let workers = parse_cluster_file(&cluster(n, gbps)).unwrap();
    plan(facts, &workers, &PlanSettings::default()).unwrap()
}

fn cuts(plan: &Plan) -> Vec<usize> {
    plan.stages[1..].iter().map(|stage| stage.layers.start).collect()
}

fn bytes(plan: &Plan) -> u64 {
    plan.stages.iter().map(|stage| stage.cut_bytes).sum()
}

fn the_header_has_the_published_sizes() {
    let header = Header::new("sizes");
    let model = Gguf::open_header_only(&header.0).unwrap();
    let elements: u64 = model.tensors().iter().map(|t| t.n_elems() as u64).sum();
    assert!((elements as f64 / 1e9 - 2779.5).abs() < 0.05, "{elements} weights");
    let facts = header.facts();
    assert_eq!((facts.layers.len(), facts.n_ctx_train), (93, 1 << 20));
    for (il, layer) in facts.layers.iter().enumerate() {
        let latent = il % 4 == 3 || il == 92;
        let (kv, state) = if latent { (2 * 576, 0) } else { (0, 4 * (110_592 + 1_572_864)) };
        assert_eq!((layer.kv_bytes, layer.state_bytes()), (kv, state), "layer {il}");
        let wanted = [(il == 0, 1.17), (il > 0 && latent, 15.08), (il > 0 && !latent, 15.29)];
        let (_, gib) = wanted.into_iter().find(|(is, _)| *is).unwrap();
        let found = layer.weight_bytes as f64 / GIB;
        assert!((found - gib).abs() < 0.03, "layer {il}: {found} GiB");
        let rows = if il == 0 { 0 } else { 1 + il.div_ceil(BLOCK) as u64 };
        assert_eq!(facts.cut_bytes[il], rows * 4 * 7168, "the cut before layer {il}");
    }
}

fn eight_equal_workers_send_no_more_than_cuts_at_every_twelfth_layer_do() {
    let facts = Header::new("eight").facts();
    let at_multiples: u64 = (1..8).map(|i| facts.cut_bytes[i * BLOCK]).sum();
    for gbps in [10.0, 1.0, 0.25, 0.125] {
        let plan = planned(&facts, 8, gbps);
        println!("{}", plan.explain());
        assert!(bytes(&plan) <= at_multiples, "{:?} at {gbps} GB/s", cuts(&plan));
    }
}

fn slow_links_pull_cuts_to_multiples_of_the_block() {
    let facts = Header::new("pull").facts();
    for (n, wanted) in [(7, &[12, 24, 36, 48][..]), (8, &[24, 36, 48])] {
        let (fast, slow) = (planned(&facts, n, 10.0), planned(&facts, n, 0.125));
        println!("{n} workers: {:?}, with slow links {:?}", cuts(&fast), cuts(&slow));
        assert!(fast.balance() > 0.95, "{}", fast.explain());
        assert!(cuts(&fast).iter().all(|cut| cut % BLOCK != 0 || *cut == BLOCK));
        let multiples: Vec<usize> =
            cuts(&slow).into_iter().filter(|cut| cut % BLOCK == 0).collect();
        assert_eq!(multiples, wanted, "{}", slow.explain());
        assert!(bytes(&slow) < bytes(&fast), "{} {}", bytes(&slow), bytes(&fast));
        assert!(slow.explain().contains("its link is slower than its computing"));
    }
}

fn commands_that_need_weights_refuse_a_header() {
    let header = Header::new("commands");
    let model = header.0.to_str().unwrap();
    let out = header.0.with_extension("npy");
    let out = out.to_str().unwrap();
    let text = brigade_model_tests::places::root().join("Cargo.toml");
    let text = text.to_str().unwrap();
    let refused: [&[&str]; 5] = [
        &["run", "-m", model, "-p", "a"],
        &["serve", "-m", model, "--listen", "127.0.0.1:0"],
        &["bench", "-m", model],
        &["logits", "-m", model, "--tokens", "1", "--out", out],
        &["perplexity", "-m", model, "-f", text],
    ];
    for args in refused {
        let output = run(args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        assert!(message.contains("a header without data"), "{args:?}: {message}");
    }
    assert!(!Path::new(out).exists());
}

fn plan_and_inspect_take_a_header() {
    let header = Header::new("inspect");
    let model = header.0.to_str().unwrap();
    let inspected = run(&["inspect", model, "--json"]);
    let json: Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert_eq!(json["kv_bytes_per_token"], 27_648);
    assert_eq!(json["state_bytes_per_sequence"], 69 * 4 * (110_592 + 1_572_864_u64));
    let file = header.0.with_extension("toml");
    std::fs::write(&file, cluster(8, 0.125)).unwrap();
    let planned = run(&["plan", "-m", model, "--cluster", file.to_str().unwrap(), "--explain"]);
    std::fs::remove_file(&file).unwrap();
    let text = String::from_utf8_lossy(&planned.stdout);
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    assert!(text.contains("a row sends 56.00 KiB over the cut before layer"), "{text}");
    assert!(text.contains("; from layer 13 on it would be 84.00 KiB"), "{text}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        the_header_has_the_published_sizes,
        eight_equal_workers_send_no_more_than_cuts_at_every_twelfth_layer_do,
        slow_links_pull_cuts_to_multiples_of_the_block,
        commands_that_need_weights_refuse_a_header,
        plan_and_inspect_take_a_header;
];
