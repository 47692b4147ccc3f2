//! Benchmarks a GPU against the goals that were set for it. It measures decode of one sequence as a share of the
//! memory's speed, decode of 32 sequences compared with one, prefill, and two stages on one GPU compared with one.
//!
//! ```text
//! cargo bench -p brigade-tests --bench gpu                             on vulkan:0, models of real sizes
//! cargo bench -p brigade-tests --bench gpu -- --device vulkan:1
//! cargo bench -p brigade-tests --bench gpu -- --small                  tiny models, short answers: does it run
//! cargo bench -p brigade-tests --bench gpu -- --llama-bench PATH       prefill beside llama.cpp's Vulkan build
//! cargo bench -p brigade-tests --bench gpu -- --llama-bench-cuda PATH  and beside its CUDA build
//! ```
//!
//! It prints Markdown. Models are those of `brigade synth`, made in the system's folder for temporary files and kept there for
//! the next run. A software driver is refused, unless with `--small`: its figures are no speeds.

use brigade_tests::bench;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use brigade_engine::device::{DeviceClass, DeviceName, gpus};
use serde_json::Value;

/// A model that `brigade synth` makes.
struct Model {
    arch: &'static str,
    size: &'static str,
    /// The types of its weights.
    quant: &'static str,
    /// The share of memory's speed that decode should reach, in percent.
    goal: u32,
}

const fn model(arch: &'static str, size: &'static str, quant: &'static str, goal: u32) -> Model {
    Model { arch, size, quant, goal }
}

const MODELS: [Model; 6] = [
    model("llama", "8b", "Q4_K_M", 65),
    model("llama", "8b", "Q8_0", 80),
    model("llama", "8b", "F16", 80),
    model("granitehybrid", "3b", "Q4_K_M", 65),
    model("kimi-linear", "30b-a3b", "Q4_K_M", 65),
    model("qwen3moe", "30b-a3b", "Q4_K_M", 65),
];

const SMALL: [Model; 4] = [
    model("llama", "tiny", "Q4_K_M", 65),
    model("granitehybrid", "tiny", "Q4_K_M", 65),
    model("kimi-linear", "tiny-moe", "Q4_K_M", 65),
    model("qwen3moe", "tiny-moe", "Q4_K_M", 65),
];

