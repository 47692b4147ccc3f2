//! `brigade run --state-out` and `--state-in`: a run goes on where another one ended, in new processes and at
//! another cut, with the tokens of one that never stopped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use brigade_gguf::Gguf;
use brigade_tests::process::{run, synth};

/// A file of its own for each test.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Runs the demo model, or the one in `more`, and returns what it printed.
fn run_ids(tokens: &[u32], n: usize, more: &[&str]) -> Output {
    let (tokens, n) = (list(tokens), n.to_string());
    let mut args = vec!["run", "--tokens", &tokens, "-n", &n, "--temp", "0", "--ids"];
    args.extend(more);
    run(&args)
}

fn ids(output: &Output) -> Vec<u32> {
    assert!(output.status.success(), "{}", says(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that a run that begins with a file is refused for a reason that has these words.
fn refused(tokens: &[u32], more: &[&str], words: &str) {
    let output = run_ids(tokens, 1, more);
    assert!(!output.status.success(), "{words}: it ran");
    assert!(says(&output).contains(words), "{words}: {}", says(&output));
    assert!(!says(&output).contains("panicked"), "{}", says(&output));
}

fn a_run_goes_on_from_a_file_at_another_cut() {
    for kv_type in ["f16", "q8_0"] {
        goes_on(kv_type);
    }
}

fn goes_on(kv_type: &str) {
    let path = file(&format!("goes-on-{kv_type}.state"));
    let path = path.to_str().unwrap();
    let on = |workers| ["--kv-type", kv_type, "--workers", workers];
    // More than one page of positions.
    let prompt: Vec<u32> = (1..90).map(|i| 1 + i % 60).collect();
    let whole = ids(&run_ids(&prompt, 16, &on("1")));
    let first = ids(&run_ids(&prompt, 8, &[&on("2")[..], &["--state-out", path]].concat()));
    assert_eq!(first, whole[..8]);
    let longer = [&prompt[..], &first].concat();
    let second = run_ids(&longer, 8, &[&on("3")[..], &["--state-in", path]].concat());
    assert_eq!(ids(&second), whole[8..]);
    // The last token drawn has no state yet.
    let told = format!("restored {} tokens, prefill 1 tokens", longer.len() - 1);
    assert!(says(&second).contains(&told), "{}", says(&second));
}

fn a_file_that_does_not_fit_is_refused_with_the_reason() {
    let path = file("refused.state");
    let path = path.to_str().unwrap();
    let prompt: Vec<u32> = (1..20).collect();
    let first = ids(&run_ids(&prompt, 2, &["--workers", "2", "--state-out", path]));
    let longer = [&prompt[..], &first].concat();
    let begin = ["--workers", "2", "--state-in", path];
    refused(&[7, 7, 7], &begin, "0 in common");
    refused(&longer[..5], &begin, "5 in common");
    for kv_type in ["f32", "q8_0"] {
        refused(&longer, &[&begin[..], &["--kv-type", kv_type]].concat(), "wanted");
    }
    let mut damaged = fs::read(path).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(path, damaged).unwrap();
    refused(&longer, &begin, "hash");
}

/// A model of the same header whose layer `layer` has other weights, as a fine-tuned one has.
fn tuned(model: &Path, layer: usize) -> PathBuf {
    let stem = format!("blk.{layer}.");
    let gguf = Gguf::open(model).unwrap();
    let ours = gguf.tensors().iter().filter(|t| t.name.starts_with(&stem) && t.n_dims > 1);
    let mut bytes = fs::read(model).unwrap();
    for tensor in ours {
        for byte in &mut bytes[tensor.offset as usize..][..tensor.nbytes as usize] {
            // Of a number in half or single precision or of a block's quants: its low bits.
            *byte ^= 1;
        }
    }
    let path = model.with_extension("tuned.gguf");
    fs::write(&path, bytes).unwrap();
    path
}

/// Models with recurrent layers beside attention ones: saved by two workers, put back into three new
/// ones; damaged and foreign files refused.
fn hybrid(arch: &str, size: &str) {
    let (model, state) = (synth(arch, size), file(&format!("{arch}.state")));
    let [m, path] = [&model, &state].map(|p| p.to_str().unwrap());
    let on = |workers, more: &[&'static str]| [&["-m", m, "--workers", workers], more].concat();
    let (save, begin) = (["--state-out", path], ["--state-in", path]);
    // More than one page of positions.
    let prompt: Vec<u32> = (0..100).map(|i| 3 + i * 37 % 400).collect();
    let whole = ids(&run_ids(&prompt, 16, &on("1", &[])));
    let first = ids(&run_ids(&prompt, 8, &[on("2", &[]), save.to_vec()].concat()));
    assert_eq!(first, whole[..8], "{arch}");
    let longer = [&prompt[..], &first].concat();
    let second = run_ids(&longer, 8, &[on("3", &[]), begin.to_vec()].concat());
    assert_eq!(ids(&second), whole[8..], "{arch}: goes on as one that never stopped");
    let told = format!("restored {} tokens, prefill 1 tokens", longer.len() - 1);
    assert!(says(&second).contains(&told), "{arch}: {}", says(&second));
    let bytes = fs::read(&state).unwrap();
    println!("{arch}: {} bytes of state; {told}", bytes.len());

    // A run that restores nothing is told apart by the same figures.
    let fresh = run_ids(&longer, 8, &on("3", &[]));
    assert_eq!(ids(&fresh), whole[8..], "{arch}: prefilled at once");
    let all = format!("prefill {} tokens", longer.len());
    assert!(says(&fresh).starts_with(&all), "{arch}: {}", says(&fresh));

    let other = model.with_extension("other.gguf");
    let o = other.to_str().unwrap();
    let made =
        run(&["synth", "--arch", arch, "--size", size, "--seed", "1", "--force", "--out", o]);
    assert!(made.status.success(), "{}", says(&made));
    let with = |model| [&["-m", model, "--workers", "2"], &begin[..]].concat();
    refused(&longer, &with(o), "wanted");
    let tuned = tuned(&model, 2);
    refused(&longer, &with(tuned.to_str().unwrap()), "other weights in layer 2");
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 3] ^= 0x10;
    fs::write(&state, flipped).unwrap();
    refused(&longer, &with(m), "hash");
    for len in [bytes.len() - 1, bytes.len() / 2, 20] {
        fs::write(&state, &bytes[..len]).unwrap();
        refused(&longer, &with(m), "damaged snapshot");
    }
    fs::write(&state, b"").unwrap();
    refused(&longer, &with(m), "not a sequence snapshot");
    for path in [model, other, tuned, state] {
        fs::remove_file(path).unwrap();
    }
}

fn granitehybrid_goes_on_from_a_file() {
    hybrid("granitehybrid", "tiny");
}

fn kimi_linear_goes_on_from_a_file() {
    hybrid("kimi-linear", "tiny-moe");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_run_goes_on_from_a_file_at_another_cut,
        a_file_that_does_not_fit_is_refused_with_the_reason,
        granitehybrid_goes_on_from_a_file,
        kimi_linear_goes_on_from_a_file;
];
