//! Low-rank adapters with random weights, for a model that is there: to try adapters before one is trained.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::noise::Fill;
use super::plan::TensorPlan;
use super::{SynthError, write_tensor};
use brigade_gguf::adapters::{ALPHA, HALVES};
use brigade_gguf::{Gguf, GgufWriter, TensorInfo};
use brigade_quant::{GgmlType, require_format};
use brigade_spec::TOKEN_EMBD;

/// About how much an adapter changes what a projection gives, beside what that gives without it.
const STRENGTH: f32 = 0.3;
/// Spread of the rows that are looked up for tokens.
const ROWS: f32 = 0.02;

/// Sizes and seed of a synthetic adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterSpec {
    /// Rank of each change.
    pub rank: usize,
    /// Scale of the adapter, divided by its rank; 0: the file does not state one.
    pub alpha: f32,
    /// Two seeds, two adapters.
    pub seed: u64,
}

/// Writes an adapter of `model` in f32 that changes every tensor that one can change. Returns its bytes of tensor data.
///
/// # Errors
/// The model does not say its architecture, or the file cannot be written.
pub fn write_adapter(model: &Gguf, spec: &AdapterSpec, path: &Path) -> Result<u64, SynthError> {
    let io = |source| SynthError::Io { path: path.display().to_string(), source };
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", model.architecture()?)?;
    writer.set("general.type", "adapter")?;
    writer.set("general.name", &format!("synthetic adapter (seed {})", spec.seed))?;
    writer.set("adapter.type", "lora")?;
    if spec.alpha != 0.0 {
        writer.set(ALPHA, &spec.alpha)?;
    }
    let tensors = plan(model, spec);
    for tensor in &tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.ne)?;
    }
    let bytes = writer.data_bytes();
    let out = BufWriter::new(File::create(path).map_err(io)?);
    let mut stream = writer.start(out).map_err(io)?;
    for tensor in &tensors {
        let format = require_format(tensor.ty, &tensor.name)?;
        write_tensor(spec.seed, tensor, format, &mut stream, &io)?;
    }
    stream.finish().and_then(|mut out| out.flush()).map_err(io)?;
    Ok(bytes)
}

/// Both halves of the change of each tensor.
fn plan(model: &Gguf, spec: &AdapterSpec) -> Vec<TensorPlan> {
    let rank = spec.rank;
    let taking = model.tensors().iter().filter(|tensor| brigade_models::takes_adapter(tensor));
    let pair = |tensor: &TensorInfo| {
        let [cols, rows, matrices @ ..] = tensor.ne;
        let deep = |two: [usize; 2]| {
            let more = if tensor.n_dims > 2 { &matrices[..tensor.n_dims - 2] } else { &[] };
            [&two[..], more].concat()
        };
        // Of unit gain, and what the scale makes of it.
        let narrow = Fill::Normal(1.0 / (cols as f32).sqrt());
        let wide = Fill::Normal(STRENGTH / (rank as f32).sqrt());
        let halves = if tensor.name == TOKEN_EMBD {
            [(deep([rank, rows]), Fill::Normal(ROWS)), (deep([rank, cols]), wide)]
        } else {
            [(deep([cols, rank]), narrow), (deep([rank, rows]), wide)]
        };
        let half = |(half, (ne, fill)): (&str, (Vec<usize>, Fill))| {
            let name = format!("{}{half}", tensor.name);
            TensorPlan { name, ty: GgmlType::F32, ne, fill }
        };
        HALVES.into_iter().zip(halves).map(half).collect::<Vec<_>>()
    };
    taking.flat_map(pair).collect()
}
