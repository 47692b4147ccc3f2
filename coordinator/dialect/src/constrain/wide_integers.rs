//! Schemas with integers that the grammar library cannot represent ([`super::bounds`]). It turns all of them into
//! f64, and cannot negate the lowest i64. The part of the schema around such a number is written here, down to the
//! number's own regular expression ([`super::integers`]). All other parts stay the library's.
//!
//! It supports types, bounds and literals of the number itself, and `$ref`, `anyOf` and `allOf` of such schemas. It
//! supports objects with named properties, which then have no others, or with others alone, and lists of one kind of
//! items.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::grammar::Grammar;
use super::normalised::normal;
use super::options::with_options;
use super::{Strictness, bounds, integers, literal_regex};
use crate::values::number;
use crate::values::pointer::pointed;

/// Most properties that need not be there, of an object with such a number in it.
const MAX_OPTIONAL: usize = 64;

/// Most parts of a schema that are written.
const MAX_PARTS: usize = 2000;

/// White space as the library has it here.
const SPACE: &str = r"( |\n[ \t]{0,20})?";

/// Words that restrict values, but for those that restrict texts alone.
const RESTRICTING: [&str; 23] = [
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "const",
    "enum",
    "type",
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Keywords that restrict numbers and are not supported here beside others.
const NOT_WRITTEN: [&str; 4] = ["$ref", "anyOf", "oneOf", "multipleOf"];

/// Keywords that hold definitions.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The grammar of a schema with such numbers; `None`: it has them where they are not written.
pub fn grammar(schema: &Value) -> Option<Grammar> {
    let mut writer = Writer { root: schema, rules: Vec::new(), known: BTreeMap::new(), n_parts: 0 };
    let start = writer.part(schema)?;
    let rules: String = writer.rules.iter().map(|rule| format!("\n{rule}")).collect();
    Some(Grammar::lark(format!("start: {start}{rules}")))
}

/// Writes grammar rules for a schema.
struct Writer<'a> {
    root: &'a Value,
    rules: Vec<String>,
    /// The rules of what references point to.
    known: BTreeMap<String, String>,
    n_parts: usize,
}

