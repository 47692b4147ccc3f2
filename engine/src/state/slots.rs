//! The recurrent state of one block. Each slot has the last inputs of its convolutions, and the matrix that
//! its scan carries on.

use crate::batch::SlotId;
use crate::device::Device;
use crate::device::Memory;
use crate::error::ModelError;
use crate::kernels::ScanPart;

use super::PartRows;

/// States of all slots, each `[n_slots, values]` in f32.
pub struct SlotStates {
    n_conv: usize,
    n_scan: usize,
    conv: Memory<f32>,
    scan: Memory<f32>,
}

impl SlotStates {
    /// Zeroed states of `n_slots` slots with `n_conv` and `n_scan` values each; the latter may be of the host, whatever
    /// computes.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(
        device: &Device,
        n_slots: usize,
        n_conv: usize,
        (n_scan, of_host): (usize, bool),
    ) -> Result<Self, ModelError> {
        let room = |values: usize, of_host: bool| {
            let bytes = (values as u64).saturating_mul(n_slots as u64) * size_of::<f32>() as u64;
            let what = "recurrent states";
            values
                .checked_mul(n_slots)
                .and_then(|len| match of_host {
                    true => device.host_memory(len),
                    false => device.memory(len),
                })
                .ok_or(ModelError::OutOfMemory { bytes, what })
        };
        Ok(Self { n_conv, n_scan, conv: room(n_conv, false)?, scan: room(n_scan, of_host)? })
    }

    /// Inputs of the convolutions and states of the scan, `[n_slots, values]` each.
    pub fn split(&mut self) -> (&mut Memory<f32>, &mut Memory<f32>) {
        (&mut self.conv, &mut self.scan)
    }

    /// Bytes reserved.
    pub fn nbytes(&self) -> usize {
        size_of_val(&self.conv[..]) + size_of_val(&self.scan[..])
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        (self.n_conv + self.n_scan) * size_of::<f32>()
    }

    /// A slot starts from nothing.
    pub fn zero(&mut self, slot: SlotId) {
        let (conv, scan) = self.slot_mut(slot);
        conv.fill(0.0);
        scan.fill(0.0);
    }

    /// A slot starts as a copy of another.
    pub fn copy(&mut self, src: SlotId, dst: SlotId) {
        let (src, dst) = (src.0 as usize, dst.0 as usize);
        self.conv.copy_within(src * self.n_conv..(src + 1) * self.n_conv, dst * self.n_conv);
        self.scan.copy_within(src * self.n_scan..(src + 1) * self.n_scan, dst * self.n_scan);
    }

    /// A slot's state as little-endian bytes (the engine builds for no other order).
    pub fn read(&self, slot: SlotId) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.slot_bytes());
        self.read_into(slot, &mut bytes);
        bytes
    }

    /// Adds what [`Self::read`] returns to `bytes`.
    pub fn read_into(&self, slot: SlotId, bytes: &mut Vec<u8>) {
        let slot = slot.0 as usize;
        let conv = &self.conv[slot * self.n_conv..][..self.n_conv];
        let scan = &self.scan[slot * self.n_scan..][..self.n_scan];
        // Checkpoints read states between two ubatches: at the speed of memory, not value by value.
        bytes.extend_from_slice(bytemuck::cast_slice(conv));
        bytes.extend_from_slice(bytemuck::cast_slice(scan));
    }

    /// Puts back what [`Self::read`] returned.
    pub fn write(&mut self, slot: SlotId, bytes: &[u8]) {
        let (conv, scan) = self.slot_mut(slot);
        let values = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        for (to, value) in conv.iter_mut().chain(scan).zip(values) {
            *to = value;
        }
    }

    /// The parts of a ubatch as the scan ops take them.
    pub fn parts(parts: &[PartRows]) -> Vec<ScanPart> {
        let scan_part = |part: &PartRows| ScanPart {
            slot: part.slot.0 as usize,
            first_pos: part.pos as usize,
            first_row: part.rows.start,
            n_rows: part.rows.len(),
        };
        parts.iter().map(scan_part).collect()
    }

    fn slot_mut(&mut self, slot: SlotId) -> (&mut [f32], &mut [f32]) {
        let slot = slot.0 as usize;
        (
            &mut self.conv[slot * self.n_conv..][..self.n_conv],
            &mut self.scan[slot * self.n_scan..][..self.n_scan],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_copied_zeroed_and_read_alone() {
        let device = Device::cpu(crate::kernels::unfused(), 1, None).unwrap();
        let mut states = SlotStates::new(&device, 3, 2, (5, false)).unwrap();
        let (conv, scan) = states.split();
        conv.iter_mut().enumerate().for_each(|(i, v)| *v = i as f32);
        scan.iter_mut().enumerate().for_each(|(i, v)| *v = 100.0 + i as f32);
        let one = states.read(SlotId(1));
        assert_eq!(one.len(), states.slot_bytes());
        states.copy(SlotId(1), SlotId(2));
        states.zero(SlotId(1));
        assert_eq!(states.read(SlotId(2)), one);
        assert!(states.read(SlotId(1)).iter().all(|b| *b == 0));
        assert_eq!(states.read(SlotId(0))[4..8], 1f32.to_le_bytes());
        states.write(SlotId(0), &one);
        assert_eq!(states.read(SlotId(0)), one);
    }
}
