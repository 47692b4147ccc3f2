//! The scheduler over stages of real models, in one process: drafts change no token and no state, for all kinds of
//! state.
//!
//! A first run has no drafts. Other runs draft its answers, with a share of wrong tokens. Then everything must be
//! equal: tokens with their log-probabilities, the kept state of the sequence, its snapshots on every stage, and the
//! state with which the next request of the chat begins.

use std::collections::VecDeque;
use std::sync::Arc;

use brigade_draft::{Drafter, Forced, Source, Suffix};
use brigade_engine::batch::{
    Ahead, Constraint, DryParams, Grammar, Marker, Planes, RowValue, SampledToken, SamplerSetup,
    SamplingParams, SeqOp, SeqPart, SlotId, UBatch, Want,
};
use brigade_engine::constraint::Vocabulary;
use brigade_engine::device::gpus;
use brigade_engine::kernels::KV_PAGE;
use brigade_engine::stage::StageOutput;
use brigade_model_tests::each::each;
use brigade_model_tests::golden::{Entry, Golden};
use brigade_model_tests::kinds::{one_of_each_memory, unquantised};
use brigade_model_tests::line::{Line, LineConfig, N_SLOTS, SLOT_POSITIONS};
use brigade_sched::{
    Action, DraftCounts, Event, LineSpec, Micros, Request, RequestId, Results, SchedConfig,
    Scheduler, StageTime, Work,
};
use brigade_spec::Prefixes;

/// Tokens of a prompt: the first page's end lies among the first drafts.
const PROMPT: usize = 59;

/// Tokens drawn by each request: the second page's end lies among them.
const ANSWER: u32 = 84;

/// Requests of a chat, each of which continues the one before it.
const TURNS: u64 = 2;

/// Slots of running sequences; the others are for kept ones.
const RUNNING: u32 = N_SLOTS as u32 - 2;

/// Ubatches that are computed before the results of the first of them are heard of.
const LATE: usize = 3;

/// All that must not depend on drafts.
#[derive(Debug, PartialEq)]
struct Said {
    tokens: Vec<SampledToken>,
    /// Tokens of its prompt that were not computed.
    reused: u32,
    /// The tokens of its kept state, and that state on each stage.
    kept: Option<(Vec<u32>, Vec<Vec<u8>>)>,
}

/// How a run drafts.
#[derive(Clone, Copy, Debug)]
struct Drafts {
    /// The share of right drafts; `None`: drafts are found in texts, or forced by a grammar.
    acceptance: Option<f64>,
    /// Microseconds that a stage is said to take for so many rows: windows follow from it.
    costs: (u64, u64),
}

/// A chat and its ways of drawing.
struct Chat {
    prompt: Vec<u32>,
    sampler: SamplerSetup,
    /// The constraint of each answer, wherever it begins.
    held: Option<Constraint>,
}

impl Chat {
    /// The sampler of an answer behind a prompt of so many tokens.
    fn sampler(&self, n_prompt: usize) -> Arc<SamplerSetup> {
        let rule = |rule: &Constraint| Constraint { answer_at: n_prompt as u32, ..rule.clone() };
        let constraint = self.held.as_ref().map(|held| Arc::new(rule(held)));
        Arc::new(SamplerSetup { constraint, ..self.sampler.clone() })
    }
}

/// The token that ends an answer that is held to a grammar.
const END: u32 = 2;

/// The texts of a model's tokens for grammars: a letter each.
fn letters(n_vocab: u32) -> Vocabulary {
    let letter = |id: u32| vec![b'a' + (id % 26) as u8];
    Vocabulary::new((0..n_vocab).map(letter).collect(), |id| id == END, &[END]).unwrap()
}

/// A grammar whose masks depend on what was drawn. No answer is ever complete.
fn whole() -> Constraint {
    let text = "start: /([a-m]|[n-z][a-c])+!/".to_owned();
    let grammars = vec![Grammar { text, then_free: false }];
    Constraint { grammars, first: Some(0), later: true, ..Constraint::default() }
}

/// Grammars that begin again and again, behind letters that are drawn often enough.
fn now_and_then() -> Constraint {
    let text = "start: /[c-f]{1,2}[n-z]{2}/".to_owned();
    let grammars = vec![Grammar { text, then_free: true }];
    let marker = |text: &str| Marker { text: text.to_owned(), grammar: 0 };
    let markers = ["a", "h", "o", "v"].map(marker).to_vec();
    Constraint { grammars, markers, later: true, ..Constraint::default() }
}

