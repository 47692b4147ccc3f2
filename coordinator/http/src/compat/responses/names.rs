//! Names of the interface, and of tools in namespaces.

/// What the log calls the interface.
pub const API: &str = "/v1/responses";

/// What a chat calls a function of a namespace.
pub fn in_space(space: &str, name: &str) -> String {
    if space.ends_with('_') { format!("{space}{name}") } else { format!("{space}__{name}") }
}
