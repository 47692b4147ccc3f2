//! Kinds of devices. The crate of a kind has one static [`DeviceKind`], which the engine's table of kinds names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use brigade_quant::DeviceError;

use crate::accelerator::Accelerator;

/// A kind of device: what the engine and the command line have to know of it. Two are the same if their names begin alike.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKind {
    /// The beginning of the names of its devices: `vulkan` in `vulkan:0`. `vulkan` in `vulkan:0`.
    pub prefix: &'static str,
    /// The kind's name for people.
    pub title: &'static str,
    /// Lists the facts of each device of this machine, in the order of their indices. The error says why there is
    /// none, and what to install.
    pub list: fn() -> Result<Vec<DeviceFacts>, DeviceError>,
    /// Opens the device of an index.
    pub open: fn(usize, &DeviceOptions) -> Result<OpenDevice, DeviceError>,
}

impl PartialEq for DeviceKind {
    fn eq(&self, other: &Self) -> bool {
        self.prefix == other.prefix
    }
}

impl Eq for DeviceKind {}

/// Facts of a device, whether it is open or not.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// The device's name.
    pub name: String,
    /// The sort of device.
    pub class: DeviceClass,
    /// The driver's name.
    pub driver: String,
    /// The driver's version, in its own words.
    pub driver_version: String,
    /// The version of what the driver is called through, as `1.3.230`.
    pub api_version: String,
    /// Bytes of its own memory.
    pub device_bytes: u64,
    /// Bytes of its own memory that nobody uses now; all of them where the driver does not say.
    pub free_bytes: u64,
    /// The device's matrix units, as far as they are used.
    pub units: MatrixUnits,
    /// Whether weights that are sent to it come while it computes, by a queue of their own.
    pub sends_beside: bool,
    /// Why it is not used at all: what is known of its driver.
    pub refused: Option<&'static str>,
}

impl DeviceFacts {
    /// Name and version of its driver.
    pub fn driver_text(&self) -> String {
        format!("{} {}", self.driver, self.driver_version)
    }
}

/// The types that a device's matrix units multiply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatrixUnits {
    /// There are some, for whatever type.
    pub any: bool,
    /// Whether they multiply signed bytes.
    pub int8: bool,
    /// Whether they multiply f16 with sums in f32, as fast math needs.
    pub f16: bool,
    /// Why they are left alone, where that is the driver's fault.
    pub left_alone: Option<&'static str>,
}

/// The sort of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceClass {
    /// A card with memory of its own.
    Discrete,
    /// A part of the processor, with its memory.
    Integrated,
    /// Lent by a virtual machine's host.
    Virtual,
    /// The processor itself.
    Software,
    /// Another sort.
    Other,
}

impl DeviceClass {
    /// Whether its memory is the host's.
    pub fn shares_host_memory(self) -> bool {
        matches!(self, Self::Integrated | Self::Software)
    }
}

impl std::fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Software => "software",
            Self::Other => "other",
        })
    }
}

/// A device that is open.
pub struct OpenDevice {
    /// The device.
    pub device: Arc<dyn Accelerator>,
    /// The device's facts when it was opened, of units only those that are used.
    pub facts: DeviceFacts,
    /// Tells the bytes of its own memory that nobody uses now, this process included.
    pub free_bytes: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// How a device is used.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Folder that keeps compiled kernels from one run to the next; `None`: they are compiled in each.
    pub pipeline_cache: Option<PathBuf>,
    /// Most bytes of device memory to take; `None`: what there is.
    pub memory_limit: Option<u64>,
    /// After so many batches of commands the device counts as lost: for tests of what happens then.
    pub lose_after: Option<u64>,
    /// Whether matrix units are used where there are some. The bits are the same without them.
    pub matrix_units: bool,
    /// Whether products of many rows are computed in f16 by matrix units: bits of the device's own, which depend on how many
    /// rows are together. A device without such units is not opened then. A CPU takes its table of fast math.
    pub fast_math: bool,
    /// Whether weights and states lie where the host does not see them even if it could: as with a card of its own, for tests.
    pub apart: bool,
    /// How long the device may make no progress before it counts as hanging.
    pub patience: Duration,
    /// Whether each run of a kernel is timed ([`Accelerator::kernel_times`]). The host then waits for each
    /// batch: it is for measuring kernels alone.
    pub timed: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            pipeline_cache: None,
            memory_limit: None,
            lose_after: None,
            matrix_units: true,
            fast_math: false,
            apart: false,
            patience: Duration::from_secs(300),
            timed: false,
        }
    }
}
