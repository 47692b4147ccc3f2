//! A stage that adds. Layer `i` adds the first value of `blk.i.w` to every hidden value. So its output proves which
//! weights were read and which rows travelled.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use brigade_engine::batch::{Boundary, RowOutput, RowValue, SampledToken, SeqOp, UBatch, Want};
use brigade_engine::error::SnapshotError;
use brigade_engine::weights::TensorSource;
use brigade_gguf::Gguf;
use brigade_proto::control::{KvType, StageSpec};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_worker::backend::measure::{Sending, Speeds};
use brigade_worker::backend::product_class::ByClass;
use brigade_worker::backend::{
    Abilities, BuildOrder, BuiltFacts, Finished, HostAbility, KeptWeights, StageBackend,
    StageError, StageNeeds, StageOutput, StageRunner, StageShape,
};

pub const WIDTH: usize = 8;
pub const N_VOCAB: u32 = 1000;
/// Bytes of state a KV page takes.
pub const PAGE_BYTES: u64 = 4096;
/// A token that makes any stage fail, one that makes it panic.
pub const FAIL_TOKEN: u32 = 666;
/// A token whose row gives no token.
pub const NAN_TOKEN: u32 = 668;
pub const PANIC_TOKEN: u32 = 667;

pub struct FakeBackend {
    abilities: Abilities,
    /// Values of a hidden row.
    width: usize,
    /// Stages built so far.
    pub built: AtomicUsize,
    /// Held while a stage computes: a test can keep it to make a stage hang.
    pub gate: Arc<Mutex<()>>,
    /// Held while a tensor is taken: a test can keep it to make loading hang.
    pub load_gate: Arc<Mutex<()>>,
    /// Tensors asked for so far, before that gate.
    pub asked: AtomicUsize,
    /// Where stages compute; `None`: they have computed a ubatch when it is begun.
    device: Option<Arc<FakeDevice>>,
    /// Bytes that each layer takes of the host's memory, beside stages that have memory of their own.
    in_host: Option<u64>,
}

/// A device that computes beside the stage's thread, as fast as a test lets it.
#[derive(Default)]
pub struct FakeDevice {
    counts: Mutex<Counts>,
    done: Condvar,
}

#[derive(Default)]
struct Counts {
    begun: usize,
    allowed: usize,
}

impl FakeDevice {
    /// Ubatches that it was told of so far.
    pub fn begun(&self) -> usize {
        self.counts.lock().unwrap().begun
    }

    /// Lets it compute as many more.
    pub fn compute(&self, n: usize) {
        self.counts.lock().unwrap().allowed += n;
        self.done.notify_all();
    }

    /// Waits for so long at most; whether ubatch `number`, counted from 0, is computed.
    fn is_done_within(&self, number: usize, within: Duration) -> bool {
        let counts = self.counts.lock().unwrap();
        let wait = |counts: &mut Counts| counts.allowed <= number;
        let (counts, _) = self.done.wait_timeout_while(counts, within, wait).unwrap();
        counts.allowed > number
    }
}

impl FakeBackend {
    pub fn new() -> Arc<Self> {
        Self::with_width(WIDTH)
    }

    /// Stages that compute on a device.
    pub fn on_device(device: Arc<FakeDevice>) -> Arc<Self> {
        Arc::new(Self { device: Some(device), ..Self::of_width(WIDTH) })
    }

    /// Stages with memory of their own, which have so many bytes of each layer in the host's.
    pub fn beside_host(layer_bytes: u64) -> Arc<Self> {
        let mut backend = Self { in_host: Some(layer_bytes), ..Self::of_width(WIDTH) };
        let speeds = backend.abilities.speeds;
        backend.abilities.host =
            Some(HostAbility { speeds, sent: Sending::default(), experts_before: None });
        Arc::new(backend)
    }

    pub fn with_width(width: usize) -> Arc<Self> {
        Arc::new(Self::of_width(width))
    }

    fn of_width(width: usize) -> Self {
        let abilities = Abilities {
            host: None,
            architectures: vec!["fake".into()],
            quant_types: vec!["F32".into()],
            kv_types: vec![KvType::F32, KvType::F16],
            kernel_tables: vec!["plain".into()],
            kernel_numerics: vec![1],
            kernels: "plain".into(),
            threads: 1,
            speeds: Speeds { gb_per_second: 1.0, gop_per_second: ByClass::all(1.0) },
        };
        Self {
            abilities,
            width,
            built: AtomicUsize::new(0),
            gate: Arc::default(),
            load_gate: Arc::default(),
            asked: AtomicUsize::new(0),
            device: None,
            in_host: None,
        }
    }
}

fn layers(spec: &StageSpec) -> impl Iterator<Item = String> + use<> {
    (spec.layer_begin..spec.layer_end).map(|i| format!("blk.{i}.w"))
}

