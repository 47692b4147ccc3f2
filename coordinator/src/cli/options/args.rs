//! Command-line arguments that several commands share: which model, which workers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use brigade_dialect::text_model::TemplateSource;
use brigade_engine::kernels::KvType;
use brigade_gguf::Gguf;
use brigade_hub::remote::Remote;
use brigade_hub::resolver::Found;
use brigade_line::adapters::{AdapterFile, LayerSpan};
use brigade_line::model::{Model, OpenError};
use brigade_plan::{Balance, HandCut, parse_bytes};
use brigade_proto::control::WireType;
use clap::{Args, ValueEnum};

use crate::cli::devices::DeviceList;
use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::demo;
use crate::cli::options::hub::HubArgs;
use crate::cli::options::input;
use crate::cli::options::units::{self, CpuLists, ThreadCounts};

/// Workers started on this machine when nothing is said about workers.
pub const DEFAULT_LOCAL_WORKERS: usize = 2;

/// Most workers in one line; more is a typing error long before it is a cluster.
pub const MAX_WORKERS: usize = 256;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Set once, when the command line has been read.
static LOG_FORMAT: OnceLock<LogFormat> = OnceLock::new();

impl LogFormat {
    /// The format's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }

    /// Remembers how this process logs, for the workers it starts.
    pub fn remember(self) {
        // The first call has set up the logs.
        let _ = LOG_FORMAT.set(self);
    }

    /// How this process logs.
    pub fn of_this_process() -> Self {
        LOG_FORMAT.get().copied().unwrap_or(Self::Text)
    }
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvArg {
    /// Four bytes a value: what `logits` uses.
    F32,
    /// Two bytes a value: what `run` and `serve` use.
    F16,
    /// A little over one byte a value, 34 for 32 of a head: about half the room of f16.
    #[value(name = "q8_0")]
    Q80,
}

/// Type of the values that cross from stage to stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WireArg {
    /// Exact: results do not depend on the cut.
    F32,
    /// Half the bytes; results depend on the cut, and values beyond 65504 are lost.
    F16,
    /// Half the bytes; results depend on the cut.
    Bf16,
    /// A little over a quarter of the bytes; results depend on the cut.
    #[value(name = "q8_0")]
    Q80,
}

impl WireArg {
    /// The protocol's name for it.
    pub fn proto(self) -> WireType {
        match self {
            Self::F32 => WireType::F32,
            Self::F16 => WireType::F16,
            Self::Bf16 => WireType::Bf16,
            Self::Q80 => WireType::Q80,
        }
    }
}

impl KvArg {
    /// The engine's name for it.
    pub fn engine(self) -> KvType {
        match self {
            Self::F32 => KvType::F32,
            Self::F16 => KvType::F16,
            Self::Q80 => KvType::Q8_0,
        }
    }
}

/// Which model.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// GGUF file, the first file of a split one, or a name: hf:USER/REPO:QUANT, ollama:NAME:TAG, https://HOST/FILE.gguf; -hf
    /// USER/REPO:QUANT as in llama.cpp [default: the built-in demo model]
    #[arg(short, long, value_name = "MODEL", env = "BRIGADE_MODEL")]
    pub model: Option<PathBuf>,
    /// Where names lead.
    #[command(flatten)]
    pub hub: HubArgs,
    /// The files to which the name was resolved.
    #[arg(skip)]
    pub found: Option<Found>,
    /// Where its weights are, if they are not here: `found` is its beginning then.
    #[arg(skip)]
    pub remote: Option<Arc<Remote>>,
}

impl ModelArgs {
    /// Where the model is: as named, or the demo model's file, written to the cache if need be.
    ///
    /// # Errors
    /// The demo model's file cannot be written.
    pub fn path(&self) -> Result<PathBuf> {
        match (&self.found, &self.model) {
            (Some(found), _) => Ok(found.path.clone()),
            (None, Some(path)) => Ok(path.clone()),
            (None, None) => demo::path(),
        }
    }

    /// Resolves the name to a file, once; a path stays as it is.
    ///
    /// # Errors
    /// There is no such model, or it cannot be had.
    pub fn find(&mut self, data_dir: &DataDirArgs) -> Result<()> {
        self.find_filed(data_dir)?;
        if let Some(model) = &self.model {
            self.found = self.hub.find(model, data_dir)?;
        }
        Ok(())
    }

    /// Puts a file of the operator's folder in the place of its name.
    fn find_filed(&mut self, data_dir: &DataDirArgs) -> Result<()> {
        let filed = self.model.as_ref().map(|model| self.hub.filed(model, data_dir));
        if let Some(path) = filed.transpose()?.flatten() {
            self.model = Some(path);
        }
        Ok(())
    }

    /// The same as [`ModelArgs::find`], for workers that fetch missing weights themselves.
    ///
    /// # Errors
    /// There is no such model, or it cannot be had.
    pub fn find_for_others(&mut self, data_dir: &DataDirArgs) -> Result<()> {
        self.find_filed(data_dir)?;
        let remote = self.model.as_ref().map(|model| self.hub.remote(model, data_dir));
        match remote.transpose()?.flatten() {
            Some((found, remote)) => (self.found, self.remote) = (Some(found), Some(remote)),
            None => self.find(data_dir)?,
        }
        Ok(())
    }

