//! The file that keeps compiled kernels from one run to the next.
//!
//! Its name has the device's and the driver's identity. It starts with a head of our own: a mark, the length and a checksum of
//! the driver's data. That data follows, and begins with a header that Vulkan prescribes. A damaged file is not shown to the
//! driver. It is written anew.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::vulkan::facts::Identity;

/// First bytes of a file.
const MARK: &[u8; 8] = b"BRIGVKP1";

/// A temporary file older than this was left by a process that was killed, and is deleted.
const STALE_AFTER: Duration = Duration::from_secs(600);

/// Bytes before the driver's data: mark, length, checksum.
const HEAD: usize = 24;

/// Bytes of Vulkan's header: its length, its version, vendor, device, and the cache's UUID.
const VULKAN_HEAD: usize = 32;

/// The file in which a device's kernels are kept.
pub(crate) struct CacheFile {
    path: PathBuf,
    identity: Identity,
}

impl CacheFile {
    pub(crate) fn of(folder: &Path, identity: &Identity) -> Self {
        let Identity { device_uuid, driver_uuid, .. } = identity;
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let name = format!("kernels-{}-{}.vulkan", hex(device_uuid), hex(driver_uuid));
        Self { path: folder.join(name), identity: *identity }
    }

    /// The driver's data, if there is a whole file of this device and driver.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let file = std::fs::read(&self.path).ok()?;
        let data = open(&file).filter(|data| self.is_mine(data));
        if data.is_none() {
            tracing::info!(path = %self.path.display(), "kept kernels are damaged or foreign; made anew");
        }
        data.map(<[u8]>::to_vec)
    }

    /// Keeps the driver's data. A disk that refuses costs time at the next start, nothing else.
    pub(crate) fn write(&self, data: &[u8]) {
        let mut file = Vec::with_capacity(HEAD + data.len());
        file.extend(MARK);
        file.extend((data.len() as u64).to_le_bytes());
        file.extend(checksum(data).to_le_bytes());
        file.extend(data);
        let new = self.path.with_extension(format!("new-{}", std::process::id()));
        let folder = self.path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = folder.and_then(|()| std::fs::write(&new, &file));
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, &self.path)) {
            tracing::warn!(path = %self.path.display(), %error, "kernels are not kept");
        }
        self.remove_leftovers();
    }

    /// Removes what processes left that were killed while they wrote.
    fn remove_leftovers(&self) {
        let (Some(folder), Some(stem)) = (self.path.parent(), self.path.file_stem()) else {
            return;
        };
        let unfinished = format!("{}.new-", stem.to_string_lossy());
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_one = entry.file_name().to_string_lossy().starts_with(&unfinished);
            let age =
                entry.metadata().and_then(|of| of.modified()).ok().and_then(|at| at.elapsed().ok());
            if is_one && age.is_some_and(|age| age > STALE_AFTER) {
                // Another process may have removed it.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Whether Vulkan's header is that of this device and driver.
    fn is_mine(&self, data: &[u8]) -> bool {
        let word = |at: usize| data.get(at..at + 4);
        let is = |at: usize, value: u32| word(at) == Some(&value.to_le_bytes()[..]);
        let Identity { vendor, device, cache_uuid, .. } = &self.identity;
        is(0, VULKAN_HEAD as u32)
            && is(4, 1)
            && is(8, *vendor)
            && is(12, *device)
            && data.get(16..VULKAN_HEAD) == Some(&cache_uuid[..])
    }
}

/// The driver's data of a file whose head fits it: mark, length and checksum.
fn open(file: &[u8]) -> Option<&[u8]> {
    let (head, data) = file.split_at_checked(HEAD)?;
    let number = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let whole =
        head.starts_with(MARK) && number(8)? == data.len() as u64 && number(16)? == checksum(data);
    whole.then_some(data)
}

/// FNV-1a of the data, which detects accidental damage.
fn checksum(bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
