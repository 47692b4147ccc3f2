//! Pipelines: kernels compiled by the driver, each when it is first used.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use ash::vk;

use crate::error::GpuError;
use crate::facts::Limits;
use crate::logical::Device;
use crate::pipeline_cache::CacheFile;
use crate::shader::Shader;

/// Most specialization constants of a kernel.
const MAX_CONSTANTS: usize = 16;

/// How soon after the file was written it may be written again, while kernels are used for the first time.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// A kernel's name with its constants.
type Key = (&'static str, [u32; MAX_CONSTANTS], usize);

/// All pipelines that were used so far.
pub(crate) struct Pipelines {
    made: HashMap<Key, vk::Pipeline>,
    cache: vk::PipelineCache,
    file: Option<CacheFile>,
    /// Pipelines that the file does not have yet.
    unsaved: usize,
    saved: Option<Instant>,
    limits: Limits,
}

impl Pipelines {
    /// Starts with what `folder` keeps of earlier runs.
    pub(crate) fn new(
        device: &Device,
        limits: Limits,
        folder: Option<&Path>,
    ) -> Result<Self, GpuError> {
        let file = folder.map(|folder| CacheFile::of(folder, &limits.identity));
        let old = file.as_ref().and_then(CacheFile::read).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&old);
        // SAFETY: the device is open; the data is what its driver wrote (`CacheFile` checks), or none.
        let cache = unsafe { device.raw.create_pipeline_cache(&info, None) }
            .map_err(GpuError::of("a pipeline cache"))?;
        Ok(Self { made: HashMap::new(), cache, file, unsaved: 0, saved: None, limits })
    }

    /// The pipeline of a kernel with these constants (`constant_id` 0 and on).
    ///
    /// # Panics
    /// If there are more than [`MAX_CONSTANTS`].
    pub(crate) fn get(
        &mut self,
        device: &Device,
        layout: vk::PipelineLayout,
        shader: &'static Shader,
        constants: &[u32],
    ) -> Result<vk::Pipeline, GpuError> {
        let mut values = [0; MAX_CONSTANTS];
        values[..constants.len()].copy_from_slice(constants);
        let key = (shader.name, values, constants.len());
        if let Some(pipeline) = self.made.get(&key) {
            return Ok(*pipeline);
        }
        let started = Instant::now();
        let pipeline = self.make(device, layout, shader, constants)?;
        tracing::debug!(shader = shader.name, ?constants, took = ?started.elapsed(), "pipeline");
        self.made.insert(key, pipeline);
        self.unsaved += 1;
        Ok(pipeline)
    }

    fn make(
        &self,
        device: &Device,
        layout: vk::PipelineLayout,
        shader: &Shader,
        constants: &[u32],
    ) -> Result<vk::Pipeline, GpuError> {
        let words = shader.words(self.limits.controls);
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        let failed = GpuError::of("to compile a kernel");
        // SAFETY: the words are SPIR-V that was compiled for Vulkan 1.3 and the features that are switched on.
        let module = unsafe { device.raw.create_shader_module(&info, None) }.map_err(&failed)?;
        let entries: Vec<_> = (0..constants.len() as u32)
            .map(|id| vk::SpecializationMapEntry { constant_id: id, offset: 4 * id, size: 4 })
            .collect();
        let special = vk::SpecializationInfo::default()
            .map_entries(&entries)
            .data(bytemuck::cast_slice(constants));
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&special);
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
        // SAFETY: module, layout and cache are of this device, and what `info` points to lives during the call.
        let made = unsafe { device.raw.create_compute_pipelines(self.cache, &[info], None) };
        // SAFETY: pipelines do not need their modules any more.
        unsafe { device.raw.destroy_shader_module(module, None) };
        let made = made.map_err(|(_, error)| failed(error))?;
        Ok(made[0])
    }

    /// Writes the file, if there is something new and it was not written just now.
    pub(crate) fn save_at_times(&mut self, device: &Device) {
        if self.unsaved > 0 && self.saved.is_none_or(|at| at.elapsed() >= SAVE_EVERY) {
            self.save(device);
        }
    }

    /// Writes the file, if there is something new.
    pub(crate) fn save(&mut self, device: &Device) {
        let Some(file) = self.file.as_ref().filter(|_| self.unsaved > 0) else { return };
        // SAFETY: the cache is of this device, and used under the lock alone.
        match unsafe { device.raw.get_pipeline_cache_data(self.cache) } {
            Ok(data) => file.write(&data),
            Err(error) => tracing::warn!(%error, "the driver gives no pipeline cache"),
        }
        (self.unsaved, self.saved) = (0, Some(Instant::now()));
    }

    /// Gives everything back.
    ///
    /// # Safety
    /// The device does nothing any more.
    pub(crate) unsafe fn destroy(&mut self, device: &Device) {
        // SAFETY: promised by the caller; nothing of this is used afterwards.
        unsafe {
            for (_, pipeline) in self.made.drain() {
                device.raw.destroy_pipeline(pipeline, None);
            }
            device.raw.destroy_pipeline_cache(self.cache, None);
        }
    }
}
