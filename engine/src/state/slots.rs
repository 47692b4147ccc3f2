//! The recurrent state of one block. Each slot has the last inputs of its convolutions, and the matrix that
//! its scan carries on.

use std::ops::Range;

use crate::batch::{Planes, SlotId};
use crate::device::{Device, Memory};
use crate::kernels::ScanPart;
use crate::spec::ModelError;

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
        n_scan: usize,
        of_host: bool,
    ) -> Result<Self, ModelError> {
        let room = |values: usize, of_host: bool| {
            let bytes = (values as u64).saturating_mul(n_slots as u64) * size_of::<f32>() as u64;
            let what = "recurrent states";
            values
                .checked_mul(n_slots)
                .and_then(|len| if of_host { device.host_memory(len) } else { device.memory(len) })
                .ok_or(ModelError::OutOfMemory { bytes, what })
        };
        Ok(Self { n_conv, n_scan, conv: room(n_conv, false)?, scan: room(n_scan, of_host)? })
    }

    /// Inputs of the convolutions and states of the scan, `[n_slots, values]` each.
    pub fn split(&mut self) -> (&mut Memory<f32>, &mut Memory<f32>) {
        (&mut self.conv, &mut self.scan)
    }

    /// Bytes that are reserved.
    pub fn nbytes(&self) -> usize {
        (self.conv.len() + self.scan.len()) * size_of::<f32>()
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        (self.n_conv + self.n_scan) * size_of::<f32>()
    }

    /// A slot starts from nothing.
    pub fn zero(&mut self, slot: SlotId) {
        let (conv, scan) = self.values_of(slot);
        self.conv.clear(conv);
        self.scan.clear(scan);
    }

    /// A slot starts as a copy of another.
    pub fn copy(&mut self, src: SlotId, dst: SlotId) {
        let (src, dst) = (src.0 as usize, dst.0 as usize);
        self.conv.copy_part(self.n_conv, src, dst);
        self.scan.copy_part(self.n_scan, src, dst);
    }

    /// A slot's state as little-endian bytes (the engine builds for no other order).
    pub fn read(&self, slot: SlotId) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.slot_bytes());
        self.read_into(slot, &mut bytes);
        bytes
    }

    /// Adds what [`Self::read`] returns to `bytes`.
    pub fn read_into(&self, slot: SlotId, bytes: &mut Vec<u8>) {
        let (conv, scan) = self.values_of(slot);
        // Checkpoints read states between two ubatches: at the speed of memory, not value by value.
        bytes.extend_from_slice(bytemuck::cast_slice(&self.conv.read(conv)));
        bytes.extend_from_slice(bytemuck::cast_slice(&self.scan.read(scan)));
    }

    /// Puts back what [`Self::read`] returned.
    pub fn write(&mut self, slot: SlotId, bytes: &[u8]) {
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
        let (conv, scan) = values.split_at(self.n_conv);
        let (conv_at, scan_at) = self.values_of(slot);
        self.conv.write(conv_at.start, conv);
        self.scan.write(scan_at.start, scan);
    }

    /// As [`scan_parts`], for a block that finds its values in the slots where it writes them. So states are copied
    /// there first.
    pub fn parts_in_place(&mut self, parts: &[PartRows]) -> Vec<ScanPart> {
        for PartRows { planes: Planes { from, to }, .. } in parts {
            if from != to {
                self.copy(*from, *to);
            }
        }
        parts.iter().map(|part| scan_part(part, part.planes.to)).collect()
    }

    /// The ranges of a slot's values among those of the convolutions and of the scan.
    fn values_of(&self, slot: SlotId) -> (Range<usize>, Range<usize>) {
        let slot = slot.0 as usize;
        let of = |n: usize| slot * n..(slot + 1) * n;
        (of(self.n_conv), of(self.n_scan))
    }
}

/// The parts of a ubatch as the scan ops take them. Every value of a part's state is then some op's to read where it is, and
/// to write where it is to be.
pub fn scan_parts(parts: &[PartRows]) -> Vec<ScanPart> {
    parts.iter().map(|part| scan_part(part, part.planes.from)).collect()
}

fn scan_part(part: &PartRows, from: SlotId) -> ScanPart {
    ScanPart {
        from: from.0 as usize,
        slot: part.planes.to.0 as usize,
        first_pos: part.pos as usize,
        first_row: part.rows.start,
        n_rows: part.rows.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_copied_zeroed_and_read_alone() {
        let device = Device::cpu(crate::kernels::unfused(), 1, None).unwrap();
        let mut states = SlotStates::new(&device, 3, 2, 5, false).unwrap();
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
