//! States of sequences between CPU workers and GPU workers, in real processes: saved by one, put back into the other, and
//! back. All of them compute the numerics `unfused`, so what goes on is known to the last token.
//! Machines without a Vulkan driver skip.

use std::fs;
use std::path::{Path, PathBuf};

use brigade_engine::device::gpus;
use brigade_model_tests::each::each;
use brigade_tests::process::{kinds_of_state, run, synth};

/// Tokens that each of the three runs draws.
const DRAWN: usize = 6;

/// Continues `tokens` on two workers of these options; the tokens that were drawn.
fn drawn(model: &Path, tokens: &[u32], n: usize, options: &[&str]) -> Vec<u32> {
    let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let (prompt, n) = (list(tokens), n.to_string());
    let fixed = ["run", "-m", model.to_str().unwrap(), "--tokens", &prompt, "-n", &n];
    let more = ["--workers", "2", "--temp", "0", "--ignore-eos", "--ids"];
    let output = run(&[&fixed[..], &more, options].concat());
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {says}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A sequence begins on CPU workers, goes on on GPU workers, and ends on CPU workers.
fn there_and_back(arch: &str, size: &str, kv_type: &str) {
    let model = synth(arch, size);
    let file = |name: &str| -> PathBuf { model.with_extension(format!("{kv_type}.{name}")) };
    let (out, back) = (file("out"), file("back"));
    let [out, back] = [&out, &back].map(|path| path.to_str().unwrap());
    let cpu = ["--kernels", "unfused", "--kv-type", kv_type];
    let gpu = ["--device", "vulkan:0", "--tensor-split", "1,1", "--kv-type", kv_type];
    let prompt: Vec<u32> = (0..40).map(|i| 1 + i * 7 % 200).collect();
    let whole = drawn(&model, &prompt, 3 * DRAWN, &cpu);
    let first = drawn(&model, &prompt, DRAWN, &[&cpu[..], &["--state-out", out]].concat());
    let mut so_far = [&prompt[..], &first].concat();
    let moved = ["--state-in", out, "--state-out", back];
    let second = drawn(&model, &so_far, DRAWN, &[&gpu[..], &moved].concat());
    so_far.extend(&second);
    let third = drawn(&model, &so_far, DRAWN, &[&cpu[..], &["--state-in", back]].concat());
    assert_eq!([first, second, third].concat(), whole, "{arch} {kv_type}");
    println!(
        "{arch} {kv_type}: {DRAWN} tokens on CPUs, {DRAWN} on a GPU, {DRAWN} on CPUs, as without moving"
    );
    for path in [&model, Path::new(out), Path::new(back)] {
        fs::remove_file(path).unwrap();
    }
}

fn states_go_from_cpus_to_a_gpu_and_back() {
    if let Err(reason) = gpus() {
        println!("skipped: {reason}");
        return;
    }
    let mut kinds: Vec<_> = kinds_of_state(5).map(|(arch, size)| (arch, size, "f16")).collect();
    kinds.push(("llama", "tiny", "q8_0"));
    each(&kinds, |(arch, size, kv_type)| there_and_back(arch, size, kv_type));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: states_go_from_cpus_to_a_gpu_and_back;
];
