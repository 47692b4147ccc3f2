//! The driver with a mock line.

use brigade_engine::batch::SampledToken;
use brigade_proto::pipeline::{self as pb, LaneFrame, ResultFrame, lane_frame, row_result, seq_op};
use brigade_sched::LineSpec;
use brigade_spec::Prefixes;
use tokio::sync::{oneshot, watch};

use super::*;
use crate::handle::{Counts, LineInfo, Past, SeqEvent};
use crate::health::Loading;
use crate::journal::{Bounds, Journal, Opened};
use crate::request::{Drawing, Limits};
use crate::stages::open_line::Moved;

const N_VOCAB: u32 = 100;
const N_STAGES: usize = 3;

/// Two sequences at a time.
const SPEC: LineSpec = LineSpec {
    n_stages: N_STAGES,
    n_blocks: 8,
    n_slots: 2,
    n_kept: 0,
    prefixes: Prefixes::All,
    block_positions: 64,
    max_positions: 64,
    max_rows: 16,
    companions: true,
    ahead: true,
    grows: true,
    own_drafts: 0,
};

/// A driver with a line, and the receiver of its ubatches.
fn driver() -> (Driver, mpsc::Receiver<LaneFrame>) {
    let config = DriverConfig {
        drafter: None,
        sched: SchedConfig::default(),
        adapters: [].into(),
        n_vocab: N_VOCAB,
        meter: Arc::new(Meter::new(false)),
        prefixes: None,
    };
    let (states, _) = States::new();
    let (status, _) = watch::channel(Status::Stopping);
    let (running, _) = watch::channel([].into());
    let (faults, _) = mpsc::channel(1);
    let (checkpoints, _) = Checkpoints::new();
    let (prefixes, _) = super::prefixes::Prefixes::new(None);
    let mut driver = Driver::new(
        config,
        Kept { states, checkpoints, prefixes },
        Shown { status, running, cached: watch::channel(Arc::default()).0 },
        faults,
    );
    let (line, sent) = OpenLine::of_nobody(1, SPEC);
    driver.line_event(LineEvent::Up(Box::new(line)));
    (driver, sent)
}

/// Submits a prompt of three tokens to be continued.
fn submit(driver: &mut Driver, id: u64) -> mpsc::Receiver<SeqEvent> {
    submit_counting(driver, id, Arc::default())
}

fn submit_counting(driver: &mut Driver, id: u64, counts: Arc<Counts>) -> mpsc::Receiver<SeqEvent> {
    submit_going_on(driver, id, counts, None)
}

fn submit_going_on(
    driver: &mut Driver,
    id: u64,
    counts: Arc<Counts>,
    past: Option<Past>,
) -> mpsc::Receiver<SeqEvent> {
    let limits =
        Limits { n_ctx: SPEC.max_positions, n_vocab: N_VOCAB, answer: 1024, encoder: None };
    let drawing = Drawing { max_tokens: Some(20), ..Drawing::default() };
    let request = Request::generate(vec![1, 2, 3], drawing, &limits).unwrap();
    let (events, receiver) = mpsc::channel(request.max_events());
    let (verdict, _) = oneshot::channel();
    let id = RequestId(id);
    driver.submit(Submission { id, request, events, verdict, counts, past });
    receiver
}

/// The ubatches sent since the last look.
fn sent(frames: &mut mpsc::Receiver<LaneFrame>) -> Vec<pb::Ubatch> {
    let frames = std::iter::from_fn(|| frames.try_recv().ok());
    let ubatch = |frame: LaneFrame| match frame.body {
        Some(lane_frame::Body::Ubatch(ubatch)) => ubatch,
        other => panic!("{other:?} was sent"),
    };
    frames.map(ubatch).collect()
}

/// A token for each part of a ubatch.
fn result(ubatch: &pb::Ubatch) -> LineNews {
    let row = |part: &pb::SeqPart| pb::RowResult {
        mask_us: 0,
        slot: part.slot,
        pos: part.pos + part.tokens.len() as u32 - 1,
        value: Some(row_result::Value::Sampled(pb::Sampled { token: 7, ..Default::default() })),
    };
    LineNews::Frame(Box::new(ResultFrame {
        id: ubatch.id,
        epoch: ubatch.epoch,
        rows: ubatch.parts.iter().map(row).collect(),
        last: true,
        timings: vec![pb::StageTiming::default(); N_STAGES],
        ..ResultFrame::default()
    }))
}

