//! Values for the host: brought to its memory where they lie with a GPU. It reads that at the speed of memory, and a GPU's own
//! only word by word.

use std::ops::Deref;

use brigade_gpu::Fetch;

use super::Rows;

/// Values that the host reads. Whoever does waits for the GPU, and only for what it was told before they were fetched.
pub struct Fetched(Place);

enum Place {
    Here(Box<Rows>),
    Brought(Fetch),
}

impl Rows {
    /// The values, for the host. They are on their way at once; their memory with a GPU is free for what comes next.
    pub fn fetched(self) -> Fetched {
        let brought = self.gpu().zip(self.span()).and_then(|(gpu, span)| gpu.fetch(span).ok());
        Fetched(brought.map_or_else(|| Place::Here(Box::new(self)), Place::Brought))
    }
}

impl Fetched {
    /// The values, to be kept.
    pub fn into_vec(self) -> Vec<f32> {
        match self.0 {
            Place::Here(rows) if rows.is_with_gpu() => rows.to_vec(),
            Place::Here(rows) => rows.into_vec(),
            Place::Brought(fetch) => bytemuck::cast_slice(fetch.bytes()).to_vec(),
        }
    }
}

impl Default for Fetched {
    fn default() -> Self {
        Self(Place::Here(Box::default()))
    }
}

impl Deref for Fetched {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Place::Here(rows) => rows,
            Place::Brought(fetch) => bytemuck::cast_slice(fetch.bytes()),
        }
    }
}
