//! A line of stages in one process. It does what workers do, without the network between them.

use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use brigade_engine::batch::{
    AdapterUse, Boundary, PageId, RowOutput, RowValue, SampledToken, SamplerSetup, SamplingParams,
    SeqOp, SeqPart, SlotId, UBatch, Want,
};
use brigade_engine::control_vectors::{ControlVectors, StageVectors};
use brigade_engine::device::{Device, DeviceName, DeviceOptions, Devices, ExpertUses, Visits};
use brigade_engine::kernels::{self, KV_PAGE, Kernels, KvType};
use brigade_engine::stage::{Stage, StageConfig, StageOutput};
use brigade_gguf::Gguf;

/// Positions that one slot of a test line may hold.
pub const SLOT_POSITIONS: usize = 2048;

/// Names the op table of all test lines: `avx512`, `avx2`, `neon` or `reference`.
const FORCE_KERNELS: &str = "BRIGADE_TEST_KERNELS";

/// Environment variable that makes tests use GPUs as cards with a memory of their own.
const FORCE_APART: &str = "BRIGADE_TEST_APART";

/// The op table that every machine has.
const REFERENCE: &str = "reference";

/// The GPUs of all test lines, which are opened once.
static DEVICES: LazyLock<Devices> = LazyLock::new(Devices::default);

/// GPUs as cards are used that have a memory of their own, whatever they are.
static APART: LazyLock<Devices> =
    LazyLock::new(|| Devices::new(DeviceOptions { apart: true, ..DeviceOptions::default() }));

/// Products of many rows have bits of their own.
static FAST: LazyLock<Devices> =
    LazyLock::new(|| Devices::new(DeviceOptions { fast_math: true, ..DeviceOptions::default() }));

/// Slots of a test line.
pub const N_SLOTS: usize = 8;

/// A stage of one short sequence.
pub const ONE_SEQUENCE: StageConfig = StageConfig {
    n_slots: 1,
    n_blocks: 1,
    kv_type: KvType::F32,
    n_ctx: 64,
    max_rows: 8,
    windows: false,
    control_vectors: None,
    host_experts: 0,
    own_drafts: false,
};

/// Stages in order; ubatches pass through all of them before the next one starts.
pub struct Line {
    stages: Vec<Stage>,
    next_id: u64,
    uses: Vec<(u32, f32)>,
}

/// Cuts and devices of a test line.
#[derive(Clone, Debug)]
pub struct LineConfig {
    /// First layer of every stage but the first.
    pub cuts: Vec<usize>,
    /// Op table; `None`: [`serving`].
    pub kernels: Option<&'static str>,
    /// Op table of each stage in turn, over and over; empty: `kernels` for all.
    pub mixed: Vec<&'static str>,
    /// Whether GPUs are used as cards with a memory of their own; `BRIGADE_TEST_APART` makes that the default.
    pub apart: bool,
    /// Whether devices have fast math; GPUs are then not used apart.
    pub fast_math: bool,
    /// Compute threads of each stage.
    pub threads: usize,
    /// Type of the KV cache.
    pub kv_type: KvType,
    /// Positions of a sequence at most.
    pub n_ctx: u32,
    /// Whether layers with a window keep only what it sees.
    pub windows: bool,
    /// Control vectors with their scales.
    pub control_vectors: Vec<(PathBuf, f32)>,
    /// The layers that they are for; `None`: all that they have.
    pub control_layers: Option<RangeInclusive<usize>>,
    /// Routed experts of layers before this one lie with the host, beside a GPU.
    pub host_experts: u32,
    /// Rule by which these are sent to the GPU for a ubatch.
    pub visits: Visits,
    /// Bytes of the GPU's memory for copies of them.
    pub copies: u64,
    /// Uses of experts that a stage before has counted.
    pub earlier_uses: Vec<ExpertUses>,
    /// Whether the last stage has the model's own blocks of drafts.
    pub own_drafts: bool,
    /// Files of the model's adapters.
    pub adapters: Vec<PathBuf>,
    /// Adapters that [`Line::logits`] and [`Line::generate`] use, with their scales.
    pub uses: Vec<(u32, f32)>,
}

