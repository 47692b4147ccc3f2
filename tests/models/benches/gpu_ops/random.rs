//! Numbers that look like data. A card may be faster with zeros.

/// Pseudorandom bytes, by xorshift.
pub fn bytes(n: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(n + 8);
    while bytes.len() < n {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(n);
    bytes
}

/// Values between -1 and 1.
pub fn values(n: usize) -> Vec<f32> {
    let value = |b: &[u8]| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0;
    bytes(2 * n).chunks_exact(2).map(value).collect()
}
