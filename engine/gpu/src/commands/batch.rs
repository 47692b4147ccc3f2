//! A batch of work for the device, as it is gathered before it becomes commands. Two batches that are equal are the same
//! commands, so that those of one serve the other.

use std::hash::{DefaultHasher, Hash, Hasher};

use ash::vk;

use crate::error::GpuError;
use crate::vulkan::logical::Device;

/// The actions of a batch, in order.
#[derive(Default)]
pub(crate) struct Batch {
    steps: Vec<Step>,
    /// The push constants of all runs, one after the other.
    pushes: Vec<u8>,
    runs: usize,
    /// Whether something in it names a buffer, which may be gone before such a batch comes again.
    names_buffers: bool,
    /// Whether nothing but kernels ran since a barrier of this batch.
    kernels_alone: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    /// All kernels, fills and copies before are done, and what they wrote is seen by what follows at these stages.
    Barrier(vk::PipelineStageFlags2),
    /// All kernels before are done, and what they wrote is seen by the kernels that follow: between kernels of a batch.
    KernelBarrier,
    /// A run of a kernel, which is told the next so many bytes of the push constants.
    Run { pipeline: vk::Pipeline, push: usize, groups: [u32; 3] },
    /// Sets bytes of a buffer to zero.
    Fill { buffer: vk::Buffer, at: u64, len: u64 },
    /// Bytes of a buffer come to another.
    Copy { from: (vk::Buffer, u64), to: (vk::Buffer, u64), len: u64 },
}

impl Batch {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Number of runs of kernels.
    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// Whether the same may come again.
    pub(crate) fn may_come_again(&self) -> bool {
        !self.names_buffers
    }

    /// Equal batches have equal ones; others hardly do.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.steps.len().hash(&mut hasher);
        self.pushes.hash(&mut hasher);
        hasher.finish()
    }

    /// Whether both do the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.pushes == other.pushes && self.steps == other.steps
    }

    /// Forgets all, and keeps the memory for the next.
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.pushes.clear();
        (self.runs, self.names_buffers, self.kernels_alone) = (0, false, false);
    }

    pub(crate) fn barrier(&mut self, before: vk::PipelineStageFlags2) {
        let is_kernel = before == vk::PipelineStageFlags2::COMPUTE_SHADER;
        let kernels_alone = is_kernel && self.kernels_alone;
        self.steps.push(if kernels_alone { Step::KernelBarrier } else { Step::Barrier(before) });
        self.kernels_alone = is_kernel;
    }

    pub(crate) fn run(&mut self, pipeline: vk::Pipeline, push: &[u8], groups: [u32; 3]) {
        self.steps.push(Step::Run { pipeline, push: push.len(), groups });
        self.pushes.extend_from_slice(push);
        self.runs += 1;
    }

    /// Puts a run in the place of the one that was added last.
    ///
    /// # Panics
    /// If something else was added last.
    pub(crate) fn replace_run(&mut self, pipeline: vk::Pipeline, push: &[u8], groups: [u32; 3]) {
        let Some(Step::Run { push: len, .. }) = self.steps.pop() else {
            unreachable!("the recorder keeps the last run only until something else is added")
        };
        self.pushes.truncate(self.pushes.len() - len);
        self.runs -= 1;
        self.run(pipeline, push, groups);
    }

    pub(crate) fn fill(&mut self, buffer: vk::Buffer, range: std::ops::Range<u64>) {
        let len = range.end - range.start;
        self.steps.push(Step::Fill { buffer, at: range.start, len });
        (self.names_buffers, self.kernels_alone) = (true, false);
    }

    pub(crate) fn copy(&mut self, from: (vk::Buffer, u64), to: (vk::Buffer, u64), len: u64) {
        self.steps.push(Step::Copy { from, to, len });
        (self.names_buffers, self.kernels_alone) = (true, false);
    }

    /// Records all of it; with `stamps`, the time at its start and behind each run.
    ///
    /// # Safety
    /// `stamps` has room for one more than there are runs. `commands` is not pending. Pipelines and buffers that were named are of this device, and the pipelines have this layout.
    /// Push constants are within the layout's range; ranges of buffers lie in them, and those to fill start and end at multiples
    /// of 4.
    pub(crate) unsafe fn record(
        &self,
        device: &Device,
        layout: vk::PipelineLayout,
        commands: vk::CommandBuffer,
        stamps: Option<vk::QueryPool>,
    ) -> Result<(), GpuError> {
        let raw = &device.raw;
        let failed = GpuError::of("a command buffer");
        let (point, stage) = (vk::PipelineBindPoint::COMPUTE, vk::ShaderStageFlags::COMPUTE);
        let flags = if self.may_come_again() {
            // The next pass may come while this one is on its way.
            vk::CommandBufferUsageFlags::SIMULTANEOUS_USE
        } else {
            vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT
        };
        let info = vk::CommandBufferBeginInfo::default().flags(flags);
        let mut pushes = &self.pushes[..];
        // SAFETY: promised by the caller. Beginning resets the buffer, whose pool allows that.
        unsafe {
            raw.begin_command_buffer(commands, &info).map_err(&failed)?;
            let mut next = 0;
            let mut stamp = || {
                if let Some(stamps) = stamps {
                    raw.cmd_write_timestamp2(
                        commands,
                        vk::PipelineStageFlags2::ALL_COMMANDS,
                        stamps,
                        next,
                    );
                    next += 1;
                }
            };
            if let Some(stamps) = stamps {
                raw.cmd_reset_query_pool(commands, stamps, 0, self.runs as u32 + 1);
            }
            stamp();
            for step in &self.steps {
                match *step {
                    Step::Barrier(before) => barrier(device, commands, before),
                    Step::KernelBarrier => kernel_barrier(device, commands),
                    Step::Run { pipeline, push, groups: [x, y, z] } => {
                        let (mine, rest) = pushes.split_at(push);
                        raw.cmd_bind_pipeline(commands, point, pipeline);
                        raw.cmd_push_constants(commands, layout, stage, 0, mine);
                        raw.cmd_dispatch(commands, x, y, z);
                        pushes = rest;
                        stamp();
                    }
                    Step::Fill { buffer, at, len } => {
                        raw.cmd_fill_buffer(commands, buffer, at, len, 0);
                    }
                    Step::Copy { from, to, len } => {
                        let region =
                            vk::BufferCopy { src_offset: from.1, dst_offset: to.1, size: len };
                        raw.cmd_copy_buffer(commands, from.0, to.0, &[region]);
                    }
                }
            }
            raw.end_command_buffer(commands).map_err(&failed)
        }
    }
}

