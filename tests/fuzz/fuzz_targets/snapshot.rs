//! States of sequences, which travel between workers and are read from files.

#![no_main]

use brigade_engine::state::{SnapshotReader, merge_snapshots, select_layers};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut whole = bytes.to_vec();
    whole.extend_from_slice(blake3::hash(bytes).as_bytes());
    for snapshot in [bytes, &whole] {
        if let Ok(reader) = SnapshotReader::open(snapshot) {
            let held: usize = reader.sections().iter().map(|(_, _, state)| state.len()).sum();
            assert!(held <= snapshot.len(), "sections lie in the bytes");
            for (layer, block, state) in reader.sections() {
                let found = reader.section(*layer as usize, *block as usize);
                assert!(found.is_ok_and(|first| first.len() == state.len() || first != *state));
            }
        }
    }
    let parts = [whole.clone(), whole.clone()];
    let _ = merge_snapshots(&parts);
    let _ = select_layers(&whole, 0..4);
});
