//! The way into Vulkan: the loader, and the devices that it knows.

use std::ffi::CStr;

use ash::{khr, vk};

use crate::error::GpuError;

/// A loaded Vulkan, from which everything else is created. Everything else is had from it and goes before it.
pub(crate) struct Instance {
    pub(crate) raw: ash::Instance,
    pub(crate) entry: ash::Entry,
}

impl Instance {
    /// Loads the Vulkan library, and creates an instance.
    pub(crate) fn new() -> Result<Self, GpuError> {
        // SAFETY: the library is the system's Vulkan loader, whose initialisation has no preconditions.
        let entry = unsafe { ash::Entry::load() }.map_err(|e| GpuError::NoLoader(e.to_string()))?;
        let app = vk::ApplicationInfo::default()
            .application_name(c"brigade")
            .api_version(vk::API_VERSION_1_3);
        // Translations of Vulkan to other interfaces are listed only where they are asked for.
        let translated = has_extension(&entry, khr::portability_enumeration::NAME);
        let extensions = [khr::portability_enumeration::NAME.as_ptr()];
        let mut info = vk::InstanceCreateInfo::default().application_info(&app);
        if translated {
            info = info
                .enabled_extension_names(&extensions)
                .flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
        }
        // SAFETY: `info` and what it points to live during the call.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(GpuError::NoDriver)?;
        Ok(Self { raw, entry })
    }

    /// The devices, in the loader's order.
    pub(crate) fn devices(&self) -> Result<Vec<vk::PhysicalDevice>, GpuError> {
        // SAFETY: the instance is alive.
        unsafe { self.raw.enumerate_physical_devices() }.map_err(GpuError::NoDriver)
    }

    /// Whether the device has the extension.
    pub(crate) fn device_has(&self, device: vk::PhysicalDevice, name: &CStr) -> bool {
        // SAFETY: the device is one of this instance.
        let found = unsafe { self.raw.enumerate_device_extension_properties(device) };
        found.unwrap_or_default().iter().any(|e| e.extension_name_as_c_str() == Ok(name))
    }
}

fn has_extension(entry: &ash::Entry, name: &CStr) -> bool {
    // SAFETY: the entry is loaded.
    let found = unsafe { entry.enumerate_instance_extension_properties(None) };
    found.unwrap_or_default().iter().any(|e| e.extension_name_as_c_str() == Ok(name))
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: what was had from the instance holds it, or is gone.
        unsafe { self.raw.destroy_instance(None) };
    }
}
