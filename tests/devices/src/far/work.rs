//! Transfers between the host and far memory. They are complete at once.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use brigade_ops::{Buffer, Fetch, Inbox, Milestone, Part};
use brigade_quant::DeviceError;

use super::memory::FarBuffer;

/// Copies for the host.
pub struct Brought(pub Vec<u32>);

impl Fetch for Brought {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Memory into which the host puts rows.
pub struct FarInbox(pub Arc<AtomicU64>);

impl Inbox for FarInbox {
    fn put(&mut self, bytes: &[u8], read: &mut dyn FnMut(Part<'_>)) -> Result<(), DeviceError> {
        let buffer = FarBuffer::of(bytes, &self.0);
        read(Part::of(&buffer, 0..buffer.len()));
        Ok(())
    }
}

/// A point that is reached.
pub struct Done;

impl Milestone for Done {
    fn is_reached_within(&mut self, _: Duration) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<(), DeviceError> {
        Ok(())
    }
}