fn unsupported(e: impl std::fmt::Display) -> Failure {
    Failure::refusal(FailureKind::Unsupported, e.to_string())
}

impl StageBackend for FakeBackend {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn has_own_memory(&self) -> bool {
        self.in_host.is_some()
    }

    fn needs(&self, model: &Gguf, spec: &StageSpec) -> Result<StageNeeds, Failure> {
        let mut weight_bytes = 0;
        for name in layers(spec) {
            weight_bytes += model.require(&name).map_err(unsupported)?.nbytes;
        }
        let state_bytes = u64::from(spec.n_blocks) * PAGE_BYTES;
        let tensors = layers(spec).collect();
        let host_bytes = layers(spec).count() as u64 * self.in_host.unwrap_or(0);
        Ok(StageNeeds { tensors, weight_bytes, host_bytes, state_bytes, ..StageNeeds::default() })
    }

    fn build(
        &self,
        mut order: BuildOrder,
        _: &mut KeptWeights,
    ) -> Result<(Box<dyn StageRunner>, BuiltFacts), Failure> {
        let mut addends = Vec::new();
        for name in layers(&order.spec) {
            let tensor = order.model.require(&name).map_err(unsupported)?;
            self.asked.fetch_add(1, Ordering::SeqCst);
            drop(self.load_gate.lock());
            let bytes = order.weights.tensor(tensor);
            let bytes = bytes.map_err(|e| Failure::refusal(FailureKind::Io, e.to_string()))?;
            addends.push(f32::from_le_bytes(bytes[..4].try_into().unwrap()));
            (order.progress)(tensor.nbytes);
        }
        self.built.fetch_add(1, Ordering::SeqCst);
        let n_layers = order.model.meta().u32("fake.block_count").map_err(unsupported)?;
        let stage = FakeStage {
            width: self.width,
            addends,
            first: order.spec.layer_begin == 0,
            last: order.spec.layer_end == n_layers,
            lengths: BTreeMap::new(),
            gate: self.gate.clone(),
            device: self.device.clone(),
            begun: VecDeque::new(),
        };
        let needs = self.needs(&order.model, &order.spec)?;
        let own = |(i, name)| (order.spec.layer_begin as usize + i, vec![name]);
        let facts = BuiltFacts {
            host_bytes: 0,
            weight_bytes: needs.weight_bytes,
            state_bytes: needs.state_bytes,
            sequence_bytes: needs.state_bytes,
            copies_bytes: 0,
            kernels: "plain".into(),
            threads: 1,
            layer_tensors: layers(&order.spec).enumerate().map(own).collect(),
        };
        Ok((Box::new(stage), facts))
    }

    fn load_ahead(&self, mut order: BuildOrder, has: Range<usize>) -> Result<KeptWeights, Failure> {
        // It keeps no weights from one stage to the next: only reading is tried.
        for layer in order.spec.layer_begin..order.spec.layer_end {
            if has.contains(&(layer as usize)) {
                continue;
            }
            let tensor = order.model.require(&format!("blk.{layer}.w")).map_err(unsupported)?;
            self.asked.fetch_add(1, Ordering::SeqCst);
            drop(self.load_gate.lock());
            order.weights.tensor(tensor).map_err(unsupported)?;
            (order.progress)(tensor.nbytes);
        }
        Ok(KeptWeights::default())
    }
}

struct FakeStage {
    width: usize,
    addends: Vec<f32>,
    first: bool,
    last: bool,
    /// Positions of each open sequence.
    lengths: BTreeMap<u32, u32>,
    gate: Arc<Mutex<()>>,
    device: Option<Arc<FakeDevice>>,
    /// With their numbers on the device, and the slots that they draw for.
    begun: VecDeque<(StageOutput, usize, Vec<u32>)>,
}

impl FakeStage {
    fn apply(&mut self, ubatch: &UBatch) -> Result<(), StageError> {
        for op in &ubatch.ops {
            match op {
                SeqOp::Open { slot, .. } => {
                    if self.lengths.insert(slot.0, 0).is_some() {
                        return Err(format!("slot {} is open already", slot.0).into());
                    }
                }
                SeqOp::Close { slot } => drop(self.lengths.remove(&slot.0)),
                SeqOp::Adapt { .. } | SeqOp::Draw { .. } | SeqOp::Grow { .. } => {}
                SeqOp::Name { .. } | SeqOp::Checkpoint { .. } | SeqOp::Draft { .. } => {}
                SeqOp::Copy { .. } | SeqOp::Truncate { .. } => return Err("not here".into()),
            }
        }
        for part in &ubatch.parts {
            let slot = Some(part.slot.0);
            let length = self.lengths.get_mut(&part.slot.0).ok_or("slot is not open")?;
            if *length != part.pos {
                let reason = format!("position {} after {length} tokens", part.pos);
                return Err(StageError { slot, reason, lost: false });
            }
            *length += part.tokens.len() as u32;
        }
        Ok(())
    }
}

