//! The engine behind the worker's traits: the models that it can run, the needs of a stage, and building and running
//! one.

mod expert_record;
mod learning;
mod placement;
mod runner;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use brigade_engine::constraint::{ConstraintError, Vocabulary};
use brigade_engine::control_vectors::StageVectors;
use brigade_engine::device::{
    Device, DeviceName, DeviceOptions, Devices, Visits, bytes_for_guests,
};
use brigade_engine::kernels::{self, DeviceError, DeviceFault, KV_PAGE, KernelError, PackedMatrix};
use brigade_engine::stage::{NextStage, Stage, StageConfig};
use brigade_gguf::adapters::of_model;
use brigade_gguf::{Gguf, GgufError, TensorInfo};
use brigade_proto::control::{KvType, StageSpec};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_quant::GgmlType;
use brigade_spec::{Described, ModelError, ModelSpec, StateRoom};
use brigade_text::{TextError, Tokenizer};

use crate::backend::expert_placement::{ALL_LAYERS, ExpertCache, Experts};
use crate::backend::measure::{Beside, Sending, Speeds, measure};
use crate::backend::visiting_experts::{self, Way};
use crate::backend::work_memory::{LoadingMemory, WorkMemory};
use crate::backend::{
    Abilities, BuildOrder, BuiltFacts, HostAbility, KeptWeights, StageBackend, StageNeeds,
    StageRunner,
};
use crate::config::Config;
use crate::host;
use crate::machine::numa::Places;
use crate::machine::share::Share;
use crate::machine::turns::Turns;
use crate::machine::{cpu_list, memory};
use crate::weights::reader::Weights;
use expert_record::ExpertRecords;
use learning::{Learner, Learning};
use placement::{Packing, places};
use runner::{EngineStage, taken};

/// Where in the cache's folder what GPUs' drivers compiled is kept.
const KERNELS_DIR: &str = "kernels";

/// The engine on a device of this machine.
pub struct EngineBackend {
    abilities: Abilities,
    devices: Devices,
    device: DeviceName,
    threads: usize,
    /// CPUs of the threads; empty: wherever the system puts them.
    cpus: Vec<usize>,
    /// Threads and weights that have places on several NUMA nodes.
    places: Option<Places>,
    experts: Experts,
    /// The way by which those that lie with the host are sent to the GPU, where that can be faster.
    way: Option<Way>,
    /// Bytes of the GPU's memory for copies of some of them.
    expert_cache: ExpertCache,
    /// Keeps over restarts which experts are used most.
    learning: Arc<Learning>,
    /// Where stages wait for their turn, if there are others.
    turns: Option<Arc<Turns>>,
}

/// Where a stage of a node waits for its turn.
fn turns_of(share: Share) -> Option<Arc<Turns>> {
    let turns = Turns::open(share.inherited?.turns, share.number);
    turns.inspect_err(|error| tracing::error!(%error, "the stages of this machine cannot take turns: they compute at the same time")).ok()
}

