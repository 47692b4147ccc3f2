//! GGUF bytes written by hand, field by field, so that every field can be wrong.

/// Type ids of metadata values.
pub const U32: u32 = 4;
pub const BOOL: u32 = 7;
pub const STR: u32 = 8;
pub const ARRAY: u32 = 9;

/// A file in the making.
#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn header(n_tensors: u64, n_keys: u64) -> Self {
        Self::default().bytes(b"GGUF").u32(3).u64(n_tensors).u64(n_keys)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    pub fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    pub fn str(self, s: &str) -> Self {
        self.u64(s.len() as u64).bytes(s.as_bytes())
    }

    /// A tensor's directory entry.
    pub fn tensor(self, name: &str, ne: &[u64], ty: u32, offset: u64) -> Self {
        let named = self.str(name).u32(ne.len() as u32);
        ne.iter().fold(named, |raw, n| raw.u64(*n)).u32(ty).u64(offset)
    }

    /// Padding up to a multiple of 32, and `n` bytes of data.
    pub fn data(mut self, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 0x5a);
        self
    }
}
