//! One piece of memory, as the driver gives it: addressed by the device, and mapped for the host where that shall see it.

use std::ptr::NonNull;

use ash::vk;

use crate::error::GpuError;
use crate::vulkan::logical::Device;

/// Memory with a buffer over all of it.
pub(crate) struct Slab {
    pub(crate) buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    /// The first byte, for the host, where it sees the memory.
    pub(crate) host: Option<NonNull<u8>>,
    /// Whether the host reads it through its caches, and not word by word.
    pub(crate) cached: bool,
    /// The first byte, for the device.
    pub(crate) address: u64,
    pub(crate) len: u64,
}

// SAFETY: the pointer is to mapped memory, which any thread may access; who accesses it when is decided by the owners.
unsafe impl Send for Slab {}
// SAFETY: as above; nothing is changed through a shared slab itself.
unsafe impl Sync for Slab {}

/// Place of memory, where the device offers a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Near the device, and seen by the host.
    Device,
    /// Near the device; the host does not see it.
    Private,
    /// In the host's memory, where the host reads it fast.
    Host,
}

/// Properties of memory that the host can use.
const HOST: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

impl Slab {
    /// Allocates `len` bytes at `place`, or elsewhere if there is no room.
    pub(crate) fn new(device: &Device, len: u64, place: Place) -> Result<Self, GpuError> {
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let mut info = vk::BufferCreateInfo::default().size(len).usage(usage);
        // Two families of queues use chunks of the host and what lies in a card's own memory. Their owners would have to
        // be changed for each use (Vulkan specification, "Resource Sharing"), unless they are concurrent. Open drivers
        // treat buffers of both kinds alike: the difference is in compressed images.
        let both = device.two_families().filter(|_| place != Place::Device);
        if let Some(families) = &both {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(families);
        }
        // SAFETY: the device is open; `info` is complete.
        let buffer =
            unsafe { device.raw.create_buffer(&info, None) }.map_err(GpuError::of("a buffer"))?;
        let result = allocate(device, buffer, place).and_then(|(memory, kind)| {
            let cached = kind.contains(vk::MemoryPropertyFlags::HOST_CACHED);
            let bound = Self::bind(device, buffer, memory, len, place);
            bound.map(|slab| Self { cached, ..slab }).inspect_err(|_| {
                // SAFETY: nothing uses the memory yet.
                unsafe { device.raw.free_memory(memory, None) };
            })
        });
        result.inspect_err(|_| {
            // SAFETY: nothing uses the buffer yet.
            unsafe { device.raw.destroy_buffer(buffer, None) };
        })
    }

    fn bind(
        device: &Device,
        buffer: vk::Buffer,
        memory: vk::DeviceMemory,
        len: u64,
        place: Place,
    ) -> Result<Self, GpuError> {
        // SAFETY: both are new, and the memory is as large as the buffer asks.
        unsafe { device.raw.bind_buffer_memory(buffer, memory, 0) }
            .map_err(GpuError::of("to bind memory"))?;
        let host = match place {
            Place::Private => None,
            Place::Device | Place::Host => Some(map(device, memory)?),
        };
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: the buffer is bound and was made for this.
        let address = unsafe { device.raw.get_buffer_device_address(&info) };
        Ok(Self { buffer, memory, host, cached: false, address, len })
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// No command that uses it is pending, and the host does not use it any more.
    pub(crate) unsafe fn destroy(self, device: &Device) {
        // SAFETY: promised by the caller. Freeing unmaps.
        unsafe {
            device.raw.destroy_buffer(self.buffer, None);
            device.raw.free_memory(self.memory, None);
        }
    }
}

/// Maps memory of a kind that the host can see ([`HOST`]).
fn map(device: &Device, memory: vk::DeviceMemory) -> Result<NonNull<u8>, GpuError> {
    let flags = vk::MemoryMapFlags::empty();
    // SAFETY: the memory can be mapped and is not mapped yet.
    let host = unsafe { device.raw.map_memory(memory, 0, vk::WHOLE_SIZE, flags) }
        .map_err(GpuError::of("to map memory"))?;
    NonNull::new(host.cast::<u8>()).ok_or(GpuError::Vulkan {
        doing: "to map memory",
        result: vk::Result::ERROR_MEMORY_MAP_FAILED,
    })
}

/// Memory for a buffer, from the first kind that has room, and that kind: kinds at `place` come first.
fn allocate(
    device: &Device,
    buffer: vk::Buffer,
    place: Place,
) -> Result<(vk::DeviceMemory, vk::MemoryPropertyFlags), GpuError> {
    // SAFETY: the buffer is of this device.
    let needs = unsafe { device.raw.get_buffer_memory_requirements(buffer) };
    // SAFETY: the device is one of its instance.
    let kinds =
        unsafe { device.instance.raw.get_physical_device_memory_properties(device.physical) };
    let kinds = kinds.memory_types_as_slice().iter().enumerate();
    let mut kinds: Vec<(usize, vk::MemoryPropertyFlags)> = kinds
        .map(|(i, kind)| (i, kind.property_flags))
        .filter(|(i, _)| needs.memory_type_bits >> i & 1 == 1)
        .filter(|(_, flags)| place == Place::Private || flags.contains(HOST))
        .collect();
    let near =
        |flags: vk::MemoryPropertyFlags| flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL);
    let cached =
        |flags: vk::MemoryPropertyFlags| flags.contains(vk::MemoryPropertyFlags::HOST_CACHED);
    kinds.sort_by_key(|(_, flags)| match place {
        Place::Device => (!near(*flags), false),
        // What the host sees of a card's memory may be a small window, which other purposes need.
        Place::Private => (!near(*flags), flags.contains(HOST)),
        Place::Host => (!cached(*flags), near(*flags)),
    });
    let mut result = vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    for (index, flags) in kinds {
        let mut addressed =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(index as u32)
            .push_next(&mut addressed);
        // SAFETY: the device is open; the kind is one that the buffer can have.
        match unsafe { device.raw.allocate_memory(&info, None) } {
            Ok(memory) => return Ok((memory, flags)),
            Err(refused) => result = refused,
        }
    }
    Err(GpuError::of("memory")(result))
}
