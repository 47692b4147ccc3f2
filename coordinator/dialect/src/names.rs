//! Names of models in requests.

/// Whether a request that says `name` means the model called `known`. Names of a hub are spelled `hf:` or, as in Ollama,
/// `hf.co/`, in capitals or not.
pub fn means(known: &str, name: &str) -> bool {
    // Ollama's programs put a tag behind every name.
    let bare = name.strip_suffix(":latest").unwrap_or(name);
    let of_hub = |name: &str| {
        let rest = name.strip_prefix("hf:").or_else(|| name.strip_prefix("hf.co/"));
        rest.map(str::to_ascii_lowercase)
    };
    known == name || known == bare || (of_hub(known).is_some() && of_hub(known) == of_hub(bare))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_hub_has_several_spellings_and_others_have_one() {
        for (known, name, means_it) in [
            ("a", "a", true),
            ("a", "a:latest", true),
            ("a", "A", false),
            ("hf:u/r:Q8_0", "hf.co/u/r:q8_0", true),
            ("hf:u/r", "hf.co/u/r:latest", true),
            ("hf:u/r", "hf:u/r:Q8_0", false),
            ("u/r", "hf:u/r", false),
        ] {
            assert_eq!(means(known, name), means_it, "{known}: {name}");
        }
    }
}
