//! A run of a kernel, as ops describe it.

use bytemuck::Pod;

use crate::pipelines::Wanted;
use crate::pipelines::shader::{MAX_PUSH, Shader};

/// A run of a kernel: the pipeline, its push constants, and the number of workgroups.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// The pipeline, by its shader and constants.
    pub(crate) wanted: Wanted,
    push: [u8; MAX_PUSH],
    len: usize,
    pub(crate) groups: [u32; 3],
}

/// How a run combines with the run before it.
#[expect(clippy::large_enum_variant, reason = "it is short-lived: matched right after it is built")]
pub(crate) enum Fusion {
    /// One run that does the work of both.
    Fused(Work),
    /// Both may run at the same time, without a barrier: neither writes memory that the other uses.
    Concurrent,
}

impl Work {
    /// `constants` are the kernel's specialization constants from `constant_id` 0 on, `push` is its push constants.
    ///
    /// # Panics
    /// If `push` has more than 128 bytes, or no multiple of 4.
    pub(crate) fn new<P: Pod>(
        shader: &'static Shader,
        constants: &[u32],
        push: &P,
        groups: [u32; 3],
    ) -> Self {
        let bytes = bytemuck::bytes_of(push);
        assert!(bytes.len() <= MAX_PUSH && bytes.len().is_multiple_of(4), "{}", shader.name);
        let mut push = [0; MAX_PUSH];
        push[..bytes.len()].copy_from_slice(bytes);
        Self { wanted: Wanted::new(shader, constants), push, len: bytes.len(), groups }
    }

    /// Bytes of the push constants.
    pub(crate) fn push(&self) -> &[u8] {
        &self.push[..self.len]
    }

    /// The push constants and the specialization constants, if this is a run of `shader`.
    ///
    /// # Panics
    /// If this is a run of `shader`, and its push constants have another size than `P`.
    pub(crate) fn of<P: Pod>(&self, shader: &Shader) -> Option<(P, &[u32])> {
        let (name, constants) = self.wanted.key();
        (name == shader.name).then(|| (bytemuck::pod_read_unaligned(self.push()), constants))
    }
}