impl EngineBackend {
    /// Chooses the device and the threads, and measures them unless the settings say their speeds. Blocks for
    /// two tenths of a second.
    ///
    /// # Errors
    /// The device or the op table in the settings does not run here, or the system refuses threads.
    pub fn new(config: &Config) -> Result<Self, KernelError> {
        let turns = config.share.and_then(turns_of);
        let devices = Devices::new(DeviceOptions {
            pipeline_cache: Some(config.cache_dir.join(KERNELS_DIR)),
            matrix_units: config.matrix_units,
            fast_math: config.fast_math,
            // The plan counts the needed bytes; a little more is for kernels and for the slack of slabs.
            memory_limit: config.memory_bytes.map(|bytes| bytes + memory::RESERVE_BYTES),
            lose_after: config.gpu_lost_after,
            ..DeviceOptions::default()
        });
        let devices = match &config.measured {
            Some(measured) => devices.tested(&measured.device),
            None => devices,
        };
        let device = devices.choose(&config.device);
        devices.check(&device)?;
        let kernels = devices.called(&device)?;
        let measured = config.measured.as_ref().filter(|measured| measured.device == kernels);
        let threads = threads_of(config);
        let places = if device.is_cpu() { places(config, threads) } else { None };
        let cpus = places.as_ref().map_or(&config.cpus, |places| &places.cpus).clone();
        let told = config.speeds.or(measured.map(|measured| measured.own));
        let own = match told {
            Some(told) => told,
            None => {
                // Undisturbed by the others.
                let _turn = turns.as_ref().and_then(taken);
                measure_apart(&devices, &device, threads, &cpus)?
            }
        };
        let beside = measured.and_then(|measured| measured.beside);
        let (host, way) = host_beside(&devices, &device, own, beside, config)?;
        let tables = tables(&devices, &device)?;
        tracing::info!(
            device = kernels,
            threads,
            cpus = cpu_list::ranges(&cpus),
            gb_per_second = rounded(own.gb_per_second),
            gop_per_second = rounded(own.gop_per_second.nibble),
            q6_k = rounded(own.gop_per_second.halves),
            q8_0 = rounded(own.gop_per_second.byte),
            f16 = rounded(own.gop_per_second.float),
            "compute"
        );
        let abilities = Abilities {
            architectures: brigade_models::supported().into_iter().map(str::to_owned).collect(),
            quant_types: quant_types(),
            kv_types: vec![KvType::F32, KvType::F16, KvType::Q80],
            kernel_tables: tables.iter().map(|(name, _)| name.clone()).collect(),
            kernel_numerics: tables.iter().map(|(_, numerics)| *numerics).collect(),
            kernels,
            threads: threads as u32,
            speeds: own,
            host,
        };
        Ok(Self {
            abilities,
            devices,
            device,
            threads,
            cpus,
            places,
            experts: config.experts,
            way,
            expert_cache: config.expert_cache,
            learning: Arc::new(Learning::new(ExpertRecords::open(&config.cache_dir))),
            turns,
        })
    }

    fn name(&self, spec: &StageSpec) -> Result<DeviceName, Failure> {
        match spec.kernels.as_str() {
            "" => Ok(self.device.clone()),
            name => {
                name.parse().map_err(|why: String| Failure::refusal(FailureKind::Unsupported, why))
            }
        }
    }

    /// Layers whose routed experts lie with the host: the first so many.
    fn host_experts(&self, spec: &StageSpec) -> Result<u32, Failure> {
        let told = || spec.host_experts.unwrap_or(self.experts.unless_told());
        Ok(if self.name(spec)?.is_cpu() { 0 } else { told() })
    }

    /// The device of a stage, with so many bytes for copies of experts.
    fn device(&self, spec: &StageSpec, copies: u64) -> Result<Device, Failure> {
        let name = self.name(spec)?;
        let threads = if spec.threads == 0 { self.threads } else { spec.threads as usize };
        let device = self.devices.open(&name, threads, cpu_list(&self.cpus));
        let mut device = device.map_err(|e| model_failure(e.into()))?;
        device.set_room_for_copies(copies);
        device.host().pool().pin_caller();
        Ok(device)
    }

    /// Tells the device when experts of these layers are sent to it that lie with the host.
    fn set_visits(
        &self,
        device: &mut Device,
        model: &Described<'_>,
        layers: &Range<usize>,
        host_experts: u32,
    ) {
        let visits = |way: Way| way.visits(model, layers, host_experts);
        device.set_visits(self.way.map_or(Visits::Never, visits));
    }

    /// Keeps what a stage of this model learns of its experts, if it does.
    fn learner(&self, model: blake3::Hash, stage: &Stage) -> Option<Learner> {
        let counts = stage.use_counts()?;
        let copied_bytes = stage.expert_counts().sent_bytes;
        if copied_bytes > 0 {
            tracing::info!(copied_bytes, "experts that were used most before are on the GPU");
        }
        Some(self.learning.begin(model, counts))
    }
}

/// The compute threads of a worker.
fn threads_of(config: &Config) -> usize {
    match (config.threads, config.cpus.len()) {
        (Some(threads), _) => threads,
        (None, 0) => host::cores(),
        (None, cpus) => cpus,
    }
}

