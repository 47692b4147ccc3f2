//! Requests for whole rows of logits beside requests for tokens, in the same ubatches over real workers. Each gets
//! the same answer as alone.

use std::sync::Arc;
use std::time::Duration;

use brigade_cluster::{
    ClusterConfig, DEFAULT_REPLACE_AFTER, OwnName, Patience, Source, StageOptions,
};
use brigade_engine::batch::SamplingParams;
use brigade_line::driver::{self, DriverConfig};
use brigade_line::handle::{Engine, RequestId, SeqEvent, Sequence, Status};
use brigade_line::measured::meter::Meter;
use brigade_line::model::Model;
use brigade_line::request::{Drawing, Limits, Request};
use brigade_model_tests::golden::Golden;
use brigade_plan::{Balance, Checkpoint, Keep};
use brigade_proto::control::{KvType, WireType};
use brigade_sched::SchedConfig;
use brigade_tests::fakes::in_runtime;
use brigade_tests::process::Running;
use tokio_util::sync::CancellationToken;

/// For waits that end by themselves on any machine.
const PATIENCE: Duration = Duration::from_secs(120);
const CTX: u32 = 512;
const STREAMS: u32 = 6;
/// Enough that all still generate while the rows come.
const MAX_TOKENS: u32 = 200;

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("a step hangs")
}

/// The front door of a line over these workers, and what its requests must fit in.
async fn line(workers: &[Running], stop: &CancellationToken) -> (Engine, Limits) {
    let path = Golden::repository().folder.join("llama.gguf");
    let model = Arc::new(Model::open(&path).unwrap());
    let limits = Limits { n_ctx: CTX, n_vocab: model.n_vocab(), answer: 1024, encoder: None };
    let stage = StageOptions {
        kv_type: KvType::F32,
        wire_type: WireType::F32,
        ctx: Some(CTX),
        least_ctx: None,
        max_seqs: STREAMS + 1,
        keep: Some(Keep::NOTHING),
        full_windows: false,
        own_drafts: false,
        max_rows: 64,
        kernels: None,
        balance: Balance::MIXED,
        checkpoint: Checkpoint::Off,
        others: Arc::default(),
        cut: None,
    };
    let addresses = workers.iter().map(|w| w.ready.trim().parse().unwrap());
    let config = ClusterConfig {
        source: Source::Remote(addresses.collect()),
        control: None,
        expect: 0,
        network: Default::default(),
        pki: None,
        how_to_join: None,
        patience: Patience::FailFast,
        replace_after: DEFAULT_REPLACE_AFTER,
        rebalance: false,
        slow_after: Duration::from_secs(120),
        stage,
    };
    let cluster =
        brigade_cluster::start(config, None, OwnName::fresh(), model, stop.clone()).await.unwrap();
    let (engine, ends) = Engine::channel();
    let config = DriverConfig {
        drafter: None,
        sched: SchedConfig::default(),
        n_vocab: limits.n_vocab,
        adapters: [].into(),
        meter: Arc::new(Meter::new(false)),
        prefixes: None,
    };
    tokio::spawn(driver::run(ends, cluster.link, config, stop.clone()));
    let mut status = engine.watch();
    soon(status.wait_for(|status| match status {
        Status::Failed { reason } => panic!("{reason}"),
        status => matches!(status, Status::Ready(_)),
    }))
    .await
    .unwrap();
    (engine, limits)
}

fn stream(i: u32, limits: &Limits) -> Request {
    let tokens = (0..20 + 7 * i).map(|t| 1 + (t * 13 + i * 29) % 250).collect();
    let drawing = Drawing {
        max_tokens: Some(MAX_TOKENS),
        params: SamplingParams::default(),
        seed: u64::from(i),
        ..Drawing::default()
    };
    Request::generate(tokens, drawing, limits).unwrap()
}

fn rows(limits: &Limits) -> Request {
    Request::logits((0..200).map(|t| 1 + t * 7 % 250).collect(), limits).unwrap()
}

/// Everything that a request sends, but the times.
async fn events(mut sequence: Sequence) -> Vec<SeqEvent> {
    let mut events = Vec::new();
    while let Some(event) = soon(sequence.next()).await {
        match event {
            SeqEvent::Finished(_) => return events,
            SeqEvent::Failed(failure) => panic!("after {} events: {failure}", events.len()),
            other => events.push(other),
        }
    }
    panic!("no end")
}

fn rows_and_tokens_in_the_same_ubatches_are_what_they_are_alone() {
    in_runtime(async {
        let workers: Vec<Running> = (0..2)
            .map(|_| {
                let args = ["worker", "--listen", "127.0.0.1:0", "--threads", "1"];
                Running::start(&args, brigade_worker::run::READY_PREFIX)
            })
            .collect();
        let stop = CancellationToken::new();
        let (engine, limits) = line(&workers, &stop).await;
        let mut id = 0;
        let mut submit = async |request| {
            id += 1;
            soon(engine.submit(RequestId(id), request)).await.unwrap()
        };
        let mut alone = vec![events(submit(rows(&limits)).await).await];
        for i in 0..STREAMS {
            alone.push(events(submit(stream(i, &limits)).await).await);
        }
        let mut streams = Vec::new();
        for i in 0..STREAMS {
            streams.push(submit(stream(i, &limits)).await);
        }
        // They all generate before the rows come between them.
        let mut started = Vec::new();
        for mut sequence in streams {
            let first = soon(sequence.next()).await.unwrap();
            started.push((first, sequence));
        }
        let mut together = vec![events(submit(rows(&limits)).await).await];
        for (first, sequence) in started {
            let mut all = vec![first];
            all.extend(events(sequence).await);
            together.push(all);
        }
        for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
            assert!(alone == together, "request {i} of the mixed ones");
        }
        assert_eq!((together[0].len(), together[1].len()), (200, MAX_TOKENS as usize));
        stop.cancel();
    });
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: rows_and_tokens_in_the_same_ubatches_are_what_they_are_alone;
];
