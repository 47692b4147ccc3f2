//! Names of the tensors that judge a text, or move its vector to another space. No stage needs them.

/// Stems of the matrices that a text's pooled vector goes through, in that order. llama.cpp numbers them by their place
/// among the modules, after the model and the pooling.
pub const PROJECTIONS: [&str; 2] = ["dense_2.", "dense_3."];

/// Stems of all tensors of such heads.
const STEMS: [&str; 3] = ["cls.", PROJECTIONS[0], PROJECTIONS[1]];

/// Whether a tensor is a head's, so that no stage needs it.
pub fn has(tensor: &str) -> bool {
    STEMS.iter().any(|stem| tensor.starts_with(stem))
}