    /// Opens what tells about the model: of one whose weights are not here, its beginning.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(&self) -> Result<Gguf> {
        let path = self.path()?;
        match self.remote {
            Some(_) => input::open_model(&path, |path| Gguf::open_header_only(path)),
            None => input::open_model(&path, |path| Gguf::open(path)),
        }
    }

    /// The same as [`ModelArgs::find`], for a command that needs no weights.
    ///
    /// # Errors
    /// There is no such model, or it cannot be asked about.
    pub fn describe(&mut self, data_dir: &DataDirArgs) -> Result<()> {
        self.find_filed(data_dir)?;
        let described = self.model.as_ref().map(|model| self.hub.describe(model, data_dir));
        if let Some(described) = described.transpose()?.flatten() {
            self.model = Some(described.path().to_path_buf());
        }
        Ok(())
    }
}

/// The chat template that a command uses.
#[derive(Clone, Debug, Default, Args)]
pub struct TemplateArgs {
    /// Chat template instead of the model's own: chatml, or a file with Jinja source
    #[arg(long, alias = "chat-template-file", value_name = "NAME|FILE")]
    pub chat_template: Option<String>,
}

impl TemplateArgs {
    /// The template that was asked for, its file read.
    ///
    /// # Errors
    /// The text is no known name, and no file that can be read.
    pub fn source(&self) -> Result<Option<TemplateSource>> {
        match self.chat_template.as_deref() {
            None => Ok(None),
            Some("chatml") => Ok(Some(TemplateSource::ChatMl)),
            Some(file) => {
                let text = input::read_text(Path::new(file)).with_context(|| {
                    format!("--chat-template {file}: give chatml or a file that can be read")
                })?;
                Ok(Some(TemplateSource::Text(text)))
            }
        }
    }
}

