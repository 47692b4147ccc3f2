//! Checks the tensors of a model when its file is opened, long before a worker loads them: by the code that loads
//! them, with a loader that reads nothing.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::load::{load_embedding, load_head, load_layer, switched};
use super::rope::load_rope;
use crate::device::Device;
use crate::gguf::{GgufError, TensorInfo};
use crate::kernels;
use crate::residual::load_pass_norm;
use crate::spec::{Described, ModelError, stage_tensors};
use crate::weights::{TensorBytes, TensorSource, WeightLoader};

/// A source without data. A row that is wanted of a tensor is zeros.
pub(super) struct Nothing;

impl TensorSource for Nothing {
    fn tensor<'a>(&'a self, _tensor: &TensorInfo) -> Result<TensorBytes<'a>, GgufError> {
        Ok(TensorBytes::from(&[][..]))
    }

    fn part<'a>(
        &'a self,
        _tensor: &TensorInfo,
        range: Range<usize>,
    ) -> Result<TensorBytes<'a>, GgufError> {
        Ok(vec![0; range.len()].into())
    }
}

/// Checks that a model has all tensors that its stages take, in the shapes that the metadata ask for and in types that
/// have kernels, and no others. No data is read, and a header is enough.
///
/// # Errors
/// The first tensor that is missing, misshapen, of an unsupported type, or unknown.
pub fn check_tensors(described: &Described<'_>) -> Result<(), ModelError> {
    let Described { model, spec } = described;
    let all = 0..spec.n_layer();
    let device = Device::cpu(kernels::select(None)?, 1, None)?;
    let source: Arc<dyn TensorSource> = Arc::new(Nothing);
    let mut no_progress = |_| {};
    let mut loader = WeightLoader::new(model, source.as_ref(), &device, &mut no_progress)
        .sharing(source.clone())
        .with_switched(switched(spec))
        .hollow();
    for rope in [&spec.rope, &spec.local_rope] {
        // A file may lack the factors of long contexts, or of short ones.
        load_rope(rope.as_ref(), spec.n_ctx_train, &mut loader)
            .or_else(|_| load_rope(rope.as_ref(), 1, &mut loader))?;
    }
    load_pass_norm(spec, &all, &mut loader)?;
    load_embedding(spec, &source, &mut loader)?;
    let mut in_file = BTreeSet::new();
    for layer in all.clone().filter(|&layer| in_file.insert(spec.in_file(layer))) {
        load_layer(spec, layer, &mut loader)?;
    }
    load_head(spec, &mut loader)?;
    loader.finish(&stage_tensors(model, spec, &all))
}
