//! Models with random weights in supported architectures: to try a cluster, and to measure it, before any
//! download.
//!
//! A file is a function of its [`Spec`] alone, whatever the number of threads. llama.cpp loads it too. The
//! weights are noise of the right size: activations stay finite, and the text is babble.

mod adapter;
mod arch;
mod decoders;
mod encoders;
mod file_type;
mod latent;
mod noise;
mod plan;
mod recurrent;
mod shape;
mod shared_parts;
mod vocab;

pub use adapter::{AdapterSpec, write_adapter};
pub use arch::{ARCHES, Arch};
pub use file_type::FileType;
pub use shape::{Experts, SIZES, Shape, Ssm};

use brigade_gguf::{GgufError, GgufWriter, TensorStream};
use brigade_quant::{Format, GgmlType, QuantError, require_format};
use noise::RowNoise;
use plan::{ModelPlan, TensorPlan};
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Bytes of encoded rows that are made before they are written.
const CHUNK_BYTES: usize = 8 << 20;

/// Architecture, sizes and types of a synthetic model.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Architecture of the model.
    pub arch: Arch,
    /// Sizes of the model; [`Shape::named`] has the usual ones.
    pub shape: Shape,
    /// Types of the weights.
    pub quant: FileType,
    /// Two seeds, two models.
    pub seed: u64,
    /// Metadata and tensor directory only.
    pub header_only: bool,
}

/// Reasons why a model cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// An architecture, size or quantisation of this name is not offered; the others are listed.
    #[error("unknown {what} {name:?}; there are {}", choices.join(", "))]
    Unknown {
        /// Architecture, size or quant.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// The names there are.
        choices: Vec<&'static str>,
    },
    /// The sizes make no model of this architecture.
    #[error("{arch} of this size: {problem}")]
    Shape {
        /// Name of the architecture.
        arch: &'static str,
        /// Property of the shape that does not fit.
        problem: String,
    },
    /// The plan is not a GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The weights cannot be encoded.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The file cannot be written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// Writes the model that `spec` describes. Returns the bytes of tensor data it has (or would have,
/// with `header_only`).
///
/// # Errors
/// The sizes do not fit the architecture, or the file cannot be written.
pub fn write(spec: &Spec, path: impl AsRef<Path>) -> Result<u64, SynthError> {
    write_telling(spec, path.as_ref(), &mut |_, _| {})
}

/// [`write()`], which tells `progress` after each tensor how many bytes of tensor data of how many are written.
///
/// # Errors
/// As [`write()`].
pub fn write_telling(
    spec: &Spec,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, SynthError> {
    let io = |source| SynthError::Io { path: path.display().to_string(), source };
    let plan = arch::plan(spec)?;
    let writer = header(spec, &plan)?;
    let bytes = writer.data_bytes();
    let mut out = BufWriter::new(File::create(path).map_err(io)?);
    if spec.header_only {
        writer.write_header_only(&mut out).and_then(|()| out.flush()).map_err(io)?;
        return Ok(bytes);
    }
    let mut stream = writer.start(out).map_err(io)?;
    let mut done = 0;
    for tensor in &plan.tensors {
        match tensor.ty {
            GgmlType::I32 => stream.write(&whole_numbers(spec.seed, tensor)).map_err(io)?,
            ty => {
                let format = require_format(ty, &tensor.name)?;
                write_tensor(spec.seed, tensor, format, &mut stream, &io)?;
            }
        }
        let n_rows: usize = tensor.ne[1..].iter().product();
        done +=
            (n_rows * (tensor.ne[0] / tensor.ty.block_elems() * tensor.ty.block_bytes())) as u64;
        progress(done.min(bytes), bytes);
    }
    stream.finish().map_err(io)?;
    Ok(bytes)
}

fn header(spec: &Spec, plan: &ModelPlan) -> Result<GgufWriter, GgufError> {
    let mut writer = GgufWriter::new();
    // llama.cpp takes a file whose name has phi3 in it for one with that model's special tokens.
    let arch = spec.arch.name().replace("phi3", "phi 3");
    let name = format!("synthetic {arch} (seed {})", spec.seed);
    writer.set("general.architecture", spec.arch.name())?;
    writer.set("general.name", &name)?;
    writer.set("general.file_type", &spec.quant.id())?;
    writer.set("general.quantization_version", &2_u32)?;
    for (key, value) in &plan.metadata {
        value.set(&mut writer, key)?;
    }
    if plan.word_pieces {
        vocab::write_word_pieces(&mut writer, spec.shape.vocab)?
    } else {
        vocab::write(&mut writer, spec.shape.vocab)?
    }
    for tensor in &plan.tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.ne)?;
    }
    Ok(writer)
}

/// A table of whole numbers, as the file has it.
fn whole_numbers(seed: u64, tensor: &TensorPlan) -> Vec<u8> {
    let noise = RowNoise::new(seed, &tensor.name);
    let n_rows: usize = tensor.ne[1..].iter().product();
    let mut row = vec![0.0; tensor.ne[0]];
    let mut bytes = Vec::with_capacity(n_rows * row.len() * size_of::<i32>());
    for r in 0..n_rows {
        noise.fill(r as u64, tensor.fill, &mut row);
        bytes.extend(row.iter().flat_map(|value| (*value as i32).to_le_bytes()));
    }
    bytes
}

/// Makes and encodes a tensor's rows on all cores, a chunk at a time.
fn write_tensor<W: Write>(
    seed: u64,
    tensor: &TensorPlan,
    format: &Format,
    stream: &mut TensorStream<W>,
    io: &impl Fn(io::Error) -> SynthError,
) -> Result<(), SynthError> {
    let row_len = tensor.ne[0];
    let n_rows: usize = tensor.ne[1..].iter().product();
    let row_bytes = row_len / tensor.ty.block_elems() * tensor.ty.block_bytes();
    let rows_per_chunk = (CHUNK_BYTES / row_bytes).max(1);
    let noise = RowNoise::new(seed, &tensor.name);
    let mut chunk = vec![0; rows_per_chunk.min(n_rows) * row_bytes];
    for first in (0..n_rows).step_by(rows_per_chunk) {
        let chunk = &mut chunk[..rows_per_chunk.min(n_rows - first) * row_bytes];
        chunk.par_chunks_exact_mut(row_bytes).enumerate().try_for_each_init(
            || vec![0.0; row_len],
            |values, (i, row)| {
                noise.fill((first + i) as u64, tensor.fill, values);
                format.quantize_row(values, row)
            },
        )?;
        stream.write(chunk).map_err(io)?;
    }
    Ok(())
}