/// Records that all kernels, fills and copies before are done, and that what they wrote is seen by what follows at `stage`.
fn barrier(device: &Device, commands: vk::CommandBuffer, stage: vk::PipelineStageFlags2) {
    let work = vk::PipelineStageFlags2::COMPUTE_SHADER | vk::PipelineStageFlags2::TRANSFER;
    let (read, write) = (vk::AccessFlags2::MEMORY_READ, vk::AccessFlags2::MEMORY_WRITE);
    let barriers = [vk::MemoryBarrier2::default()
        .src_stage_mask(work)
        .src_access_mask(write)
        .dst_stage_mask(stage)
        .dst_access_mask(read | write)];
    let info = vk::DependencyInfo::default().memory_barriers(&barriers);
    // SAFETY: the buffer is being recorded.
    unsafe { device.raw.cmd_pipeline_barrier2(commands, &info) };
}

/// Records that all kernels before are done, and that kernels that follow see what they wrote.
fn kernel_barrier(device: &Device, commands: vk::CommandBuffer) {
    let kernels = vk::PipelineStageFlags2::COMPUTE_SHADER;
    let (read, write) = (vk::AccessFlags2::SHADER_READ, vk::AccessFlags2::SHADER_WRITE);
    let barriers = [vk::MemoryBarrier2::default()
        .src_stage_mask(kernels)
        .src_access_mask(write)
        .dst_stage_mask(kernels)
        .dst_access_mask(read | write)];
    let info = vk::DependencyInfo::default().memory_barriers(&barriers);
    // SAFETY: the buffer is being recorded.
    unsafe { device.raw.cmd_pipeline_barrier2(commands, &info) };
}

#[cfg(test)]
mod tests {
    use ash::vk::{Handle, Pipeline, PipelineStageFlags2};

    use super::*;

    /// A batch of two runs.
    fn batch(pipeline: u64, push: u8, groups: u32) -> Batch {
        let mut batch = Batch::default();
        batch.run(Pipeline::from_raw(1), &[1; 8], [1; 3]);
        batch.barrier(PipelineStageFlags2::COMPUTE_SHADER);
        batch.run(Pipeline::from_raw(pipeline), &[push; 8], [groups, 1, 1]);
        batch
    }

    #[test]
    fn batches_are_the_same_where_all_of_them_is() {
        let one = batch(2, 3, 4);
        assert!(one.is_same(&batch(2, 3, 4)));
        assert_eq!(one.fingerprint(), batch(2, 3, 4).fingerprint());
        for other in [batch(1, 3, 4), batch(2, 4, 4), batch(2, 3, 5), Batch::default()] {
            assert!(!one.is_same(&other));
        }
        let mut without_barrier = Batch::default();
        without_barrier.run(Pipeline::from_raw(1), &[1; 8], [1; 3]);
        without_barrier.run(Pipeline::from_raw(2), &[3; 8], [4, 1, 1]);
        assert!(!one.is_same(&without_barrier));
        let mut cut_otherwise = Batch::default();
        cut_otherwise.run(Pipeline::from_raw(1), &[1; 4], [1; 3]);
        cut_otherwise.barrier(PipelineStageFlags2::COMPUTE_SHADER);
        cut_otherwise.run(Pipeline::from_raw(2), &[1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3], [4, 1, 1]);
        assert!(!one.is_same(&cut_otherwise));
    }

    #[test]
    fn what_names_buffers_is_for_once() {
        let mut once = batch(2, 3, 4);
        assert!(once.may_come_again());
        once.fill(vk::Buffer::from_raw(1), 0..4);
        assert!(!once.may_come_again());
        once.clear();
        assert!(once.is_empty() && once.runs() == 0 && once.may_come_again());
    }
}
