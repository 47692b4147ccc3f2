//! Lines of several workers: their cuts, what crosses these, and what each worker has.

pub mod cuts;
pub mod lora_line;
pub mod weights;
pub mod wire_types;
