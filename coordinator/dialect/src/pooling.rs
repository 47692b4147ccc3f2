//! Ways to pool a text's rows into one vector.

use brigade_gguf::Gguf;

/// How the rows of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The first row.
    First,
    /// The last one: the one that has seen the whole text, in a decoder.
    Last,
}

impl Pooling {
    /// Reads `ARCHITECTURE.pooling_type`, by llama.cpp's numbers. A reranker's head judges the first row, which its
    /// classification token makes. `None` where the file does not say.
    pub fn of(gguf: &Gguf) -> Option<Self> {
        let key = format!("{}.pooling_type", gguf.architecture().ok()?);
        let is_decoder = Self::is_decoder(gguf);
        match gguf.meta().u32(&key).ok()? {
            1 => Some(Self::Mean),
            2 => Some(Self::First),
            3 => Some(Self::Last),
            4 if !is_decoder => Some(Self::First),
            _ => None,
        }
    }

    fn is_decoder(gguf: &Gguf) -> bool {
        brigade_models::describe(gguf).is_ok_and(|spec| !spec.is_encoder())
    }

    /// The way of pooling that requests and commands call by this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "mean" => Some(Self::Mean),
            "cls" => Some(Self::First),
            "last" => Some(Self::Last),
            _ => None,
        }
    }
}
