//! The cost of drafting, to compare with a token's time on a line: `cargo bench -p brigade-draft`.
//!
//! Each line is one kind of text, with microseconds for each call or token. The texts are a stretch that repeats (drafts are
//! always right), tokens drawn like words of a language (short matches everywhere, drafts are mostly wrong), and evenly
//! drawn ones (nothing matches). Beside an empty memory stands one with as many recent answers as are kept.

use std::hint::black_box;
use std::time::Instant;

use brigade_draft::{Drafter, OwnerId, StreamId, Suffix};

/// The allocator of the `brigade` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tokens of the prompt.
const PROMPT: usize = 100_000;
/// Tokens that are pushed, with a draft before each.
const ANSWER: usize = 4_000;
/// Tokens of a draft.
const DRAFT: usize = 16;
/// Recent answers of the owner, and tokens of each.
const RECENT: (usize, usize) = (64, 1_000);
/// Rounds; the median of each figure is printed.
const REPEATS: usize = 5;
const N_VOCAB: f64 = 50_000.0;
/// Tokens after which the repeating text begins anew.
const STRETCH: usize = 1_000;
const OWNER: OwnerId = OwnerId::of(1);
const STREAM: StreamId = StreamId(0);

/// A seeded generator of tokens (SplitMix64, Steele, Lea, Flood 2014).
struct Tokens(u64);

impl Tokens {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn even(&mut self) -> u32 {
        (self.unit() * N_VOCAB) as u32
    }

    /// The token of rank r is drawn about as often as 1 / r (Zipf).
    fn word(&mut self) -> u32 {
        N_VOCAB.powf(self.unit()) as u32
    }
}

/// Tokens of a kind of text.
fn text(kind: &str, seed: u64, n: usize) -> Vec<u32> {
    let mut tokens = Tokens(seed);
    match kind {
        "even" => (0..n).map(|_| tokens.even()).collect(),
        "words" => (0..n).map(|_| tokens.word()).collect(),
        _ => {
            // The same for each seed.
            let mut tokens = Tokens(0);
            let stretch: Vec<u32> = (0..STRETCH).map(|_| tokens.even()).collect();
            stretch.into_iter().cycle().take(n).collect()
        }
    }
}

/// Microseconds of `call`, and what it gave.
fn timed<T>(call: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let given = black_box(call());
    (start.elapsed().as_secs_f64() * 1e6, given)
}

/// The figure that `share` of the figures are below.
fn quantile(mut figures: Vec<f64>, share: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[(figures.len() as f64 * share) as usize]
}

/// One round: begin; index a token; push; draft: median and 99 %; draft behind a draft; share right; bytes a token.
fn round(kind: &str, n_answers: usize) -> [f64; 8] {
    let mut suffix = Suffix::default();
    for i in 0..n_answers {
        let answer = text(kind, 100 + i as u64, RECENT.1);
        suffix.begin(StreamId(1), OWNER, &answer, 0, &[]);
        suffix.end(StreamId(1));
    }
    let (prompt, answer) = (text(kind, 1, PROMPT), text(kind, 2, ANSWER));
    let held = suffix.nbytes();
    let (begin, ()) = timed(|| suffix.begin(STREAM, OWNER, &prompt, PROMPT, &[]));
    let (index, ()) = timed(|| while suffix.prepare(STREAM, 1_000) > 0 {});
    let (mut push, mut first, mut behind, mut right) = (vec![], vec![], vec![], 0);
    for token in &answer {
        let (us, draft) = timed(|| suffix.draft(STREAM, &[], DRAFT));
        first.push(us);
        behind.push(timed(|| suffix.draft(STREAM, &draft.tokens, DRAFT)).0);
        push.push(timed(|| suffix.push(STREAM, *token)).0);
        right += usize::from(draft.tokens.first() == Some(token));
    }
    let bytes = (suffix.nbytes() - held) as f64 / (PROMPT + ANSWER) as f64;
    let (slow, first) = (quantile(first.clone(), 0.99), quantile(first, 0.5));
    let (push, behind) = (quantile(push, 0.5), quantile(behind, 0.5));
    let right = right as f64 / ANSWER as f64;
    [begin, index / PROMPT as f64, push, first, slow, behind, right, bytes]
}

fn main() {
    // `cargo test --benches` asks for a smoke test only.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    println!("{PROMPT} tokens of prompt, drafts of {DRAFT}; microseconds, medians");
    println!(
        "text     answers  begin  index/token   push  draft  (99 %)  behind  right  bytes/token"
    );
    for kind in ["repeats", "words", "even"] {
        for n_answers in [0, RECENT.0] {
            let rounds: Vec<_> = (0..REPEATS).map(|_| round(kind, n_answers)).collect();
            let [begin, index, push, first, slow, behind, right, bytes] =
                std::array::from_fn(|i| quantile(rounds.iter().map(|r| r[i]).collect(), 0.5));
            println!(
                "{kind:8} {n_answers:7} {begin:6.0} {index:12.3} {push:6.2} {first:6.2} {slow:7.2} {behind:7.2} \
                 {right:6.2} {bytes:12.1}"
            );
        }
    }
}
