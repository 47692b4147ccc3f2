//! Ubatches that are begun on a GPU while others compute there. Their bits are those of ubatches one after the other on
//! the table `unfused`. Once all memory has been taken, nothing is recorded anew. Machines without a Vulkan driver
//! skip.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use brigade_engine::batch::{RowOutput, RowValue, SeqOp, SeqPart, SlotId, UBatch, Want};
use brigade_engine::device::gpus;
use brigade_engine::stage::{Begun, Stage, StageOutput};
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig};

/// Models of each kind of mixer, with experts, several streams, and adapters that tokens switch on.
const MODELS: [&str; 8] = [
    "deepseek4",
    "gemma3n",
    "granitehybrid",
    "graniteswitch",
    "kimi-linear",
    "llama",
    "qwen2moe",
    "rwkv7",
];

/// Mixtures among these whose experts also lie with the host once.
const BESIDE: [&str; 3] = ["granitehybrid", "kimi-linear", "qwen2moe"];

/// Sequences, whose ubatches take turns.
const N_SLOTS: u32 = 2;
/// Ubatches in work at once.
const IN_WORK: usize = 2;
/// Rows of a prompt, and of one of its ubatches.
const PROMPT: usize = 40;
const N_UBATCH: usize = 13;
/// Tokens that are generated behind it.
const STEPS: usize = 24;
/// Steps before which all memory has been taken once, in all the ways in which ubatches follow each other.
const WARM: usize = 12;

/// Results of rows, by slot and position.
type Found = BTreeMap<(u32, u32), Vec<u32>>;

/// A stage with all layers, and the ubatches that it has in work.
struct Turns {
    line: Line,
    begun: VecDeque<Begun>,
    most: usize,
    next_id: u64,
    found: Found,
}

impl Turns {
    fn new(path: &std::path::Path, kernels: &'static str, host_experts: u32, most: usize) -> Self {
        let config = LineConfig { kernels: Some(kernels), host_experts, ..LineConfig::default() };
        let line = Line::open(path, &config);
        Self { line, begun: VecDeque::new(), most, next_id: 0, found: Found::new() }
    }

    fn stage(&mut self) -> &mut Stage {
        &mut self.line.stages()[0]
    }

    /// Begins a ubatch of one part. Ubatches beyond the allowed number are finished first.
    fn begin(&mut self, ops: Vec<SeqOp>, part: SeqPart) {
        let ub = UBatch { id: self.next_id, ops, parts: vec![part] };
        self.next_id += 1;
        if !self.stage().may_begin(&ub) {
            self.finish_to(0);
        }
        let begun = self.stage().begin(&ub, None).unwrap();
        self.begun.push_back(begun);
        self.finish_to(self.most - 1);
    }

    fn finish_to(&mut self, n: usize) {
        while self.begun.len() > n {
            let mut first = self.begun.pop_front().unwrap();
            while !first.is_done_within(Duration::from_millis(1)) {}
            let first = self.stage().finish(first).unwrap();
            let StageOutput::Rows(rows) = self.stage().draft_behind(first).unwrap() else {
                panic!("a stage with all layers has the head")
            };
            for RowOutput { slot, pos, value, .. } in rows {
                let bits = match value {
                    RowValue::Logits(logits) => logits.into_iter().map(f32::to_bits).collect(),
                    RowValue::Sampled(token) => vec![token.id],
                    other => panic!("{other:?}"),
                };
                assert!(self.found.insert((slot.0, pos), bits).is_none(), "a row came twice");
            }
        }
    }

    /// The prompts of all sequences, ubatch by ubatch in turn.
    fn prompts(&mut self, tokens: &[u32]) {
        for first in (0..PROMPT).step_by(N_UBATCH) {
            for slot in 0..N_SLOTS {
                let rows = first..PROMPT.min(first + N_UBATCH);
                let opened = || Line::open_slot(slot, Some(Line::greedy()));
                let ops = if first == 0 { vec![opened()] } else { Vec::new() };
                let tokens = rows.map(|row| tokens[row + slot as usize]).collect();
                let (slot, pos, want) = (SlotId(slot), first as u32, Want::Logits);
                self.begin(ops, SeqPart { slot, pos, tokens, want, mu: None, ahead: None });
            }
        }
        self.finish_to(0);
    }