impl Default for LineConfig {
    fn default() -> Self {
        Self {
            cuts: Vec::new(),
            kernels: None,
            mixed: Vec::new(),
            apart: std::env::var_os(FORCE_APART).is_some(),
            fast_math: false,
            threads: 1,
            kv_type: KvType::F32,
            n_ctx: SLOT_POSITIONS as u32,
            windows: false,
            control_vectors: Vec::new(),
            control_layers: None,
            host_experts: 0,
            visits: Visits::Never,
            copies: 0,
            earlier_uses: Vec::new(),
            own_drafts: false,
            adapters: Vec::new(),
            uses: Vec::new(),
        }
    }
}

/// Op table that tests run on unless they name one: what `BRIGADE_TEST_KERNELS` names, else the one that
/// serves on this machine.
///
/// # Panics
/// If this machine has no table of that name; the message lists those that it has.
pub fn serving() -> &'static Kernels {
    match device_name() {
        DeviceName::Accelerator { .. } => kernels::unfused(),
        DeviceName::Cpu(table) => kernels::select(table.as_deref())
            .unwrap_or_else(|problem| panic!("{FORCE_KERNELS}: {problem}")),
    }
}

/// The device that tests run on unless they name one: the table of [`serving`], or the GPU that `BRIGADE_TEST_KERNELS` names.
pub fn device_name() -> DeviceName {
    let forced = forced().map(|name| name.parse());
    forced
        .transpose()
        .unwrap_or_else(|problem| panic!("{problem}"))
        .unwrap_or(DeviceName::Cpu(None))
}

/// Op tables to test one by one: all that this machine has, or the one that is forced.
pub fn tables() -> Vec<&'static Kernels> {
    if forced().is_some() { vec![serving()] } else { kernels::available() }
}

/// Op tables to compare with each other: all that this machine has, or the one that is forced and
/// `reference`.
pub fn compared_tables() -> Vec<&'static Kernels> {
    let (serving, available) = (serving(), kernels::available());
    let is_forced = forced().is_some() && serving.name != REFERENCE;
    available
        .into_iter()
        .filter(|t| !is_forced || [serving.name, REFERENCE].contains(&t.name))
        .collect()
}

/// Options of a command so that its local workers compute on the forced table or GPU. Empty where none is forced.
pub fn kernels_option() -> Vec<&'static str> {
    match (forced(), device_name()) {
        (None, _) => Vec::new(),
        (Some(_), DeviceName::Cpu(_)) => vec!["--kernels", serving().name],
        (Some(_), DeviceName::Accelerator { .. }) => {
            static GPU: LazyLock<String> = LazyLock::new(|| device_name().to_string());
            vec!["--device", &GPU]
        }
    }
}

fn forced() -> Option<String> {
    std::env::var(FORCE_KERNELS).ok().filter(|name| !name.is_empty())
}

impl Line {
    /// Loads a model over stages cut as `config` says.
    pub fn open(path: &Path, config: &LineConfig) -> Self {
        let tables = |stage: usize| match config.mixed.as_slice() {
            [] => config.kernels,
            mixed => Some(mixed[stage % mixed.len()]),
        };
        Self::open_on(path, config, &|stage| device(tables(stage), config))
    }

    /// [`Line::open`], each stage on its device.
    pub fn open_on(path: &Path, config: &LineConfig, device: &dyn Fn(usize) -> Device) -> Self {
        let model = Arc::new(Gguf::open_with(path, &config.adapters).unwrap());
        let n_layer = brigade_models::describe(&model).unwrap().n_layer();
        let mut bounds = vec![0];
        bounds.extend(&config.cuts);
        bounds.push(n_layer);
        let stages = bounds.windows(2).enumerate();
        let stages = stages.map(|(i, w)| load(&model, w[0]..w[1], device(i), config)).collect();
        Self { stages, next_id: 0, uses: config.uses.clone() }
    }

    /// Cuts `n_layer` layers into `n` stages of about equal length, one layer each at most.
    pub fn even_cuts(n_layer: usize, n: usize) -> Vec<usize> {
        let n = n.min(n_layer);
        (1..n).map(|i| i * n_layer / n).collect()
    }