/// A run under way.
struct Run<'a> {
    line: &'a mut Line,
    scheduler: Scheduler,
    n_stages: usize,
    costs: (u64, u64),
    has_drafter: bool,
    pending: VecDeque<Results>,
    now: Micros,
    said: Vec<Said>,
    /// Rows that were verified.
    verified: usize,
}

impl<'a> Run<'a> {
    fn new(line: &'a mut Line, spec: LineSpec, drafts: Option<Drafts>, n_vocab: u32) -> Self {
        let drafter = drafts.map(|Drafts { acceptance, .. }| match acceptance {
            Some(share) => Box::new(Forced::new(share, 5, n_vocab)) as Box<dyn Drafter>,
            None => Box::new(Suffix::default()),
        });
        let scheduler = Scheduler::new(SchedConfig::default()).with_drafter(drafter);
        let has_drafter = drafts.is_some();
        let costs = drafts.map_or((1_000, 100), |drafts| drafts.costs);
        let (pending, said) = (VecDeque::new(), Vec::new());
        let n_stages = spec.n_stages;
        let mut run = Self {
            line,
            scheduler,
            n_stages,
            costs,
            has_drafter,
            pending,
            now: 0,
            said,
            verified: 0,
        };
        run.step(Event::LineUp { epoch: 1, line: spec });
        run
    }

