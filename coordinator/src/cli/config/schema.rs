//! The file's JSON Schema, for editors.

use serde_json::{Map, Value, json};

use super::options::{self, KEYS, Kind, MODEL, NAME, Opt, SHARE, VERSION};

/// The dialect that it is written in: of those that editors of TOML read, the one that all have.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";

/// Makes the JSON Schema of the file.
pub fn schema() -> Value {
    let mut properties = Map::new();
    let version = i64::try_from(VERSION).unwrap_or(i64::MAX);
    properties.insert(
        "version".to_owned(),
        json!({"const": version, "description": "Version of this file's format"}),
    );
    for section in options::sections() {
        let about = section.command.get_about().map(ToString::to_string);
        let options = section.options.iter().map(property).collect();
        properties.insert(section.name.to_owned(), object(options, about.as_deref(), &[]));
    }
    if let Some(serve) = options::section("serve") {
        let mut options: Map<String, Value> = serve.of_a_model().map(property).collect();
        let name = json!({"type": "string", "description": "Name of the model, for -m NAME and for clients"});
        options.insert(NAME.to_owned(), name);
        let model = object(options, Some("A model, with the options of its line"), &[NAME]);
        properties.insert(MODEL.to_owned(), json!({"type": "array", "items": model}));
    }
    let keys = json!({"type": "array", "items": {"type": "string"}, "minItems": 2,
                      "description": "Their names, as brigade key create has them"});
    let about = "API keys that share computed beginnings of prompts";
    let share = object(Map::from_iter([(KEYS.to_owned(), keys)]), Some(about), &[KEYS]);
    properties.insert(SHARE.to_owned(), json!({"type": "array", "items": share}));
    let mut whole = object(properties, Some("Options of brigade"), &["version"]);
    whole["$schema"] = json!(DIALECT);
    whole
}

fn object(properties: Map<String, Value>, about: Option<&str>, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "description": about,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn property(option: &Opt) -> (String, Value) {
    let mut one = match (option.kind(), option.choices()) {
        (Kind::Switch, _) => json!({"type": "boolean"}),
        (Kind::Integer, _) => json!({"type": "integer"}),
        (Kind::Number, _) => json!({"type": "number"}),
        // `threads = 4` and `ubatch = "512"` are both taken: what looks like a number may stand without quotes.
        (Kind::Text, choices) if choices.is_empty() => json!({"type": ["string", "number"]}),
        (Kind::Text, choices) => json!({"enum": choices}),
    };
    if option.is_list() {
        one = json!({"type": "array", "items": one});
    }
    one["description"] = json!(option.help());
    if let Some(default) = option.default() {
        let number = serde_json::from_str(&default).ok().filter(|_| option.kind() != Kind::Text);
        one["default"] = number.unwrap_or_else(|| json!(default));
    }
    (option.key().to_owned(), one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_every_option_and_nothing_else() {
        let schema = schema();
        let keys = |value: &Value| -> Vec<String> {
            let mut keys: Vec<_> =
                value["properties"].as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        for section in options::sections() {
            let mut known: Vec<_> = section.options.iter().map(|o| o.key().to_owned()).collect();
            known.sort();
            assert_eq!(keys(&schema["properties"][section.name]), known);
        }
        let of_model = keys(&schema["properties"][MODEL]["items"]);
        assert!(of_model.contains(&"ctx".to_owned()) && of_model.contains(&NAME.to_owned()));
        assert!(!of_model.contains(&"listen".to_owned()));
        assert_eq!(keys(&schema), ["model", "run", "serve", "share", "version", "worker"]);
    }

    #[test]
    fn a_value_is_described_as_its_option_is() {
        let schema = schema();
        let serve = &schema["properties"]["serve"]["properties"];
        assert_eq!(serve["ctx"]["type"], "integer");
        assert_eq!(serve["expect"]["default"], 1);
        assert_eq!(serve["no-auth"]["type"], "boolean");
        assert_eq!(serve["worker"]["type"], "array");
        assert_eq!(serve["kv-type"]["enum"], json!(["f32", "f16", "q8_0"]));
        assert_eq!(serve["kv-type"]["default"], "f16");
        assert_eq!(schema["properties"]["run"]["properties"]["temp"]["default"], 0.8);
    }
}
