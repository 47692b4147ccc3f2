//! Recurrences of the sizes that models have, in every form that the kernels have: `cargo bench -p
//! brigade-engine --bench scans [-- FILTER]`.
//!
//! Over a prompt it prints microseconds for a token and a layer, and the share of the f32 peak that the
//! operations make. It also prints the largest difference from the recurrence computed in f64, relative to
//! the largest output.
//!
//! For one token at a time there are two cases. The states of many layers are taken in turn, so that they
//! come from memory. Or one layer's states are taken again and again, from a cache. It prints bytes read and
//! written, beside what can be read there. [`common`] says what the environment chooses.

#[path = "../common/mod.rs"]
mod common;
mod delta;
mod mamba2;

use brigade_engine::kernels::{Compute, ScanPart, probe};
use common::{Bench, beside};

/// Tokens of a prompt.
const LENGTHS: [usize; 3] = [64, 256, 1024];
/// The longest of them.
const LONGEST: usize = LENGTHS[LENGTHS.len() - 1];
/// Largest difference that is asked of every form.
const ASKED: f64 = 1e-5;
/// States of the one-token case take turns over this many bytes: beyond every cache.
const STATES_BYTES: usize = 256 << 20;

/// Computes parts of a recurrence: states and outputs follow.
type Run<'a> = dyn Fn(&Compute, &[ScanPart], &mut [f32], &mut [f32]) + 'a;
/// One way to compute a recurrence, and its name.
type Form<'a> = (String, Box<Run<'a>>);

/// A recurrence with its operands for [`LONGEST`] tokens.
trait Recurrence {
    /// For the filter and the lines.
    fn name(&self) -> &'static str;
    /// Values of a layer's state.
    fn state_len(&self) -> usize;
    /// Values of a token's output.
    fn row_len(&self) -> usize;
    /// Operations for a value of the state and a token; a fused one counts as two.
    fn ops(&self) -> usize;
    /// Each form takes parts, states and outputs; the first is what blocks call.
    fn forms(&self) -> Vec<Form<'_>>;
    /// Outputs of all tokens, token by token in f64.
    fn exact(&self) -> Vec<f64>;
}

fn main() {
    let bench = Bench::start();
    let mut off = 0.0f64;
    let cases: [Box<dyn Recurrence>; 3] =
        [Box::new(mamba2::granite()), Box::new(delta::kimi()), Box::new(delta::qwen())];
    for case in cases.iter().filter(|case| bench.wants(case.name())) {
        off = off.max(prompts(&bench, &**case));
        one_token(&bench, &**case);
    }
    let verdict = if off <= ASKED { "within" } else { "NOT within" };
    println!("largest difference of all: {off:.1e}, {verdict} {ASKED:.0e}");
    if off > ASKED {
        std::process::exit(1);
    }
}

/// All forms over prompts; returns the largest difference.
fn prompts(bench: &Bench, case: &dyn Recurrence) -> f64 {
    let exact = case.exact();
    let mut worst = 0.0f64;
    for n in LENGTHS {
        let part = ScanPart::in_place(0, 0, 0, n);
        for (form, run) in case.forms() {
            let (mut state, mut out) = (vec![0.0; case.state_len()], vec![0.0; n * case.row_len()]);
            run(&bench.compute, &[part], &mut state, &mut out);
            let off = difference(&out, &exact[..out.len()]);
            worst = worst.max(off);
            let seconds = bench.seconds(|_| {
                state.fill(0.0);
                run(&bench.compute, &[part], &mut state, &mut out);
            });
            let rate = (n * case.ops() * case.state_len()) as f64 / seconds;
            println!(
                "{:6} {form:13} {n:5} tokens  {:7.1} us/token  {}  off by {off:.1e}",
                case.name(),
                seconds * 1e6 / n as f64,
                beside(rate, "GFLOP/s", bench.limits.f32, "f32"),
            );
        }
    }
    worst
}

/// The first form, a token at a time.
fn one_token(bench: &Bench, case: &dyn Recurrence) {
    let bytes = case.state_len() * size_of::<f32>();
    let (form, run) = case.forms().swap_remove(0);
    let mut out = vec![0.0; case.row_len()];
    let part = ScanPart::in_place(0, 0, 0, 1);
    let cache = probe::cache_bandwidth(&bench.compute, bytes);
    let places =
        [("memory", STATES_BYTES.div_ceil(bytes), bench.limits.memory), ("cache", 1, cache)];
    for (place, n_layers, limit) in places {
        let mut states = vec![0.5; n_layers * case.state_len()];
        let seconds = bench.seconds(|i| {
            let state = &mut states[i % n_layers * case.state_len()..][..case.state_len()];
            run(&bench.compute, &[part], state, &mut out);
        });
        println!(
            "{:6} {form:13} one token, {n_layers:3} layers in turn  {:7.1} us/token  {}",
            case.name(),
            seconds * 1e6,
            beside(2.0 * bytes as f64 / seconds, "GB/s", limit, &format!("{place} read")),
        );
    }
}

/// The largest difference between outputs, relative to the largest output.
fn difference(out: &[f32], exact: &[f64]) -> f64 {
    let largest = exact.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let off = out.iter().zip(exact).map(|(a, b)| (f64::from(*a) - b).abs());
    off.fold(0.0, f64::max) / largest
}
