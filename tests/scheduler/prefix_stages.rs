//! The scheduler over stages of real models, in one process. For all kinds of state, a prompt with a reused prefix
//! gets the answer of a prompt that was computed as a whole.

use std::collections::BTreeMap;

use brigade_engine::batch::{SampledToken, SamplerSetup, SamplingParams};
use brigade_engine::kernels::KV_PAGE;
use brigade_model_tests::each::each;
use brigade_model_tests::golden::{Entry, Golden};
use brigade_model_tests::kinds::{one_of_each_memory, unquantised};
use brigade_model_tests::line::{Line, LineConfig, N_SLOTS, SLOT_POSITIONS};
use brigade_sched::{
    Action, Event, LineSpec, Request, RequestId, Results, SchedConfig, Scheduler, Share, StageTime,
    Work,
};
use brigade_spec::Prefixes;

/// Tokens of the prompt that others are like. The state at a distance from its end is at 128, which is a fork too.
const PROMPT: usize = 200;

/// Tokens drawn by each request.
const ANSWER: u32 = 5;

/// Where prompts part: before, at and behind ends of pages, and elsewhere. The later ones come first: there is no state a few
/// rows before them.
const FORKS: [usize; 6] = [128, 100, 65, 64, 63, 30];

/// Slots of running sequences; the others are for kept states.
const RUNNING: u32 = 3;

/// A client's result: its tokens with their log-probabilities, and the number of prompt tokens that were reused.
#[derive(Debug, Default)]
struct Got {
    tokens: Vec<SampledToken>,
    reused: u32,
}

/// A run under way.
struct Run<'a> {
    line: &'a mut Line,
    scheduler: Scheduler,
    n_stages: usize,
    got: BTreeMap<RequestId, Got>,
    n_rows: usize,
}

impl<'a> Run<'a> {
    fn new(line: &'a mut Line, spec: LineSpec) -> Self {
        // Every line begins with ubatch 0.
        line.reset();
        let scheduler = Scheduler::new(SchedConfig::default());
        let (n_stages, got) = (spec.n_stages, BTreeMap::new());
        let mut run = Self { line, scheduler, n_stages, got, n_rows: 0 };
        run.step(Event::LineUp { epoch: 1, line: spec });
        run
    }

