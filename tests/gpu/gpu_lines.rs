//! Lines of CPU and GPU workers in real processes: they chat, and a GPU that is lost in the middle costs no stream.
//! Messages without a GPU, with too little memory and with a damaged file of kernels are tested here too. Machines
//! without a Vulkan driver skip.

use std::fs;
use std::path::PathBuf;

use brigade_engine::device::gpus;
use brigade_tests::process::{Running, Server, run};
use serde_json::{Value, json};

use crate::compiled;

/// The words before the address in a worker's log.
const READY: &str = "brigade worker ready on ";

/// Batches of commands after which the GPU is lost: the test at start and the prompt take fewer, the answer many more.
const LOST_AFTER: &str = "300";

fn no_gpu() -> bool {
    let reason = gpus().err();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

fn request() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me of the first day."}],
        "max_tokens": 40, "temperature": 0, "ignore_eos": true,
    })
}

fn worker(more: &[&str]) -> Running {
    let fixed = ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--speed", "10,100"];
    Running::start(&[&fixed[..], more].concat(), READY)
}

/// A server over these workers, which get half of the layers each.
fn serve(workers: &[&Running], more: &[&str]) -> Server {
    let mut args = vec!["--tensor-split", "1,1"];
    for worker in workers {
        args.extend(["--worker", worker.ready.trim()]);
    }
    args.extend(more);
    Server::start(&args)
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn a_line_of_a_cpu_and_a_gpu_worker_chats() {
    if no_gpu() {
        return;
    }
    let trace = file("gpu-line.json");
    let unfused = ["--kernels", "unfused"];
    let alone = serve(&[&worker(&unfused), &worker(&unfused)], &[]).chat(&request());
    let (cpu, gpu) = (worker(&unfused), worker(&["--device", "vulkan:0"]));
    let mixed = serve(&[&cpu, &gpu], &["--trace", trace.to_str().unwrap()]);
    assert_eq!(mixed.chat(&request()), alone, "the GPU's bits are those of `unfused`");
    let streamed = mixed.chat_stream(&request());
    assert_eq!((streamed.text, streamed.error), (alone, None));
    drop(mixed);
}

fn a_gpu_that_is_lost_in_the_middle_costs_no_stream() {
    if no_gpu() {
        return;
    }
    // The GPU's bits are those of `unfused`.
    let unfused = || worker(&["--kernels", "unfused"]);
    let undisturbed = serve(&[&unfused(), &unfused()], &[]).chat(&request());
    let log = file("gpu-lost.log");
    let fixed = ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--speed", "10,100"];
    let lost = ["--device", "vulkan:0", "--gpu-lost-after", LOST_AFTER];
    let gpu = Running::start_logged(&[&fixed[..], &lost].concat(), READY, &log);
    let cpu = unfused();
    let server = serve(&[&gpu, &cpu], &[]);
    let mut times_lost = 0;
    for _ in 0..20 {
        let seen = server.chat_stream(&request());
        assert_eq!((seen.text, seen.error), (undisturbed.clone(), None));
        times_lost = fs::read_to_string(&log).unwrap().matches("the GPU was lost").count();
        if times_lost > 0 {
            break;
        }
    }
    assert!(times_lost > 0, "the GPU was to be lost after {LOST_AFTER} batches");
    let seen = server.chat_stream(&request());
    assert_eq!((seen.text, seen.error), (undisturbed, None), "on the GPU that was opened again");
}

fn a_gpu_that_is_not_there_is_an_error_that_says_how_many_there_are() {
    if no_gpu() {
        return;
    }
    let output = run(&["run", "-p", "x", "-n", "1", "--workers", "1", "--device", "vulkan:63"]);
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && says.contains("there is no GPU 63"), "{says}");
}

fn a_damaged_file_of_kernels_is_made_anew() {
    if no_gpu() {
        return;
    }
    let cache = file("gpu-kernels");
    let _ = fs::remove_dir_all(&cache);
    compiled::share(&cache);
    let options = ["--device", "vulkan:0", "--cache-dir", cache.to_str().unwrap()];
    drop(worker(&options));
    let kernels = fs::read_dir(cache.join("kernels")).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&kernels).unwrap();
    fs::write(&kernels, &whole[..whole.len() / 2]).unwrap();
    let cpu = worker(&["--kernels", "unfused"]);
    let answer = serve(&[&worker(&options), &cpu], &[]).chat(&request());
    assert!(!answer.is_empty());
    let anew = fs::read(&kernels).unwrap();
    assert_eq!(anew.len(), whole.len(), "the file is whole again");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        a_line_of_a_cpu_and_a_gpu_worker_chats,
        a_gpu_that_is_lost_in_the_middle_costs_no_stream,
        a_gpu_that_is_not_there_is_an_error_that_says_how_many_there_are,
        a_damaged_file_of_kernels_is_made_anew;
];
