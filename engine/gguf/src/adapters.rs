//! Adapters beside a model: files of their own, whose tensors stand in the model's directory with the adapter's number
//! behind their names (`blk.0.attn_q.weight.lora_a@1`). So whatever goes by a model's tensors, from the plan to the
//! hashes of what workers lack, goes by theirs as well.

use super::directory::TensorInfo;
use super::meta::Meta;
use super::{Gguf, GgufError};

/// Metadata key of a file's kind.
pub(super) const GENERAL_TYPE: &str = "general.type";
/// The kind of an adapter.
const ADAPTER: &str = "adapter";
/// Metadata key of what an adapter's changes are scaled with.
pub const ALPHA: &str = "adapter.lora.alpha";
/// Endings of the names of a change's two halves, behind the name of the model's tensor.
pub const HALVES: [&str; 2] = [".lora_a", ".lora_b"];

/// An adapter of a model.
pub struct Adapter {
    /// Path or name of its file, for messages.
    pub file: String,
    /// Metadata of the adapter's file.
    pub meta: Meta,
}

/// Tensors of an adapter for one tensor of the model.
pub struct Pair<'a> {
    /// `{in, rank}`.
    pub a: &'a TensorInfo,
    /// `{rank, out}`.
    pub b: &'a TensorInfo,
}

/// Whether a file's metadata are those of an adapter.
///
/// # Errors
/// The key is no string.
pub(super) fn is_adapter(meta: &Meta) -> Result<bool, GgufError> {
    Ok(meta.opt_str(GENERAL_TYPE)? == Some(ADAPTER))
}

/// The name in the model's directory of tensor `name` of adapter number `adapter`.
pub(super) fn name_in_model(name: &str, adapter: usize) -> String {
    format!("{name}@{adapter}")
}

/// The name in an adapter's own file of a tensor of the model's directory, and the adapter's number; `None` for one of
/// the model's own.
pub fn name_in_file(tensor: &str) -> Option<(&str, usize)> {
    let (name, adapter) = tensor.rsplit_once('@')?;
    Some((name, adapter.parse().ok()?))
}

/// The model's tensor that a tensor of an adapter's file, so named there, is for: `None` for one that is no half of a
/// change.
pub fn base_of(name: &str) -> Option<&str> {
    HALVES.iter().find_map(|half| name.strip_suffix(half))
}

/// The model's tensor that a tensor of its directory is or is for, and whether it is an adapter's.
pub fn of_model(tensor: &str) -> (&str, bool) {
    match name_in_file(tensor) {
        Some((name, _)) => (base_of(name).unwrap_or(name), true),
        None => (tensor, false),
    }
}

/// Tensors of adapter number `adapter` for the model's tensor `name`.
pub fn pair<'a>(model: &'a Gguf, name: &str, adapter: usize) -> Option<Pair<'a>> {
    let half = |half| model.tensor(&name_in_model(&format!("{name}{half}"), adapter));
    let [a, b] = HALVES.map(half);
    Some(Pair { a: a?, b: b? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_a_tensor_is() {
        let name = name_in_model("blk.3.attn_q.weight.lora_b", 12);
        assert_eq!(name, "blk.3.attn_q.weight.lora_b@12");
        assert_eq!(name_in_file(&name), Some(("blk.3.attn_q.weight.lora_b", 12)));
        assert_eq!(of_model(&name), ("blk.3.attn_q.weight", true));
        assert_eq!(of_model("blk.3.attn_q.weight"), ("blk.3.attn_q.weight", false));
        assert_eq!(name_in_file("odd@name"), None);
        assert_eq!(base_of("blk.0.attn_norm.weight"), None);
    }
}