    /// Handles an event and all that follows from it.
    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.scheduler.step(0, event) {
                match action {
                    Action::Send(ubatch) => {
                        self.n_rows += ubatch.n_rows();
                        let id = ubatch.id;
                        let rows = self.line.run(ubatch.ops, ubatch.parts);
                        let done = Some(vec![StageTime::default(); self.n_stages]);
                        let results = Results { epoch: 1, ubatch: id, rows, done };
                        events.insert(0, Event::Results(results));
                    }
                    Action::Token { request, token, .. } => {
                        self.got.entry(request).or_default().tokens.push(token);
                    }
                    Action::Reused { request, tokens } => {
                        self.got.entry(request).or_default().reused = tokens;
                    }
                    Action::Finished { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn submit(&mut self, prompt: &[u32], owner: u64) -> RequestId {
        let id = RequestId(self.got.len() as u64);
        self.got.insert(id, Got::default());
        let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        let sampler =
            SamplerSetup { params, seed: 5, top_logprobs: Some(2), ..SamplerSetup::default() };
        let (sampler, stop_tokens) = (sampler.into(), [].into());
        let (max_tokens, sure) = (ANSWER, ANSWER);
        let event = Event::Submit(Request {
            id,
            label: id.0.to_string().into(),
            prompt: prompt.to_vec(),
            work: Work::Generate { max_tokens, sure, sampler, stop_tokens },
            adapters: [].into(),
            share: Share { owner, ..Share::default() },
            namespace: None,
            deadline: None,
            copied: false,
            companion: None,
            drafts: None,
            borders: [].into(),
        });
        self.step(event);
        id
    }

    /// The answer to a prompt, and how many of its tokens were not computed.
    fn ask(&mut self, prompt: &[u32]) -> (Vec<SampledToken>, u32) {
        let id = self.submit(prompt, 0);
        let got = &self.got[&id];
        assert_eq!(got.tokens.len(), ANSWER as usize);
        (got.tokens.clone(), got.reused)
    }

    fn end(mut self) {
        self.step(Event::ClearKept);
        self.scheduler.check_idle().unwrap();
    }
}

fn line_spec(n_stages: usize, prefixes: Prefixes, max_positions: u32, n_kept: u32) -> LineSpec {
    LineSpec {
        n_stages,
        n_blocks: (N_SLOTS * SLOT_POSITIONS / KV_PAGE) as u32,
        n_slots: RUNNING,
        n_kept,
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

/// The prompt up to a fork, and something else.
fn forked(prompt: &[u32], at: usize, own: u32) -> Vec<u32> {
    let other = prompt[at] % 190 + own;
    prompt[..at].iter().copied().chain([other, 3, own, 7, 11]).collect()
}

fn check(golden: &Golden, name: &str, entry: &Entry) {
    let path = golden.model(entry);
    let model = brigade_gguf::Gguf::open(&path).unwrap();
    let spec = brigade_models::describe(&model).unwrap();
    if spec.is_encoder() {
        return;
    }
    let cuts = Line::even_cuts(spec.n_layer(), 2);
    let n_stages = cuts.len() + 1;
    let prompt: Vec<u32> = golden.manifest.tokens.iter().cycle().copied().take(PROMPT).collect();
    for windows in [false, true] {
        let prefixes = spec.prefixes(windows);
        // Without layers that have windows it is the same as before.
        if windows && (prefixes == spec.prefixes(false) || prefixes != Prefixes::Whole) {
            continue;
        }
        let most = spec.max_positions().unwrap_or(u32::MAX).min(SLOT_POSITIONS as u32);
        let config = LineConfig { cuts: cuts.clone(), windows, ..LineConfig::default() };
        let mut line = Line::open(&path, &config);
        let asked: Vec<Vec<u32>> = [prompt.clone(), prompt.clone()]
            .into_iter()
            .chain(FORKS.iter().flat_map(|&at| [1, 2].map(|own| forked(&prompt, at, own))))
            .collect();
        let run = |line: &mut Line, n_kept| {
            let mut run = Run::new(line, line_spec(n_stages, prefixes, most, n_kept));
            let got: Vec<_> = asked.iter().map(|prompt| run.ask(prompt)).collect();
            run.end();
            got
        };
        let cold = run(&mut line, 0);
        let warm = run(&mut line, N_SLOTS as u32 - RUNNING);
        for (i, (cold, warm)) in cold.iter().zip(&warm).enumerate() {
            let of = format!("{name}, windows kept: {windows}, prompt {i}, {} reused", warm.1);
            assert!(warm.0 == cold.0, "{of}: other tokens");
            assert_eq!(cold.1, 0);
        }
        assert_eq!(warm[1].1 as usize, PROMPT - 1, "{name}: an identical prompt computes one row");
        for (i, &at) in FORKS.iter().enumerate() {
            // The second one that parts there begins there.
            assert_eq!(warm[2 + 2 * i + 1].1 as usize, at, "{name}, windows kept: {windows}");
        }
    }
}

fn a_prompt_that_begins_with_what_was_kept_is_answered_as_a_cold_one() {
    let golden = Golden::repository();
    let all = std::env::var_os("BRIGADE_TEST_ALL_PAIRS").is_some();
    let models = if all { unquantised(&golden).collect() } else { one_of_each_memory(&golden) };
    println!("{} models", models.len());
    each(&models, |(name, entry)| check(&golden, name, entry));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: a_prompt_that_begins_with_what_was_kept_is_answered_as_a_cold_one;
];