impl Writer<'_> {
    /// A schema as an expression.
    fn part(&mut self, schema: &Value) -> Option<String> {
        self.n_parts += 1;
        if self.n_parts > MAX_PARTS {
            return None;
        }
        let alone = with_definitions(schema, self.root);
        let held = alone.and_then(|alone| normal("", &alone, Strictness::Strict).ok());
        if let Some(held) = held {
            return Some(json_part(&held));
        }
        let words = schema.as_object()?;
        let said: Vec<&str> = words.keys().map(String::as_str).collect();
        let said: Vec<&str> = said.into_iter().filter(|word| RESTRICTING.contains(word)).collect();
        match said[..] {
            ["$ref"] => self.reference(words["$ref"].as_str()?),
            ["anyOf"] => {
                let choices = words["anyOf"].as_array()?.iter();
                any_of(choices.map(|choice| self.part(choice)).collect::<Option<_>>()?)
            }
            _ if words.contains_key("allOf") => {
                let merged = merged(words)?;
                self.part(&merged)
            }
            _ if words.get("type").is_some_and(|ty| ty == "object") => self.object(words, &said),
            _ if words.get("type").is_some_and(|ty| ty == "array") => self.list(words, &said),
            _ => self.number(words, &said),
        }
    }

    /// A rule; what calls it.
    fn rule(&mut self, body: &str) -> String {
        let name = format!("wide_{}", self.rules.len());
        self.rules.push(format!("{name}: {body}"));
        name
    }

    fn reference(&mut self, to: &str) -> Option<String> {
        if let Some(name) = self.known.get(to) {
            return Some(name.clone());
        }
        let target = pointed(self.root, to)?;
        // The rule is reserved first, because its body may refer to it.
        let (at, name) = (self.rules.len(), self.rule(""));
        self.known.insert(to.to_string(), name.clone());
        let body = self.part(target)?;
        self.rules[at].push_str(&body);
        Some(name)
    }

    /// A number, or what else its types or its literals allow.
    fn number(&mut self, words: &Map<String, Value>, said: &[&str]) -> Option<String> {
        if said.iter().any(|word| NOT_WRITTEN.contains(word)) {
            return None;
        }
        match (words.get("const"), words.get("enum"), words.get("type")) {
            (Some(literal), None, _) => self.literals(words, &[literal]),
            (None, Some(Value::Array(all)), _) => self.literals(words, &Vec::from_iter(all)),
            (None, None, Some(Value::Array(types))) => {
                any_of(types.iter().map(|ty| self.of_type(words, ty)).collect::<Option<_>>()?)
            }
            (None, None, Some(ty)) if ty == "integer" => {
                let (least, most) = bounds::whole_range(words)?;
                Some(format!("/{}/", integers::regex(least, most)?))
            }
            _ => None,
        }
    }

    /// The rule for a value of one of a schema's types.
    fn of_type(&mut self, words: &Map<String, Value>, ty: &Value) -> Option<String> {
        let mut words = words.clone();
        let others: &[&str] = match ty.as_str()? {
            "integer" | "number" => &[],
            _ => &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
        };
        let of_objects = ["properties", "additionalProperties"].iter().filter(|_| ty != "object");
        let of_lists = ["items"].iter().filter(|_| ty != "array");
        for word in others.iter().chain(of_objects).chain(of_lists) {
            words.shift_remove(*word);
        }
        words.insert("type".to_string(), ty.clone());
        self.part(&Value::Object(words))
    }

    /// The whole numbers of some literals, and the others as the library writes them.
    fn literals(&mut self, words: &Map<String, Value>, all: &[&Value]) -> Option<String> {
        let (least, most) = bounds::whole_range(words)?;
        let (whole, rest): (Vec<&Value>, Vec<&Value>) =
            all.iter().partition(|value| bounds::exactly(value).is_some());
        let is_bound = least.is_some() || most.is_some();
        // Where none is whole all are others' to write, who do not know the bounds.
        if whole.is_empty() || is_bound && rest.iter().any(|value| value.is_number()) {
            return None;
        }
        let is_within = |number: &i128| {
            least.is_none_or(|least| *number >= least) && most.is_none_or(|most| *number <= most)
        };
        let whole = whole.into_iter().filter_map(bounds::exactly).filter(is_within);
        let whole = whole.filter(|_| bounds::allows_whole(words));
        let whole = whole.filter_map(|number| integers::regex(Some(number), Some(number)));
        let mut ways: Vec<String> = whole.map(|number| format!("/{number}/")).collect();
        if !rest.is_empty() {
            let mut others = words.clone();
            for word in bounds::LEAST.into_iter().chain(bounds::MOST).chain(["const"]) {
                others.shift_remove(word);
            }
            others.insert("enum".to_string(), rest.into_iter().cloned().collect());
            ways.push(self.part(&Value::Object(others))?);
        }
        any_of(ways)
    }

    fn object(&mut self, words: &Map<String, Value>, said: &[&str]) -> Option<String> {
        const KNOWN: [&str; 4] = ["type", "properties", "required", "additionalProperties"];
        let none = Map::new();
        let properties = match words.get("properties") {
            Some(properties) => properties.as_object()?,
            None => &none,
        };
        let required = words.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: BTreeSet<&str> = required.filter_map(Value::as_str).collect();
        let others = words.get("additionalProperties").filter(|others| others.is_object());
        let is_known = said.iter().all(|word| KNOWN.contains(word))
            && required.iter().all(|name| properties.contains_key(*name))
            && (others.is_none() || properties.is_empty());
        if !is_known || properties.len() - required.len() > MAX_OPTIONAL {
            return None;
        }
        let [open, close] = [format!(r"/\{{{SPACE}/"), format!(r"/{SPACE}\}}/")];
        if let Some(others) = others {
            let value = self.part(others)?;
            let name = json_part(&json!({ "type": "string" }));
            let member = self.rule(&format!("{name} {} {value}", sign(":")));
            return Some(format!("{open} ({member} ({} {member})*)? {close}", sign(",")));
        }
        let mut members = Vec::new();
        for (name, property) in properties {
            let value = self.part(property)?;
            let key = literal_regex(&Value::from(name.as_str()).to_string());
            let member = self.rule(&format!("/{key}{SPACE}:{SPACE}/ {value}"));
            members.push((member, required.contains(name.as_str())));
        }
        Some(format!("{open} {} {close}", self.in_order(&members)))
    }

    /// Members in their order; those that need not be there are left out or not.
    fn in_order(&mut self, members: &[(String, bool)]) -> String {
        let (mut behind, mut ways) = (String::new(), Vec::new());
        for (at, (member, is_required)) in members.iter().enumerate().rev() {
            // The first one that is there: none before it is required.
            if members[..at].iter().all(|(_, is_required)| !is_required) {
                ways.push(format!("{member} {behind}"));
            }
            let mark = if *is_required { "" } else { "?" };
            behind = self.rule(&format!("({} {member}){mark} {behind}", sign(",")));
        }
        let mark = if members.iter().any(|(_, is_required)| *is_required) { "" } else { "?" };
        if ways.is_empty() { String::new() } else { format!("({}){mark}", ways.join(" | ")) }
    }

    fn list(&mut self, words: &Map<String, Value>, said: &[&str]) -> Option<String> {
        const KNOWN: [&str; 4] = ["type", "items", "minItems", "maxItems"];
        let count = |word: &str| words.get(word).map(number::whole::<u16>);
        let least = count("minItems").unwrap_or(Some(0))?;
        let most = match count("maxItems") {
            Some(most) => Some(most?),
            None => None,
        };
        let items = words.get("items").filter(|items| items.is_object())?;
        if !said.iter().all(|word| KNOWN.contains(word)) || most.is_some_and(|most| most < least) {
            return None;
        }
        let [open, close] = [format!(r"/\[{SPACE}/"), format!(r"/{SPACE}\]/")];
        if most == Some(0) {
            return Some(format!("{open} {close}"));
        }
        let item = self.part(items)?;
        let item = self.rule(&item);
        let more = most.map_or(String::new(), |most| (most - 1).to_string());
        let next = match most {
            Some(1) => String::new(),
            _ => format!("({} {item}){{{},{more}}}", sign(","), least.saturating_sub(1)),
        };
        let mark = if least == 0 { "?" } else { "" };
        Some(format!("{open} ({item} {next}){mark} {close}"))
    }
}

