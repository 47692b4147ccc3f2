//! Lines of several workers: their cuts, the values that cross them, and the weights of each worker.

pub mod cuts;
pub mod lora_line;
pub mod own_memory;
pub mod weights;
pub mod wire_types;
