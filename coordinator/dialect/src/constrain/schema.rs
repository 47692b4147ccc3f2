//! Checks which parts of a JSON schema can be enforced.
//!
//! An unsupported keyword would be a promise that is not kept, so it is refused with its path. Keywords that say
//! nothing about values (annotations, unknown words) pass.

use serde_json::{Map, Value, json};

use super::grammar::Grammar;
use super::keywords::{MAPS, parts};
use super::normalised::normal;
use super::options::with_options;
use super::trials::tried;
use super::{MAX_GRAMMAR_BYTES, Refused, Strictness, wide_integers};

/// Keywords that restrict values and cannot be held.
const REFUSED: &[&str] = &[
    "not",
    "if",
    "contains",
    "minContains",
    "maxContains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
];

/// Formats of strings that are held.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Formats of strings that JSON Schema defines and that cannot be enforced. Other formats are annotations.
const REFUSED_FORMATS: &[&str] = &[
    "idn-email",
    "idn-hostname",
    "uri-reference",
    "uri-template",
    "iri",
    "iri-reference",
    "json-pointer",
    "relative-json-pointer",
    "regex",
];

/// Trials of parts of a schema to find out which one is wrong. Eight levels of sixteen parts each take so many.
const MAX_TRIALS: usize = 32;

/// The grammar of a schema, known to be usable.
///
/// # Errors
/// The part that cannot be enforced, by its path; with [`Strictness::Lenient`] only a value that is not a
/// schema.
pub fn grammar(path: &str, schema: &Value, strictness: Strictness) -> Result<Grammar, Refused> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(Refused::new(path, format!("{path} must be a JSON schema: an object")));
    }
    let cleaned = match strictness {
        Strictness::Strict => {
            check_words(path, schema)?;
            let cleaned = annotations_left_out(schema);
            match normal(path, &cleaned, strictness) {
                Ok(normal) => normal,
                Err(refused) => return with_wide_numbers(path, &cleaned, refused),
            }
        }
        Strictness::Lenient => normal(path, schema, strictness)?,
    };
    let whole = Grammar::json(with_options(&cleaned, strictness));
    let size = whole.text().len();
    if size > MAX_GRAMMAR_BYTES {
        let message = format!("{path} has {size} bytes: at most {MAX_GRAMMAR_BYTES}");
        return Err(Refused::new(path, message));
    }
    match tried(&whole.text()) {
        Ok(()) => Ok(whole),
        Err(error) => {
            let mut search = Search { root: &cleaned, strictness, trials: MAX_TRIALS };
            let (path, why) = search
                .innermost(path, &cleaned)
                .unwrap_or_else(|| (path.to_string(), error.to_string()));
            Err(Refused::new(&path, format!("{path} cannot be held: {why}")))
        }
    }
}

/// The grammar of a schema that the library does not hold because of `refused`, if it is a number that is written here.
fn with_wide_numbers(path: &str, schema: &Value, refused: Refused) -> Result<Grammar, Refused> {
    let Some(whole) = wide_integers::grammar(schema) else { return Err(refused) };
    let text = whole.text();
    if text.len() > MAX_GRAMMAR_BYTES {
        return Err(refused);
    }
    match tried(&text) {
        Ok(()) => Ok(whole),
        Err(error) => Err(Refused::new(path, format!("{path} cannot be held: {error}"))),
    }
}

/// The grammar of a value; of a tool that is not strict any value where the schema cannot be held.
pub fn held(path: &str, schema: &Value, strictness: Strictness) -> Result<Grammar, Refused> {
    match grammar(path, schema, strictness) {
        Err(_) if strictness == Strictness::Lenient => {
            let any = match schema.get("type").and_then(Value::as_str) {
                Some("object") => json!({ "type": "object" }),
                _ => json!({}),
            };
            grammar(path, &any, Strictness::Lenient)
        }
        other => other,
    }
}

