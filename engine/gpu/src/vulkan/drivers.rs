//! Drivers that are known to be bad, and what is done about each.
//!
//! An entry names where the trouble is described. The engine's test at start finds drivers that compute other bits. The
//! drivers here are those that would crash such a test, or would pass it.

use ash::vk::{DriverId, PhysicalDeviceType};

/// Judgement of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The driver has no known fault.
    Good,
    /// The driver's matrix units are neither used nor asked for, for this reason.
    NoUnits(&'static str),
    /// The driver is not used, for this reason.
    Refused(&'static str),
}

/// Judgement of the driver `id` of a device of this kind.
pub(crate) fn verdict(id: DriverId, kind: PhysicalDeviceType) -> Verdict {
    match (id, kind) {
        (DriverId::MESA_DOZEN, _) => Verdict::Refused(
            "it translates to Direct3D 12 and is no conformant Vulkan: install the GPU's own Vulkan driver",
        ),
        // GPUOpen-Drivers/AMDVLK issue 422.
        (
            DriverId::AMD_PROPRIETARY | DriverId::AMD_OPEN_SOURCE,
            PhysicalDeviceType::INTEGRATED_GPU,
        ) => Verdict::NoUnits(
            "the driver crashes when it is asked for their shapes (AMDVLK issue 422)",
        ),
        // IGCIT/Intel-GPU-Community-Issue-Tracker-IGCIT issue 1487.
        (DriverId::INTEL_PROPRIETARY_WINDOWS, _) => {
            Verdict::NoUnits("the driver loses the device in their kernels (IGCIT issue 1487)")
        }
        _ => Verdict::Good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_driver_has_its_verdict_and_others_have_none() {
        let refused = verdict(DriverId::MESA_DOZEN, PhysicalDeviceType::DISCRETE_GPU);
        assert!(matches!(refused, Verdict::Refused(why) if why.contains("install")));
        for id in [DriverId::AMD_PROPRIETARY, DriverId::AMD_OPEN_SOURCE] {
            assert!(matches!(verdict(id, PhysicalDeviceType::INTEGRATED_GPU), Verdict::NoUnits(_)));
            assert_eq!(verdict(id, PhysicalDeviceType::DISCRETE_GPU), Verdict::Good);
        }
        for id in [DriverId::MESA_RADV, DriverId::NVIDIA_PROPRIETARY, DriverId::MESA_LLVMPIPE] {
            assert_eq!(verdict(id, PhysicalDeviceType::INTEGRATED_GPU), Verdict::Good);
        }
    }
}
