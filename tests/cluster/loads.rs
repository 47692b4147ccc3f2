//! Loads one stage after the other in one worker process. The fourth load costs as much as the first. Memory that a
//! stage reserves and does not use (most of all pages of keys and values) is not touched, however often it was used
//! before. The memory of an unloaded stage is given back.
//!
//! This prints a table for a model of 0.6 billion weights, or for the one that `BRIGADE_LOADS_MODEL` names:
//!
//! ```text
//! cargo test --release --test cluster -- --ignored loads::
//! ```

use std::path::{Path, PathBuf};
use std::time::Instant;

use brigade_gguf::{Gguf, TensorFiles};
use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::{
    Blob, HealthReply, HealthRequest, KvType, LoadRequest, LoadedFacts, PrepareRequest, StageSpec,
    TensorRef, WeightSource, WireType, load_event,
};
use brigade_proto::net::dial;
use brigade_tests::fakes::in_runtime;
use brigade_tests::process::{Running, run};
use brigade_worker::host::host_id;
use brigade_worker::run::READY_PREFIX;
use brigade_worker::weights::hashes::file_hints;

const LOADS: u32 = 4;
const COORDINATOR: &str = "loads";
/// KV pages of the first load; each further one has one more, so that no stage serves the next.
const PAGES: u32 = 512;

struct Row {
    facts: LoadedFacts,
    seconds: f64,
    health: HealthReply,
}

fn order(model: &Gguf, files: &TensorFiles, epoch: u64) -> PrepareRequest {
    let spec = brigade_models::describe(model).unwrap();
    let layers = 0..spec.n_layer();
    let stage = StageSpec {
        n_stages: 1,
        layer_end: layers.end as u32,
        max_seqs: 16,
        n_blocks: PAGES + epoch as u32,
        max_ctx: 4096,
        max_rows: 512,
        kv_type: KvType::F16.into(),
        wire_type: WireType::F32.into(),
        ..StageSpec::default()
    };
    let header = model.header_bytes();
    let blob = |blake3: &[u8], nbytes| Blob { blake3: blake3.to_vec().into(), nbytes };
    let tensor =
        |name: &str, nbytes| TensorRef { name: name.into(), blob: Some(blob(&[], nbytes)) };
    let tensors = brigade_spec::stage_tensors(model, &spec, &layers);
    PrepareRequest {
        epoch,
        coordinator_id: COORDINATOR.into(),
        spec: Some(stage),
        model_name: "loads".into(),
        header: Some(blob(blake3_of(&header).as_slice(), header.len() as u64)),
        tensors: tensors.iter().map(|t| tensor(&t.name, t.nbytes)).collect(),
        files: file_hints(files, &host_id()).unwrap(),
    }
}

fn blake3_of(bytes: &[u8]) -> Vec<u8> {
    blake3::hash(bytes).as_bytes().to_vec()
}

/// Loads the whole model [`LOADS`] times in one worker process, other limits each time.
async fn loads(path: &Path, cache: &Path, threads: &str) -> Vec<Row> {
    let args = ["--listen", "127.0.0.1:0", "--memory", "16G", "--threads", threads, "--cache-dir"];
    let args: Vec<&str> =
        ["worker"].into_iter().chain(args).chain([cache.to_str().unwrap()]).collect();
    let worker = Running::start(&args, READY_PREFIX);
    let channel = dial(&worker.ready.trim().parse().unwrap(), false).await.unwrap();
    let mut client = WorkerClient::new(channel);
    let (model, files) = Gguf::open_files(path).unwrap();
    let mut rows = Vec::new();
    for epoch in 1..=u64::from(LOADS) {
        let reply = client.prepare(order(&model, &files, epoch)).await.unwrap().into_inner();
        assert_eq!(reply.source(), WeightSource::SharedFile);
        let started = Instant::now();
        let coordinator_id = COORDINATOR.to_string();
        let request = LoadRequest { epoch, coordinator_id: coordinator_id.clone() };
        let mut events = client.load(request).await.unwrap().into_inner();
        let facts = loop {
            match events.message().await.unwrap().unwrap().event.unwrap() {
                load_event::Event::Progress(_) => {}
                load_event::Event::Loaded(facts) => break facts,
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        let health = client
            .health(HealthRequest { epoch, coordinator_id, ..HealthRequest::default() })
            .await
            .unwrap();
        rows.push(Row { facts, seconds, health: health.into_inner() });
    }
    rows
}

fn print(rows: &[Row]) {
    println!("load  seconds  weights MB  states MB  resident MB  most so far MB");
    for (i, Row { facts, seconds, health }) in rows.iter().enumerate() {
        let mb = |bytes: u64| bytes / 1_000_000;
        println!(
            "{:4}  {seconds:7.2}  {:10}  {:9}  {:11}  {:14}",
            i + 1,
            mb(facts.weight_bytes),
            mb(facts.state_bytes),
            mb(health.memory_used),
            mb(health.memory_peak),
        );
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("brigade-loads-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn model(&self, size: &str) -> PathBuf {
        let path = self.0.join("model.gguf");
        let out = path.to_str().unwrap();
        let args = ["synth", "--arch", "llama", "--size", size, "--quant", "Q4_K_M", "--out", out];
        let output = run(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn a_later_load_holds_no_more_memory_than_the_first() {
    in_runtime(async {
        let dir = Scratch::new("small");
        let model = dir.model("tiny");
        let rows = loads(&model, &dir.0, "1").await;
        print(&rows);
        let states = rows[0].facts.state_bytes;
        let first = rows[0].health.memory_used;
        assert!(states > 8 << 20, "{states} bytes of states show nothing");
        for row in &rows[1..] {
            let more = row.health.memory_used.saturating_sub(first);
            assert!(more < states / 4, "{more} bytes more than after the first load");
        }
    });
}

fn loads_one_to_four_of_a_larger_model() {
    in_runtime(async {
        let dir = Scratch::new("large");
        let model = match std::env::var_os("BRIGADE_LOADS_MODEL") {
            Some(path) => path.into(),
            None => dir.model("0.6b"),
        };
        print(&loads(&model, &dir.0, "2").await);
    });
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_later_load_holds_no_more_memory_than_the_first;
    alone:
        loads_one_to_four_of_a_larger_model ignored("a measurement: some gigabytes of memory and half a minute");
];
