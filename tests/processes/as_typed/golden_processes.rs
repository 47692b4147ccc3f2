//! The golden models through the commands that a user runs, over real worker processes. `logits` and `run --ids` give
//! the bits of one stage in this process, and llama.cpp's tokens. Every day this runs the repository's models that
//! are files, and those that send more across a cut than the hidden row. The others run at night; `golden` compares
//! all of them at every split, in one process.
//!
//! Each worker computes on the op table that it finds best, or on the one that `BRIGADE_TEST_KERNELS` names.

use std::path::Path;

use brigade_gguf::{Gguf, npy};
use brigade_model_tests::each::each;
use brigade_model_tests::golden::{Entry, Golden};
use brigade_model_tests::line::{self, Line, LineConfig};
use brigade_spec::ModelSpec;
use brigade_tests::process::run;

fn logits_and_tokens_are_those_of_one_stage() {
    check_all(&[Golden::repository()], |entry, spec| entry.synth.is_none() || sends_more(spec));
}

fn of_no_golden_model_do_they() {
    check_all(&Golden::folders(), |_, _| true);
}

/// Whether more crosses a cut than a row of the stream.
fn sends_more(spec: &ModelSpec) -> bool {
    (1..spec.n_layer()).any(|cut| spec.boundary(cut).widths.len() > 1)
}

fn check_all(folders: &[Golden], which: impl Fn(&Entry, &ModelSpec) -> bool + Sync) {
    println!("kernels: {}", line::serving().name);
    let folder = std::env::temp_dir().join(format!("brigade-golden-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for golden in folders {
        let models: Vec<_> = golden.models().collect();
        each(&models, |(name, entry)| {
            let path = golden.model(entry);
            let spec = brigade_models::describe(&Gguf::open(&path).unwrap());
            let spec = spec.unwrap_or_else(|e| panic!("{name}: {e}"));
            if which(entry, &spec) {
                check(golden, name, entry, spec.n_layer(), &folder);
            }
        });
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

fn check(golden: &Golden, name: &str, entry: &Entry, n_layer: usize, folder: &Path) {
    let path = golden.model(entry);
    let model = path.to_str().unwrap();
    let workers = if n_layer < 3 { "2" } else { "3" };
    let over = ["-m", model, "--workers", workers];
    let out = folder.join(format!("{name}.npy"));
    let (out, tokens) = (out.to_str().unwrap(), &golden.manifest.tokens);
    command(&[&["logits", "--tokens", &list(tokens), "--force", "--out", out], &over[..]].concat());
    let (prompt, n) = (&golden.manifest.greedy_prompt, entry.greedy.len());
    let (listed, number) = (list(prompt), n.to_string());
    let drawn = ["--tokens", &listed, "-n", &number, "--temp", "0", "--ids", "--kv-type", "f32"];
    let ids = command(&[&["run"], &drawn[..], &over].concat());
    let ids: Vec<u32> = serde_json::from_str(ids.trim()).unwrap();

    let mut whole = Line::open(&path, &LineConfig::default());
    let (logits, rows) = (npy::read(out).unwrap(), whole.logits(tokens, tokens.len()));
    assert_eq!(logits.shape, [tokens.len(), rows[0].len()]);
    let bits = logits.data.iter().map(|x| x.to_bits());
    assert!(bits.eq(rows.iter().flatten().map(|x| x.to_bits())), "{name}: logits");
    assert_eq!(ids, whole.generate(prompt, n, prompt.len()), "{name}: tokens");
    if entry.is_f32(name) {
        assert_eq!(ids, entry.greedy, "{name}: llama.cpp's tokens");
    }
    let same = if ids == entry.greedy { "llama.cpp's" } else { "not llama.cpp's" };
    println!("{name:20} over {workers} workers: the bits and tokens of one stage ({same})");
}

fn list(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Runs a command that must succeed, on the forced op table if there is one; its standard output.
fn command(args: &[&str]) -> String {
    let args = [args, &line::kernels_option()].concat();
    let output = run(&args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "brigade {args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: logits_and_tokens_are_those_of_one_stage;
    alone: of_no_golden_model_do_they ignored("minutes: every golden model in processes");
];
