//! Copies on the device of the experts of the host's memory that are used most, in memory that is set aside for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ExpertMatrices;
use super::use_counts::{Expert, ExpertLayer, ExpertUses, UseCounts};
use crate::device::Device;
use crate::device::accelerator::There;
use crate::kernels::PackedMatrix;
use crate::ops::{Buffer, Purpose, Routing};

/// The copies, and how often experts are used.
#[derive(Default)]
pub(super) struct Copies {
    /// Bytes set aside, and those that are taken.
    room: u64,
    taken: u64,
    counts: UseCounts,
    /// Bytes of an expert, by its layer: of those that may have copies.
    bytes: BTreeMap<u64, u64>,
    /// Experts that get a copy when the stage is loaded.
    first: BTreeSet<Expert>,
    of: BTreeMap<Expert, Copy>,
}

/// Copies of an expert's matrices.
struct Copy {
    places: Vec<Arc<dyn Buffer>>,
    matrices: Vec<Arc<PackedMatrix>>,
}

impl Copy {
    fn lens(&self) -> impl Iterator<Item = usize> {
        self.places.iter().map(|place| place.len())
    }
}

impl Copies {
    /// The matrices of those of `experts` of a layer that have a copy, in this order; one entry for each of their matrices.
    pub(super) fn matrices(
        &self,
        layer: u64,
        experts: &[usize],
        n_matrices: usize,
    ) -> Vec<ExpertMatrices> {
        let of = |i: usize| {
            let found = experts.iter().filter_map(|expert| self.of.get(&(layer, *expert)));
            let all = found.map(|copy| copy.matrices[i].clone()).collect();
            ExpertMatrices::of_some(experts.to_vec(), all)
        };
        (0..n_matrices).map(of).collect()
    }

    pub(super) fn has(&self, expert: Expert) -> bool {
        self.of.contains_key(&expert)
    }

    /// Whether so many bytes of what is set aside are free.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.taken.saturating_add(bytes) <= self.room
    }

    /// Memory for a copy with matrices of these bytes: what is set aside, or that of one which is used less.
    fn places(
        &mut self,
        there: &There,
        new: Expert,
        lens: &[usize],
    ) -> Option<Vec<Arc<dyn Buffer>>> {
        let bytes: u64 = lens.iter().map(|len| *len as u64).sum();
        if self.has_room(bytes) {
            let place = |len: &usize| there.alloc(*len, Purpose::Weights).map(Arc::from);
            match lens.iter().map(place).collect() {
                Ok(places) => {
                    self.taken += bytes;
                    return Some(places);
                }
                Err(error) => {
                    tracing::warn!(%error, "less memory than was set aside for copies of experts");
                    self.room = self.taken;
                }
            }
        }
        let alike = self.of.iter().filter(|(_, copy)| copy.lens().eq(lens.iter().copied()));
        let old = self.counts.lock().to_leave(new, alike.map(|(expert, _)| *expert))?;
        Some(self.of.remove(&old)?.places)
    }

    /// Gives an expert a copy, if it may have one. Returns the bytes that were sent for it.
    fn give(&mut self, there: &There, new: Expert, matrices: &[&ExpertMatrices]) -> u64 {
        let host: Vec<_> = matrices.iter().map(|all| all.matrix(new.1)).collect();
        let lens: Vec<usize> = host.iter().map(|matrix| matrix.nbytes()).collect();
        let bytes = lens.iter().sum::<usize>() as u64;
        let Some(mut places) = self.places(there, new, &lens) else { return 0 };
        for (place, matrix) in places.iter_mut().zip(&host) {
            // What was there is no copy any more, and the new one comes behind commands that read it. While another stage of
            // this process still uses it, it is left to that one.
            let Some(place) = Arc::get_mut(place) else {
                self.taken -= bytes;
                return 0;
            };
            place.write(0, matrix.bytes());
        }
        let copied = host
            .iter()
            .zip(&places)
            .map(|(matrix, place)| Arc::new(matrix.copied_to(place.clone())));
        let matrices = copied.collect();
        self.of.insert(new, Copy { places, matrices });
        bytes
    }

    /// Experts of a layer that lie with the host and may have copies.
    pub(super) fn know(&mut self, layer: &ExpertLayer, matrices: &[&ExpertMatrices]) {
        let (Some(first), true) = (matrices.first(), self.room > 0) else { return };
        let bytes = matrices.iter().map(|all| all.matrix(0).nbytes() as u64).sum();
        self.bytes.insert(layer.id, bytes);
        self.counts.lock().know(layer, first.len());
    }
}

impl Device {
    /// Sets so many bytes of this device's memory aside for copies of experts of the host's memory. They are taken as experts are
    /// used.
    pub fn set_room_for_copies(&mut self, bytes: u64) {
        if let Some(beside) = &mut self.beside {
            beside.copies().room = bytes;
        }
    }

    /// Sets how often experts were used before this stage: with [`Device::set_room_for_copies`], before weights are loaded.
    pub fn set_earlier_uses(&mut self, uses: Vec<ExpertUses>) {
        if let Some(beside) = &mut self.beside {
            beside.copies().counts.lock().begin_with(uses);
        }
    }

    /// How often experts are used; `None` where nothing counts it, because there is no room for copies of them.
    pub fn use_counts(&self) -> Option<UseCounts> {
        let copies = self.beside.as_ref()?.copies();
        (copies.room > 0).then(|| copies.counts.clone())
    }

    /// Chooses the experts that have a copy from the beginning, once all layers are known ([`Device::make_room`]): those that
    /// were used most before. Without earlier uses, none.
    pub fn choose_copies(&self) {
        let Some(beside) = &self.beside else { return };
        let copies = &mut *beside.copies();
        let bytes_of = |layer| copies.bytes.get(&layer).copied().unwrap_or(0);
        let best = copies.counts.lock().best(copies.room, &bytes_of);
        copies.first = best.into_iter().collect();
    }

    /// Gives the chosen experts of a layer their copies.
    pub fn make_copies(&self, layer: &ExpertLayer, matrices: &[&ExpertMatrices]) {
        let (Some(there), Some(beside)) = (&self.there, &self.beside) else { return };
        let copies = &mut *beside.copies();
        let chosen: Vec<_> =
            copies.first.range((layer.id, 0)..=(layer.id, usize::MAX)).copied().collect();
        for expert in chosen.into_iter().filter(|expert| !copies.has(*expert)).collect::<Vec<_>>() {
            let bytes = copies.give(there, expert, matrices);
            beside.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Notes which experts of a layer a ubatch used, and may give one of them a copy, which the next ubatch finds. At
    /// most one expert gets a copy at a time, so that the wait for it is short.
    pub fn learn(&self, layer: u64, routing: &Routing, matrices: &[&ExpertMatrices]) {
        let (Some(there), Some(beside)) = (&self.there, &self.beside) else { return };
        let copies = &mut *beside.copies();
        if copies.room == 0 {
            return;
        }
        let used = || routing.lists().spans.iter().map(|(expert, _)| *expert);
        let new = {
            let mut counts = copies.counts.lock();
            counts.used(layer, routing.n_expert(), used());
            counts.to_let_in(
                used().map(|expert| (layer, expert)).filter(|expert| !copies.has(*expert)),
            )
        };
        let Some(new) = new else { return };
        // The device goes on while the host fills what is sent.
        there.begin();
        let bytes = copies.give(there, new, matrices);
        beside.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