impl FakeStage {
    fn forward(
        &mut self,
        ubatch: &UBatch,
        input: Option<Boundary>,
    ) -> Result<StageOutput, StageError> {
        drop(self.gate.lock());
        self.apply(ubatch)?;
        let tokens: Vec<u32> = ubatch.parts.iter().flat_map(|p| &p.tokens).copied().collect();
        if let Some(part) = ubatch.parts.iter().find(|part| part.tokens.contains(&FAIL_TOKEN)) {
            let reason = "the fake stage fails on purpose".to_owned();
            return Err(StageError { slot: Some(part.slot.0), reason, lost: false });
        }
        assert!(!tokens.contains(&PANIC_TOKEN), "the fake stage panics on purpose");
        let mut hidden = match input {
            Some(boundary) => boundary.data,
            None => {
                let row = |&token: &u32| std::iter::repeat_n(token as f32, self.width);
                tokens.iter().flat_map(row).collect()
            }
        };
        let addend = self.addends.iter().sum::<f32>();
        // A bench of the transport adds nothing.
        if addend != 0.0 {
            hidden.iter_mut().for_each(|value| *value += addend);
        }
        if !self.last {
            return Ok(StageOutput::Boundary(Boundary { n_rows: tokens.len(), data: hidden }));
        }
        let mut rows = Vec::new();
        let mut hidden = hidden.chunks_exact(self.width);
        for part in &ubatch.parts {
            for (i, row) in hidden.by_ref().take(part.tokens.len()).enumerate() {
                let (slot, pos) = (part.slot, part.pos + i as u32);
                let is_last = i + 1 == part.tokens.len();
                let value = match part.want {
                    Want::Sample if is_last && part.tokens[i] == NAN_TOKEN => {
                        RowValue::Failed("the fake row is NaN".into())
                    }
                    Want::Sample if is_last => {
                        let id = row[0] as u32;
                        RowValue::Sampled(SampledToken { id, ..SampledToken::default() })
                    }
                    Want::Logits => RowValue::Logits(row.to_vec()),
                    _ => continue,
                };
                rows.push(RowOutput { slot, pos, value, mask_us: 0 });
            }
        }
        Ok(StageOutput::Rows(rows))
    }
}

impl StageRunner for FakeStage {
    fn shape(&self) -> StageShape {
        let width = Some(self.width as u32);
        StageShape {
            output_exact: false,
            input_width: width.filter(|_| !self.first),
            output_width: width.filter(|_| !self.last),
            n_vocab: N_VOCAB,
        }
    }

    fn may_begin(&self, ubatch: &UBatch) -> bool {
        let of_ops = ubatch.ops.iter().flat_map(|op| op.slots());
        let mut named = of_ops.chain(ubatch.parts.iter().map(|part| part.slot));
        !named.any(|slot| self.begun.iter().any(|(.., drawn)| drawn.contains(&slot.0)))
    }

    fn begin(&mut self, ubatch: &UBatch, input: Option<Boundary>) -> Result<(), StageError> {
        let output = self.forward(ubatch, input)?;
        let drawn = ubatch.parts.iter().filter(|part| part.want == Want::Sample);
        let mut number = 0;
        if let Some(device) = &self.device {
            let mut counts = device.counts.lock().unwrap();
            (number, counts.begun) = (counts.begun, counts.begun + 1);
        }
        self.begun.push_back((output, number, drawn.map(|part| part.slot.0).collect()));
        Ok(())
    }

    fn is_done_within(&mut self, within: Duration) -> bool {
        let Some((_, number, _)) = self.begun.front() else { return true };
        self.device.as_ref().is_none_or(|device| device.is_done_within(*number, within))
    }

    fn finish(&mut self) -> Result<Finished, StageError> {
        while !self.is_done_within(Duration::from_secs(60)) {}
        let output = self.begun.pop_front().ok_or("nothing was begun")?.0;
        Ok(Finished::without_drafts(output))
    }

    fn snapshot(&self, _: u32) -> Result<Vec<u8>, SnapshotError> {
        Err(SnapshotError::Foreign("a fake stage has no state".into()))
    }

    fn restore(&mut self, _: u32, _: &[u8]) -> Result<(), SnapshotError> {
        Err(SnapshotError::Foreign("a fake stage has no state".into()))
    }

    fn reset(&mut self) -> Result<(), StageError> {
        self.lengths.clear();
        self.begun.clear();
        Ok(())
    }

    fn into_kept(self: Box<Self>) -> KeptWeights {
        KeptWeights::default()
    }
}
