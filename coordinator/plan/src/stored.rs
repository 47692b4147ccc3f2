//! What a model's stages need in the caches of their workers: the tensors as they are in the file.

use std::collections::HashMap;
use std::ops::Range;

use brigade_gguf::Gguf;
use brigade_spec::{ModelSpec, own_draft_tensors, stage_tensors};
use serde::Serialize;

/// Bytes that stages keep in a cache, by layers. All of it is 0 where nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoredFacts {
    /// Bytes of the model's header, which each stage needs.
    pub header: u64,
    /// Bytes of the tensors that only layers `0..i` read: `n + 1` running sums.
    sums: Vec<u64>,
    /// Tensors that several layers read, each with its bytes: a stage that has some of these layers needs it once.
    shared: Vec<(u64, Vec<usize>)>,
    /// Tensors of the model's own drafting blocks, which the last stage has, each with its bytes and the layers that read it too.
    drafts: Vec<(u64, Vec<usize>)>,
}

impl StoredFacts {
    /// Those of a model's tensors and of its `header` of so many bytes.
    pub fn from_gguf(model: &Gguf, spec: &ModelSpec, header: u64) -> Self {
        let n_layers = spec.n_layer();
        let mut readers = vec![Vec::new(); model.tensors().len()];
        let named = model.tensors().iter().enumerate();
        let places: HashMap<&str, usize> = named.map(|(at, t)| (t.name.as_str(), at)).collect();
        for layer in 0..n_layers {
            for tensor in stage_tensors(model, spec, &(layer..layer + 1)) {
                if let Some(place) = places.get(tensor.name.as_str()) {
                    readers[*place].push(layer);
                }
            }
        }
        let readers_of = |name: &str| places.get(name).map(|at| readers[*at].clone());
        let drafts = own_draft_tensors(model, spec).into_iter();
        let drafts = drafts.map(|t| (t.nbytes, readers_of(&t.name).unwrap_or_default())).collect();
        let (mut own, mut shared) = (vec![0; n_layers], Vec::new());
        for (tensor, layers) in model.tensors().iter().zip(readers) {
            match layers[..] {
                [] => {}
                [layer] => own[layer] += tensor.nbytes,
                _ => shared.push((tensor.nbytes, layers)),
            }
        }
        Self { header, sums: sums(&own), shared, drafts }
    }

    /// Those of layers with so many bytes each, for tests and examples.
    pub fn of_layers(bytes: &[u64]) -> Self {
        Self { sums: sums(bytes), ..Self::default() }
    }

    /// Bytes that a stage of these layers needs. `has_drafts`: the last one has the model's own drafting blocks.
    pub fn bytes(&self, layers: &Range<usize>, has_drafts: bool) -> u64 {
        let [Some(before), Some(upto)] = [layers.start, layers.end].map(|at| self.sums.get(at))
        else {
            return 0;
        };
        if layers.is_empty() {
            return 0;
        }
        let has = |readers: &[usize]| readers.iter().any(|at| layers.contains(at));
        let of_layers = self.shared.iter().filter(|(_, readers)| has(readers));
        let shared: u64 = of_layers.map(|(nbytes, _)| *nbytes).sum();
        let has_drafts = has_drafts && layers.end + 1 == self.sums.len();
        let of_drafts = self.drafts.iter().filter(|(_, readers)| has_drafts && !has(readers));
        let drafts: u64 = of_drafts.map(|(nbytes, _)| *nbytes).sum();
        [shared, drafts, self.header].into_iter().fold(upto - before, u64::saturating_add)
    }

    /// Bytes that stages of these layers need in one folder: what several of them read is there once.
    pub fn bytes_together(&self, stages: &[Range<usize>], has_drafts: bool) -> u64 {
        let each = stages.iter().map(|layers| self.bytes(layers, has_drafts));
        let sum = each.fold(0, u64::saturating_add);
        let reads = |readers: &[usize]| {
            let has = |layers: &&Range<usize>| readers.iter().any(|at| layers.contains(at));
            stages.iter().filter(has).count() as u64
        };
        let again =
            self.shared.iter().map(|(nbytes, readers)| nbytes * reads(readers).saturating_sub(1));
        let headers = self.header * (stages.len() as u64).saturating_sub(1);
        sum.saturating_sub(again.sum::<u64>().saturating_add(headers))
    }

    /// Bytes of the whole model as one stage, without drafting blocks.
    pub fn all(&self) -> u64 {
        self.bytes(&(0..self.sums.len().saturating_sub(1)), false)
    }
}

fn sums(bytes: &[u64]) -> Vec<u64> {
    let mut sums = vec![0];
    sums.extend(bytes.iter().scan(0_u64, |sum, bytes| {
        *sum = sum.saturating_add(*bytes);
        Some(*sum)
    }));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_that_several_layers_read_counts_once() {
        let mut stored = StoredFacts::of_layers(&[10, 20, 30]);
        assert_eq!((stored.bytes(&(0..3), true), stored.bytes(&(1..2), true)), (60, 20));
        stored.shared = vec![(5, vec![0, 2])];
        (stored.header, stored.drafts) = (1, vec![(100, vec![]), (7, vec![0])]);
        assert_eq!(stored.all(), 66, "an embedding that is the head too");
        let with_drafts = [0..3, 0..1, 1..2, 1..3, 2..2].map(|layers| stored.bytes(&layers, true));
        assert_eq!(with_drafts, [166, 16, 21, 163, 0]);
        assert_eq!(stored.bytes_together(&[0..1, 1..3], false), stored.all());
        assert_eq!(StoredFacts::default().all(), 0);
    }
}
