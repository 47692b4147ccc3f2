//! Headers of models, for tests of what an architecture refuses. No tensor stands behind them.

use brigade_gguf::{Gguf, GgufWriter};

use super::describe;

/// Sizes that many architectures want: four layers of four heads.
pub const SMALL: [(&str, u32); 8] = [
    ("block_count", 4),
    ("context_length", 128),
    ("embedding_length", 32),
    ("feed_forward_length", 64),
    ("attention.head_count", 4),
    ("attention.head_count_kv", 2),
    ("attention.key_length", 16),
    ("attention.value_length", 16),
];

/// The message with which an architecture refuses a model with these keys, given without the architecture's name before
/// them.
///
/// # Panics
/// Where it does not refuse the model.
pub fn refusal(arch: &str, counts: &[(&str, u32)], numbers: &[(&str, f32)]) -> String {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", arch).unwrap();
    for (key, count) in counts {
        writer.set(&format!("{arch}.{key}"), count).unwrap();
    }
    for (key, number) in numbers {
        writer.set(&format!("{arch}.{key}"), number).unwrap();
    }
    let mut bytes = Vec::new();
    writer.write_header_only(&mut bytes).unwrap();
    let model = Gguf::from_bytes(bytes.into(), "header.gguf").unwrap();
    describe(&model).unwrap_err().to_string()
}