struct Options {
    device: String,
    small: bool,
    /// llama.cpp's `llama-bench`, by the build that it is of.
    llama_bench: Vec<(&'static str, PathBuf)>,
}

impl Options {
    /// Tokens of a prompt and of an answer.
    fn lengths(&self) -> [&'static str; 2] {
        if self.small { ["64", "8"] } else { ["512", "128"] }
    }
}

fn main() -> ExitCode {
    bench::main("gpu", options, |options| {
        brigade_tests::process::use_binary_beside();
        run(options)
    })
}

fn options() -> Result<Options, String> {
    let device = "vulkan:0".to_owned();
    let mut options = Options { device, small: false, llama_bench: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            // Cargo says so.
            "--bench" => {}
            "--device" => options.device = value()?,
            "--small" => options.small = true,
            "--llama-bench" => options.llama_bench.push(("Vulkan", value()?.into())),
            "--llama-bench-cuda" => options.llama_bench.push(("CUDA", value()?.into())),
            other => {
                let all = "--device, --small, --llama-bench, --llama-bench-cuda";
                return Err(format!("{other} is none of {all}"));
            }
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    let DeviceName::Accelerator { index, .. } = options.device.parse()? else {
        return Err(format!("{} is no GPU", options.device));
    };
    let all = gpus().map_err(|error| error.to_string())?;
    let facts = all.get(index).ok_or(format!("there is no {}", options.device))?;
    if facts.class == DeviceClass::Software && !options.small {
        return Err(format!("{} computes in software: its figures are no speeds", facts.name));
    }
    println!("{}, driver {}\n", facts.name, facts.driver_text());
    println!("| test | model | tokens/s | reached | goal |\n|---|---|---|---|---|");
    let models: &[Model] = if options.small { &SMALL } else { &MODELS };
    for model in models {
        decode(options, model)?;
    }
    prefill(options, &models[0], &[])?;
    if facts.units.f16 {
        prefill(options, &models[0], &["--fast-math"])?;
    }
    two_stages(options, &models[0])
}

/// One sequence beside the memory's speed, and 32 beside one.
fn decode(options: &Options, model: &Model) -> Result<(), String> {
    let file = synth(model)?;
    let [_, answer] = options.lengths();
    let test = ["--prompt", "0", "--gen", answer, "--parallel", "1,32"];
    let rows = bench(options, &file, &test, 1)?;
    let [one, many] = &rows[..] else { return Err(format!("{} rows, not two", rows.len())) };
    let share = number(one, "share_of_memory") * 100.0;
    let (name, goal) = (title(model), model.goal);
    let speeds = [one, many].map(|row| number(row, "tokens_per_second"));
    println!("| decode of 1 | {name} | {:.1} | {share:.0} % of memory | >= {goal} % |", speeds[0]);
    let times = speeds[1] / speeds[0];
    println!("| decode of 32 | {name} | {:.1} | {times:.1} times one | >= 15 |", speeds[1]);
    Ok(())
}

fn prefill(options: &Options, model: &Model, flags: &[&str]) -> Result<(), String> {
    let file = synth(model)?;
    let [prompt, _] = options.lengths();
    let test = [&["--prompt", prompt, "--gen", "0", "--ubatch", prompt], flags].concat();
    let ours = number(&bench(options, &file, &test, 1)?[0], "tokens_per_second");
    let mut reached = Vec::new();
    for (build, program) in &options.llama_bench {
        let mut command = Command::new(program);
        command.args(["-p", prompt, "-n", "0", "-ngl", "99", "-o", "json", "-m"]).arg(&file);
        let theirs = number(&json(command)?[0], "avg_ts");
        reached.push(format!("{:.2} of llama.cpp's {theirs:.1} on {build}", ours / theirs));
    }
    if reached.is_empty() {
        reached.push("llama.cpp was not given (--llama-bench)".to_owned());
    }
    let (name, reached) = (title(model), reached.join(", "));
    let test = format!("prefill of {prompt} {}", flags.first().unwrap_or(&""));
    println!("| {} | {name} | {ours:.1} | {reached} | >= 0.9 on Vulkan |", test.trim_end());
    Ok(())
}

fn two_stages(options: &Options, model: &Model) -> Result<(), String> {
    let file = synth(model)?;
    let [_, answer] = options.lengths();
    let test = ["--prompt", "0", "--gen", answer, "--parallel", "32"];
    let speed = |stages| -> Result<f64, String> {
        Ok(number(&bench(options, &file, &test, stages)?[0], "tokens_per_second"))
    };
    let (one, two) = (speed(1)?, speed(2)?);
    let lost = (1.0 - two / one) * 100.0;
    println!(
        "| two stages, 32 sequences | {} | {two:.1} | {lost:.0} % lost | <= 5 % |",
        title(model)
    );
    Ok(())
}

fn title(model: &Model) -> String {
    let Model { arch, size, quant, .. } = model;
    format!("{arch} {size} {quant}")
}

/// Path of the model's file, which is made if needed.
fn synth(model: &Model) -> Result<PathBuf, String> {
    let Model { arch, size, quant, .. } = model;
    let path = std::env::temp_dir().join(format!("brigade-gpu-{arch}-{size}-{quant}.gguf"));
    if !path.is_file() {
        let mut command = Command::new(brigade_tests::process::brigade());
        command.args(["synth", "--arch", arch, "--size", size, "--quant", quant, "--out"]);
        output(command.arg(&path))?;
    }
    Ok(path)
}

/// Rows of `brigade bench` over `stages` workers on the GPU.
fn bench(
    options: &Options,
    file: &PathBuf,
    test: &[&str],
    stages: usize,
) -> Result<Vec<Value>, String> {
    let mut command = Command::new(brigade_tests::process::brigade());
    command.args(["bench", "--json", "--device", &options.device]);
    command.args(["--workers", &stages.to_string()]).args(test).arg("-m").arg(file);
    if options.small {
        command.args(["--repeat", "1"]);
    }
    json(command)
}

fn json(mut command: Command) -> Result<Vec<Value>, String> {
    let text = output(&mut command)?;
    serde_json::from_slice(&text).map_err(|error| format!("{command:?}: no JSON: {error}"))
}

fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let done = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if done.status.success() {
        Ok(done.stdout)
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr)))
    }
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or(f64::NAN)
}