/// Which workers, and what each stage is told.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workers")]
pub struct LineArgs {
    /// Start N workers on this machine [default: 2, or as many as --tensor-split or --cuts names]
    #[arg(long, value_name = "N", value_parser = worker_count, conflicts_with = "worker")]
    pub workers: Option<usize>,
    /// Use the worker at this address, or of this name in `brigade nodes`; repeat it for each stage, first stage first
    #[arg(long, value_name = "HOST:PORT")]
    pub worker: Vec<String>,
    /// Pin local worker i to the i-th CPU list, e.g. 0/1 or 0-3/4-7
    #[arg(long, value_name = "LISTS", value_parser = units::cpu_lists, conflicts_with = "worker")]
    pub worker_cpus: Option<CpuLists>,
    /// Compute threads of each local worker [default: its share of this machine's cores]. `brigade bench` takes a list as
    /// well, e.g. 1,2,4, and measures with each
    #[arg(long, value_name = "N", value_parser = units::thread_counts, conflicts_with = "worker")]
    pub threads: Option<ThreadCounts>,
    /// Threads and weights of a local worker on a machine with several NUMA nodes. auto: threads are pinned, node after node,
    /// and weights lie where the threads are that read them. off: the system places them [default: auto for one worker, or
    /// with --worker-cpus]
    #[arg(long, value_name = "WHERE", value_parser = ["auto", "off"], conflicts_with = "worker")]
    pub numa: Option<String>,
    /// Memory each local worker may use, e.g. 12G [default: its share of what is free, or the GPU's memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "worker")]
    pub memory: Option<u64>,
    /// Device of each local worker, taken in turn from this list: auto, cpu, or GPUs by their names in `brigade
    /// devices`, such as vulkan:0,1. With +cpu behind a GPU (vulkan:0+cpu), routed experts that do not fit its memory
    /// lie in the host's memory [default: auto, the first GPU that there is, else the CPU]
    #[arg(long, value_name = "DEVICES", conflicts_with = "worker")]
    pub device: Option<DeviceList>,
    /// Where the routed experts of a mixture lie beside a GPU: device (its memory), host (the host's memory), auto (the
    /// host's memory for those that do not fit the GPU's), or a number N (the host's memory for those of the first N
    /// layers). Results do not depend on it [default: auto with --device auto or vulkan:0+cpu, else device]
    #[arg(long, value_name = "WHERE", conflicts_with = "worker")]
    pub experts: Option<String>,
    /// Keep all routed experts in the host's memory, beside a GPU that computes the rest: the same as --experts host
    #[arg(long, conflicts_with_all = ["worker", "experts"])]
    pub cpu_moe: bool,
    /// Keep the routed experts of the first N layers in the host's memory: the same as --experts N
    #[arg(long, value_name = "N", conflicts_with_all = ["worker", "experts", "cpu_moe"])]
    pub n_cpu_moe: Option<u32>,
    /// Memory of each local worker's GPU for copies of the most used of the experts in the host's memory, e.g. 4G; auto:
    /// what the rest leaves of it. Results do not depend on it [default: none]
    #[arg(long, value_name = "SIZE", conflicts_with = "worker")]
    pub expert_cache: Option<String>,
    /// Do not use GPUs' matrix units, for drivers that fail with them: prompts then take longer, results are the same
    #[arg(long, conflicts_with = "worker")]
    pub no_coopmat: bool,
    /// Compute prompts faster: on GPUs' f16 matrix units, and on CPUs with AVX-512 BF16 where weights are F16 or BF16.
    /// Answers may then differ from those without this option, and may change with the device, its driver, and the
    /// requests that run at the same time: the same bytes are not promised
    #[arg(long, conflicts_with_all = ["worker", "no_coopmat"])]
    pub fast_math: bool,
    /// Kernel table all stages must use, e.g. reference, avx2, avxvnni, avx512 [default: each its best]
    #[arg(long, value_name = "NAME")]
    pub kernels: Option<String>,
    /// Type of the activations between stages; only f32 keeps results independent of the cut
    #[arg(long, value_enum, default_value_t = WireArg::F32)]
    pub wire_type: WireArg,
    /// Allow plain, unauthenticated connections beyond loopback. Workers that join by token do not need it
    #[arg(long)]
    pub insecure_network: bool,
    /// Where a cluster's authority is.
    #[command(flatten)]
    pub data_dir: DataDirArgs,
    /// Low-rank adapter (LoRA) of the model, a GGUF file; repeat it for several. SCALE is its strength for requests
    /// that do not set one, 0: off
    #[arg(long, value_name = "FILE[=SCALE]")]
    pub lora: Vec<AdapterFile>,
    /// Control vector of the model, a GGUF file, whose directions are added behind layers, times SCALE; repeat it for the
    /// sum of several
    #[arg(long, value_name = "FILE[=SCALE]")]
    pub control_vector: Vec<AdapterFile>,
    /// The layers that --control-vector is for, the last one included [default: all that it has directions for]
    #[arg(long, value_name = "FIRST-LAST", requires = "control_vector")]
    pub control_vector_layers: Option<LayerSpan>,
    /// Keep all positions of layers with a window, and not only those that it sees: more memory, and a prompt can begin
    /// with any part of a kept sequence
    #[arg(long)]
    pub full_windows: bool,
    /// Rows of the largest ubatch, at least --max-seqs [default: 512; of an encoder its context]
    #[arg(long, alias = "ubatch-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub ubatch: Option<u32>,
    /// Cut layers for: prefill, decode, mixed (as many prompt tokens as generated ones), or a number of prompt tokens
    /// for each generated one. Results do not depend on it
    #[arg(long, value_name = "GOAL", default_value_t = Balance::MIXED)]
    pub balance: Balance,
    /// Cut layers by hand in these proportions, one for each worker in order, e.g. 3,1,1; 0 leaves a worker out.
    /// Results do not depend on it
    #[arg(
        long,
        value_name = "SHARES",
        value_parser = HandCut::shares,
        allow_hyphen_values = true,
        conflicts_with = "cuts"
    )]
    pub tensor_split: Option<HandCut>,
    /// Cut layers by hand before these, e.g. 12,24 for three workers: 0..12, 12..24 and the rest
    #[arg(long, value_name = "LAYERS", value_parser = HandCut::borders, allow_hyphen_values = true)]
    pub cuts: Option<HandCut>,
}

impl LineArgs {
    /// Compute threads of each local worker, if they were asked for.
    ///
    /// # Errors
    /// Several numbers, of which a line can have only one.
    pub fn one_number_of_threads(&self) -> Result<Option<usize>> {
        let Some(counts) = &self.threads else { return Ok(None) };
        let one = counts.only().with_context(|| {
            format!("--threads {counts}: one number is needed here; `brigade bench` takes several")
        })?;
        Ok(Some(one))
    }

    /// The cut that was asked for by hand.
    pub fn hand_cut(&self) -> Option<&HandCut> {
        self.tensor_split.as_ref().or(self.cuts.as_ref())
    }

    /// The model at `path`, which `open` opens, with what goes along with it.
    ///
    /// # Errors
    /// A file that cannot be read or does not fit the model.
    pub fn open(
        &self,
        path: &Path,
        open: impl FnOnce(&Path, &[AdapterFile]) -> Result<Model, OpenError>,
    ) -> Result<Model, OpenError> {
        let mut model = open(path, &self.lora)?;
        model.add_control_vectors(&self.control_vector, self.control_vector_layers)?;
        Ok(model)
    }

    /// Whether its workers may be on other machines, which fetch for themselves.
    pub fn is_elsewhere(&self) -> bool {
        // Adapters are files beside the model's.
        !self.worker.is_empty() && self.lora.is_empty()
    }

    /// Workers to start on this machine: as said, or as many as a cut by hand names.
    pub fn local_workers(&self) -> usize {
        let by_cut = self.hand_cut().map_or(DEFAULT_LOCAL_WORKERS, HandCut::n_workers);
        self.workers.unwrap_or(by_cut)
    }
}

fn worker_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_WORKERS).contains(&n) => Ok(n),
        _ => Err(format!("a number from 1 to {MAX_WORKERS} is needed")),
    }
}