/// Refuses keywords that restrict values and cannot be enforced.
fn check_words(path: &str, schema: &Value) -> Result<(), Refused> {
    let Some(words) = schema.as_object() else { return Ok(()) };
    let refuse = |word: &str, what: &str| {
        let path = format!("{path}.{word}");
        Err(Refused::new(&path, format!("{path} is not supported: {what}")))
    };
    for (word, value) in words {
        match word.as_str() {
            word if REFUSED.contains(&word) => {
                return refuse(word, "leave it out, or say it with the keywords that are there");
            }
            "uniqueItems" if value == &Value::Bool(true) => {
                return refuse(word, "answers cannot be held to it: leave it out");
            }
            "format" if value.as_str().is_some_and(|f| REFUSED_FORMATS.contains(&f)) => {
                return refuse(word, &format!("{value}; supported are: {}", FORMATS.join(", ")));
            }
            "$ref" if !value.as_str().is_some_and(|r| r.starts_with('#')) => {
                return refuse(word, "a schema can refer to its own parts only (#/...)");
            }
            _ => {}
        }
    }
    parts(path, schema).try_for_each(|(path, part)| check_words(&path, part))
}

/// The same without formats that are annotations, and without restrictions that are switched off.
fn annotations_left_out(schema: &Value) -> Value {
    match schema {
        Value::Object(words) => {
            let says_nothing = |word: &str, value: &Value| match word {
                "format" => value.as_str().is_none_or(|format| !FORMATS.contains(&format)),
                "uniqueItems" | "then" | "else" => true,
                _ => false,
            };
            let mut kept = Map::new();
            for (word, value) in words {
                let value = match word.as_str() {
                    // A property may have any of these names.
                    word if MAPS.contains(&word) => match value {
                        Value::Object(map) => {
                            let clean = |(name, part): (&String, &Value)| {
                                (name.clone(), annotations_left_out(part))
                            };
                            Value::Object(map.iter().map(clean).collect())
                        }
                        other => other.clone(),
                    },
                    "enum" | "const" | "default" | "examples" | "required" => value.clone(),
                    word if says_nothing(word, value) => continue,
                    _ => annotations_left_out(value),
                };
                kept.insert(word.clone(), value);
            }
            Value::Object(kept)
        }
        Value::Array(list) => Value::Array(list.iter().map(annotations_left_out).collect()),
        other => other.clone(),
    }
}

/// Looks for the part of a schema that is to blame.
struct Search<'a> {
    root: &'a Value,
    strictness: Strictness,
    trials: usize,
}

/// A part and its path.
type Part<'a> = (String, &'a Value);

impl Search<'_> {
    /// The innermost part of a schema that cannot be compiled by itself, and why: of `schema` it is known.
    fn innermost(&mut self, path: &str, schema: &Value) -> Option<(String, String)> {
        let all: Vec<Part<'_>> = parts(path, schema).collect();
        let (at, why) = self.first_of(&all)?;
        let (path, part) = &all[at];
        Some(self.innermost(path, part).unwrap_or((path.clone(), why)))
    }

    /// Finds the first part that does not compile by itself, and the error. It searches by halves, so that all trials
    /// together compile about as much as the whole schema has.
    fn first_of(&mut self, all: &[Part<'_>]) -> Option<(usize, String)> {
        match all {
            [] => None,
            [(_, part)] => Some((0, self.wrong_with((*part).clone())?)),
            _ => {
                let (left, right) = all.split_at(all.len() / 2);
                let named = left.iter().enumerate();
                let named = named.map(|(at, (_, part))| (at.to_string(), (*part).clone()));
                let properties: Map<String, Value> = named.collect();
                let required: Vec<&String> = properties.keys().collect();
                let together =
                    json!({ "type": "object", "required": required, "properties": properties });
                if self.wrong_with(together).is_some() {
                    return self.first_of(left);
                }
                let (at, why) = self.first_of(right)?;
                Some((left.len() + at, why))
            }
        }
    }

    /// The error of a schema by itself; `None` also where enough was tried.
    fn wrong_with(&mut self, mut alone: Value) -> Option<String> {
        self.trials = self.trials.checked_sub(1)?;
        for word in ["$defs", "definitions"] {
            if let (Some(alone), Some(defs)) = (alone.as_object_mut(), self.root.get(word)) {
                alone.entry(word).or_insert_with(|| defs.clone());
            }
        }
        let text = Grammar::json(with_options(&alone, self.strictness)).text();
        tried(&text).err().map(|why| why.to_string())
    }
}
