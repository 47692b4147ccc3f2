//! The operator's settings for models by name: folders, the hub's address and token, whether the network may be used.

use std::path::{Path, PathBuf};

/// Where repositories are, where HF_ENDPOINT says nothing else.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Most bytes of a token's file.
const MAX_TOKEN_BYTES: usize = 1024;

/// Settings of models by name, read once.
#[derive(Clone)]
pub struct Settings {
    /// Brigade's own folder of models.
    pub folder: PathBuf,
    /// A folder of models that the operator fills: read, and never written to.
    pub models_dir: Option<PathBuf>,
    /// The folder of `models.lock`.
    pub data_dir: PathBuf,
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// The token for the hub; no other host gets it.
    pub token: Option<String>,
    /// Whether the network must not be used.
    pub offline: bool,
    /// `host` or `host:port` that may have an address of this machine or network.
    pub private_hosts: Vec<String>,
    /// Hugging Face's cache: the folder with `models--user--repo`.
    pub hugging_face: Option<PathBuf>,
    /// The folder of llama.cpp's cache.
    pub llama_cpp: Option<PathBuf>,
    /// Ollama's stores: folders with `manifests` and `blobs`.
    pub ollama: Vec<PathBuf>,
    /// A file of certificates that are trusted instead of the built-in ones.
    pub certificates: Option<PathBuf>,
}

/// The token stands in no log.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { folder, models_dir, data_dir, endpoint, offline, private_hosts, .. } = self;
        f.debug_struct("Settings")
            .field("folder", folder)
            .field("models_dir", models_dir)
            .field("data_dir", data_dir)
            .field("endpoint", endpoint)
            .field("offline", offline)
            .field("private_hosts", private_hosts)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Settings from the environment, with models in `folder` and the lock in `data_dir`.
    pub fn from_env(
        folder: PathBuf,
        data_dir: PathBuf,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let set = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let home = path("HOME");
        let cache =
            path("XDG_CACHE_HOME").or_else(|| home.as_ref().map(|home| home.join(".cache")));
        let in_cache = |name: &str| cache.as_ref().map(|cache| cache.join(name));
        let hf_home = path("HF_HOME").or_else(|| in_cache("huggingface"));
        let hub = path("HF_HUB_CACHE").or_else(|| hf_home.as_ref().map(|home| home.join("hub")));
        let token_file =
            path("HF_TOKEN_PATH").or_else(|| hf_home.as_ref().map(|home| home.join("token")));
        let token = set("HF_TOKEN").or_else(|| token_file.and_then(|file| token_in(&file)));
        let of_home = home.map(|home| home.join(".ollama/models"));
        let ollama = match path("OLLAMA_MODELS") {
            Some(folder) => vec![folder],
            None => of_home
                .into_iter()
                .chain([PathBuf::from("/usr/share/ollama/.ollama/models")])
                .collect(),
        };
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_string());
        Self {
            folder,
            models_dir: None,
            data_dir,
            endpoint: endpoint.trim().trim_end_matches('/').to_string(),
            token: token.map(|token| token.trim().to_string()),
            offline: set("HF_HUB_OFFLINE").is_some_and(|value| is_yes(&value)),
            private_hosts: Vec::new(),
            hugging_face: hub,
            llama_cpp: path("LLAMA_CACHE").or_else(|| in_cache("llama.cpp")),
            ollama,
            certificates: path("SSL_CERT_FILE"),
        }
    }
}

fn is_yes(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
}

/// The token that `huggingface-cli login` has stored, if any.
fn token_in(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let token = text.trim();
    (!token.is_empty() && token.len() <= MAX_TOKEN_BYTES).then(|| token.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn settings(set: &[(&str, &str)]) -> Settings {
        let env = |name: &str| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string())
        };
        Settings::from_env("/m".into(), "/d".into(), &env)
    }

    #[test]
    fn the_environment_means_what_it_means_elsewhere() {
        let plain = settings(&[("HOME", "/h")]);
        assert_eq!(plain.endpoint, DEFAULT_ENDPOINT);
        assert_eq!(plain.hugging_face.unwrap(), Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(plain.llama_cpp.unwrap(), Path::new("/h/.cache/llama.cpp"));
        assert_eq!(plain.ollama[0], Path::new("/h/.ollama/models"));
        assert!(!plain.offline && plain.token.is_none());
        let set = settings(&[
            ("HF_HOME", "/x"),
            ("HF_ENDPOINT", "http://mirror:1/"),
            ("HF_TOKEN", " hf_secret\n"),
            ("HF_HUB_OFFLINE", "1"),
            ("LLAMA_CACHE", "/l"),
            ("OLLAMA_MODELS", "/o"),
        ]);
        assert_eq!(set.hugging_face.as_deref().unwrap(), Path::new("/x/hub"));
        assert_eq!(
            (set.endpoint.as_str(), set.token.as_deref()),
            ("http://mirror:1", Some("hf_secret"))
        );
        assert!(set.offline && set.ollama == [PathBuf::from("/o")]);
        assert!(!format!("{set:?}").contains("secret"));
    }
}