/// The host's speed and the way to the GPU, where experts may lie in the host's memory. `measured`: what another stage has
/// measured of it.
fn host_beside(
    devices: &Devices,
    device: &DeviceName,
    own: Speeds,
    measured: Option<Beside>,
    config: &Config,
) -> Result<(Option<HostAbility>, Option<Way>), KernelError> {
    let is_own = devices.free_bytes(device).is_some();
    let is_wanted = match config.experts {
        Experts::Device => false,
        // In one memory for both nothing is won.
        Experts::Auto => is_own,
        Experts::Layers(0) => false,
        Experts::Host | Experts::Layers(_) => true,
    };
    if !is_wanted || matches!(device, DeviceName::Cpu(_)) {
        return Ok((None, None));
    }
    let table = DeviceName::Cpu(Some(kernels::unfused().name.to_owned()));
    let speeds = match config.speeds.or(measured.map(|measured| measured.host)) {
        Some(told) => told,
        None => measure_apart(devices, &table, threads_of(config), &config.cpus)?,
    };
    let way = if let Some(measured) = measured.filter(|_| config.speeds.is_none()) {
        Way { sent: measured.sent, gpu: own, host: speeds }.if_open()
    } else if is_own && config.speeds.is_none() {
        Way::measure(&devices.open(device, 1, cpu_list(&config.cpus))?, own, speeds)?
    } else {
        // With one memory for both there is nothing to send, and given speeds do not include the way.
        None
    };
    let sent = way.map_or_else(Sending::default, |way| way.sent);
    tracing::info!(
        gb_per_second = rounded(speeds.gb_per_second),
        gop_per_second = rounded(speeds.gop_per_second.nibble),
        sent_gb_per_second = rounded(sent.gb_per_second),
        "routed experts may lie in the host's memory"
    );
    let experts_before = config.experts.before();
    Ok((Some(HostAbility { speeds, sent, experts_before }), way))
}

/// Kernel tables and devices that may be asked for here, best first, each with the number of its numerics.
fn tables(devices: &Devices, device: &DeviceName) -> Result<Vec<(String, u32)>, KernelError> {
    if device.is_cpu() && devices.has_fast_math() {
        return Ok(vec![(devices.called(device)?, devices.numerics(device)?)]);
    }
    let own =
        if device.is_cpu() { None } else { Some((device.to_string(), devices.numerics(device)?)) };
    let of_cpu = kernels::available().into_iter().chain([kernels::unfused()]);
    Ok(own.into_iter().chain(of_cpu.map(|k| (k.name.to_owned(), k.numerics))).collect())
}

/// A speed for people: tenths are precise enough.
fn rounded(speed: f64) -> f64 {
    (speed * 10.0).round() / 10.0
}

fn cpu_list(cpus: &[usize]) -> Option<&[usize]> {
    (!cpus.is_empty()).then_some(cpus)
}

