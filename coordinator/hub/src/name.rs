//! Names of models, as given to `-m`.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::HubError;

/// Most bytes of a name.
const MAX_NAME_BYTES: usize = 1024;

/// Where the models of Ollama come from, where a name says nothing else.
pub const OLLAMA_REGISTRY: &str = "registry.ollama.ai";

/// A parsed name of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelName {
    /// A file on this machine.
    Path(PathBuf),
    /// A repository of Hugging Face, or of a server with the same interface.
    Hub(HubName),
    /// A model of Ollama's store or registry.
    Ollama(OllamaName),
    /// A file at an address.
    Address(String),
}

/// A model of the hub, `hf:user/repo:QUANT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// The repository, `user/repo`.
    pub repo: String,
    /// A quantisation, or the path of a file in the repository; `None`: the usual one.
    pub quant: Option<String>,
}

/// A model of Ollama's registry, `ollama:[host/][namespace/]name[:tag]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaName {
    /// `http` only where the name says so.
    pub scheme: &'static str,
    /// Host and port of the registry.
    pub host: String,
    /// `library`, or a user.
    pub namespace: String,
    /// The model's name.
    pub model: String,
    /// The variant, `latest` by default.
    pub tag: String,
}

impl ModelName {
    /// Parses a name. Text without a known prefix is a path.
    ///
    /// # Errors
    /// The text has a known prefix, but is not a valid name.
    pub fn parse(text: &Path) -> Result<Self, HubError> {
        let Some(name) = text.to_str() else { return Ok(Self::Path(text.to_path_buf())) };
        let wrong = |why: &str| HubError::Name { name: cut(name), why: why.to_string() };
        let rest = |starts: &[&str]| starts.iter().find_map(|start| name.strip_prefix(start));
        let hub = rest(&[
            "hf://",
            "hf:",
            "https://hf.co/",
            "hf.co/",
            "https://huggingface.co/",
            "huggingface.co/",
        ]);
        let is_file_of_hub = name.starts_with("https://") && name.contains("/resolve/");
        if name.len() > MAX_NAME_BYTES {
            return Err(wrong("it is too long"));
        }
        if let Some(rest) = hub.filter(|_| !is_file_of_hub) {
            return Ok(Self::Hub(HubName::parse(rest).map_err(wrong)?));
        }
        if let Some(rest) = rest(&["ollama://", "ollama:"]) {
            return Ok(Self::Ollama(OllamaName::parse(rest).map_err(wrong)?));
        }
        if rest(&["https://", "http://"]).is_some() {
            return check_address(name).map(|()| Self::Address(name.to_string())).map_err(wrong);
        }
        Ok(Self::Path(text.to_path_buf()))
    }
}

impl HubName {
    fn parse(rest: &str) -> Result<Self, &'static str> {
        let (repo, quant) = match rest.split_once(':') {
            Some((repo, quant)) => (repo, Some(quant)),
            None => (rest, None),
        };
        let parts: Vec<&str> = repo.trim_end_matches('/').split('/').collect();
        let [user, model] = parts[..] else {
            return Err(
                "hf:USER/REPO or hf:USER/REPO:QUANT is needed, such as hf:bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M",
            );
        };
        check_word(user)?;
        check_word(model)?;
        if let Some(quant) = quant {
            quant.split('/').try_for_each(check_word)?;
        }
        Ok(Self { repo: format!("{user}/{model}"), quant: quant.map(str::to_string) })
    }
}

impl OllamaName {
    fn parse(rest: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = match rest.strip_prefix("http://") {
            Some(rest) => ("http", rest),
            None => ("https", rest.strip_prefix("https://").unwrap_or(rest)),
        };
        let parts: Vec<&str> = rest.split('/').collect();
        let (host, namespace, last) = match parts[..] {
            [last] => (OLLAMA_REGISTRY, "library", last),
            [namespace, last] => (OLLAMA_REGISTRY, namespace, last),
            [host, namespace, last] => (host, namespace, last),
            _ => {
                return Err(
                    "ollama:NAME:TAG or ollama:USER/NAME:TAG is needed, such as ollama:llama3.3:70b",
                );
            }
        };
        let (model, tag) = last.split_once(':').unwrap_or((last, "latest"));
        for word in [host.split(':').next().unwrap_or(host), namespace, model, tag] {
            check_word(word)?;
        }
        if host.split_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_err()) {
            return Err("the text behind the host is not a port");
        }
        let own = |word: &str| word.to_string();
        Ok(Self {
            scheme,
            host: own(host),
            namespace: own(namespace),
            model: own(model),
            tag: own(tag),
        })
    }
}