fn any_of(ways: Vec<String>) -> Option<String> {
    (!ways.is_empty()).then(|| format!("({})", ways.join(" | ")))
}

/// A sign of JSON between two values.
fn sign(sign: &str) -> String {
    format!("/{SPACE}{sign}{SPACE}/")
}

/// A part that the library writes.
fn json_part(schema: &Value) -> String {
    format!("%json {}", with_options(schema, Strictness::Strict))
}

/// A schema with the definitions that it needs of `root`, and no others; `None`: it points to something else.
fn with_definitions(schema: &Value, root: &Value) -> Option<Value> {
    let mut alone = schema.clone();
    let Some(words) = alone.as_object_mut() else { return Some(alone) };
    for word in DEFINITIONS {
        words.shift_remove(word);
    }
    let mut needed = BTreeSet::new();
    let mut left: Vec<Value> = vec![Value::Object(words.clone())];
    while let Some(part) = left.pop() {
        let mut all = Vec::new();
        references(&part, &mut all);
        for to in all {
            let mut steps = to.strip_prefix("#/")?.split('/');
            let (word, step) = (steps.next()?, steps.next()?);
            let word = DEFINITIONS.into_iter().find(|known| *known == word)?;
            let target = pointed(root, &format!("#/{word}/{step}"))?;
            let defs = root.get(word)?.as_object()?;
            let (name, _) = defs.iter().find(|(_, def)| std::ptr::eq(*def, target))?;
            if needed.insert((word, name.clone())) {
                left.push(target.clone());
            }
        }
    }
    for (word, name) in needed {
        let defs = words.entry(word).or_insert_with(|| json!({}));
        defs.as_object_mut()?.insert(name.clone(), root.get(word)?.get(&name)?.clone());
    }
    Some(alone)
}

/// Everything that a value points to.
fn references(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::Object(words) => {
            all.extend(words.get("$ref").and_then(Value::as_str).map(str::to_owned));
            words.values().for_each(|value| references(value, all));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, all)),
        _ => {}
    }
}

/// The schema with its `allOf` merged into it; `None`: two of them restrict the same keyword, which is not supported
/// here.
fn merged(words: &Map<String, Value>) -> Option<Value> {
    let mut all = words.clone();
    let parts = all.shift_remove("allOf")?;
    for part in parts.as_array()? {
        for (word, value) in part.as_object()? {
            let Some(own) = all.get(word) else {
                all.insert(word.clone(), value.clone());
                continue;
            };
            let both = match word.as_str() {
                word if !RESTRICTING.contains(&word) || own == value => continue,
                "type" => {
                    let [own, other] = [own, value].map(types);
                    let both: Vec<Value> =
                        own?.into_iter().filter_map(|ty| common(&ty, other.as_ref()?)).collect();
                    Value::from(both)
                }
                word => bounds::tighter(word, own, value)?.clone(),
            };
            all.insert(word.clone(), both);
        }
    }
    Some(Value::Object(all))
}

/// The types that a `type` names.
fn types(word: &Value) -> Option<Vec<String>> {
    match word {
        Value::String(ty) => Some(vec![ty.clone()]),
        Value::Array(all) => all.iter().map(|ty| Some(ty.as_str()?.to_string())).collect(),
        _ => None,
    }
}

/// The type that both sides allow: an integer is a number too.
fn common(ty: &str, others: &[String]) -> Option<Value> {
    let has = |name: &str| others.iter().any(|other| other == name);
    match ty {
        "integer" if has("number") => Some(json!("integer")),
        "number" if !has("number") && has("integer") => Some(json!("integer")),
        ty => has(ty).then(|| json!(ty)),
    }
}
