//! Pipelines: kernels compiled by the driver, each when it is first used, or before ([`Gpu::rehearse`](crate::Gpu::rehearse)).

pub(super) mod cache;
pub(super) mod shader;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::time::{Duration, Instant};

use ash::vk;

use crate::error::GpuError;
use crate::vulkan::facts::Limits;
use crate::vulkan::logical::Device;
use cache::CacheFile;
use shader::Shader;

/// Most specialization constants of a kernel.
const MAX_CONSTANTS: usize = 16;

/// Least time between two writes of the file, while kernels are used for the first time.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// A kernel with its specialization constants.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    shader: &'static Shader,
    constants: [u32; MAX_CONSTANTS],
    len: usize,
}

impl Wanted {
    /// A kernel with these constants, from `constant_id` 0 on.
    ///
    /// # Panics
    /// If there are more than [`MAX_CONSTANTS`].
    pub(crate) fn new(shader: &'static Shader, constants: &[u32]) -> Self {
        let mut values = [0; MAX_CONSTANTS];
        values[..constants.len()].copy_from_slice(constants);
        Self { shader, constants: values, len: constants.len() }
    }

    /// The kernel's name, and its constants.
    pub(crate) fn key(&self) -> (&'static str, &[u32]) {
        (self.shader.name, &self.constants[..self.len])
    }
}

impl PartialEq for Wanted {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Wanted {}

impl Hash for Wanted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// A maker of pipelines, which any thread may use at any time.
#[derive(Clone, Copy)]
pub(crate) struct Maker {
    cache: vk::PipelineCache,
    layout: vk::PipelineLayout,
    limits: Limits,
}

/// All pipelines that were made so far.
pub(crate) struct Pipelines {
    made: HashMap<Wanted, vk::Pipeline>,
    maker: Maker,
    file: Option<CacheFile>,
    /// Pipelines that the file does not have yet.
    unsaved: usize,
    saved: Option<Instant>,
}

impl Pipelines {
    /// Starts with what `folder` keeps of earlier runs.
    pub(crate) fn new(
        device: &Device,
        layout: vk::PipelineLayout,
        limits: Limits,
        folder: Option<&Path>,
    ) -> Result<Self, GpuError> {
        let file = folder.map(|folder| CacheFile::of(folder, &limits.identity));
        let old = file.as_ref().and_then(CacheFile::read).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&old);
        // SAFETY: the device is open; the data is what its driver wrote (`CacheFile` checks), or none.
        let cache = unsafe { device.raw.create_pipeline_cache(&info, None) }
            .map_err(GpuError::of("a pipeline cache"))?;
        let maker = Maker { cache, layout, limits };
        Ok(Self { made: HashMap::new(), maker, file, unsaved: 0, saved: None })
    }

    /// A maker of further pipelines.
    pub(crate) fn maker(&self) -> Maker {
        self.maker
    }

    /// Number of pipelines.
    pub(crate) fn len(&self) -> usize {
        self.made.len()
    }

    /// Whether this one was made.
    pub(crate) fn has(&self, wanted: &Wanted) -> bool {
        self.made.contains_key(wanted)
    }

    /// The pipeline of a kernel, which is made if it was not before.
    pub(crate) fn get(
        &mut self,
        device: &Device,
        wanted: &Wanted,
    ) -> Result<vk::Pipeline, GpuError> {
        match self.made.get(wanted) {
            Some(pipeline) => Ok(*pipeline),
            None => {
                let pipeline = self.maker.make(device, wanted)?;
                self.keep(device, wanted, pipeline);
                Ok(pipeline)
            }
        }
    }

    /// Keeps a pipeline, unless another thread has made the same one.
    pub(crate) fn keep(&mut self, device: &Device, wanted: &Wanted, pipeline: vk::Pipeline) {
        match self.made.entry(*wanted) {
            // SAFETY: it was just made, and nobody else knows it.
            Entry::Occupied(_) => unsafe { device.raw.destroy_pipeline(pipeline, None) },
            Entry::Vacant(place) => {
                place.insert(pipeline);
                self.unsaved += 1;
            }
        }
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
        // SAFETY: the cache is of this device; the driver orders who uses it.
        match unsafe { device.raw.get_pipeline_cache_data(self.maker.cache) } {
            Ok(data) => file.write(&data),
            Err(error) => tracing::warn!(%error, "the driver gives no pipeline cache"),
        }
        (self.unsaved, self.saved) = (0, Some(Instant::now()));
    }

    /// Destroys all pipelines, and the cache.
    ///
    /// # Safety
    /// The device does nothing any more.
    pub(crate) unsafe fn destroy(&mut self, device: &Device) {
        // SAFETY: promised by the caller; nothing of this is used afterwards.
        unsafe {
            for (_, pipeline) in self.made.drain() {
                device.raw.destroy_pipeline(pipeline, None);
            }
            device.raw.destroy_pipeline_cache(self.maker.cache, None);
        }
    }
}

impl Maker {
    /// Has the driver compile a kernel.
    pub(crate) fn make(&self, device: &Device, wanted: &Wanted) -> Result<vk::Pipeline, GpuError> {
        let started = Instant::now();
        let (name, constants) = wanted.key();
        let words = wanted.shader.words(self.limits.controls);
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
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout);
        // SAFETY: module, layout and cache are of this device, and what `info` points to lives during the call. The driver orders
        // who uses the cache.
        let made = unsafe { device.raw.create_compute_pipelines(self.cache, &[info], None) };
        // SAFETY: pipelines do not need their modules any more.
        unsafe { device.raw.destroy_shader_module(module, None) };
        let made = made.map_err(|(_, error)| failed(error))?;
        tracing::debug!(shader = name, ?constants, took = ?started.elapsed(), "pipeline");
        Ok(made[0])
    }
}