    fn step(&mut self, event: Event) {
        self.now += 10;
        for action in self.scheduler.step(self.now, event) {
            match action {
                Action::Send(ubatch) => {
                    let (id, rows) = (ubatch.id, ubatch.n_rows() as u64);
                    let verified = ubatch.parts.iter().filter(|part| part.want == Want::Verify);
                    self.verified += verified.map(|part| part.tokens.len()).sum::<usize>();
                    let compute_us = self.costs.0 + self.costs.1 * rows;
                    let time = StageTime { compute_us, queued_us: 0, ..StageTime::default() };
                    let rows = self.line.run(ubatch.ops, ubatch.parts);
                    let done = Some(vec![time; self.n_stages]);
                    self.pending.push_back(Results { epoch: 1, ubatch: id, rows, done });
                }
                Action::Token { token, .. } => self.last().tokens.push(token),
                Action::Reused { tokens, .. } => self.last().reused = tokens,
                Action::Finished { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn last(&mut self) -> &mut Said {
        self.said.last_mut().unwrap()
    }

    /// Hears of ubatches while more than `n` are on their way.
    fn hear(&mut self, n: usize) {
        while self.pending.len() > n {
            let results = self.pending.pop_front().unwrap();
            self.now += results.done.iter().flatten().map(|time| time.compute_us).sum::<u64>();
            self.step(Event::Results(results));
        }
    }

    /// Runs a chat; `expected` has the answers that are drafted.
    fn chat(mut self, chat: &Chat, expected: Option<&[Said]>) -> (Vec<Said>, usize, DraftCounts) {
        let mut prompt = chat.prompt.clone();
        for turn in 0..TURNS {
            let ids = |said: &Said| said.tokens.iter().map(|token| token.id).collect();
            let known = expected.map(|expected| ids(&expected[turn as usize]));
            let drafts = known.or_else(|| self.has_drafter.then(Default::default));
            let id = RequestId(turn);
            let said = Said { tokens: Vec::new(), reused: 0, kept: None };
            self.said.push(said);
            let work = Work::Generate {
                max_tokens: ANSWER,
                sure: ANSWER,
                sampler: chat.sampler(prompt.len()),
                stop_tokens: [].into(),
            };
            let request = Request::new(id, prompt.clone(), work);
            self.step(Event::Submit(Request { drafts, ..request }));
            while self.last().tokens.len() < ANSWER as usize {
                let late = if self.pending.len() > LATE { LATE } else { self.pending.len() - 1 };
                self.hear(late);
            }
            self.hear(0);
            let kept = self.scheduler.kept_of(id).map(|kept| {
                let stages = self.line.stages().iter();
                let states = stages.map(|stage| stage.snapshot(kept.slot).unwrap()).collect();
                (kept.tokens, states)
            });
            self.last().kept = kept;
            // The end of the answer as a client sends it back, and something new.
            prompt.extend(self.last().tokens.iter().map(|token| token.id));
            prompt.extend([7, 8, 9 + turn as u32]);
        }
        self.step(Event::ClearKept);
        self.hear(0);
        self.scheduler.check_idle().unwrap();
        (self.said, self.verified, self.scheduler.drafts())
    }
}

/// A sampler whose draws look at the history in every way.
fn looking_back() -> SamplerSetup {
    let dry = DryParams { multiplier: 0.8, ..DryParams::default() };
    let params = SamplingParams {
        temperature: 1.1,
        repeat_penalty: 1.2,
        frequency_penalty: 0.2,
        presence_penalty: 0.1,
        dry,
        ..SamplingParams::default()
    };
    SamplerSetup { params, seed: 11, top_logprobs: Some(2), ..SamplerSetup::default() }
}

/// A line that runs ahead, of sequences of at most so many positions.
fn line_spec(n_stages: usize, prefixes: Prefixes, max_positions: u32) -> LineSpec {
    LineSpec {
        n_stages,
        n_blocks: (N_SLOTS * SLOT_POSITIONS / KV_PAGE) as u32,
        n_slots: RUNNING,
        n_kept: N_SLOTS as u32 - RUNNING,
        prefixes,
        block_positions: KV_PAGE as u32,
        max_positions,
        max_rows: 64,
        companions: true,
        ahead: true,
        grows: true,
        own_drafts: 0,
    }
}

/// Compares runs with drafts with one without, for a model over two stages.
fn check(golden: &Golden, name: &str, entry: &Entry) {
    let path = golden.model(entry);
    let model = brigade_gguf::Gguf::open(&path).unwrap();
    let spec = brigade_models::describe(&model).unwrap();
    if spec.is_encoder() {
        return;
    }
    let vocab = spec.n_vocab as u32;
    let cuts = Line::even_cuts(spec.n_layer(), 2);
    let n_stages = cuts.len() + 1;
    for windows in [false, true] {
        let prefixes = spec.prefixes(windows);
        // Without layers that have windows it is the same as before.
        if windows && (prefixes == spec.prefixes(false) || prefixes != Prefixes::Whole) {
            continue;
        }
        let most = spec.max_positions().unwrap_or(u32::MAX).min(SLOT_POSITIONS as u32);
        let line_spec = line_spec(n_stages, prefixes, most);
        let tokens = golden.manifest.tokens.iter().cycle().copied();
        let prompt: Vec<u32> = tokens.clone().take(PROMPT).collect();
        let other: Vec<u32> = tokens.skip(3).take(PROMPT + 1).collect();
        let chat = |prompt: &[u32], sampler: SamplerSetup, held| Chat {
            prompt: prompt.to_vec(),
            sampler,
            held,
        };
        let greedy = chat(&prompt, Line::greedy(), None);
        let drawn = chat(&other, looking_back(), None);
        let held = chat(&prompt, Line::greedy(), Some(whole()));
        let half_held = chat(&other, looking_back(), Some(now_and_then()));
        let config = LineConfig { cuts: cuts.clone(), windows, ..LineConfig::default() };
        let mut line = Line::open(&path, &config);
        let last = line.stages().last_mut().unwrap();
        last.set_vocabulary(Box::new(move || Ok(letters(vocab))));
        for (chat, drafts) in [
            // Rows that cost nothing: long windows. Rows that cost as much as ubatches: many short ones.
            (&greedy, Drafts { acceptance: Some(0.9), costs: (10_000, 10) }),
            (&drawn, Drafts { acceptance: Some(0.8), costs: (1_000, 900) }),
            (&drawn, Drafts { acceptance: Some(0.6), costs: (10_000, 2_000) }),
            (&held, Drafts { acceptance: Some(0.9), costs: (10_000, 10) }),
            (&half_held, Drafts { acceptance: Some(0.8), costs: (1_000, 900) }),
        ] {
            let mut run = |drafts, expected: Option<&[Said]>| {
                // Every line begins with ubatch 0.
                line.reset();
                Run::new(&mut line, line_spec, drafts, vocab).chat(chat, expected)
            };
            let (without, none, _) = run(None, None);
            let (with, verified, _) = run(Some(drafts), Some(&without));
            assert_eq!(none, 0);
            assert!(verified > ANSWER as usize, "{name}: {verified} rows were verified");
            for (turn, (with, without)) in with.iter().zip(&without).enumerate() {
                let of = format!("{name}, windows kept: {windows}, {drafts:?}, turn {turn}");
                assert!(with.tokens == without.tokens, "{of}: other tokens");
                assert_eq!(with.reused, without.reused, "{of}: begins elsewhere");
                let kept = |said: &Said| said.kept.as_ref().map(|(tokens, _)| tokens.clone());
                assert_eq!(kept(with), kept(without), "{of}: other tokens are kept");
                assert!(with.kept == without.kept, "{of}: other states are kept");
                assert!(without.kept.is_some(), "{of}: nothing is kept");
            }
        }
    }
}

fn drafts_change_no_token_and_no_state() {
    let golden = Golden::repository();
    let all = std::env::var_os("BRIGADE_TEST_ALL_PAIRS").is_some();
    let models = if all { unquantised(&golden).collect() } else { one_of_each_memory(&golden) };
    println!("{} models", models.len());
    each(&models, |(name, entry)| check(&golden, name, entry));
}

/// The texts of tokens for [`choices`]: no two are equal, and none is the beginning of another.
fn words(n_vocab: u32) -> Vocabulary {
    let word = |id: u32| format!("<{id}>").into_bytes();
    Vocabulary::new((0..n_vocab).map(word).collect(), |id| id == END, &[END]).unwrap()
}

/// Every fifth token is a choice, those behind it must follow.
fn choices(n_vocab: u32) -> Constraint {
    let of = |first: u32| (first..first + 5).map(|id| format!("<{id}>")).collect::<String>();
    let all: Vec<String> =
        (5..n_vocab - 5).step_by(5).map(|id| format!("\"{}\"", of(id))).collect();
    let text = format!("start: ({})+ \"<!>\"", all.join(" | "));
    let grammars = vec![Grammar { text, then_free: false }];
    Constraint { grammars, first: Some(0), later: true, ..Constraint::default() }
}

/// Pages alone, and a state at a sequence's end.
fn what_a_grammar_forces_is_drafted() {
    let golden = Golden::repository();
    for name in ["llama", "granitehybrid"] {
        let path = golden.named(name);
        let model = brigade_gguf::Gguf::open(&path).unwrap();
        let spec = brigade_models::describe(&model).unwrap();
        let n_vocab = spec.n_vocab as u32;
        let (sampler, held) = (looking_back(), Some(choices(n_vocab)));
        let prompt = golden.manifest.tokens.iter().cycle().copied().take(PROMPT).collect();
        let chat = Chat { prompt, sampler, held };
        let cuts = Line::even_cuts(spec.n_layer(), 2);
        let line_spec = line_spec(2, spec.prefixes(false), SLOT_POSITIONS as u32);
        let mut line = Line::open(&path, &LineConfig { cuts, ..LineConfig::default() });
        let last = line.stages().last_mut().unwrap();
        last.set_vocabulary(Box::new(move || Ok(words(n_vocab))));
        let mut run = |drafts| {
            line.reset();
            Run::new(&mut line, line_spec, drafts, n_vocab).chat(&chat, None)
        };
        let (without, ..) = run(None);
        let (with, _, counts) = run(Some(Drafts { acceptance: None, costs: (10_000, 10) }));
        assert!(with == without, "{name}: other tokens or states");
        let [right, wrong] = counts.judged(Source::Grammar);
        println!("{name}: {right} tokens that were forced were drafted; of {:?}", counts.parts);
        assert!(right > 0 && wrong == 0, "{name}: {right} right, {wrong} wrong");
    }
}

/// Drafted parts that begin before those in front of them are finished draw the same, on the host and on a GPU where there
/// is one.
fn drafted_parts_that_begin_early_draw_the_same() {
    let golden = Golden::repository();
    let mut devices = vec![None];
    match gpus() {
        Ok(_) => devices.push(Some("vulkan:0")),
        Err(reason) => println!("skipped on a GPU: {reason}"),
    }
    // Pages alone, and states of a delta net, Mamba-2 and RWKV.
    let models = ["llama", "qwen35", "granitehybrid", "rwkv7"];
    for (model, kernels) in
        models.iter().flat_map(|model| devices.iter().map(move |d| (*model, *d)))
    {
        begins_ahead(&golden, model, kernels);
    }
}

/// Tokens of the prompt that drafted parts stand behind: their first position.
const DRAFTED_FROM: u32 = 20;

/// Rows of a drafted part.
const PART_ROWS: u32 = 4;

/// A drafted part whose rows the stage verifies.
struct DraftedParts<'a> {
    /// The prompt's last draw, and the answer behind it with one wrong token.
    tokens: &'a [u32],
    /// Whether the model has states, which each part reads from one plane and writes to the next.
    has_planes: bool,
}

impl DraftedParts<'_> {
    /// Part `i` with so many rows.
    fn part(&self, i: u32, n_rows: u32) -> SeqPart {
        let from = (PART_ROWS * i) as usize;
        let tokens = self.tokens[from..from + n_rows as usize].to_vec();
        let planes = self.has_planes.then(|| Planes { from: SlotId(i), to: SlotId(i + 1) });
        let ahead = Some(Ahead { sure: DRAFTED_FROM, known: 0, planes, drafts: 0 });
        let (pos, want) = (DRAFTED_FROM + PART_ROWS * i, Want::Verify);
        SeqPart { slot: SlotId(0), pos, tokens, want, mu: None, ahead }
    }

    /// Takes the sequence back to its prompt.
    fn back(&self) -> SeqOp {
        let planes = self.has_planes.then_some(Planes { from: SlotId(0), to: SlotId(0) });
        SeqOp::Truncate { slot: SlotId(0), len: DRAFTED_FROM, planes }
    }
}

/// Begins four drafted parts behind a prompt before the first of them is finished. The tenth draft is wrong, so that of
/// the rows
///
/// | part | rows at | drawn |
/// |---|---|---|
/// | 0 | 20 to 23 | all |
/// | 1 | 24 to 27 | all |
/// | 2 | 28 to 31 | the one at 28: its draw is not the next token, so that the rest of the part is void |
/// | 3 | 32 and 33 | none; the part is refuted, in the name of its first row |
fn begins_ahead(golden: &Golden, model: &str, kernels: Option<&'static str>) {
    let config = LineConfig { kernels, ..LineConfig::default() };
    let mut line = Line::open(&golden.named(model), &config);
    let prompt = &golden.manifest.tokens[..DRAFTED_FROM as usize];
    let answer = line.generate(prompt, 14, 64);
    line.reset();
    let mut tokens = answer.clone();
    tokens[9] = (tokens[9] + 1) % 200;
    let drafted = DraftedParts { tokens: &tokens, has_planes: model != "llama" };
    let stage = &mut line.stages()[0];
    let mut id = 0;
    let mut ubatch = |ops, part| {
        id += 1;
        UBatch { id: id - 1, ops, parts: vec![part] }
    };
    let (slot, tokens, want) = (SlotId(0), prompt.to_vec(), Want::Sample);
    let first = SeqPart { slot, pos: 0, tokens, want, mu: None, ahead: None };
    stage.forward(&ubatch(vec![Line::open_slot(0, Some(Line::greedy()))], first), None).unwrap();
    let mut begun = Vec::new();
    for (i, n_rows) in [(0, 4), (1, 4), (2, 4), (3, 2)] {
        let ub = ubatch(Vec::new(), drafted.part(i, n_rows));
        assert!(stage.may_begin(&ub));
        begun.push(stage.begin(&ub, None).unwrap());
    }
    // This ubatch changes a sequence of which parts are still to be drawn, so it may not begin before they are finished.
    let begins_again = ubatch(vec![drafted.back()], drafted.part(0, 1));
    assert!(!stage.may_begin(&begins_again));
    let sampled = |value: &RowValue| match value {
        RowValue::Sampled(token) => Some(token.id),
        _ => None,
    };
    let mut drawn = Vec::new();
    for begun in begun {
        let finished = stage.finish(begun).unwrap();
        let StageOutput::Rows(rows) = stage.draft_behind(finished).unwrap() else {
            panic!("no rows")
        };
        drawn.extend(rows.into_iter().map(|row| (row.pos, row.value)));
    }
    assert_eq!(drawn.pop(), Some((32, RowValue::Refuted)));
    let ids: Vec<_> = drawn.iter().map(|(pos, value)| (*pos, sampled(value))).collect();
    // The row that reads the answer's token `i` draws token `i + 1`.
    let expected: Vec<_> = (20..).zip(answer[1..10].iter().copied().map(Some)).collect();
    assert_eq!(ids, expected, "{model} on {kernels:?}");
    let StageOutput::Rows(rows) = stage.forward(&begins_again, None).unwrap() else {
        panic!("no rows")
    };
    assert_eq!(sampled(&rows[0].value), Some(answer[1]), "{model} on {kernels:?}: taken back");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: drafts_change_no_token_and_no_state, what_a_grammar_forces_is_drafted, drafted_parts_that_begin_early_draw_the_same;
];
