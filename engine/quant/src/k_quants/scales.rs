//! The twelve bytes that hold the scales and minima of eight sub-blocks in Q4_K and Q5_K, six bits each.

/// `(scales, minima)` of the eight sub-blocks.
#[inline]
pub fn unpack_k_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut sc, mut mn) = ([0; 8], [0; 8]);
    for j in 0..4 {
        sc[j] = packed[j] & 63;
        mn[j] = packed[j + 4] & 63;
        sc[j + 4] = packed[j + 8] & 15 | packed[j] >> 6 << 4;
        mn[j + 4] = packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4;
    }
    (sc, mn)
}

/// Reverses [`unpack_k_scales`]; all inputs are below 64.
pub fn pack_k_scales(sc: &[u8; 8], mn: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = sc[j] | sc[j + 4] >> 4 << 6;
        packed[j + 4] = mn[j] | mn[j + 4] >> 4 << 6;
        packed[j + 8] = sc[j + 4] & 15 | mn[j + 4] << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packing_is_a_bijection() {
        for seed in 0..64_u8 {
            let sc = std::array::from_fn(|j| (seed * 7 + j as u8 * 11) & 63);
            let mn = std::array::from_fn(|j| (seed * 5 + j as u8 * 23) & 63);
            assert_eq!(unpack_k_scales(&pack_k_scales(&sc, &mn)), (sc, mn));
        }
        for byte in 0..12 {
            for bit in 0..8 {
                let mut packed = [0; 12];
                packed[byte] = 1 << bit;
                let (sc, mn) = unpack_k_scales(&packed);
                assert_eq!(pack_k_scales(&sc, &mn), packed, "byte {byte} bit {bit}");
            }
        }
    }
}
