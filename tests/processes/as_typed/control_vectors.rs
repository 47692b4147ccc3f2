//! Control vectors over real workers, and refusals of commands.

use std::path::{Path, PathBuf};

use brigade_gguf::Gguf;
use brigade_model_tests::golden::{Golden, VectorRecipe, rows_of, same_bits};
use brigade_model_tests::line::{Line, LineConfig};
use brigade_tests::process::{Running, run};

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("control_vectors-processes");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A vector of a model, for all of its layers that can have one.
fn vector(model: &Path, name: &str, recipe: &VectorRecipe) -> PathBuf {
    let spec = brigade_models::describe(&Gguf::open(model).unwrap()).unwrap();
    let path = folder().join(format!("{name}.gguf"));
    recipe.make(spec.n_embd, 1..spec.n_layer(), &path);
    path
}

fn workers_get_the_vectors_of_their_layers() {
    let model = Golden::repository().named("granitehybrid");
    let a = vector(&model, "workers-1", &VectorRecipe { seed: 1, scale: 1.0 });
    let b = vector(&model, "workers-2", &VectorRecipe { seed: 2, scale: -0.5 });
    let tokens = &Golden::repository().manifest.tokens[..40];
    let config = LineConfig {
        control_vectors: vec![(a.clone(), 1.0), (b.clone(), -0.5)],
        control_layers: Some(1..=2),
        ..LineConfig::default()
    };
    let alone = Line::open(&model, &config).logits(tokens, 64);
    let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let (ids, half) = (ids.join(","), format!("{}=-0.5", b.display()));
    let cache = |name: &str| folder().join(name).to_str().unwrap().to_owned();
    let workers = ["one", "two"].map(|name| {
        let args =
            ["worker", "--listen", "127.0.0.1:0", "--no-model-files", "--cache-dir", &cache(name)];
        Running::start(&args, brigade_worker::run::READY_PREFIX)
    });
    let addresses = workers.each_ref().map(|worker| worker.ready.trim().to_owned());
    let far: Vec<&str> = addresses.iter().flat_map(|a| ["--worker", a.as_str()]).collect();
    let logits = |more: &[&str], line: &[&str]| {
        let out = folder().join("rows.npy");
        let mut args = vec!["logits", "-m", model.to_str().unwrap(), "--tokens", &ids];
        args.extend(["--kv-type", "f32", "--force", "--out", out.to_str().unwrap()]);
        args.extend(more.iter().chain(line));
        let output = run(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        rows_of(&out)
    };
    let vectors = [
        "--control-vector",
        a.to_str().unwrap(),
        "--control-vector",
        &half,
        "--control-vector-layers",
        "1-2",
    ];
    for line in [&["--workers", "1"][..], &["--workers", "3"], &far] {
        assert!(same_bits(&logits(&vectors, line), &alone), "{line:?}");
    }
    // The same workers, which hold the layers, without them.
    let plain = Line::open(&model, &LineConfig::default()).logits(tokens, 64);
    assert!(same_bits(&logits(&[], &far), &plain));
}

fn what_does_not_fit_is_refused_before_a_worker_starts() {
    let path = Golden::repository().named("llama");
    let spec = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap();
    let wide = folder().join("width.gguf");
    VectorRecipe { seed: 1, scale: 1.0 }.make(spec.n_embd + 1, 1..2, &wide);
    let output =
        run(&["plan", "-m", path.to_str().unwrap(), "--control-vector", wide.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("width.gguf"), "{message}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        workers_get_the_vectors_of_their_layers,
        what_does_not_fit_is_refused_before_a_worker_starts;
];
