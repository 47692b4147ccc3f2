//! A fingerprint of the bits that a line computes. It is equal for lines whose layers use kernels of the same
//! numerics, wherever the layers are cut. A stream that continues with another fingerprint reports that in its
//! `usage`.

use serde::{Deserialize, Serialize};

/// A hash of the numbers of what computes each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Numerics(u64);

impl Numerics {
    /// The fingerprint of a line, from the numerics of each layer's kernel table.
    pub fn of_layers(numbers: impl IntoIterator<Item = u32>) -> Self {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
        let mut first = [0; 8];
        first.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..8]);
        Self(u64::from_le_bytes(first))
    }
}
