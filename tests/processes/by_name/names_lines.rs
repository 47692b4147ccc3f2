//! Workers fetch their own layers of a model by name, each from where the model is. The coordinator has its header alone.

use std::path::Path;
use std::process::Command;

use brigade_gguf::Gguf;
use brigade_tests::hub::{File, Mood, sha256};
use brigade_tests::named::{Machine, NAME, PATH, model};
use brigade_tests::process::{Running, brigade};

/// The most that the coordinator may receive: the beginning of the file, and one byte for each address that it asks
/// for.
const HEAD_BYTES: u64 = (256 << 10) + 16;

/// A worker that reads no model files and keeps what it is sent in `cache`. `proxy`: all it asks goes there.
pub fn worker(cache: &Path, proxy: Option<&str>) -> Running {
    let mut command = Command::new(brigade());
    let cache = cache.to_str().unwrap();
    command.args(["worker", "--listen", "127.0.0.1:0", "--no-model-files", "--cache-dir", cache]);
    for name in ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"]
    {
        command.env_remove(name);
    }
    command.envs(proxy.map(|proxy| ("ALL_PROXY", proxy)));
    Running::spawn(command, brigade_worker::run::READY_PREFIX)
}

/// The arguments of a line of these workers. Each has a third of the layers, or its part of `split`.
pub fn args<'a>(workers: &'a [Running], split: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args =
        vec!["run", "-m", NAME, "--tokens", "1,266,278", "-n", "8", "--temp", "0", "--ids"];
    args.extend(["--tensor-split", split]);
    args.extend(workers.iter().flat_map(|worker| ["--worker", worker.ready.trim()]));
    args.extend(more);
    args
}

/// Bytes of weights in a worker's cache, the header apart.
pub fn blobs(cache: &Path, header: u64) -> u64 {
    let blobs = std::fs::read_dir(cache.join("blobs")).into_iter().flatten().flatten();
    blobs.map(|entry| entry.metadata().unwrap().len()).filter(|nbytes| *nbytes != header).sum()
}

fn each_worker_fetches_its_own_layers_and_the_coordinator_none() {
    let machine = Machine::new();
    let by_path = Machine::new().ids(NAME);
    let file = machine.dir.join("same.gguf");
    std::fs::write(&file, model()).unwrap();
    let gguf = Gguf::open(&file).unwrap();
    let spec = brigade_models::describe(&gguf).unwrap();
    let (n, header) = (spec.n_layer(), gguf.header_bytes().len() as u64);
    let caches: Vec<_> = (0..3).map(|i| machine.dir.join(format!("cache-{i}"))).collect();
    let workers: Vec<_> = caches.iter().map(|cache| worker(cache, None)).collect();
    let cuts = format!("{},{}", n / 3, 2 * n / 3);
    let mut line = args(&workers, "1,1,1", &[]);
    let at = line.iter().position(|arg| *arg == "--tensor-split").unwrap();
    line.splice(at..at + 2, ["--cuts", cuts.as_str()]);
    assert_eq!(machine.out(&line), by_path);
    let mut fetched = 0;
    for (cache, layers) in caches.iter().zip([0..n / 3, n / 3..2 * n / 3, 2 * n / 3..n]) {
        let tensors = brigade_spec::stage_tensors(&gguf, &spec, &layers);
        let own: u64 = tensors.iter().map(|tensor| tensor.nbytes).sum();
        assert_eq!(blobs(cache, header), own, "its own layers, each tensor once");
        fetched += own;
    }
    let (seen, sent) = (machine.hub.seen(), machine.hub.sent());
    assert!((fetched..fetched + HEAD_BYTES + fetched / 50).contains(&sent), "{sent} for {fetched}");
    assert!(
        seen.iter().filter(|r| r.host == "second").all(|r| !r.head.contains_key("authorization"))
    );
    let here = machine.files("data/models");
    assert!(here.iter().all(|file| file.starts_with("heads/")), "{here:?}");
    // Each tensor's hash is in the lock.
    let lock = std::fs::read_to_string(machine.dir.join("data/models.lock")).unwrap();
    let lock: serde_json::Value = serde_json::from_str(&lock).unwrap();
    let seen = lock["tensors"][sha256(&model())].as_object().unwrap();
    assert_eq!(seen.len(), gguf.tensors().len());
    // The second time every worker has its blobs, and no server is asked.
    assert_eq!(machine.out(&line), by_path);
    assert_eq!((machine.hub.sent(), machine.hub.seen().len()), (0, 0));
}

