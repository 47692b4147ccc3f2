//! The choice of experts in the host's memory that get a copy on the GPU: those that are used most of late. The code
//! here knows neither memory nor devices.
//!
//! Each ubatch that uses an expert counts one for it, however many rows it has: with a copy, the host need not read
//! its weights. Counts fade. An expert is let in when it was used more than once of late, and never for one token
//! alone. Where there is no room, it must be used clearly more than the one that is used least.
//!
//! What was counted may outlive the stage ([`ExpertUses`]): the next stage of the model then begins with copies of the experts that
//! were used most.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Share of a count that remains after a ubatch: half of it is left after some hundred.
const FADING: f32 = 0.995;
/// A count from which on an expert is let in.
const LEAST: f32 = 1.5;
/// Factor, and number of uses, by which a new count must exceed that of the expert that leaves.
const TIMES: f32 = 1.25;
const MORE: f32 = 1.0;
/// A unit of counting beyond which all counts are scaled down.
const LARGE: f32 = 1e20;
/// The count of an expert that every ubatch uses: none is greater.
const MOST: f32 = 1.0 / (1.0 - FADING);

/// An expert: its layer and its number.
pub type Expert = (u64, usize);

/// The experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertLayer {
    /// A number that no other layer of this process has.
    pub id: u64,
    /// The name of their tensors, which no other layer of the model has.
    pub name: String,
}

/// Recent uses of a layer's experts, to be kept when the stage is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertUses {
    /// [`ExpertLayer::name`].
    pub layer: String,
    /// Uses of each of its experts. Those of long ago count less.
    pub counts: Vec<f32>,
}

/// Recent uses of experts, by layer.
#[derive(Debug, Default)]
pub struct Counts {
    layers: HashMap<u64, Layer>,
    /// Counts of a stage before this one, by the names of layers.
    earlier: HashMap<String, Vec<f32>>,
    /// How often something was counted.
    n_counted: u64,
}

#[derive(Debug, Default)]
struct Layer {
    name: String,
    counts: Vec<f32>,
    /// Weight of a use now. It grows, so that earlier counts fade.
    unit: f32,
}

/// The counts of a stage, which any thread may read while the stage computes, and after its end.
#[derive(Clone, Debug, Default)]
pub struct UseCounts(Arc<Mutex<Counts>>);

impl UseCounts {
    /// How often something was counted since loading.
    pub fn n_counted(&self) -> u64 {
        self.lock().n_counted
    }

    /// Uses of the experts of all layers, ordered by the layers' names.
    pub fn read(&self) -> Vec<ExpertUses> {
        self.lock().uses()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Counts that layers of these names begin with.
    pub fn begin_with(&mut self, earlier: Vec<ExpertUses>) {
        self.earlier = earlier.into_iter().map(|uses| (uses.layer, uses.counts)).collect();
    }

    /// A layer of the stage, with so many experts. Earlier counts that cannot be its own are ignored.
    pub fn know(&mut self, layer: &ExpertLayer, n_expert: usize) {
        let is_count = |count: &f32| (0.0..=f32::MAX).contains(count);
        let fits = |counts: &Vec<f32>| counts.len() == n_expert && counts.iter().all(is_count);
        let mut counts = self.earlier.remove(&layer.name).filter(fits).unwrap_or_default();
        counts.iter_mut().for_each(|count| *count = count.min(MOST));
        counts.resize(n_expert, 0.0);
        let name = layer.name.clone();
        self.layers.entry(layer.id).or_insert(Layer { name, counts, unit: 1.0 });
    }

    /// Uses of the experts of all layers that have names, ordered by these.
    fn uses(&self) -> Vec<ExpertUses> {
        let named = self.layers.values().filter(|layer| !layer.name.is_empty());
        let by_name: BTreeMap<_, _> = named.map(|layer| (layer.name.clone(), layer)).collect();
        let of = |(name, layer): (String, &Layer)| {
            let counts = layer.counts.iter().map(|count| count / layer.unit).collect();
            ExpertUses { layer: name, counts }
        };
        by_name.into_iter().map(of).collect()
    }

    /// The most used experts of all layers for which there is room. An expert of a layer has so many bytes; 0: it cannot be copied.
    pub fn best(&self, mut room: u64, bytes_of: &dyn Fn(u64) -> u64) -> Vec<Expert> {
        let of_layer = |(id, layer): (&u64, &Layer)| {
            let (id, n) = (*id, layer.counts.len());
            (0..n).map(move |expert| (id, expert)).collect::<Vec<_>>()
        };
        let all = self.layers.iter().flat_map(of_layer);
        let mut used: Vec<(f32, Expert)> =
            all.map(|expert| (self.of(expert), expert)).filter(|(count, _)| *count > 0.0).collect();
        used.sort_by(|(one, a), (other, b)| other.total_cmp(one).then(a.cmp(b)));
        let mut fits = |expert: &Expert| {
            let bytes = bytes_of(expert.0);
            let fits = (1..=room).contains(&bytes);
            room -= if fits { bytes } else { 0 };
            fits
        };
        used.into_iter().map(|(_, expert)| expert).filter(|expert| fits(expert)).collect()
    }

    /// A ubatch uses these experts, of so many of a layer.
    pub fn used(&mut self, layer: u64, n_expert: usize, experts: impl IntoIterator<Item = usize>) {
        self.n_counted += 1;
        let unknown = || Layer { unit: 1.0, ..Layer::default() };
        let layer = self.layers.entry(layer).or_insert_with(unknown);
        layer.counts.resize(n_expert, 0.0);
        layer.unit /= FADING;
        if layer.unit > LARGE {
            layer.counts.iter_mut().for_each(|count| *count /= LARGE);
            layer.unit /= LARGE;
        }
        experts.into_iter().for_each(|expert| layer.counts[expert] += layer.unit);
    }

    /// Uses of an expert of late.
    pub fn of(&self, expert: Expert) -> f32 {
        let (layer, expert) = expert;
        let of = |layer: &Layer| layer.counts.get(expert).map_or(0.0, |count| count / layer.unit);
        self.layers.get(&layer).map_or(0.0, of)
    }

    /// The most used of some experts that have no copy, if it is worth one where there is room.
    pub fn to_let_in(&self, without: impl Iterator<Item = Expert>) -> Option<Expert> {
        let counted = without.map(|expert| (self.of(expert), expert));
        let best = counted.max_by(|(one, a), (other, b)| one.total_cmp(other).then(b.cmp(a)));
        best.filter(|(count, _)| *count >= LEAST).map(|(_, expert)| expert)
    }

    /// The least used of those with a copy, if it is to leave for `instead`.
    pub fn to_leave(&self, instead: Expert, with: impl Iterator<Item = Expert>) -> Option<Expert> {
        let counted = with.map(|expert| (self.of(expert), expert));
        let least = counted.min_by(|(one, a), (other, b)| one.total_cmp(other).then(a.cmp(b)));
        let is_less = |(count, _): &(f32, Expert)| self.of(instead) > count * TIMES + MORE;
        least.filter(is_less).map(|(_, expert)| expert)
    }
}

#[cfg(test)]
mod tests;
