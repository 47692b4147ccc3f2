//! Puts one sequence's snapshots from several stages together, and takes them apart.
//!
//! The whole is the same bytes however the layers were cut, and any other cut can be restored from it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{LayerPrint, SnapshotReader, SnapshotWriter};
use crate::error::SnapshotError;

/// The snapshot of a sequence over all layers, from those of a line's stages in any order.
///
/// # Errors
/// A damaged part, parts of different sequences, or two parts with the same layer.
pub fn merge_snapshots<B: AsRef<[u8]>>(parts: &[B]) -> Result<Vec<u8>, SnapshotError> {
    let read = parts.iter().map(|part| SnapshotReader::open(part.as_ref()));
    let readers = read.collect::<Result<Vec<_>, _>>()?;
    let foreign = |why: String| Err(SnapshotError::Foreign(why));
    let Some(first) = readers.first() else { return foreign("it has no parts".to_owned()) };
    let mut history: &[u32] = &[];
    let (mut layers, mut sections) = (BTreeMap::new(), BTreeMap::new());
    for reader in &readers {
        if (reader.len, &reader.identity) != (first.len, &first.identity) {
            return foreign(format!(
                "one part is {} positions of {}, another {} of {}",
                first.len, first.identity, reader.len, reader.identity
            ));
        }
        if !reader.history.is_empty() {
            if !history.is_empty() && history != reader.history {
                return foreign("two parts name different tokens".to_owned());
            }
            history = &reader.history;
        }
        layers.extend(reader.layers.iter().copied());
        for &(layer, block, state) in reader.sections() {
            if sections.insert((layer, block), state).is_some() {
                return foreign(format!("two parts hold layer {layer}, block {block}"));
            }
        }
    }
    let layers: Vec<LayerPrint> = layers.into_iter().collect();
    let mut writer = SnapshotWriter::new(&first.identity, first.len, history, &layers);
    for ((layer, block), state) in sections {
        writer.section(layer as usize, block as usize, state);
    }
    Ok(writer.finish())
}

/// The part of a snapshot that a stage with `layers` restores from; the tokens stay in it.
///
/// # Errors
/// A damaged snapshot. Layers that it lacks are found out where it is restored.
pub fn select_layers(bytes: &[u8], layers: Range<usize>) -> Result<Vec<u8>, SnapshotError> {
    let reader = SnapshotReader::open(bytes)?;
    let mut prints = reader.layers.clone();
    prints.retain(|(layer, _)| layers.contains(&(*layer as usize)));
    let SnapshotReader { identity, len, history, .. } = &reader;
    let mut writer = SnapshotWriter::new(identity, *len, history, &prints);
    for &(layer, block, state) in reader.sections() {
        if layers.contains(&(layer as usize)) {
            writer.section(layer as usize, block as usize, state);
        }
    }
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: &[u32] = &[7, 8];

    fn part(layers: Range<usize>, history: &[u32]) -> Vec<u8> {
        let prints: Vec<LayerPrint> =
            layers.clone().map(|l| (l as u32, blake3::hash(&[l as u8]))).collect();
        let mut writer = SnapshotWriter::new("m", 2, history, &prints);
        for layer in layers {
            writer.section(layer, 0, &[layer as u8; 3]);
            writer.section(layer, 1, &[]);
        }
        writer.finish()
    }

    #[test]
    fn the_whole_does_not_depend_on_the_cut_and_gives_every_part_back() {
        let whole = part(0..5, TOKENS);
        let (two, three) = (part(2..5, TOKENS), [part(0..1, &[]), part(1..4, &[])]);
        assert_eq!(merge_snapshots(&[part(0..2, &[]), two.clone()]), Ok(whole.clone()));
        let [a, b] = three;
        assert_eq!(merge_snapshots(&[part(4..5, TOKENS), b, a]), Ok(whole.clone()));
        assert_eq!(select_layers(&whole, 2..5), Ok(two));
        assert_eq!(merge_snapshots(std::slice::from_ref(&whole)), Ok(whole));
    }

    #[test]
    fn parts_that_do_not_belong_together_are_refused() {
        let refused = |parts: &[Vec<u8>], word: &str| {
            let error = merge_snapshots(parts).unwrap_err();
            assert!(matches!(error, SnapshotError::Foreign(_)), "{error}");
            assert!(error.to_string().contains(word), "{word}: {error}");
        };
        refused(&[], "no parts");
        refused(&[part(0..2, &[]), part(1..3, TOKENS)], "layer 1");
        refused(&[part(0..2, &[7, 9]), part(2..3, TOKENS)], "different tokens");
        refused(&[part(0..2, TOKENS), SnapshotWriter::new("n", 2, &[], &[]).finish()], "of n");
        refused(&[part(0..2, TOKENS), SnapshotWriter::new("m", 3, &[], &[]).finish()], "3 of m");
        let mut damaged = part(0..2, TOKENS);
        damaged[20] ^= 1;
        assert!(matches!(merge_snapshots(&[damaged.clone()]), Err(SnapshotError::Damaged(_))));
        assert!(matches!(select_layers(&damaged, 0..1), Err(SnapshotError::Damaged(_))));
    }
}
