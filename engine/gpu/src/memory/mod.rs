//! Device memory, cut from slabs by what it is for, and how bytes of the host come to it.

pub(super) mod free_list;
pub(super) mod slab;
pub(super) mod span;
pub(super) mod staging;
pub(super) mod upload;

use std::collections::BTreeMap;
use std::ptr::NonNull;

use ash::vk;

pub use brigade_ops::Purpose;

use crate::error::GpuError;
use crate::vulkan::logical::Device;
use free_list::FreeParts;
use slab::{Place, Slab};

/// Whether memory outlives a ubatch. Such memory is zero when it is new; other memory is kept for the next.
pub(crate) fn lasts(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Weights | Purpose::States)
}

/// Place of memory for a purpose. With `apart`, the device has memory of its own, which the host sees in part or
/// slowly.
fn place(purpose: Purpose, apart: bool) -> Place {
    match purpose {
        Purpose::Weights | Purpose::States if apart => Place::Private,
        Purpose::Weights | Purpose::States | Purpose::Activations => Place::Device,
        Purpose::Results => Place::Host,
    }
}

/// Every buffer starts at a multiple of this.
pub(crate) const ALIGNMENT: u64 = 256;

/// Bytes of the largest slab that several buffers share.
const LARGEST: u64 = 1 << 30;

/// All slabs of a device.
pub(crate) struct Memory {
    slabs: BTreeMap<u32, Shared>,
    next: u32,
    used: u64,
    limit: Option<u64>,
    /// Most bytes of one allocation.
    largest: u64,
    /// Whether what lasts lies where the host does not see it.
    apart: bool,
    /// Slabs that a device which failed may still write to.
    lost: Vec<Slab>,
}

/// A slab that buffers share.
struct Shared {
    slab: Slab,
    free: FreeParts,
    purpose: Purpose,
    /// Up to here it was in use at some time.
    touched: u64,
}

/// Part of a slab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) slab: u32,
    pub(crate) buffer: vk::Buffer,
    pub(crate) host: Option<NonNull<u8>>,
    /// Whether the host reads it through its caches.
    pub(crate) cached: bool,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes from here on were never used.
    pub(crate) untouched: u64,
}

impl Memory {
    pub(crate) fn new(limit: Option<u64>, largest: u64, apart: bool) -> Self {
        Self { slabs: BTreeMap::new(), next: 0, used: 0, limit, largest, apart, lost: Vec::new() }
    }

    /// Bytes of all slabs.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Finds `len` free bytes, or allocates them.
    pub(crate) fn take(
        &mut self,
        device: &Device,
        len: u64,
        purpose: Purpose,
    ) -> Result<Region, GpuError> {
        let len = len.max(1).next_multiple_of(ALIGNMENT);
        let mut mine = self.slabs.iter_mut().filter(|(_, shared)| shared.purpose == purpose);
        if let Some(region) = mine.find_map(|(id, shared)| shared.take(*id, len)) {
            return Ok(region);
        }
        let id = self.grow(device, len, purpose)?;
        let shared = self.slabs.get_mut(&id).expect("it was just inserted");
        Ok(shared.take(id, len).expect("it was made as large as that"))
    }

    /// Adds a slab that has `len` bytes: a large one, or just that where a large one finds no room.
    fn grow(&mut self, device: &Device, len: u64, purpose: Purpose) -> Result<u32, GpuError> {
        let first: u64 = match purpose {
            Purpose::Weights => 256 << 20,
            Purpose::States => 64 << 20,
            Purpose::Activations => 32 << 20,
            Purpose::Results => 4 << 20,
        };
        let have = self.slabs.values().filter(|shared| shared.purpose == purpose).count();
        let wanted = (first << have.min(5)).min(LARGEST).min(self.largest).max(len);
        let allowed = |size: u64| self.limit.is_none_or(|limit| self.used + size <= limit);
        let no_room = GpuError::OutOfMemory { wanted: len, used: self.used, limit: self.limit };
        let sizes = [wanted, len];
        let slab = sizes.into_iter().filter(|size| allowed(*size)).find_map(|size| {
            Slab::new(device, size, place(purpose, self.apart))
                .inspect_err(|error| tracing::debug!(size, %error, "no slab of this size"))
                .ok()
        });
        let slab = slab.ok_or(no_room)?;
        self.used += slab.len;
        let (id, free) = (self.next, FreeParts::new(slab.len));
        self.next += 1;
        self.slabs.insert(id, Shared { slab, free, purpose, touched: 0 });
        Ok(id)
    }

    /// Gives a part back. Returns its slab, if that is to be destroyed: the caller waits for the device first.
    pub(crate) fn give(&mut self, region: &Region) -> Option<Slab> {
        let shared = self.slabs.get_mut(&region.slab)?;
        shared.free.give(region.offset, region.len);
        let keep = !lasts(shared.purpose) || !shared.free.is_whole(shared.slab.len);
        if keep {
            return None;
        }
        let shared = self.slabs.remove(&region.slab)?;
        self.used -= shared.slab.len;
        Some(shared.slab)
    }

    /// Keeps a slab of a device that failed until it is closed.
    pub(crate) fn keep_lost(&mut self, slab: Slab) {
        self.lost.push(slab);
    }

    /// Takes out every slab, used or not.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Slab> {
        self.used = 0;
        let slabs = std::mem::take(&mut self.slabs).into_values().map(|shared| shared.slab);
        slabs.chain(std::mem::take(&mut self.lost))
    }

    /// Takes out the slabs that no buffer uses.
    pub(crate) fn drain_idle(&mut self) -> Vec<Slab> {
        let whole = |shared: &Shared| shared.free.is_whole(shared.slab.len);
        let ids: Vec<u32> =
            self.slabs.iter().filter(|(_, shared)| whole(shared)).map(|(id, _)| *id).collect();
        let idle = ids.iter().filter_map(|id| self.slabs.remove(id));
        let idle: Vec<Slab> = idle.map(|shared| shared.slab).collect();
        self.used -= idle.iter().map(|slab| slab.len).sum::<u64>();
        idle
    }
}

impl Shared {
    fn take(&mut self, id: u32, len: u64) -> Option<Region> {
        let offset = self.free.take(len)?;
        let untouched = self.touched.clamp(offset, offset + len);
        self.touched = self.touched.max(offset + len);
        // SAFETY: the part lies in the slab.
        let host = self.slab.host.map(|host| unsafe { host.add(offset as usize) });
        let Slab { buffer, cached, .. } = self.slab;
        let address = self.slab.address + offset;
        Some(Region { slab: id, buffer, host, cached, address, offset, len, untouched })
    }
}
