//! Positions in prompts whose states are kept, and why.

/// Why there is to be a state at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The last row of a prompt comes behind it.
    Prompt,
    /// Another prompt differs from there on.
    Fork,
    /// A prompt that was changed near its end may go on otherwise behind it.
    Distance,
}

/// A position in a prompt whose state is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub at: u32,
    pub place: Place,
}
