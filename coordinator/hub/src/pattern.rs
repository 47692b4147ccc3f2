//! Names of models that requests may have fetched, as the operator writes them: `hf:USER/REPO:QUANT`, with `*` for any
//! text in the repository's name and in the quantisation.

use std::path::Path;
use std::str::FromStr;

use super::name::{HubName, ModelName, check_word};

/// What stands for any text.
const ANY: char = '*';

/// Most bytes of a name in a request. Longer ones are no names of files.
const MAX_ASKED_BYTES: usize = 200;

/// A pattern of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    repo: String,
    /// `None`: any quantisation, and names without one.
    quant: Option<String>,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text:?} is not a pattern of models' names: {why}");
        let rest = text.strip_prefix("hf:").ok_or_else(|| {
            wrong("it begins with hf:, as in hf:bartowski/*; paths, addresses and ollama: cannot be opened to requests")
        })?;
        let (repo, quant) = match rest.split_once(':') {
            Some((repo, quant)) => (repo, Some(quant)),
            None => (rest, None),
        };
        let (user, model) = repo.split_once('/').unwrap_or((repo, ""));
        if user.is_empty() || user.contains(ANY) {
            // Anybody can publish under a name of their own.
            return Err(wrong(
                "name the user whose models may be fetched in full, as in hf:bartowski/*",
            ));
        }
        let words = [user, model].into_iter().chain(quant.iter().flat_map(|q| q.split('/')));
        for word in words {
            check_word(&word.replace(ANY, "x")).map_err(wrong)?;
        }
        let (text, repo, quant) = (text.to_owned(), repo.to_owned(), quant.map(str::to_owned));
        Ok(Self { text, repo, quant })
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Pattern {
    /// Whether it opens this name.
    pub fn opens(&self, name: &HubName) -> bool {
        let upper = |text: &str| text.to_ascii_uppercase();
        let is_quant = match (&self.quant, &name.quant) {
            (None, _) => true,
            (Some(pattern), Some(quant)) => fits(&upper(pattern), &upper(quant)),
            // The hub chooses what such a name means.
            (Some(pattern), None) => pattern.chars().all(|c| c == ANY),
        };
        is_quant && self.opens_repo(&name.repo)
    }

    /// Whether it opens names of this repository.
    pub fn opens_repo(&self, repo: &str) -> bool {
        // The hub's names are the same in capitals.
        fits(&self.repo.to_ascii_lowercase(), &repo.to_ascii_lowercase())
    }
}

/// Whether `text` is `pattern`, with any text for each [`ANY`] that stays within a folder.
fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split(ANY);
    let Some(rest) = pieces.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    let mut rest = rest;
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last) && pattern.matches('/').count() == text.matches('/').count()
}

/// The hub's name that a request means, if it can be one: `hf:` or, as Ollama has it, `hf.co/`. A path, an address and a name of
/// another store are none.
pub fn asked(text: &str) -> Option<HubName> {
    let bare = text.strip_suffix(":latest").unwrap_or(text);
    let rest = bare.strip_prefix("hf:").or_else(|| bare.strip_prefix("hf.co/"))?;
    let is_plain = text.len() <= MAX_ASKED_BYTES && rest.bytes().all(|b| b.is_ascii_graphic());
    if !is_plain || rest.starts_with('/') {
        return None;
    }
    let plain = format!("hf:{rest}");
    let ModelName::Hub(name) = ModelName::parse(Path::new(&plain)).ok()? else { return None };
    if name.to_string() != plain {
        return None;
    }
    let is_file = |quant: &str| quant.ends_with(".gguf");
    let quant = name.quant.map(|q| if is_file(&q) { q } else { q.to_ascii_uppercase() });
    Some(HubName { quant, ..name })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_its_user_and_opens_nothing_else() {
        for text in [
            "*",
            "hf:*",
            "hf:*/*",
            "hf:*/x",
            "hf:u*/x",
            "hf:u",
            "hf:u/",
            "hf:/x",
            "hf:u/../x",
            "hf:u/x:",
            "hf:u/a\nb",
            "ollama:*",
            "https://huggingface.co/*",
            "/models/*",
            "",
        ] {
            let why = text.parse::<Pattern>().unwrap_err();
            assert!(why.contains("is not a pattern of models' names"), "{text}: {why}");
        }
        let opens = |pattern: &str, name: &str| {
            pattern.parse::<Pattern>().unwrap().opens(&asked(name).unwrap())
        };
        for (pattern, name, does) in [
            ("hf:u/*", "hf:u/r", true),
            ("hf:u/*", "hf:u/r:Q8_0", true),
            ("hf:u/*", "hf.co/u/r:q8_0", true),
            ("hf:u/*", "hf:uu/r", false),
            ("hf:u/*", "hf:u/r:Q8_0/a.gguf", true),
            ("hf:u/r", "hf:u/r2", false),
            ("hf:u/R", "hf:u/r", true),
            ("hf:u/*-GGUF:Q4_*", "hf:u/a-GGUF:Q4_K_M", true),
            ("hf:u/*-GGUF:Q4_*", "hf:u/a-GGUF:Q8_0", false),
            ("hf:u/*-GGUF:Q4_*", "hf:u/a-GGUF", false),
            ("hf:u/*-GGUF:Q4_*", "hf:u/a", false),
            ("hf:u/*:*", "hf:u/r", true),
            ("hf:u/a*b*c", "hf:u/a-b-b-c", true),
            ("hf:u/a*b*c", "hf:u/a-c-b", false),
            ("hf:u/ab*ba", "hf:u/aba", false),
        ] {
            assert_eq!(opens(pattern, name), does, "{pattern}: {name}");
        }
    }

    #[test]
    fn names_in_requests_are_names_of_the_hub_or_nothing() {
        let shown = |text: &str| asked(text).map(|name| name.to_string());
        for (text, name) in [
            ("hf:u/r", "hf:u/r"),
            ("hf:u/r:latest", "hf:u/r"),
            ("hf.co/u/r:q4_k_m", "hf:u/r:Q4_K_M"),
            ("hf:u/r:Q8_0/model-q8.gguf", "hf:u/r:Q8_0/model-q8.gguf"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(name), "{text}");
        }
        let long = format!("hf:u/{}", "r".repeat(MAX_ASKED_BYTES));
        for text in [
            "",
            "u/r",
            "model.gguf",
            "/etc/passwd",
            "../x",
            "ollama:x",
            "https://hf.co/u/r",
            "http://127.0.0.1/x.gguf",
            "hf://u/r",
            "hf:u/..",
            "hf:../../etc",
            "hf:u/r:../x.gguf",
            "hf:u/r:a/../b",
            "hf:u/r r",
            "hf:u/r\n",
            "hf:u/r\0",
            "hf:u/r\u{e9}",
            "hf:u/r/",
            "hf:u/r:",
            "hf:u",
            "hf:/u/r",
            &long,
        ] {
            assert_eq!(shown(text), None, "{text:?}");
        }
    }
}