/// One part of a name becomes a part of paths and addresses: it may lead nowhere else.
pub(crate) fn check_word(word: &str) -> Result<(), &'static str> {
    if word.is_empty() {
        return Err("a part of it is empty");
    }
    if word.starts_with('.') || word.contains("..") {
        return Err(
            "a part of it begins with a dot or has two in a row, and names lead to no other folder",
        );
    }
    if !word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+ ()[],=@".contains(c)) {
        return Err("it has characters that names do not have");
    }
    Ok(())
}

fn check_address(name: &str) -> Result<(), &'static str> {
    let bare = without_query(name);
    let (_, rest) = bare.split_once("://").unwrap_or(("", bare));
    let (host, path) = rest
        .split_once('/')
        .ok_or("an address ends with a file, such as https://host/model.gguf")?;
    if host.contains('@') {
        return Err("an address with a user's name in it would stand in logs: leave it out");
    }
    if host.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("it is not a valid address");
    }
    if path.split('/').any(|part| part == "..") {
        return Err("names lead to no other folder: leave out ..");
    }
    if path.ends_with(".gguf") {
        Ok(())
    } else {
        Err("an address ends with .gguf, the file's name")
    }
}

/// An address without its query, which may hold a signature.
pub fn without_query(address: &str) -> &str {
    address.split(['?', '#']).next().unwrap_or(address)
}

fn cut(name: &str) -> String {
    name.chars().take(80).collect()
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Hub(name) => write!(f, "{name}"),
            Self::Ollama(name) => write!(f, "{name}"),
            Self::Address(address) => f.write_str(without_query(address)),
        }
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        self.quant.iter().try_for_each(|quant| write!(f, ":{quant}"))
    }
}

impl fmt::Display for OllamaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, namespace, model, tag } = self;
        f.write_str("ollama:")?;
        match (host == OLLAMA_REGISTRY, namespace == "library") {
            (true, true) => {}
            (true, false) => write!(f, "{namespace}/")?,
            (false, _) if *scheme == "http" => write!(f, "http://{host}/{namespace}/")?,
            (false, _) => write!(f, "{host}/{namespace}/")?,
        }
        write!(f, "{model}:{tag}")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<ModelName, HubError> {
        ModelName::parse(Path::new(text))
    }

    #[test]
    fn names_are_told_from_paths() {
        for (text, shown) in [
            ("hf:u/r:Q4_K_M", "hf:u/r:Q4_K_M"),
            ("hf:u/r", "hf:u/r"),
            ("hf://u/r:Q8_0", "hf:u/r:Q8_0"),
            ("hf.co/u/r:Q4_K_M", "hf:u/r:Q4_K_M"),
            ("https://huggingface.co/u/r", "hf:u/r"),
            ("hf:u/r:UD-Q4_K_XL/a-00001-of-00002.gguf", "hf:u/r:UD-Q4_K_XL/a-00001-of-00002.gguf"),
            ("ollama:llama3.3:70b", "ollama:llama3.3:70b"),
            ("ollama:llama3.3", "ollama:llama3.3:latest"),
            ("ollama:me/x:1", "ollama:me/x:1"),
            ("ollama:http://127.0.0.1:80/library/x:1", "ollama:http://127.0.0.1:80/library/x:1"),
            ("https://host/a/b.gguf?sig=secret", "https://host/a/b.gguf"),
            (
                "https://huggingface.co/u/r/resolve/main/x.gguf",
                "https://huggingface.co/u/r/resolve/main/x.gguf",
            ),
        ] {
            assert_eq!(parsed(text).unwrap().to_string(), shown, "{text}");
        }
        for path in
            ["model.gguf", "/a/hf:b", "./hf:u/r", "sha256-0123", "llama3.3:70b", "../x.gguf"]
        {
            assert_eq!(parsed(path).unwrap(), ModelName::Path(path.into()));
        }
    }

    #[test]
    fn names_lead_to_no_other_folder() {
        for text in [
            "hf:../../etc",
            "hf:u/..",
            "hf:u/r:../../x.gguf",
            "hf:u/r:a/../b.gguf",
            "hf:u/r:.hidden",
            "hf:u",
            "hf:u/r/x",
            "hf:u/r:",
            "hf:u/r:a\\b",
            "hf:u/r:a%2e%2e",
            "hf:u/r:a\nb",
            "ollama:../x",
            "ollama:a/b/c/d",
            "ollama:host:x/library/m",
            "ollama:x:..",
            "https://host/../x.gguf",
            "https://host/x.html",
            "https://user:pass@host/x.gguf",
            "https://host",
            "http:///x.gguf",
        ] {
            let error = parsed(text).unwrap_err();
            assert!(matches!(error, HubError::Name { .. }), "{text}: {error}");
        }
    }
}
