//! Answers of hubs and registries, `models.lock`, and names of models. Any text gives an error, or a result that
//! leads to no other folder.

#![no_main]

use std::path::Path;

use brigade_hub::huggingface::{Resolved, described};
use brigade_hub::lock::Lock;
use brigade_hub::name::{HubName, ModelName, OllamaName};
use brigade_hub::own_folder::Own;
use brigade_hub::registry::weights;
use libfuzzer_sys::fuzz_target;

/// All places of a model are in the folder.
fn check(own: &Own, name: &ModelName, resolved: &Resolved) {
    for place in own.places(name, resolved).unwrap_or_default() {
        let path = own.path(&place).expect("a place is one of the folder");
        assert!(path.starts_with(own.folder()));
        assert!(path.components().all(|part| part.as_os_str() != ".."));
    }
}

fuzz_target!(|text: &str| {
    let own = Own::new(Path::new("/own"));
    let hub = HubName { repo: "u/r".to_string(), quant: None };
    if let Ok(resolved) = described(text, "https://host/x", "https://host", &hub) {
        assert_eq!(resolved.urls.len(), resolved.choice.files.len());
        assert!(resolved.urls.iter().all(|url| url.starts_with("https://host/u/r/resolve/")));
        check(&own, &ModelName::Hub(hub), &resolved);
    }
    let ollama = OllamaName {
        scheme: "https",
        host: "host".to_string(),
        namespace: "library".to_string(),
        model: "m".to_string(),
        tag: "1b".to_string(),
    };
    if let Ok(file) = weights(text, &ollama) {
        assert!(file.sha256.is_some_and(|hash| hash.len() == 64));
    }
    if let Ok(lock) = Lock::parse(text.as_bytes(), Path::new("models.lock")) {
        for entry in &lock.models {
            assert_eq!(entry.sha256().len(), 64);
            if let Some(place) = entry.own_place() {
                assert!(own.path(place).is_err() || !place.split('/').any(|word| word == ".."));
            }
        }
        let again = serde_json::to_vec(&lock).expect("a lock is written");
        assert!(Lock::parse(&again, Path::new("models.lock")).is_ok());
    }
    if let Ok(name) = ModelName::parse(Path::new(text)) {
        let shown = name.to_string();
        if !matches!(name, ModelName::Path(_)) {
            assert!(!shown.split('/').any(|word| word == ".."), "{shown}");
            ModelName::parse(Path::new(&shown)).expect("a name that is shown is one");
        }
    }
});
