//! A run of a kernel, as ops describe it.

use bytemuck::Pod;

use crate::pipelines::Wanted;
use crate::pipelines::shader::{MAX_PUSH, Shader};

/// A run of a kernel: which one, what it is told, how many workgroups there are (see [`lines`](crate::device::lines)).
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) wanted: Wanted,
    push: [u8; MAX_PUSH],
    len: usize,
    pub(crate) groups: [u32; 3],
}

/// Relation of a run to the one before it, where it need not wait for that.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it is made")]
pub(crate) enum Joined {
    /// This run does the work of both.
    One(Work),
    /// Both may run at the same time: neither writes what the other uses.
    Beside,
}

impl Work {
    /// `constants` are the kernel's specialization constants from `constant_id` 0 on, `push` is its push constants.
    ///
    /// # Panics
    /// If `push` has more than 128 bytes.
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

    /// Push constants and specialization constants, if it is a run of this kernel.
    pub(crate) fn of<P: Pod>(&self, shader: &Shader) -> Option<(P, &[u32])> {
        let (name, constants) = self.wanted.key();
        (name == shader.name).then(|| (bytemuck::pod_read_unaligned(self.push()), constants))
    }
}