    /// Steps of decode of all sequences in turn. Returns the most batches that one of the later ones had recorded, on a GPU.
    fn decode(&mut self, tokens: &[u32]) -> u64 {
        let mut most = 0;
        for step in 0..STEPS {
            for slot in 0..N_SLOTS {
                let before = self.stage().handed().recorded;
                let pos = (PROMPT + step) as u32;
                let tokens = vec![tokens[(7 * step + slot as usize) % tokens.len()]];
                let (slot, want) = (SlotId(slot), Want::Sample);
                self.begin(Vec::new(), SeqPart { slot, pos, tokens, want, mu: None, ahead: None });
                let recorded = self.stage().handed().recorded - before;
                most = if step < WARM { 0 } else { recorded.max(most) };
            }
        }
        self.finish_to(0);
        most
    }
}

/// All of it is one test: it looks at counts of the one device, which no other test may use meanwhile.
fn ubatches_that_are_begun_while_others_compute_have_the_same_bits() {
    if let Err(reason) = gpus() {
        println!("skipped: {reason}");
        return;
    }
    let golden = Golden::repository();
    let tokens = &golden.manifest.tokens;
    let beside = BESIDE.map(|name| (name, u32::MAX));
    for (name, host_experts) in MODELS.map(|name| (name, 0)).into_iter().chain(beside) {
        let path = golden.model(&golden.manifest.models[name]);
        let mut on_gpu = Turns::new(&path, "vulkan:0", host_experts, IN_WORK);
        let mut one_by_one = Turns::new(&path, "unfused", 0, 1);
        on_gpu.prompts(tokens);
        one_by_one.prompts(tokens);
        assert!(on_gpu.found == one_by_one.found, "{name}: other bits in prompts");
        let recorded = on_gpu.decode(tokens);
        one_by_one.decode(tokens);
        assert_eq!(on_gpu.found.len(), N_SLOTS as usize * (PROMPT + STEPS));
        assert!(on_gpu.found == one_by_one.found, "{name}: other tokens in decode");
        println!("{name}: {recorded} batches recorded in a later step of decode at most");
        // Every so many positions, one makes an entry; adapters that tokens switch on are other work.
        if !["deepseek4", "graniteswitch"].contains(&name) {
            assert_eq!(recorded, 0, "{name}: steps of decode that were recorded again");
        }
    }
}

/// A sequence whose token is still to be drawn is left alone until it is.
fn a_ubatch_that_says_something_of_a_sequence_waits_for_its_draw() {
    let golden = Golden::repository();
    let path = golden.model(&golden.manifest.models["llama"]);
    let mut line = Line::open(&path, &LineConfig::default());
    let stage = &mut line.stages()[0];
    let part = |slot, pos| {
        let (slot, tokens, want) = (SlotId(slot), vec![1], Want::Sample);
        SeqPart { slot, pos, tokens, want, mu: None, ahead: None }
    };
    let open = |slot| Line::open_slot(slot, Some(Line::greedy()));
    let ub = |id, ops, parts| UBatch { id, ops, parts };
    let first = stage.begin(&ub(0, vec![open(0)], vec![part(0, 0)]), None).unwrap();
    let another = ub(1, vec![open(1)], vec![part(1, 0)]);
    assert!(stage.may_begin(&another));
    let ops = [
        SeqOp::Close { slot: SlotId(0) },
        SeqOp::Truncate { slot: SlotId(0), len: 0, planes: None },
    ];
    let of_first = ops.into_iter().map(|op| ub(1, vec![op], Vec::new()));
    let of_first: Vec<_> = of_first.chain([ub(1, Vec::new(), vec![part(0, 1)])]).collect();
    assert!(of_first.iter().all(|ub| !stage.may_begin(ub)));
    let second = stage.begin(&another, None).unwrap();
    stage.finish(first).unwrap();
    assert!(of_first.iter().all(|ub| stage.may_begin(ub)));
    assert!(!stage.may_begin(&ub(2, Vec::new(), vec![part(1, 1)])));
    stage.finish(second).unwrap();
    assert!(stage.may_begin(&ub(2, Vec::new(), vec![part(1, 1)])));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone:
        ubatches_that_are_begun_while_others_compute_have_the_same_bits,
        a_ubatch_that_says_something_of_a_sequence_waits_for_its_draw;
];