fn connections_that_break_cost_no_byte_twice() {
    let machine = Machine::new();
    machine.hub.mood(Mood::Cut(50_000));
    let caches = [machine.dir.join("cache-0"), machine.dir.join("cache-1")];
    let workers: Vec<_> = caches.iter().map(|cache| worker(cache, None)).collect();
    let out = machine.out(&args(&workers, "1,1", &[]));
    let sent = machine.hub.sent();
    assert!(sent < model().len() as u64 + HEAD_BYTES + 200_000, "{sent}");
    machine.hub.mood(Mood::Good);
    assert_eq!(out, Machine::new().ids(NAME));
}

fn a_worker_without_a_way_out_is_pushed_to() {
    let by_path = Machine::new().ids(NAME);
    for (proxy, more) in [(Some("http://127.0.0.1:1"), &[][..]), (None, &["--push"][..])] {
        let machine = Machine::new();
        let caches = [machine.dir.join("cache-0"), machine.dir.join("cache-1")];
        let workers = [worker(&caches[0], None), worker(&caches[1], proxy)];
        let args = args(&workers, "1,1", more);
        let output = machine.run(&args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), by_path);
        assert_eq!(said.contains("cannot fetch its weights"), proxy.is_some(), "{said}");
        assert!(!said.contains("a-signature"), "{said}");
        // Only its own layers came by way of the coordinator, which keeps none of them.
        let (sent, whole) = (machine.hub.sent(), model().len() as u64);
        assert!(sent < whole + HEAD_BYTES + whole / 50, "{sent} of {whole}");
        let here = machine.files("data/models");
        assert!(here.iter().all(|file| file.starts_with("heads/")), "{here:?}");
        println!(
            "{}: {sent} bytes sent for a file of {whole}",
            more.first().unwrap_or(&"no way out")
        );
        assert_eq!(machine.out(&args), by_path);
        assert_eq!(machine.hub.sent(), 0, "what they were sent they have");
    }
}