    /// Forgets all sequences: the next ubatch is the first one.
    pub fn reset(&mut self) {
        self.stages.iter_mut().for_each(Stage::reset);
        self.next_id = 0;
    }

    /// Stages of the line, in order.
    pub fn stages(&mut self) -> &mut [Stage] {
        &mut self.stages
    }

    /// The op that opens `slot` with all its pages.
    pub fn open_slot(slot: u32, sampler: Option<SamplerSetup>) -> SeqOp {
        let per_slot = (SLOT_POSITIONS / KV_PAGE) as u32;
        let blocks = (slot * per_slot..(slot + 1) * per_slot).map(PageId).collect();
        let (sampler, request) = (sampler.map(Arc::new), "test".into());
        SeqOp::Open { slot: SlotId(slot), blocks, sampler, request }
    }

    /// The op that names the adapters of a slot's sequence.
    pub fn adapt(slot: u32, uses: &[(u32, f32)]) -> SeqOp {
        let uses = uses.iter().map(|&(adapter, scale)| AdapterUse { adapter, scale });
        SeqOp::Adapt { slot: SlotId(slot), adapters: uses.collect() }
    }

    /// The ops that open slot 0 with the line's adapters.
    fn open_first(&self, sampler: Option<SamplerSetup>) -> Vec<SeqOp> {
        let mut ops = vec![Self::open_slot(0, sampler)];
        if !self.uses.is_empty() {
            ops.push(Self::adapt(0, &self.uses));
        }
        ops
    }

    /// A sampler that takes the most probable token.
    pub fn greedy() -> SamplerSetup {
        SamplerSetup {
            params: SamplingParams::greedy(),
            seed: 0,
            top_logprobs: None,
            ..SamplerSetup::default()
        }
    }

    /// Sends one ubatch down the line.
    pub fn run(&mut self, ops: Vec<SeqOp>, parts: Vec<SeqPart>) -> Vec<RowOutput> {
        let ub = UBatch { id: self.next_id, ops, parts };
        self.next_id += 1;
        let mut boundary: Option<Boundary> = None;
        for stage in &mut self.stages {
            match stage.forward(&ub, boundary.take()).unwrap() {
                StageOutput::Boundary(rows) => boundary = Some(rows),
                StageOutput::Rows(rows) => return rows,
            }
        }
        unreachable!("the last stage returns rows")
    }

    /// Logits at every position of `tokens`, computed in ubatches of at most `n_ubatch` rows.
    pub fn logits(&mut self, tokens: &[u32], n_ubatch: usize) -> Vec<Vec<f32>> {
        let slot = SlotId(0);
        let mut rows = Vec::new();
        for (i, chunk) in tokens.chunks(n_ubatch).enumerate() {
            let ops = if i == 0 { self.open_first(None) } else { Vec::new() };
            let pos = (i * n_ubatch) as u32;
            let part = SeqPart {
                slot,
                pos,
                tokens: chunk.to_vec(),
                want: Want::Logits,
                mu: None,
                ahead: None,
            };
            rows.extend(self.run(ops, vec![part]).into_iter().map(into_logits));
        }
        self.run(vec![SeqOp::Close { slot }], Vec::new());
        rows
    }

    /// The last norm's rows of several texts at once, one after the other in one ubatch: of an encoder.
    pub fn texts(&mut self, texts: &[&[u32]]) -> Vec<Vec<Vec<f32>>> {
        let slots = || (0..texts.len() as u32).map(SlotId);
        let part = |(slot, text): (SlotId, &&[u32])| {
            let (tokens, want) = (text.to_vec(), Want::Hidden);
            SeqPart { slot, pos: 0, tokens, want, mu: None, ahead: None }
        };
        let ops = slots().map(|slot| Self::open_slot(slot.0, None)).collect();
        let mut rows = self.run(ops, slots().zip(texts).map(part).collect()).into_iter();
        self.run(slots().map(|slot| SeqOp::Close { slot }).collect(), Vec::new());
        let of = |text: &&[u32]| rows.by_ref().take(text.len()).map(into_hidden).collect();
        texts.iter().map(of).collect()
    }

