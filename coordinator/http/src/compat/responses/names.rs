//! Names of the interface, and of tools in namespaces.

/// The interface's name in the log.
pub const API: &str = "/v1/responses";

/// The name in the chat of a function in a namespace.
pub fn in_space(space: &str, name: &str) -> String {
    if space.ends_with('_') { format!("{space}{name}") } else { format!("{space}__{name}") }
}
