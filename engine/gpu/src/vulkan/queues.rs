//! The queues of a device: one runs kernels, and another may bring the host's bytes meanwhile.

use ash::vk;

use super::instance::Instance;

/// The queue that brings weights from the host to a device's own memory for single ubatches: experts of the host's
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferQueue {
    /// The queue of kernels: copies and kernels take turns.
    #[default]
    Kernels,
    /// A queue of a family that copies and does not compute: the device's copy engine.
    CopyEngine,
    /// A second queue of the family that computes.
    Second,
    /// The queue of kernels under two names, with all waits as between two queues: for tests, on devices that have one.
    Shared,
}

impl std::fmt::Display for TransferQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kernels => "copies wait for kernels",
            Self::CopyEngine => "copies beside kernels (copy engine)",
            Self::Second => "copies beside kernels (second queue)",
            Self::Shared => "copies in the queue of kernels, as in one of their own",
        })
    }
}

/// A queue's place in its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueAt {
    pub(crate) family: u32,
    pub(crate) index: u32,
}

/// The families of a device's queues.
pub(crate) fn families(
    instance: &Instance,
    physical: vk::PhysicalDevice,
) -> Vec<vk::QueueFamilyProperties> {
    // SAFETY: the device is one of this instance.
    unsafe { instance.raw.get_physical_device_queue_family_properties(physical) }
}

/// The first family that computes.
pub(crate) fn compute_family(families: &[vk::QueueFamilyProperties]) -> Option<u32> {
    let computes = |f: &vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::COMPUTE);
    families.iter().position(computes).and_then(|at| u32::try_from(at).ok())
}

/// The queue for transfers beside the kernels of family `compute`, and which sort of queue it is.
pub(crate) fn transfer_queue(
    families: &[vk::QueueFamilyProperties],
    compute: u32,
) -> Option<(TransferQueue, QueueAt)> {
    let others = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS;
    let copies_alone = |f: &vk::QueueFamilyProperties| {
        f.queue_flags.contains(vk::QueueFlags::TRANSFER)
            && !f.queue_flags.intersects(others | VIDEO)
            && f.queue_count > 0
    };
    if let Some(family) = families.iter().position(copies_alone) {
        let family = u32::try_from(family).ok()?;
        return Some((TransferQueue::CopyEngine, QueueAt { family, index: 0 }));
    }
    let has_two = families.get(compute as usize)?.queue_count > 1;
    has_two.then_some((TransferQueue::Second, QueueAt { family: compute, index: 1 }))
}

/// Families of video engines copy too, and slowly.
const VIDEO: vk::QueueFlags = vk::QueueFlags::from_raw(
    vk::QueueFlags::VIDEO_DECODE_KHR.as_raw() | vk::QueueFlags::VIDEO_ENCODE_KHR.as_raw(),
);

#[cfg(test)]
mod tests {
    use super::*;

    fn family(queue_flags: vk::QueueFlags, queue_count: u32) -> vk::QueueFamilyProperties {
        vk::QueueFamilyProperties { queue_flags, queue_count, ..Default::default() }
    }

    #[test]
    fn a_copy_engine_comes_before_a_second_queue() {
        let (graphics, compute, transfer) =
            (vk::QueueFlags::GRAPHICS, vk::QueueFlags::COMPUTE, vk::QueueFlags::TRANSFER);
        let all = family(graphics | compute | transfer, 16);
        let [copies, computes, one] =
            [family(transfer, 2), family(compute | transfer, 8), family(graphics | compute, 1)];
        let video = family(transfer | vk::QueueFlags::VIDEO_DECODE_KHR, 1);
        let of = |families: &[vk::QueueFamilyProperties]| {
            transfer_queue(families, compute_family(families).unwrap())
        };
        let engine = |family| Some((TransferQueue::CopyEngine, QueueAt { family, index: 0 }));
        let second = |family| Some((TransferQueue::Second, QueueAt { family, index: 1 }));
        // As an NVIDIA card lists them, a card without a copy engine, and a driver in software.
        assert_eq!(of(&[all, copies, computes, video]), engine(1));
        assert_eq!(of(&[all, computes]), second(0));
        assert_eq!(of(&[video, computes]), second(1));
        assert_eq!(of(&[one]), None);
        assert_eq!(of(&[one, family(transfer, 0)]), None);
        assert_eq!(compute_family(&[copies, video]), None);
    }
}
