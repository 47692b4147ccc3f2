//! A worker without the model's file is sent exactly its layers' tensors, once: the second start finds them
//! in its cache. The text is the one that workers write which read the file.

use std::path::Path;
use std::time::Duration;

use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_tests::process::{Running, run};

/// A worker that reads no model files and keeps what it is sent in `cache`.
fn start_worker(cache: &Path) -> Running {
    let cache = cache.to_str().unwrap();
    let args = ["worker", "--listen", "127.0.0.1:0", "--no-model-files", "--cache-dir", cache];
    Running::start(&args, brigade_worker::run::READY_PREFIX)
}

/// Runs the model over the two workers; the ids it prints.
fn ids(model: &str, workers: &[&Running; 2]) -> String {
    let addresses = workers.map(|w| w.ready.trim().to_owned());
    let output = run(&[
        "run",
        "-m",
        model,
        "--tokens",
        "1,266,278",
        "-n",
        "12",
        // The same layers at each start, however fast the workers were measured.
        "--tensor-split",
        "1,1",
        "--temp",
        "0",
        "--ids",
        "--worker",
        &addresses[0],
        "--worker",
        &addresses[1],
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Bytes of the weights in a cache folder; headers and notes are smaller than any tensor counted.
fn blob_bytes(cache: &Path, sizes: &mut Vec<u64>) -> u64 {
    let mut total = 0;
    for entry in std::fs::read_dir(cache).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        if meta.is_dir() {
            total += blob_bytes(&entry.path(), sizes);
        } else if let Some(i) = sizes.iter().position(|&size| size == meta.len()) {
            total += sizes.swap_remove(i);
        }
    }
    total
}

/// When each file of a cache was last written.
fn stamps(cache: &Path) -> Vec<(std::path::PathBuf, std::time::SystemTime)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(cache).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            all.extend(stamps(&entry.path()));
        } else if entry.metadata().unwrap().len() > 0 {
            all.push((entry.path(), entry.metadata().unwrap().modified().unwrap()));
        }
    }
    all.sort();
    all
}

/// The tensors that two workers without the file are sent, layer by layer. Checks that they write the same text as
/// workers with the file.
fn sent(model: &str) -> [Vec<String>; 2] {
    let path = Golden::repository().named(model);
    let gguf = Gguf::open(&path).unwrap();
    let spec = brigade_models::describe(&gguf).unwrap();
    let half = spec.n_layer() / 2;
    let folder =
        std::env::temp_dir().join(format!("brigade-weights-{model}-{}", std::process::id()));
    let caches = [folder.join("a"), folder.join("b")];
    let workers = [start_worker(&caches[0]), start_worker(&caches[1])];
    let sent = ids(path.to_str().unwrap(), &[&workers[0], &workers[1]]);
    let args = ["--tokens", "1,266,278", "-n", "12", "--temp", "0", "--ids", "--workers", "1"];
    let alone = run(&[&["run", "-m", path.to_str().unwrap()], &args[..]].concat());
    assert_eq!(sent, String::from_utf8(alone.stdout).unwrap(), "{model}");
    let names = [0..half, half..spec.n_layer()].map(|layers| {
        let tensors = brigade_spec::stage_tensors(&gguf, &spec, &layers);
        tensors.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>()
    });
    for (cache, names) in caches.iter().zip(&names) {
        let of = |name: &String| gguf.tensor(name).unwrap().nbytes;
        let all: u64 = names.iter().map(of).sum();
        let received = blob_bytes(cache, &mut names.iter().map(of).collect());
        assert_eq!(received, all, "{model}: each tensor once");
    }
    drop(workers);
    std::fs::remove_dir_all(&folder).unwrap();
    names
}

fn workers_get_the_weights_of_a_layer_once_for_all_its_passes() {
    // Both halves go through the same two layers: of twelve layers, which are four of the file, six each.
    let [first, second] = sent("hrm_text");
    let layers = |names: &[String]| -> std::collections::BTreeSet<usize> {
        names.iter().filter_map(|name| brigade_spec::layer_of(name)).collect()
    };
    assert_eq!([layers(&first), layers(&second)], [(0..4).collect(), (0..4).collect()]);
}

fn workers_are_not_sent_what_nobody_reads() {
    // Matrices for images.
    let names = sent("cogvlm").concat();
    assert!(!names.is_empty() && !names.iter().any(|name| name.contains(".vis_")));
}

fn workers_without_the_file_get_their_layers_once() {
    let path = Golden::repository().folder.join("llama.gguf");
    let model = path.to_str().unwrap();
    let with_file = run(&[
        "run",
        "-m",
        model,
        "--tokens",
        "1,266,278",
        "-n",
        "12",
        "--temp",
        "0",
        "--ids",
        "--workers",
        "2",
    ]);
    let with_file = String::from_utf8(with_file.stdout).unwrap();
    let folder = std::env::temp_dir().join(format!("brigade-weights-{}", std::process::id()));
    let caches = [folder.join("a"), folder.join("b")];

    let first = [start_worker(&caches[0]), start_worker(&caches[1])];
    assert_eq!(ids(model, &[&first[0], &first[1]]), with_file);
    let gguf = Gguf::open(&path).unwrap();
    let n_layer = brigade_models::describe(&gguf).unwrap().n_layer();
    let all: u64 = gguf.tensors().iter().map(|t| t.nbytes).sum();
    let mut received = 0;
    for cache in &caches {
        let mut sizes = gguf.tensors().iter().map(|t| t.nbytes).collect();
        let bytes = blob_bytes(cache, &mut sizes);
        println!("a cache holds {bytes} bytes of weights; the model of {n_layer} layers has {all}");
        assert!(bytes > 0 && bytes < all, "a stage is sent its own tensors only");
        received += bytes;
    }
    assert_eq!(received, all, "every tensor went to one stage");

    let before = [stamps(&caches[0]), stamps(&caches[1])];
    for worker in first {
        assert_eq!(worker.stop(Duration::from_secs(30)), Some(0));
    }
    let second = [start_worker(&caches[0]), start_worker(&caches[1])];
    assert_eq!(ids(model, &[&second[0], &second[1]]), with_file, "from the cache");
    let blobs = |stamps: &[(std::path::PathBuf, std::time::SystemTime)]| {
        stamps.iter().filter(|(path, _)| path.metadata().unwrap().len() > 1000).count()
    };
    for (cache, before) in caches.iter().zip(&before) {
        let after = stamps(cache);
        assert_eq!(blobs(&after), blobs(before), "the second start is sent nothing");
    }
    drop(second);
    std::fs::remove_dir_all(&folder).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        workers_get_the_weights_of_a_layer_once_for_all_its_passes,
        workers_are_not_sent_what_nobody_reads,
        workers_without_the_file_get_their_layers_once;
];
