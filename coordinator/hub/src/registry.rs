//! Ollama's registry: resolves models, and parses manifests from the registry and from Ollama's store on disk.

use serde::Deserialize;

use super::choice::{Choice, RemoteFile};
use super::client::{Client, Part};
use super::error::HubError;
use super::hash::{is_sha256, of_text};
use super::huggingface::{Resolved, refuse};
use super::name::OllamaName;

/// Most bytes of a manifest.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// The media type of GGUF weights in a manifest.
const MODEL_MEDIA_TYPE: &str = "application/vnd.ollama.image.model";

/// Begins what newer models are made of: a file for each tensor, which is no GGUF.
const TENSOR_MEDIA_TYPE: &str = "application/vnd.ollama.image.tensor";

#[derive(Debug, Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Debug, Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
}

/// The weights that a manifest names.
///
/// # Errors
/// Why it names none that can be used.
pub fn weights(manifest: &str, name: &OllamaName) -> Result<RemoteFile, String> {
    let manifest: Manifest = serde_json::from_str(manifest).map_err(|error| error.to_string())?;
    let mut models = manifest.layers.iter().filter(|layer| layer.media_type == MODEL_MEDIA_TYPE);
    let (Some(layer), None) = (models.next(), models.next()) else {
        let is_tensors =
            manifest.layers.iter().any(|layer| layer.media_type.starts_with(TENSOR_MEDIA_TYPE));
        return Err(if is_tensors {
"its weights are one file for each tensor, and not GGUF: take the model from a repository with GGUF files"
} else {
"it does not have exactly one file of weights"
}
        .to_string());
    };
    let hash = layer.digest.strip_prefix("sha256:").filter(|hash| is_sha256(hash));
    let sha256 = Some(hash.ok_or("the digest of its weights is not a SHA-256")?.to_string());
    Ok(RemoteFile {
        path: format!("{}-{}.gguf", name.model, name.tag),
        size: layer.size,
        sha256,
        etag: None,
    })
}

/// Asks the registry what `name` is now.
///
/// # Errors
/// There is no such model, its weights are no GGUF, or the registry does not answer.
pub fn resolve(client: &Client, name: &OllamaName) -> Result<Resolved, HubError> {
    let OllamaName { scheme, host, namespace, model, tag } = name;
    let base = format!("{scheme}://{host}/v2/{namespace}/{model}");
    let mut answer = client.get(&format!("{base}/manifests/{tag}"), Part::default())?;
    refuse(&mut answer, &format!("{scheme}://{host}"), &name.to_string())?;
    let text = answer.text(MAX_MANIFEST_BYTES)?;
    let file = weights(&text, name).map_err(|why| HubError::Malformed {
        url: answer.url.clone(),
        what: "manifest",
        why,
    })?;
    let urls = file.sha256.iter().map(|hash| format!("{base}/blobs/sha256:{hash}")).collect();
    let choice = Choice { quant: tag.clone(), files: vec![file] };
    Ok(Resolved { commit: of_text(&text), licence: None, choice, urls })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn manifests_name_weights_or_say_why_not() {
        let name = OllamaName {
            scheme: "https",
            host: "registry.ollama.ai".to_string(),
            namespace: "library".to_string(),
            model: "x".to_string(),
            tag: "1b".to_string(),
        };
        let hash = of_text("weights");
        let layer = |ty: &str, digest: &str| {
            format!(
                r#"{{"mediaType":"application/vnd.ollama.image.{ty}","digest":"{digest}","size":7}}"#
            )
        };
        let read =
            |layers: &[String]| weights(&format!(r#"{{"layers":[{}]}}"#, layers.join(",")), &name);
        let model = layer("model", &format!("sha256:{hash}"));
        let file =
            read(&[layer("template", "sha256:0"), model.clone(), layer("projector", "x")]).unwrap();
        assert_eq!((file.path.as_str(), file.size, file.sha256), ("x-1b.gguf", 7, Some(hash)));
        assert!(read(&[layer("tensor", "sha256:0")]).unwrap_err().contains("for each tensor"));
        assert!(read(&[layer("model", "sha256:../../x")]).unwrap_err().contains("not a SHA-256"));
        assert!(read(&[model.clone(), model]).unwrap_err().contains("exactly one"));
        assert!(weights("<html>", &name).is_err());
    }
}
