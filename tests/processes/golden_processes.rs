//! The golden models through the commands that a user runs, over real worker processes. `logits` and `run
//! --ids` give the same bits and llama.cpp's tokens at several numbers of workers. Which models are asked for every day:
//! of the repository's, those that are files, and those that send more across a cut than a row of the stream. The others
//! are so at night; `golden` compares all of them at every split, in one process.
//!
//! Each worker computes on the op table that it finds best, or on the one that `BRIGADE_TEST_KERNELS` names.

use std::path::Path;

use brigade_gguf::{Gguf, npy};
use brigade_model_tests::each::each;
use brigade_model_tests::golden::{Entry, Golden};
use brigade_model_tests::line;
use brigade_spec::ModelSpec;
use brigade_tests::process::run;

fn logits_and_tokens_do_not_depend_on_the_number_of_workers() {
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
    let model = golden.model(entry);
    let model = model.to_str().unwrap();
    let worker_counts = if n_layer < 3 { ["1", "2"] } else { ["1", "3"] };
    let runs = worker_counts.map(|workers| {
        let out = folder.join(format!("{name}-{workers}.npy"));
        let out = out.to_str().unwrap();
        let tokens = list(&golden.manifest.tokens);
        command(&[
            "logits",
            "-m",
            model,
            "--tokens",
            &tokens,
            "--workers",
            workers,
            "--force",
            "--out",
            out,
        ]);
        let logits = npy::read(out).unwrap();
        assert_eq!(logits.shape, [golden.manifest.tokens.len(), logits.shape[1]]);
        let prompt = list(&golden.manifest.greedy_prompt);
        let n = entry.greedy.len().to_string();
        let ids = command(&[
            "run",
            "-m",
            model,
            "--tokens",
            &prompt,
            "-n",
            &n,
            "--temp",
            "0",
            "--ids",
            "--kv-type",
            "f32",
            "--workers",
            workers,
        ]);
        let ids: Vec<u32> = serde_json::from_str(ids.trim()).unwrap();
        (logits.data.iter().map(|x| x.to_bits()).collect::<Vec<u32>>(), ids)
    });
    assert!(runs[0].0 == runs[1].0, "{name}: logits at {worker_counts:?} workers");
    assert_eq!(runs[0].1, runs[1].1, "{name}: tokens at {worker_counts:?} workers");
    if entry.is_f32(name) {
        assert_eq!(runs[0].1, entry.greedy, "{name}: llama.cpp's tokens");
    }
    let same = if runs[0].1 == entry.greedy { "llama.cpp's" } else { "not llama.cpp's" };
    println!("{name:20} workers {worker_counts:?}: same bits, same tokens ({same})");
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
    waits: logits_and_tokens_do_not_depend_on_the_number_of_workers;
    alone: of_no_golden_model_do_they ignored("minutes: every golden model in processes");
];
