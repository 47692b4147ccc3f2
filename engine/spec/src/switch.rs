//! Adapters inside a model's file that tokens switch on (Granite Switch): which tokens, and what becomes of their rows.

use std::collections::BTreeMap;

/// Low-rank adapters of a file's own. Each has a place in tensors `lora_a` and `lora_b` beside a projection's matrix. Place 0
/// is for rows without an adapter.
///
/// A token that switches an adapter on is embedded as another one. The adapter of a row is the rounded weighted mean
/// of places: each token of the row's sequence so far has a place. A token that switches one on has that one's place
/// and the weight `exp(gain)`. Any other has place 0 and the weight `exp(-gain)`. So behind one such token it is that
/// token's adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchSpec {
    /// Adapters, place 0 included.
    pub n_places: usize,
    /// Width in the middle of an adapter.
    pub rank: usize,
    /// Magnitude of the logarithm of a place's weight, as above.
    pub gain: f32,
    /// For each token that switches an adapter on, the place of that adapter, and the token as which it is embedded.
    pub tokens: BTreeMap<u32, (u32, u32)>,
}

/// Sizes for the block that finds the adapter of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchRouterSpec {
    /// The gain of [`SwitchSpec`].
    pub gain: f32,
    /// The number of places of [`SwitchSpec`].
    pub n_places: usize,
}

impl SwitchRouterSpec {
    /// Values of its keys and of its values, of which one says something: as many as every type of cache can have.
    pub const WIDTH: usize = 32;
}

impl SwitchSpec {
    /// The place of the adapter that a token switches on; 0: none.
    #[inline]
    pub fn place_of(&self, token: u32) -> u32 {
        self.tokens.get(&token).map_or(0, |(place, _)| *place)
    }

    /// The token as which a token is embedded.
    #[inline]
    pub fn embedded(&self, token: u32) -> u32 {
        self.tokens.get(&token).map_or(token, |(_, embedded)| *embedded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_switch_and_are_embedded_as_others() {
        let tokens = [(7, (1, 3)), (9, (2, 9))].into();
        let switch = SwitchSpec { n_places: 3, rank: 4, gain: 15.0, tokens };
        assert_eq!([7, 8, 9].map(|token| switch.place_of(token)), [1, 0, 2]);
        assert_eq!([7, 8, 9].map(|token| switch.embedded(token)), [3, 8, 9]);
    }
}