    /// `n` greedy tokens after `prompt`, prompt in ubatches of at most `n_ubatch` rows.
    pub fn generate(&mut self, prompt: &[u32], n: usize, n_ubatch: usize) -> Vec<u32> {
        let slot = SlotId(0);
        let mut sampled = Vec::new();
        let n_chunks = prompt.len().div_ceil(n_ubatch);
        for (i, chunk) in prompt.chunks(n_ubatch).enumerate() {
            let ops = if i == 0 { self.open_first(Some(Self::greedy())) } else { Vec::new() };
            let want = if i + 1 == n_chunks { Want::Sample } else { Want::Nothing };
            let pos = (i * n_ubatch) as u32;
            let rows = self.run(
                ops,
                vec![SeqPart { slot, pos, tokens: chunk.to_vec(), want, mu: None, ahead: None }],
            );
            sampled.extend(rows.into_iter().map(|r| into_token(r).id));
        }
        while sampled.len() < n {
            let pos = (prompt.len() + sampled.len() - 1) as u32;
            let tokens = vec![sampled[sampled.len() - 1]];
            let part = SeqPart { slot, pos, tokens, want: Want::Sample, mu: None, ahead: None };
            sampled.extend(self.run(Vec::new(), vec![part]).into_iter().map(|r| into_token(r).id));
        }
        self.run(vec![SeqOp::Close { slot }], Vec::new());
        sampled
    }
}

/// The logits of a row that wanted them.
pub fn into_logits(row: RowOutput) -> Vec<f32> {
    match row.value {
        RowValue::Logits(logits) => logits,
        other => panic!("wanted logits, got {other:?}"),
    }
}

/// The row of the last norm that was wanted.
pub fn into_hidden(row: RowOutput) -> Vec<f32> {
    match row.value {
        RowValue::Hidden(row) => row,
        other => panic!("wanted a row of the last norm, got {other:?}"),
    }
}

/// The token of a row that wanted one.
pub fn into_token(row: RowOutput) -> SampledToken {
    match row.value {
        RowValue::Sampled(token) => token,
        RowValue::Logits(_) | RowValue::Hidden(_) => panic!("wanted a token, got logits"),
        RowValue::NotYet => panic!("wanted a token, and its mask is not there"),
        RowValue::Refuted => panic!("wanted a token, and its draft is wrong"),
        RowValue::Failed(why) => panic!("wanted a token: {why}"),
    }
}

fn stage_vectors(config: &LineConfig, model: &Gguf, layers: &Range<usize>) -> Option<StageVectors> {
    let files = (!config.control_vectors.is_empty()).then_some(&config.control_vectors)?;
    let spec = brigade_models::describe(model).unwrap();
    let all = ControlVectors::read(files, config.control_layers.clone(), &spec).unwrap();
    Some(StageVectors { id: all.id(), rows: all.rows(layers.clone()) })
}

/// The device of that name.
fn device(table: Option<&str>, config: &LineConfig) -> Device {
    let name = table.map_or_else(device_name, |name| name.parse().unwrap());
    let devices = match (config.fast_math, config.apart) {
        (true, _) => &FAST,
        (false, true) => &APART,
        (false, false) => &DEVICES,
    };
    devices.open(&name, config.threads, None).unwrap()
}

fn load(model: &Arc<Gguf>, layers: Range<usize>, mut device: Device, config: &LineConfig) -> Stage {
    device.set_visits(config.visits);
    device.set_room_for_copies(config.copies);
    device.set_earlier_uses(config.earlier_uses.clone());
    let n_positions = brigade_models::describe(model).unwrap().max_positions();
    let stage = StageConfig {
        n_slots: N_SLOTS,
        n_blocks: (N_SLOTS * SLOT_POSITIONS / KV_PAGE) as u32,
        kv_type: config.kv_type,
        n_ctx: n_positions.unwrap_or(u32::MAX).min(config.n_ctx),
        max_rows: SLOT_POSITIONS,
        windows: config.windows,
        control_vectors: stage_vectors(config, model, &layers),
        host_experts: config.host_experts,
        own_drafts: config.own_drafts,
    };
    Stage::load(
        &brigade_models::described(model).unwrap(),
        model.clone(),
        layers,
        stage,
        device,
        &mut |_| {},
    )
    .unwrap()
}
