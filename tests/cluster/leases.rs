//! A coordinator holds its workers while it builds a line, however long one of them loads, and even if that one is
//! silent.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brigade_cluster::{
    ClusterConfig, DEFAULT_REPLACE_AFTER, OwnName, Patience, Source, StageOptions,
};
use brigade_gguf::Gguf;
use brigade_line::model::Model;
use brigade_line::stages::link::LineEvent;
use brigade_model_tests::golden::Golden;
use brigade_plan::{Balance, Checkpoint, Keep};
use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::{Blob, KvType, PrepareRequest, StageSpec, WireType};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{HASH_BYTES, LEASE_MS};
use brigade_proto::net::dial;
use brigade_tests::fakes::in_runtime;
use brigade_worker::backend::{
    Abilities, BuildOrder, BuiltFacts, KeptWeights, StageBackend, StageNeeds, StageRunner,
};
use brigade_worker::config::{Config, RawConfig};
use brigade_worker::run::Bound;
use brigade_worker::stage::cpu_backend;
use tokio_util::sync::CancellationToken;

/// Longer than a lease without a word: as one large tensor on a slow disk.
const BUILD: Duration = Duration::from_millis(LEASE_MS + 3_000);

/// The engine, which loads slowly and says nothing while it does.
struct Slow {
    engine: Arc<dyn StageBackend>,
    loading: Arc<AtomicBool>,
}

impl StageBackend for Slow {
    fn abilities(&self) -> &Abilities {
        self.engine.abilities()
    }

    fn needs(&self, model: &Gguf, spec: &StageSpec) -> Result<StageNeeds, Failure> {
        self.engine.needs(model, spec)
    }

    fn build(
        &self,
        order: BuildOrder,
        kept: &mut KeptWeights,
    ) -> Result<(Box<dyn StageRunner>, BuiltFacts), Failure> {
        self.loading.store(true, Ordering::SeqCst);
        std::thread::sleep(BUILD);
        self.engine.build(order, kept)
    }

    fn load_ahead(&self, order: BuildOrder, has: Range<usize>) -> Result<KeptWeights, Failure> {
        self.engine.load_ahead(order, has)
    }
}

fn scratch() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("brigade-leases-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn cluster_config(worker: brigade_proto::address::Address) -> ClusterConfig {
    ClusterConfig {
        source: Source::Remote(vec![worker]),
        control: None,
        expect: 1,
        network: Default::default(),
        pki: None,
        how_to_join: None,
        patience: Patience::FailFast,
        replace_after: DEFAULT_REPLACE_AFTER,
        rebalance: false,
        slow_after: Duration::from_secs(120),
        stage: StageOptions {
            cut: None,
            kv_type: KvType::F16,
            wire_type: WireType::F32,
            ctx: Some(64),
            least_ctx: None,
            max_seqs: 1,
            keep: Some(Keep::NOTHING),
            full_windows: false,
            own_drafts: false,
            max_rows: 16,
            kernels: None,
            balance: Balance::default(),
            checkpoint: Checkpoint::Off,
            others: Arc::default(),
        },
    }
}

fn a_worker_that_is_long_at_loading_stays_with_its_coordinator() {
    in_runtime(async {
        let raw = RawConfig {
            listen: "127.0.0.1:0".into(),
            memory: Some("1G".into()),
            threads: Some(1),
            cache_dir: Some(scratch()),
            ..RawConfig::default()
        };
        let config = Config::validate(raw, &|_| None).unwrap();
        let loading = Arc::<AtomicBool>::default();
        let slow = Slow { engine: cpu_backend(&config).unwrap(), loading: loading.clone() };
        let bound = Bound::new(config, Arc::new(slow)).await.unwrap();
        let address = bound.address().clone();
        let stop = CancellationToken::new();
        tokio::spawn(bound.serve(stop.clone().cancelled_owned()));

        let model = Golden::repository().folder.join("llama.gguf");
        let model = Arc::new(Model::open(&model).unwrap());
        let cluster = brigade_cluster::start(
            cluster_config(address.clone()),
            None,
            OwnName::fresh(),
            model,
            stop.clone(),
        );
        let mut cluster = cluster.await.unwrap();
        while !loading.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(LEASE_MS + 1_000)).await;
        let mut other = WorkerClient::new(dial(&address, false).await.unwrap());
        let refusal = Failure::from_status(&other.prepare(other_order()).await.unwrap_err());
        assert_eq!(refusal.kind(), FailureKind::Busy, "{refusal}");
        loop {
            match cluster.link.events.recv().await.unwrap() {
                LineEvent::Up(_) => break,
                LineEvent::Progress(_) => {}
                other => panic!("the line does not come up: {other:?}"),
            }
        }
        stop.cancel();
    });
}

/// Another coordinator's order, with the fields that a busy worker reads.
fn other_order() -> PrepareRequest {
    let spec = StageSpec {
        n_stages: 1,
        layer_end: 1,
        max_seqs: 1,
        n_blocks: 1,
        max_ctx: 64,
        max_rows: 1,
        kv_type: KvType::F16.into(),
        wire_type: WireType::F32.into(),
        ..StageSpec::default()
    };
    PrepareRequest {
        epoch: 1 << 20,
        coordinator_id: "other".into(),
        spec: Some(spec),
        header: Some(Blob { blake3: vec![1; HASH_BYTES].into(), nbytes: 1 }),
        ..PrepareRequest::default()
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_worker_that_is_long_at_loading_stays_with_its_coordinator;
];