fn opens(ubatch: &pb::Ubatch) -> bool {
    ubatch.ops.iter().any(|op| matches!(op.op, Some(seq_op::Op::Open(_))))
}

#[tokio::test]
async fn a_client_that_leaves_makes_no_ubatch_overtake_another() {
    let (mut driver, mut frames) = driver();
    let leaves = submit(&mut driver, 0);
    let _stays = submit(&mut driver, 1);
    let prompts = sent(&mut frames);
    assert_eq!(prompts.iter().map(|u| u.id).collect::<Vec<_>>(), [0, 1]);
    // No slot is free for the third before one of the others has ended.
    let _waits = submit(&mut driver, 2);
    assert!(sent(&mut frames).is_empty());
    drop(leaves);
    // The token's client is gone. The next ubatch of its sequence is among the same actions, and its slot lets the
    // third request in.
    driver.line_news(result(&prompts[0]));
    let later = sent(&mut frames);
    assert!(later.len() == 2 && opens(&later[1]), "{later:?}");
    assert_eq!(later.iter().map(|u| u.id).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(driver.live.len(), 2);
}

/// A line whose layers are computed with kernels of these numbers.
fn line_with(epoch: u64, numbers: [u32; N_STAGES]) -> (OpenLine, mpsc::Receiver<LaneFrame>) {
    let (mut line, sent) = OpenLine::of_nobody(epoch, SPEC);
    let stage = |(i, numerics): (usize, u32)| StageInfo {
        layers: 2 * i..2 * i + 2,
        numerics,
        ..StageInfo::default()
    };
    line.info = Arc::new(LineInfo {
        stages: numbers.into_iter().enumerate().map(stage).collect(),
        ..LineInfo::default()
    });
    (line, sent)
}

#[tokio::test]
async fn a_stream_that_goes_on_where_other_bits_are_computed_says_so() {
    for (after, changed) in [([1, 1, 1], false), ([1, 2, 1], true)] {
        let (mut driver, _) = driver();
        let (line, mut frames) = line_with(2, [1, 1, 1]);
        driver.line_event(LineEvent::Up(Box::new(line)));
        let counts = Arc::<Counts>::default();
        let mut events = submit_counting(&mut driver, 0, counts.clone());
        driver.line_news(result(&sent(&mut frames)[0]));
        let reason = "stage 1 is gone".to_string();
        driver.line_event(LineEvent::Down { reason, planned: false });
        let (line, mut frames) = line_with(3, after);
        driver.line_event(LineEvent::Up(Box::new(line)));
        assert!(!counts.has_changed_numerics());
        driver.line_news(result(&sent(&mut frames)[0]));
        let tokens = std::iter::from_fn(|| events.try_recv().ok()).count();
        assert_eq!((tokens, counts.has_changed_numerics()), (2, changed));
    }
}

#[tokio::test]
async fn a_sequence_of_a_coordinator_before_this_one_tells_all_of_its_tokens_again() {
    let folder = std::env::temp_dir().join(format!("brigade-goes-on-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (journal, _) = Journal::open(&folder, "m", Bounds { n_vocab: N_VOCAB }).unwrap();
    let opened = Opened {
        id: "a".into(),
        path: "/v1/completions".into(),
        owner: None,
        label: "r".into(),
        created: 0,
        seed: 0,
        prompts: vec![vec![1, 2, 3]],
        companion: None,
        sequences: 1,
        body: String::new(),
    };
    let recorder = journal.begin(opened, false).unwrap().recorder(0);
    let drawn = [5, 6, 7].map(|id| SampledToken { id, ..SampledToken::default() });
    let past = Past { recorder, drawn: Some(drawn.to_vec()), numerics: None };
    let (mut driver, mut frames) = driver();
    let mut told = submit_going_on(&mut driver, 1, Arc::default(), Some(past));
    let mut ids = Vec::new();
    while let Ok(SeqEvent::Token(token)) = told.try_recv() {
        ids.push(token.id);
    }
    assert_eq!(ids, [5, 6, 7]);
    let parts: Vec<_> = sent(&mut frames).into_iter().flat_map(|ubatch| ubatch.parts).collect();
    assert_eq!(parts[0].tokens, [1, 2, 3, 5, 6, 7], "they are computed as a prompt");
    std::fs::remove_dir_all(&folder).unwrap();
}

fn loading(total_bytes: u64) -> LineEvent {
    let what = "hashing weights".to_string();
    LineEvent::Progress(Status::Loading(Loading { what, total_bytes, ..Loading::default() }))
}

#[tokio::test]
async fn progress_that_comes_late_does_not_hide_that_the_line_is_up() {
    let (mut driver, _frames) = driver();
    driver.line_event(loading(9));
    let status = driver.status.borrow().clone();
    assert!(matches!(status, Status::Ready(_)), "{status:?}");
}

#[tokio::test]
async fn why_an_attempt_failed_is_shown_while_the_next_one_is_under_way() {
    let (mut driver, _frames) = driver();
    driver.line_event(LineEvent::Down { reason: "stage 1 is gone".to_string(), planned: false });
    driver.line_event(LineEvent::Down { reason: "the disk is full".to_string(), planned: false });
    for total in [0, 9] {
        driver.line_event(loading(total));
        let status = driver.status.borrow().clone();
        let Status::Down { reason, next: Some(next) } = &status else { panic!("{status:?}") };
        assert!(reason.starts_with("the disk is full; now: hashing weights"), "{reason}");
        assert_eq!(next.total_bytes, total);
    }
}

/// Sends the results of all ubatches, and returns what is sent then.
fn answered(
    driver: &mut Driver,
    frames: &mut mpsc::Receiver<LaneFrame>,
    ubatches: &[pb::Ubatch],
) -> Vec<pb::Ubatch> {
    ubatches.iter().for_each(|ubatch| driver.line_news(result(ubatch)));
    sent(frames)
}

#[tokio::test]
async fn a_line_runs_empty_and_names_its_states_before_it_has_parted() {
    let (mut driver, mut frames) = driver();
    let _stays = submit(&mut driver, 0);
    let prompt = sent(&mut frames);
    let (done, mut parted) = oneshot::channel();
    driver.line_event(LineEvent::Part { done });
    let _comes = submit(&mut driver, 1);
    assert!(sent(&mut frames).is_empty(), "nothing more is begun");
    let named = answered(&mut driver, &mut frames, &prompt);
    let left = answered(&mut driver, &mut frames, &named);
    assert!(parted.try_recv().is_err());
    let [ubatch] = &left[..] else { panic!("{left:?}") };
    let Some(seq_op::Op::Checkpoint(leaves)) = &ubatch.ops[0].op else { panic!("{ubatch:?}") };
    // The prompt; the token that was drawn has not been computed.
    assert_eq!((leaves.len, leaves.parting, ubatch.parts.len()), (3, true, 0));
    assert!(answered(&mut driver, &mut frames, &left).is_empty());
    assert_eq!(parted.try_recv(), Ok(()));
}

#[tokio::test]
async fn a_line_that_breaks_does_not_part() {
    let (mut driver, mut frames) = driver();
    let _stays = submit(&mut driver, 0);
    let (done, mut parted) = oneshot::channel();
    driver.line_event(LineEvent::Part { done });
    driver.line_broke("stage 1 is gone".into());
    assert_eq!(parted.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    let (done, mut parted) = oneshot::channel();
    driver.line_event(LineEvent::Part { done });
    assert_eq!(parted.try_recv(), Err(oneshot::error::TryRecvError::Closed), "there is none");
    assert_eq!(sent(&mut frames).len(), 1);
}

#[tokio::test]
async fn a_line_to_which_nobody_goes_back_is_settled_at_once() {
    let (mut driver, _frames) = driver();
    driver.line_event(LineEvent::Down { reason: "as planned".to_string(), planned: true });
    let (mut line, _sent) = OpenLine::of_nobody(2, SPEC);
    let (told, mut settled) = oneshot::channel();
    line.settled = Some(told);
    driver.line_event(LineEvent::Up(Box::new(line)));
    assert_eq!(settled.try_recv(), Ok(Moved::default()));
}
