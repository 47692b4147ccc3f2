//! Times of a GPU's ops, each by itself and in whole models, beside the card's measured limits of moving and adding in
//! the same run.
//!
//! ```text
//! cargo bench -p brigade-model-tests --bench gpu_ops [-- OPTIONS PARTS]
//!
//! memory, products, attention, models   parts: all of them, unless some are named
//! --device 1                            another GPU than the first
//! --only Q4_K                           of products a type of weights, of models some by name
//! --small                               tiny sizes: does it run
//! --fast-math                           products of many rows in f16
//! ```
//!
//! It prints Markdown. Times are the device's own ([`DeviceOptions::timed`]), unless a column says that the host's clock was read.

mod memory;
mod models;
mod ops;
mod random;
mod warm;

use brigade_gpu::{DeviceOptions, Gpu};
use warm::Warm;

struct Options {
    device: usize,
    small: bool,
    fast_math: bool,
    only: Option<String>,
    parts: Vec<String>,
}

impl Options {
    fn read() -> Result<Self, String> {
        let mut options =
            Self { device: 0, small: false, fast_math: false, only: None, parts: Vec::new() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                // Cargo says so.
                "--bench" => {}
                "--small" => options.small = true,
                "--fast-math" => options.fast_math = true,
                "--only" => options.only = Some(args.next().ok_or("--only needs a name")?),
                "--device" => {
                    let index = args.next().and_then(|index| index.parse().ok());
                    options.device = index.ok_or("--device needs a number")?;
                }
                part if PARTS.iter().any(|(name, _)| *name == part) => options.parts.push(arg),
                other => return Err(format!("{other} is no option and no part")),
            }
        }
        Ok(options)
    }

    /// Whether a type or model of this name is wanted.
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }

    /// Options for the GPU.
    fn of_gpu(&self, timed: bool) -> DeviceOptions {
        let folder = std::env::temp_dir().join("brigade-gpu-ops");
        let pipeline_cache = Some(folder);
        DeviceOptions {
            timed,
            fast_math: self.fast_math,
            pipeline_cache,
            ..DeviceOptions::default()
        }
    }

    fn open(&self, timed: bool) -> Result<Gpu, String> {
        Gpu::open(self.device, &self.of_gpu(timed)).map_err(|error| error.to_string())
    }
}

type Part = fn(&Options, &mut Warm) -> Result<(), String>;

const PARTS: [(&str, Part); 4] = [
    ("memory", memory::run),
    ("products", ops::products),
    ("attention", ops::attention),
    ("models", models::run),
];

fn main() -> std::process::ExitCode {
    // `cargo test --benches` asks for a smoke test only, in which nothing runs.
    if std::env::args().any(|arg| arg == "--test") {
        return std::process::ExitCode::SUCCESS;
    }
    match Options::read().and_then(|options| run(&options)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("gpu_ops: {what}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let gpu = options.open(false)?;
    println!("{}, driver {}", gpu.facts().name, gpu.facts().driver_text());
    let mut warm = Warm::new(gpu, options.small)?;
    for (name, part) in PARTS {
        if options.parts.is_empty() || options.parts.iter().any(|wanted| wanted == name) {
            println!("\n## {name}\n");
            part(options, &mut warm)?;
        }
    }
    Ok(())
}