/// Measures on a thread of its own, which is pinned as the stage's will be and then gone.
fn measure_apart(
    devices: &Devices,
    device: &DeviceName,
    threads: usize,
    cpus: &[usize],
) -> Result<Speeds, KernelError> {
    let work = || {
        let device = devices.open(device, threads, cpu_list(cpus))?;
        device.host().pool().pin_caller();
        measure(&device)
    };
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(speeds) => speeds,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Types that weights can have: those with a kernel, and that of tables of whole numbers.
fn quant_types() -> Vec<String> {
    let has_kernel = |ty: &&GgmlType| PackedMatrix::packed_bytes(**ty, 1, ty.block_elems()).is_ok();
    let is_known = |ty: &&GgmlType| **ty == GgmlType::I32 || has_kernel(ty);
    GgmlType::ALL.iter().filter(is_known).map(|ty| ty.name().to_owned()).collect()
}

impl StageBackend for EngineBackend {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn has_own_memory(&self) -> bool {
        self.devices.free_bytes(&self.device).is_some()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.devices.free_bytes(&self.device).or_else(memory::available_bytes)
    }

    fn needs(&self, model: &Gguf, spec: &StageSpec) -> Result<StageNeeds, Failure> {
        let described = brigade_models::describe(model).map_err(model_failure)?;
        let layers = spec.layer_begin as usize..spec.layer_end as usize;
        if layers.end > described.n_layer() {
            let why = format!("layers {layers:?} of a model with {}", described.n_layer());
            return Err(Failure::refusal(FailureKind::BadMessage, why));
        }
        let tensors =
            brigade_spec::stage_tensors_with_drafts(model, &described, &layers, spec.own_drafts);
        let last = layers.end == described.n_layer();
        let tied = brigade_spec::is_tied(model, &described);
        let host_experts = self.host_experts(spec)?;
        check_experts(host_experts, &described)?;
        let (mut weight_bytes, mut host_bytes) = (0, 0);
        let mut guests = BTreeMap::<_, Vec<u64>>::new();
        for tensor in &tensors {
            let embedding = tensor.name == brigade_spec::TOKEN_EMBD;
            // Blocks of drafts embed as the first layer's rows are.
            if embedding && (layers.start == 0 || (last && spec.own_drafts)) {
                weight_bytes += tensor.nbytes;
            }
            // Of a layer's table a few rows are read for each token, where they are.
            let is_table = described.is_of_a_layer(of_model(&tensor.name).0);
            if (!embedding && !is_table) || (last && tied && embedding) {
                let nbytes = loaded_bytes(tensor).map_err(|e| model_failure(e.into()))?;
                if visiting_experts::is_beside(&described, &layers, tensor, host_experts) {
                    host_bytes += nbytes;
                    let matrices = visiting_experts::matrices_of(tensor)
                        .map_err(|e| model_failure(e.into()))?;
                    guests
                        .entry(brigade_spec::layer_of(&tensor.name))
                        .or_default()
                        .extend(matrices);
                } else {
                    weight_bytes += nbytes;
                }
            }
        }
        let work_memory = WorkMemory::of(model, &described);
        if self.way.is_some() {
            weight_bytes += bytes_for_guests(guests.values().map(Vec::as_slice));
        }
        if !self.has_own_memory() {
            weight_bytes += host_bytes;
        }
        let loading = LoadingMemory::of(model, &described);
        if host_bytes > 0 {
            // What goes to a GPU with memory of its own is packed here first, before experts have any rows.
            let on_its_way = if self.has_own_memory() { loading.on_its_way(last) } else { 0 };
            host_bytes += work_memory.bytes(spec.max_rows, false).max(on_its_way);
        }
        Ok(StageNeeds {
            tensors: tensors.iter().map(|t| t.name.clone()).collect(),
            weight_bytes,
            host_bytes,
            state_bytes: state_bytes(&described, &layers, spec)
                + work_memory.bytes(spec.max_rows, last),
            // Beside a GPU with memory of its own, tensors are packed in the host's.
            loading_bytes: if self.has_own_memory() { 0 } else { loading.bytes(last) },
        })
    }

    fn build(
        &self,
        order: BuildOrder,
        kept: &mut KeptWeights,
    ) -> Result<(Box<dyn StageRunner>, BuiltFacts), Failure> {
        let BuildOrder { model, weights, spec, left, mut progress } = order;
        let copies = self.expert_cache.room(left.bytes, left.limit);
        let mut device = self.device(&spec, copies)?;
        let learns = copies > 0 && !device.is_host();
        let model_hash = learns.then(|| blake3::hash(&model.header_bytes()));
        if let Some(model) = &model_hash {
            device.set_earlier_uses(self.learning.records().read(model));
        }
        let (turns, computes_on) = (self.turns.clone(), !device.is_host());
        let config = StageConfig {
            n_slots: spec.max_seqs as usize,
            n_blocks: spec.n_blocks,
            kv_type: engine_kv(spec.kv_type()),
            n_ctx: spec.max_ctx,
            max_rows: spec.max_rows as usize,
            windows: spec.windows,
            control_vectors: control_vectors(&spec),
            host_experts: self.host_experts(&spec)?,
            own_drafts: spec.own_drafts,
        };
        let layers = spec.layer_begin as usize..spec.layer_end as usize;
        let described = brigade_models::described(&model).map_err(model_failure)?;
        self.set_visits(&mut device, &described, &layers, config.host_experts);
        if layers.start == 0 && !kept.has_embedding() {
            keep_embedding(&model, &weights, &mut *progress)?;
        }
        let (range, packing) = (layers.clone(), Packing::begin(self.places.as_ref()));
        let mut stage = Stage::load_keeping(
            &described,
            weights.clone(),
            range,
            config,
            device,
            kept,
            &mut *progress,
        )
        .map_err(model_failure)?;
        weights.loaded();
        // What tensors were read into is no weight.
        weights.end_loading();
        packing.into_iter().for_each(Packing::end);
        compile_kernels(&mut stage)?;
        stage.set_vocabulary(Box::new(move || vocabulary(&model)));
        let pages = spec.max_ctx.div_ceil(KV_PAGE as u32);
        let one = StageSpec { max_seqs: 1, n_blocks: pages, ..spec.clone() };
        let sequence_bytes = state_bytes(stage.spec(), &layers, &one);
        let facts = stage.facts();
        let facts = BuiltFacts {
            weight_bytes: if self.has_own_memory() {
                facts.weight_bytes - facts.host_expert_bytes
            } else {
                facts.weight_bytes
            },
            host_bytes: facts.host_expert_bytes,
            state_bytes: facts.state_bytes,
            sequence_bytes,
            copies_bytes: if learns { copies - self.expert_cache.set_aside() } else { 0 },
            kernels: facts.device.clone(),
            threads: facts.threads as u32,
            layer_tensors: stage.layer_tensors(),
        };
        let learner = model_hash.and_then(|model| self.learner(model, &stage));
        let stage = EngineStage::new(stage, turns, computes_on).learning(learner);
        Ok((Box::new(stage), facts))
    }

    fn write_records(&self) {
        self.learning.write();
    }

    fn load_ahead(&self, order: BuildOrder, has: Range<usize>) -> Result<KeptWeights, Failure> {
        let BuildOrder { model, weights, spec, mut progress, .. } = order;
        let (name, host_experts) = (self.name(&spec)?, self.host_experts(&spec)?);
        // The stage's own thread is on the first CPU. Where memory has several nodes, a thread of each writes its part.
        let last = self.cpus.last().map(std::slice::from_ref);
        let cpus = self.places.as_ref().map_or(last, |places| Some(&places.last_of_nodes));
        let device = self.devices.open(&name, cpus.map_or(1, <[usize]>::len), cpus);
        let device = device.map_err(|e| model_failure(e.into()))?;
        device.host().pool().pin_caller();
        let layers = spec.layer_begin as usize..spec.layer_end as usize;
        if layers.start == 0 && !has.contains(&0) {
            keep_embedding(&model, &weights, &mut *progress)?;
        }
        let kept = KeptWeights::load_ahead(
            &brigade_models::described(&model).map_err(model_failure)?,
            weights.clone(),
            NextStage { layers, has, own_drafts: spec.own_drafts, host_experts },
            &device,
            &mut *progress,
        )
        .map_err(model_failure)?;
        weights.loaded();
        Ok(kept)
    }
}

/// Has a GPU's kernels compiled that the stage will run. A driver that computes in software takes longer to compile all of them
/// than to compute what a small model needs: there each waits until it is used.
fn compile_kernels(stage: &mut Stage) -> Result<(), Failure> {
    if stage.is_on_cores() {
        return Ok(());
    }
    let started = Instant::now();
    let n = stage.rehearse().map_err(|error| model_failure(KernelError::from(error).into()))?;
    tracing::info!(kernels = n, took = ?started.elapsed(), "the GPU's driver compiled kernels");
    Ok(())
}

/// Control vectors behind the stage's layers; the order was checked when it was parsed.
fn control_vectors(spec: &StageSpec) -> Option<StageVectors> {
    let id = blake3::Hash::from_slice(&spec.control_vectors_id).ok()?;
    let (values, _) = spec.control_vectors.as_chunks::<4>();
    let rows = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    Some(StageVectors { id, rows })
}

/// Has the rows of the embedding in memory for as long as the stage lives.
fn keep_embedding(
    model: &Gguf,
    weights: &Weights,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let embedding = model.require(brigade_spec::TOKEN_EMBD).map_err(|e| model_failure(e.into()))?;
    weights.keep(embedding).map_err(|e| model_failure(e.into()))?;
    progress(embedding.nbytes);
    Ok(())
}

/// The tokens that grammars of answers are about.
fn vocabulary(model: &Gguf) -> Result<Vocabulary, ConstraintError> {
    let wrong = |error: TextError| ConstraintError::Vocabulary(error.to_string());
    let tokenizer = Tokenizer::from_gguf(model).map_err(wrong)?;
    let is_control = |id| tokenizer.is_special(id) || tokenizer.is_eog(id);
    Vocabulary::new(tokenizer.texts().map_err(wrong)?, is_control, tokenizer.eog())
}

/// Bytes of a weight as the kernels hold it: vectors and rows of positions in f32, matrices packed.
fn loaded_bytes(tensor: &TensorInfo) -> Result<u64, KernelError> {
    let rows = [brigade_spec::POSITION_EMBD, brigade_spec::TOKEN_TYPES].contains(&&*tensor.name)
        || brigade_spec::has_token_rows(&tensor.name);
    if tensor.n_dims <= 1 || rows {
        return Ok((tensor.n_elems() * size_of::<f32>()) as u64);
    }
    let (cols, rows) = (tensor.ne[0], tensor.ne[1]);
    let matrices: usize = tensor.ne[2..].iter().product();
    Ok(matrices as u64 * PackedMatrix::packed_bytes(tensor.ty, rows, cols)?)
}

/// Refuses more layers than there are.
fn check_experts(host_experts: u32, model: &ModelSpec) -> Result<(), Failure> {
    let n_layer = model.n_layer();
    if host_experts == ALL_LAYERS || host_experts as usize <= n_layer {
        return Ok(());
    }
    let why = format!(
        "experts of {host_experts} layers are to lie in the host's memory, and the model has {n_layer}: start this worker with \
         --n-cpu-moe {n_layer} or less, or with --cpu-moe for all"
    );
    Err(Failure::refusal(FailureKind::Unsupported, why))
}

/// Bytes of KV pages and recurrent slots.
fn state_bytes(model: &ModelSpec, layers: &Range<usize>, spec: &StageSpec) -> u64 {
    let room = StateRoom {
        kv_type: engine_kv(spec.kv_type()),
        n_slots: spec.max_seqs,
        n_blocks: spec.n_blocks,
        max_rows: spec.max_rows,
        windows: spec.windows,
    };
    let blocks = model.layers[layers.clone()].iter().flat_map(|layer| &layer.blocks);
    let of_layers: u64 = blocks.map(|block| block.kind.state().bytes(&room)).sum();
    let drafts = model.own_drafts.as_ref();
    let drafts = drafts.filter(|_| spec.own_drafts && layers.end == model.n_layer());
    of_layers + drafts.map_or(0, |drafts| drafts.state_bytes(model.n_embd, &room))
}

fn engine_kv(kv_type: KvType) -> kernels::KvType {
    match kv_type {
        KvType::F16 => kernels::KvType::F16,
        KvType::Q80 => kernels::KvType::Q8_0,
        // An unknown type was refused when the order was parsed.
        KvType::F32 | KvType::Unspecified => kernels::KvType::F32,
    }
}

fn model_failure(error: ModelError) -> Failure {
    let kind = match &error {
        ModelError::OutOfMemory { .. }
        | ModelError::Kernel(
            KernelError::Memory { .. }
            | KernelError::Device(DeviceError { fault: DeviceFault::OutOfMemory, .. }),
        ) => FailureKind::NoMemory,
        // The next attempt opens the device anew.
        ModelError::Kernel(KernelError::Device(DeviceError {
            fault: DeviceFault::Failed, ..
        })) => FailureKind::Compute,
        ModelError::Kernel(KernelError::Threads { .. }) => FailureKind::Io,
        // The file has changed, or cannot be read now: the next attempt opens it again.
        ModelError::Gguf(GgufError::Io { .. } | GgufError::Changed { .. }) => FailureKind::Io,
        _ => FailureKind::Unsupported,
    };
    Failure::refusal(kind, error.to_string())
}

/// The engine's backend, ready to be shared.
///
/// # Errors
/// As [`EngineBackend::new`].
pub fn cpu_backend(config: &Config) -> Result<Arc<dyn StageBackend>, KernelError> {
    Ok(Arc::new(EngineBackend::new(config)?))
}