fn other_weights_under_the_same_header_are_refused() {
    let machine = Machine::new();
    let caches = [machine.dir.join("cache-0"), machine.dir.join("cache-1")];
    let workers: Vec<_> = caches.iter().map(|cache| worker(cache, None)).collect();
    let ids = machine.out(&args(&workers, "1,1", &[]));
    drop(workers);
    // The machines change, and so do the weights: all tensors, under the listing and the state of before.
    let mut bytes = model();
    let from = bytes.len() / 2;
    bytes[from..].iter_mut().for_each(|byte| *byte ^= 1);
    let good = File::new(model());
    machine.hub.put(PATH, File { sha256: sha256(&model()), etag: good.etag, ..File::new(bytes) });
    let lock = machine.dir.join("data/models.lock");
    let before = std::fs::read_to_string(&lock).unwrap();
    // A coordinator on a second machine, which has the lock of the first and nothing else.
    let second = machine.dir.join("second");
    std::fs::create_dir(&second).unwrap();
    std::fs::copy(&lock, second.join("models.lock")).unwrap();
    for (i, data) in [machine.dir.join("data"), machine.dir.join("data"), second].iter().enumerate()
    {
        let cache = |n: usize| machine.dir.join(format!("cache-{i}-{n}"));
        let workers = [worker(&cache(0), None), worker(&cache(1), None)];
        let args = args(&workers, "1,1", &[]);
        let output = machine.command(&args).env("BRIGADE_DATA_DIR", data).output().unwrap();
        let error = brigade_tests::named::said(&output, &args);
        assert!(error.contains("has the hash") && error.contains("was expected"), "{error}");
        assert!(error.contains("hf:user/repo:Q8_0: ") && error.contains("brigade pull"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), before, "what was seen first stays");
    let here = machine.files("data/models");
    // A coordinator that ended while it fetched for the other worker has left that.
    let is_part = |file: &String| file.starts_with("heads/") || file.starts_with("relay/");
    assert!(here.iter().all(is_part), "{here:?}");
    // The right ones are taken still.
    machine.hub.put(PATH, File::new(model()));
    let workers =
        [worker(&machine.dir.join("cache-8"), None), worker(&machine.dir.join("cache-9"), None)];
    assert_eq!(machine.out(&args(&workers, "1,1", &[])), ids);
}

fn what_a_dead_worker_has_of_a_tensor_goes_on_as_the_same_state_only() {
    let by_path = Machine::new().ids(NAME);
    for is_same in [true, false] {
        let machine = Machine::new();
        let cache = machine.dir.join("cache");
        // The coordinator gets the beginning, and the worker a piece; then the server does not answer any more.
        machine.hub.mood(Mood::Dead(300_000, 3));
        let workers = [worker(&cache, None)];
        machine.error(&args(&workers, "1", &[]));
        drop(workers);
        let parts: u64 = std::fs::read_dir(cache.join("parts"))
            .unwrap()
            .flatten()
            .map(|p| p.metadata().unwrap().len())
            .sum();
        let done = blobs(&cache, 0);
        assert!(parts > 0, "nothing had come");
        let whole = File::new(model());
        let etag = if is_same { whole.etag.clone() } else { "\"another\"".to_string() };
        machine.hub.put(PATH, File { etag, ..whole });
        machine.hub.mood(Mood::Good);
        machine.hub.sent();
        let workers = [worker(&cache, None)];
        assert_eq!(machine.out(&args(&workers, "1", &[])), by_path);
        let (sent, gguf) = (machine.hub.sent(), machine.dir.join("same.gguf"));
        std::fs::write(&gguf, model()).unwrap();
        let weights: u64 =
            Gguf::open(&gguf).unwrap().tensors().iter().map(|tensor| tensor.nbytes).sum();
        // Whole tensors stay: they are remembered by their hash. A piece of one goes on only if the state is the same.
        assert!(
            sent >= weights - done - parts && sent < weights - done + 1000,
            "{sent} of {weights}, {done}, {parts}"
        );
        assert_eq!(
            sent < weights - done,
            is_same,
            "{sent} of {weights}: {done} were there, {parts} in part"
        );
    }
}

/// The figures of a large model: who receives what of it.
fn a_large_model_over_three_workers() {
    let machine = Machine::with(&[]);
    let file = machine.dir.join("large.gguf");
    let path = file.to_str().unwrap();
    machine.out(&["synth", "--arch", "llama", "--size", "1b", "--quant", "F16", "--out", path]);
    machine.hub.put(PATH, File::new(std::fs::read(&file).unwrap()));
    let gguf = Gguf::open(&file).unwrap();
    let spec = brigade_models::describe(&gguf).unwrap();
    let (n, header) = (spec.n_layer(), gguf.header_bytes().len() as u64);
    let caches: Vec<_> = (0..3).map(|i| machine.dir.join(format!("cache-{i}"))).collect();
    let workers: Vec<_> = caches.iter().map(|cache| worker(cache, None)).collect();
    let cuts = format!("{},{}", n / 3, 2 * n / 3);
    let mut line = args(&workers, "1,1,1", &["--ctx", "256"]);
    let at = line.iter().position(|arg| *arg == "--tensor-split").unwrap();
    line.splice(at..at + 2, ["--cuts", cuts.as_str()]);
    let by_name = machine.out(&line);
    let sent = machine.hub.sent();
    let mut fetched = 0;
    for (i, layers) in [0..n / 3, n / 3..2 * n / 3, 2 * n / 3..n].into_iter().enumerate() {
        let tensors = brigade_spec::stage_tensors(&gguf, &spec, &layers);
        let own: u64 = tensors.iter().map(|tensor| tensor.nbytes).sum();
        let got = blobs(&caches[i], header);
        println!(
            "worker {i}: layers {layers:?}, {own} bytes of weights, {got} received, header {header}"
        );
        assert_eq!(got, own);
        fetched += got;
    }
    let here = machine
        .files("data")
        .iter()
        .map(|f| machine.dir.join("data").join(f).metadata().unwrap().len())
        .sum::<u64>();
    println!(
        "file {} bytes; sent {sent}; coordinator: {} received, {here} on its disk",
        file.metadata().unwrap().len(),
        sent - fetched
    );
    assert!(here < 50_000_000 && sent < fetched + 50_000_000);
    let by_path = [
        "run",
        "-m",
        path,
        "--tokens",
        "1,266,278",
        "-n",
        "8",
        "--temp",
        "0",
        "--ids",
        "--workers",
        "1",
        "--ctx",
        "256",
    ];
    assert_eq!(by_name, machine.out(&by_path));
    println!("the same bytes as by path: {by_name}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        each_worker_fetches_its_own_layers_and_the_coordinator_none,
        connections_that_break_cost_no_byte_twice,
        a_worker_without_a_way_out_is_pushed_to,
        other_weights_under_the_same_header_are_refused,
        what_a_dead_worker_has_of_a_tensor_goes_on_as_the_same_state_only;
    alone:
        a_large_model_over_three_workers
            ignored("a minute, and 8 GB of disk: prints who receives what of a model of 2 GB");
];
