//! Numbers to rows, gathered from a matrix as the file holds it: token ids, or what is made of them.

use std::sync::Arc;

use crate::device::Device;
use crate::gguf::TensorInfo;
use crate::quant::{self, Format};
use crate::spec::ModelError;
use crate::weights::TensorSource;

/// A matrix `[n_vocab, n_embd]`, left where it is, of which rows are read.
pub struct Embedding {
    source: Arc<dyn TensorSource>,
    tensor: TensorInfo,
    n_embd: usize,
    format: &'static Format,
}

impl Embedding {
    /// `tensor` has dimensions `{n_embd, n_vocab}`.
    ///
    /// # Errors
    /// The tensor's type has no rows that can be read, or the source lacks the tensor.
    pub fn new(
        source: Arc<dyn TensorSource>,
        tensor: TensorInfo,
        n_embd: usize,
        n_vocab: usize,
    ) -> Result<Self, ModelError> {
        let format = quant::require_format(tensor.ty, &tensor.name)?;
        let embedding = Self { source, tensor, n_embd, format };
        // One row now, so that data that cannot be had is an error of loading.
        embedding.row(n_vocab - 1, &mut vec![0.0; n_embd])?;
        Ok(embedding)
    }

    /// Width of a row.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// The rows of `tokens`, `[tokens.len(), n_embd]`, times `scale`; made by the stage's threads. They are known to
    /// be in the vocabulary.
    ///
    /// # Panics
    /// A row cannot be read any more, as where its file was cut off: the runner of the stage turns the panic into a
    /// failure, with the file's name.
    pub fn rows(&self, device: &Device, tokens: &[u32], scale: f32) -> Vec<f32> {
        let mut hidden = vec![0.0; tokens.len() * self.n_embd];
        device.host().fill_rows(&mut hidden, self.n_embd, &|i, row| {
            let read = self.row(tokens[i] as usize, row);
            read.unwrap_or_else(|error| panic!("a row cannot be read any more: {error}"));
            if scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= scale);
            }
        });
        hidden
    }

    fn row(&self, token: usize, out: &mut [f32]) -> Result<(), ModelError> {
        let n = self.tensor.row_bytes();
        let bytes = self.source.part(&self.tensor, token * n..(token + 1) * n)?;
        Ok(self.format.dequantize_row(&bytes, out)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::gguf::GgufError;
    use crate::kernels;
    use crate::quant::GgmlType;
    use crate::weights::TensorBytes;

    const N_EMBD: usize = 256;
    const N_VOCAB: usize = 8;

    /// Values that count up, and who asked for them.
    struct Watched {
        bytes: Vec<u8>,
        seen: Mutex<HashSet<(ThreadId, Option<String>)>>,
    }

    impl TensorSource for Watched {
        fn tensor<'a>(&'a self, _: &TensorInfo) -> Result<TensorBytes<'a>, GgufError> {
            let thread = thread::current();
            let who = (thread.id(), thread.name().map(str::to_owned));
            self.seen.lock().unwrap().insert(who);
            Ok(self.bytes[..].into())
        }
    }

    #[test]
    fn rows_are_made_by_the_threads_of_the_stage_alone() {
        let values: Vec<f32> = (0..N_VOCAB * N_EMBD).map(|i| i as f32).collect();
        let bytes = bytemuck::cast_slice(&values).to_vec();
        let source = Arc::new(Watched { bytes, seen: Mutex::default() });
        let tensor = TensorInfo {
            name: "embedding".to_owned(),
            ty: GgmlType::F32,
            n_dims: 2,
            ne: [N_EMBD, N_VOCAB, 1, 1],
            shard: 0,
            offset: 0,
            nbytes: source.bytes.len() as u64,
        };
        let embedding = Embedding::new(source.clone(), tensor, N_EMBD, N_VOCAB).unwrap();
        let tokens: Vec<u32> = (0..4096).map(|i| i % N_VOCAB as u32).collect();
        for threads in [1, 3] {
            let device = Device::cpu(kernels::select(None).unwrap(), threads, None).unwrap();
            source.seen.lock().unwrap().clear();
            let rows = embedding.rows(&device, &tokens, 2.0);
            for (row, token) in rows.chunks_exact(N_EMBD).zip(&tokens) {
                assert_eq!(row[1], 2.0 * (*token as usize * N_EMBD + 1) as f32);
            }
            let seen = source.seen.lock().unwrap();
            let of_stage = |(id, name): &(ThreadId, Option<String>)| {
                let name = name.as_deref().unwrap_or_default();
                *id == thread::current().id() || name.starts_with("compute-")
            };
            assert!(seen.iter().all(of_stage), "{seen:?}");
            assert!(seen.len() <= threads, "{seen:?}");
        }
    }
}
