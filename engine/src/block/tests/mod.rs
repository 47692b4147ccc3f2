//! Blocks against plain computations in f64. The blocks are loaded from tensors with the names and shapes of
//! a file.

mod block_index;
mod compressed;
mod delta;
mod lightning;
mod mla;
mod moe;
mod ngram;
mod streams;
mod switch;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Block, BlockCx, Ropes, RowAdapters, RowInputs, load_block};
use crate::batch::{PageId, SeqOp, SeqPart, SlotId, UBatch, Want};
use crate::device::{Device, Rows, Scratch};
use crate::gguf::{Gguf, GgufWriter};
use crate::kernels::{Kernels, KvType, RopeParams, RopeTable, available};
use crate::quant::GgmlType;
use crate::spec::{BlockKind, Prefixes, StateRoom};
use crate::state::{BlockState, PartRows, Sequences};
use crate::weights::WeightLoader;

/// Uniform in -1..1, from a seed.
pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Tensors in f32 with their dimensions as GGUF has them, the fastest first.
#[derive(Default)]
pub(crate) struct Tensors(BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Tensors {
    /// Adds noise of about unit gain.
    pub(crate) fn add(&mut self, name: &str, ne: &[usize]) {
        let seed = name.bytes().fold(7, |hash: u64, b| hash.wrapping_mul(31) + u64::from(b));
        let gain = (3.0 / ne[0] as f32).sqrt();
        let values = noise(ne.iter().product(), seed).into_iter().map(|x| x * gain).collect();
        self.put(name, ne, values);
    }

    pub(crate) fn put(&mut self, name: &str, ne: &[usize], values: Vec<f32>) {
        self.0.insert(name.to_owned(), (ne.to_vec(), values));
    }

    pub(crate) fn get(&self, name: &str) -> &[f32] {
        &self.0[name].1
    }

    /// `w x` with matrix `index` of the stack that `name` is.
    pub(crate) fn times(&self, name: &str, index: usize, x: &[f64]) -> Vec<f64> {
        let (ne, values) = &self.0[name];
        assert_eq!(ne[0], x.len(), "columns of {name}");
        let size = ne[0] * ne.get(1).copied().unwrap_or(1);
        product(&values[index * size..][..size], x)
    }

    pub(crate) fn gguf(&self) -> Gguf {
        let mut writer = GgufWriter::new();
        for (name, (ne, _)) in &self.0 {
            writer.tensor(name, GgmlType::F32, ne).unwrap();
        }
        let mut stream = writer.start(Vec::new()).unwrap();
        for (_, values) in self.0.values() {
            stream.write(bytemuck::cast_slice(values)).unwrap();
        }
        Gguf::from_bytes(Arc::from(stream.finish().unwrap()), "test").unwrap()
    }
}

/// `w x` with `w[rows, x.len()]`.
fn product(w: &[f32], x: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

/// One loaded block with its state.
struct Bench {
    device: Device,
    block: Box<dyn Block>,
    state: BlockState,
    sequences: Sequences,
    scratch: Scratch,
    /// Rows beside the rows of the next step, before and after the block.
    beside: Vec<Rows>,
    n_embd: usize,
    /// The token of each row; those that are missing are 0.
    tokens: Vec<u32>,
    /// Number of times that the block waited for a GPU in the last step.
    waits: u64,
}

impl Bench {
    /// Loads the block from a file of just these tensors, all of which it must take.
    fn new(kind: &BlockKind, tensors: &Tensors, n_embd: usize, kernels: &'static Kernels) -> Self {
        Self::on(Device::cpu(kernels, 2, None).unwrap(), kind, tensors, n_embd)
    }

    /// The same on this device.
    fn on(device: Device, kind: &BlockKind, tensors: &Tensors, n_embd: usize) -> Self {
        let (model, mut progress) = (Arc::new(tensors.gguf()), |_| ());
        let mut loader =
            WeightLoader::new(&model, &*model, &device, &mut progress).sharing(model.clone());
        let block = load_block(kind, 0, "blk.0", n_embd, &mut loader).unwrap();
        loader.finish(&model.tensors().iter().collect::<Vec<_>>()).unwrap();
        let (kv_type, n_slots, n_blocks, max_rows) = (KvType::F32, 4, 16, 256);
        let room = StateRoom { kv_type, n_slots, n_blocks, max_rows, windows: false };
        let state = BlockState::new(&device, kind, &room).unwrap();
        let sequences = Sequences::new(4, 16, Prefixes::All, false);
        let (scratch, beside) = (device.scratch(), Vec::new());
        let (tokens, waits) = (Vec::new(), 0);
        Self { device, block, state, sequences, scratch, beside, n_embd, tokens, waits }
    }

    /// Runs rows `(sequence, first position, count)`; a sequence opens at position 0 with pages of
    /// its own for 256 positions.
    fn step(
        &mut self,
        parts: &[(u32, usize, usize)],
        rope: Option<&RopeParams>,
        x: &[f32],
    ) -> Vec<f32> {
        let (mut ops, mut seq_parts, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for &(slot, pos, n) in parts {
            if pos == 0 {
                let blocks = (4 * slot..4 * slot + 4).map(PageId).collect();
                ops.push(SeqOp::Open {
                    slot: SlotId(slot),
                    blocks,
                    sampler: None,
                    request: "r".into(),
                });
            }
            let (tokens, want) = (vec![0; n], Want::Nothing);
            seq_parts.push(SeqPart {
                slot: SlotId(slot),
                pos: pos as u32,
                tokens,
                want,
                mu: None,
                ahead: None,
            });
            positions.extend(pos as u32..(pos + n) as u32);
        }
        let ub = UBatch { id: 0, ops, parts: seq_parts };
        let applied = self.sequences.apply(&ub).unwrap();
        let table = rope.map(|rope| RopeTable::new(self.device.host(), rope, &positions));
        self.tokens.resize(positions.len(), 0);
        self.forward(&applied.parts, table.as_ref(), x)
    }

    fn forward(&mut self, parts: &[PartRows], rope: Option<&RopeTable>, x: &[f32]) -> Vec<f32> {
        let rows = self.scratch.adopt(Rows::new(x.to_vec(), self.n_embd));
        let waits = self.device.counts().waits;
        let mut cx = BlockCx {
            device: &self.device,
            parts,
            sequences: &self.sequences,
            ropes: Ropes { model: rope, local: None },
            rows: RowInputs {
                tokens: &self.tokens,
                adapters: &RowAdapters::default(),
                layer_input: &Rows::default(),
            },
            beside: &mut self.beside,
            scratch: &self.scratch,
        };
        let out = self.block.forward(&mut cx, &mut self.state, &rows);
        self.waits = self.device.counts().waits - waits;
        out.into_vec()
    }
}

/// A block that two sequences go through.
struct OfTwo<'a> {
    kind: BlockKind,
    tensors: &'a Tensors,
    n_embd: usize,
    rope: Option<&'a RopeParams>,
}

impl OfTwo<'_> {
    fn bench(&self, kernels: &'static Kernels) -> Bench {
        Bench::new(&self.kind, self.tensors, self.n_embd, kernels)
    }

    /// Both sequences in one ubatch give what is `want`ed, within a bound. So do they, bit for bit, with every table of
    /// kernels and when they are cut in `steps`, each with rows of both sequences.
    fn check(&self, x: &[Vec<f32>; 2], want: &[f64], bound: f64, steps: &[usize]) {
        let lengths = [0, 1].map(|s| x[s].len() / self.n_embd);
        let mut first: Option<Vec<f32>> = None;
        for kernels in available() {
            let whole = [(0, 0, lengths[0]), (1, 0, lengths[1])];
            let out = self.bench(kernels).step(&whole, self.rope, &x.concat());
            close(&format!("{:?}", self.kind), &out, want, bound);
            let first = first.get_or_insert_with(|| out.clone());
            assert!(bits(&out) == bits(first), "tables differ: {}", kernels.name);
            for step in steps {
                let same = bits(&self.in_steps(kernels, x, *step)) == bits(first);
                assert!(same, "{}: {:?} in steps of {step}", kernels.name, self.kind);
            }
        }
    }

    /// Outputs of one sequence after the other, when each ubatch has `step` rows of both.
    fn in_steps(&self, kernels: &'static Kernels, x: &[Vec<f32>; 2], step: usize) -> Vec<f32> {
        let (mut bench, n_embd) = (self.bench(kernels), self.n_embd);
        let mut outs = [Vec::new(), Vec::new()];
        let longest = x[0].len().max(x[1].len()) / n_embd;
        for at in (0..longest).step_by(step) {
            let (mut parts, mut rows) = (Vec::new(), Vec::new());
            for (s, x) in x.iter().enumerate() {
                let end = x.len() / n_embd;
                let range = at.min(end)..(at + step).min(end);
                if !range.is_empty() {
                    parts.push((s as u32, at, range.len()));
                    rows.extend(&x[range.start * n_embd..range.end * n_embd]);
                }
            }
            let mut out = bench.step(&parts, self.rope, &rows);
            for (s, _, n) in parts {
                let rest = out.split_off(n * n_embd);
                outs[s as usize].extend(std::mem::replace(&mut out, rest));
            }
        }
        outs.concat()
    }
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Every value within `bound` of what is wanted; values are about 1.
pub(crate) fn close(what: &str, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= bound, "{what}: value {i} is {got}, wanted {want}");
    }
}
