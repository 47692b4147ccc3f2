//! The arguments of a call that are not written as one JSON object: in tags, or as Python. Each parameter of the
//! tool's schema has its own text, with its value behind its name.

use brigade_engine::constraint::regex_for_lark;
use serde_json::{Map, Value, json};

use super::Refused;
use super::Strictness;
use super::grammar::{Literals, Parts, SPACE, quote};
use super::schema::{self, held};
use crate::values::number;
use crate::values::pointer::pointed;
use crate::values::tools::{Types, types_of};
use crate::{Pair, TaggedShape, TypedBy};

/// Most parameters of a tool.
const MAX_PARAMETERS: usize = 64;

/// Most ways in which a schema's unions let its parameters be combined.
const MAX_COMBINATIONS: usize = 16;

/// Steps into references and unions of a schema.
const MAX_DEPTH: usize = 8;

/// JSON Schema's name for text, and its others.
const STRING: &str = "string";
const JSON_TYPES: [&str; 6] = ["integer", "number", "boolean", "null", "object", "array"];

/// How arguments are written.
pub enum Writing<'a> {
    /// Each argument in tags of its own.
    Tags {
        /// The markers of tags.
        shape: &'a TaggedShape,
        /// The markers around the call.
        call: Option<&'a Pair>,
        /// Writes literals as grammar text.
        literals: &'a dyn Literals,
    },
    /// Python's keyword arguments, `KEY=VALUE, ...)`.
    Python,
}

/// The arguments that fit `schema`, an object's, up to the end of the call; `path` is the schema's.
///
/// # Errors
/// The error names what cannot be held, by its path.
pub fn written(
    writing: &Writing<'_>,
    path: &str,
    schema: &Value,
    strictness: Strictness,
    parts: &mut Parts,
) -> Result<String, Refused> {
    // Schemas that cannot be enforced are refused by their own paths.
    if strictness == Strictness::Strict {
        schema::grammar(path, schema, strictness)?;
    }
    let mut ways = Vec::new();
    for object in combinations(path, schema, schema, MAX_DEPTH)? {
        let mut items = Vec::new();
        for (name, property) in &object.properties {
            let path = format!("{path}.properties.{name}");
            let alone = with_definitions(property, schema);
            let item = Item { writing, path: &path, name, schema: &alone, strictness };
            items.push((item.written(parts)?, object.required.contains(name)));
        }
        let way = match writing {
            Writing::Python => python(&items),
            Writing::Tags { shape, call, literals } => tags(shape, *call, *literals, &items)
                .ok_or_else(|| {
                    Refused::new(path, format!("{path}: calls of this model have no end to hold"))
                })?,
        };
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    Ok(match &ways[..] {
        [only] => only.clone(),
        _ => format!("({})", ways.join(" | ")),
    })
}

/// Parameters that may be there together.
#[derive(Clone, Debug, Default)]
struct Object {
    properties: Map<String, Value>,
    required: Vec<String>,
}

/// The objects that a schema allows: one for each choice in its unions.
fn combinations(
    path: &str,
    schema: &Value,
    root: &Value,
    depth: usize,
) -> Result<Vec<Object>, Refused> {
    let refused = |word: &str, why: &str| {
        let path = format!("{path}.{word}");
        Err(Refused::new(&path, format!("{path}: {why}")))
    };
    if depth == 0 {
        return refused("$ref", &format!("deeper than {MAX_DEPTH} steps"));
    }
    if schema.get("patternProperties").is_some() {
        return refused("patternProperties", "this model's calls name each parameter");
    }
    let of = |schema: &Value, path: &str| combinations(path, schema, root, depth - 1);
    let mut all = vec![Object::of(schema)];
    if let Some(to) = schema.get("$ref").and_then(Value::as_str) {
        let Some(target) = pointed(root, to) else {
            return refused("$ref", "it points to nothing here");
        };
        all = joined(path, &all, &of(target, &format!("{path}.$ref"))?)?;
    }
    let list = |word: &str| schema.get(word).and_then(Value::as_array).into_iter().flatten();
    for (i, part) in list("allOf").enumerate() {
        all = joined(path, &all, &of(part, &format!("{path}.allOf[{i}]"))?)?;
    }
    for word in ["anyOf", "oneOf"] {
        let mut choices = Vec::new();
        for (i, choice) in list(word).enumerate() {
            choices.extend(of(choice, &format!("{path}.{word}[{i}]"))?);
        }
        if !choices.is_empty() {
            all = joined(path, &all, &choices)?;
        }
    }
    Ok(all)
}

/// Each of `left` together with each of `right`.
fn joined(path: &str, left: &[Object], right: &[Object]) -> Result<Vec<Object>, Refused> {
    let pairs = left.iter().flat_map(|a| right.iter().map(move |b| a.and(b)));
    let all: Vec<Object> = pairs.collect();
    let too_many = all.iter().any(|object| object.properties.len() > MAX_PARAMETERS);
    if all.len() > MAX_COMBINATIONS || too_many {
        let message = format!(
            "{path}: at most {MAX_PARAMETERS} parameters in {MAX_COMBINATIONS} combinations can be held"
        );
        return Err(Refused::new(path, message));
    }
    Ok(all)
}

impl Object {
    fn of(schema: &Value) -> Self {
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        Self {
            properties: schema
                .get("properties")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
            required: required.filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        for (name, schema) in &other.properties {
            let joined = match both.properties.get(name) {
                Some(own) if own != schema => json!({ "allOf": [own, schema] }),
                _ => schema.clone(),
            };
            both.properties.insert(name.clone(), joined);
        }
        both.required.extend(other.required.iter().cloned());
        both
    }
}

/// A schema with the definitions of `root` that it may refer to.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut alone = schema.clone();
    if let Some(words) = alone.as_object_mut() {
        for word in ["$defs", "definitions"] {
            if let Some(defs) = root.get(word) {
                words.entry(word).or_insert_with(|| defs.clone());
            }
        }
    }
    alone
}

/// One parameter of a tool.
struct Item<'a> {
    writing: &'a Writing<'a>,
    path: &'a str,
    name: &'a str,
    schema: &'a Value,
    strictness: Strictness,
}

impl Item<'_> {
    fn written(&self, parts: &mut Parts) -> Result<String, Refused> {
        let (shape, literals) = match self.writing {
            Writing::Python => {
                let value = parts.add(held(self.path, self.schema, self.strictness)?);
                return Ok(format!("{} {value}", quote(&format!("{}=", self.name))));
            }
            Writing::Tags { shape, literals, .. } => (*shape, *literals),
        };
        if shape.value.close.is_empty() {
            let message = format!("{}: values of this model's calls have no end", self.path);
            return Err(Refused::new(self.path, message));
        }
        let types = types_of(self.schema, self.schema);
        if types.is_some_and(Types::is_string) {
            return self.text(shape, literals, parts);
        }
        let types = types.unwrap_or_else(Types::all);
        let ways = match shape.typed_by {
            TypedBy::Nothing => self.untyped(shape, literals, types, parts)?,
            TypedBy::StringFlag => {
                let mut ways =
                    vec![self.json(shape, literals, " string=\"false\"", types, parts)?];
                if types.has(STRING) {
                    ways.push(self.text(shape, literals, parts)?);
                }
                ways
            }
            TypedBy::TypeName => self.by_type(shape, literals, types, parts)?,
        };
        Ok(format!("({})", ways.join(" | ")))
    }

    /// A value of which nothing says whether it is text: what parses as JSON of a type that may be is that.
    fn untyped(
        &self,
        shape: &TaggedShape,
        literals: &dyn Literals,
        types: Types,
        parts: &mut Parts,
    ) -> Result<Vec<String>, Refused> {
        if !types.has(STRING) {
            return Ok(vec![self.json(shape, literals, "", types, parts)?]);
        }
        let text = self.text(shape, literals, parts)?;
        let texts = texts(self.path, self.schema, self.schema, MAX_DEPTH).unwrap_or_default();
        if !texts.is_empty() && texts.iter().all(|text| matches!(text, Text::Exactly(_))) {
            return Ok(vec![text, self.json(shape, literals, "", types, parts)?]);
        }
        // Any text may be written, and so all JSON. No value of null can be wrong.
        let others = JSON_TYPES.iter().any(|name| *name != "null" && types.has(name));
        if others && self.strictness == Strictness::Strict {
            let path = format!("{}.type", self.path);
            let message = format!(
                "{path}: text or something else, in tags that do not say which, as this model writes it, cannot be held"
            );
            return Err(Refused::new(path, message));
        }
        Ok(vec![text])
    }

    /// A value whose tag says of which type it is.
    fn by_type(
        &self,
        shape: &TaggedShape,
        literals: &dyn Literals,
        types: Types,
        parts: &mut Parts,
    ) -> Result<Vec<String>, Refused> {
        let mut ways = Vec::new();
        if types.has(STRING) {
            ways.push(self.text(shape, literals, parts)?);
        }
        // An integer is called a number.
        for name in JSON_TYPES.into_iter().filter(|name| *name != "integer" && types.has(name)) {
            let attribute = format!(" type=\"{name}\"");
            let mut one = Types::default();
            one.add(name);
            // Of a type that the schema does not allow after all there is nothing to write.
            if let Ok(way) = self.json(shape, literals, &attribute, one, parts) {
                ways.push(way);
            }
        }
        if ways.is_empty() {
            Err(Refused::new(self.path, format!("{} allows no value", self.path)))
        } else {
            Ok(ways)
        }
    }

    /// The opening tag with what it says of the value.
    fn open(&self, shape: &TaggedShape, attribute: &str) -> String {
        let name = match shape.tag_end {
            Some(_) => self.name.replace('&', "&amp;").replace('"', "&quot;"),
            None => self.name.to_owned(),
        };
        let TaggedShape { key, value, .. } = shape;
        let tag_end = shape.tag_end.as_deref().unwrap_or_default();
        format!("{}{name}{}{attribute}{tag_end}{}{}", key.open, key.close, value.open, pad(shape))
    }

    /// JSON of one of `types`, but for text.
    fn json(
        &self,
        shape: &TaggedShape,
        literals: &dyn Literals,
        attribute: &str,
        types: Types,
        parts: &mut Parts,
    ) -> Result<String, Refused> {
        let names: Vec<&str> = JSON_TYPES.into_iter().filter(|name| types.has(name)).collect();
        let narrowed = json!({ "allOf": [self.schema, { "type": names }] });
        let schema = with_definitions(&narrowed, self.schema);
        let value = parts.add(held(self.path, &schema, self.strictness)?);
        let close = format!("{}{}", pad(shape), shape.value.close);
        let open = self.open(shape, attribute);
        Ok(format!("{} {value} {}", literals.literal(&open), literals.literal(&close)))
    }

    /// Text as it is, up to the closing tag.
    fn text(
        &self,
        shape: &TaggedShape,
        literals: &dyn Literals,
        parts: &mut Parts,
    ) -> Result<String, Refused> {
        let attribute = match shape.typed_by {
            TypedBy::Nothing => "",
            TypedBy::StringFlag => " string=\"true\"",
            TypedBy::TypeName => " type=\"string\"",
        };
        let close = format!("{}{}", pad(shape), shape.value.close);
        let open = literals.literal(&self.open(shape, attribute));
        let texts = match texts(self.path, self.schema, self.schema, MAX_DEPTH) {
            Err(_) if self.strictness == Strictness::Lenient => vec![Text::Any],
            other => other?,
        };
        let plain = literals.is_plain(&close);
        let mut ways = Vec::new();
        for text in texts {
            let regex = match text {
                Text::Exactly(text) => {
                    ways.push(format!("{} {}", quote(&text), literals.literal(&close)));
                    continue;
                }
                Text::Any => r"(.|\n)*".to_owned(),
                Text::Like(regex) => regex,
            };
            // Up to the closing tag; one that is a control token cannot be in a text.
            ways.push(if plain {
                parts.rule(&format!("[suffix={}]: /{regex}/", quote(&close)))
            } else {
                let rule = parts.rule(&format!(": /{regex}/"));
                format!("{rule} {}", literals.literal(&close))
            });
        }
        Ok(format!("{open} ({})", ways.join(" | ")))
    }
}

fn pad(shape: &TaggedShape) -> &'static str {
    if shape.padded { "\n" } else { "" }
}

/// A text that a string's schema allows.
#[derive(Debug, PartialEq)]
enum Text {
    Any,
    Exactly(String),
    /// The text matches a regular expression as a whole.
    Like(String),
}

/// The strings that a schema allows, all of them.
fn texts(path: &str, schema: &Value, root: &Value, depth: usize) -> Result<Vec<Text>, Refused> {
    let refused = |word: &str| {
        let path = format!("{path}.{word}");
        let message =
            format!("{path}: of text in tags, as this model writes it, it cannot be held");
        Err(Refused::new(&path, message))
    };
    if depth == 0 {
        return refused("$ref");
    }
    let values = schema.get("enum").and_then(Value::as_array);
    let only = schema.get("const").map(std::slice::from_ref);
    if let Some(values) = only.or(values.map(Vec::as_slice)) {
        let texts = values.iter().filter_map(Value::as_str);
        return Ok(texts.map(|text| Text::Exactly(text.to_owned())).collect());
    }
    if let Some(to) = schema.get("$ref").and_then(Value::as_str) {
        return match pointed(root, to) {
            Some(target) => texts(path, target, root, depth - 1),
            None => refused("$ref"),
        };
    }
    for word in ["anyOf", "oneOf"] {
        let Some(choices) = schema.get(word).and_then(Value::as_array) else { continue };
        let has_text = |s: &&Value| types_of(s, root).is_none_or(|types| types.has("string"));
        let mut all = Vec::new();
        for choice in choices.iter().filter(has_text) {
            all.extend(texts(path, choice, root, depth - 1)?);
        }
        return Ok(all);
    }
    if let Some(word) = ["allOf", "format"].into_iter().find(|word| schema.get(*word).is_some()) {
        return refused(word);
    }
    let bound = |word: &str| match schema.get(word) {
        None => Ok(None),
        Some(value) => number::whole::<u32>(value).map(Some).ok_or_else(|| {
            let path = format!("{path}.{word}");
            let message = format!("{path} is {value}: a whole number from 0 is needed");
            Refused::new(path, message)
        }),
    };
    let (least, most) = (bound("minLength")?, bound("maxLength")?);
    let pattern = schema.get("pattern").and_then(Value::as_str);
    Ok(vec![match (pattern, least, most) {
        (None, None, None) => Text::Any,
        (None, least, most) => {
            let most = most.map_or(String::new(), |most| most.to_string());
            Text::Like(format!(r"(.|\n){{{},{most}}}", least.unwrap_or(0)))
        }
        (Some(pattern), None, None) => Text::Like(regex_for_lark(&anywhere(pattern))),
        (Some(_), ..) => return refused("pattern"),
    }])
}

/// A schema's pattern, which may match any part of a text, as one of the whole text.
fn anywhere(pattern: &str) -> String {
    let (begin, rest) = match pattern.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => (r"(.|\n)*", pattern),
    };
    let slashes = |text: &str| text.len() - text.trim_end_matches('\\').len();
    let before = rest.strip_suffix('$');
    let escaped = before.is_some_and(|before| !slashes(before).is_multiple_of(2));
    match rest.strip_suffix('$').filter(|_| !escaped) {
        Some(inner) => format!("{begin}({inner})"),
        None => format!(r"{begin}({rest})(.|\n)*"),
    }
}

/// Parameters in the schema's order, those that need not be there left out or not, and the closing tag.
fn tags(
    shape: &TaggedShape,
    call: Option<&Pair>,
    literals: &dyn Literals,
    items: &[(String, bool)],
) -> Option<String> {
    let end = [shape.end.as_str(), call.map_or("", |call| call.close.as_str())];
    let end = end.into_iter().find(|end| !end.trim().is_empty())?;
    let mut all = String::new();
    for (item, required) in items {
        let mark = if *required { "" } else { "?" };
        all.push_str(&format!("({SPACE}? {item}){mark} "));
    }
    Some(format!("{all}{SPACE}? {}", literals.literal(end.trim())))
}

/// `KEY=VALUE, ...)`: the required parameters first, as in calls of Python.
fn python(items: &[(String, bool)]) -> String {
    let of = |wanted: bool| -> Vec<&str> {
        items.iter().filter(|(_, r)| *r == wanted).map(|(item, _)| item.as_str()).collect()
    };
    let (required, optional) = (of(true), of(false));
    let behind = |from: usize| -> String {
        optional[from..].iter().map(|item| format!("(/, ?/ {item})? ")).collect()
    };
    let list = if required.is_empty() {
        let from = |at: usize| format!("{} {}", optional[at], behind(at + 1));
        let all: Vec<String> = (0..optional.len()).map(from).collect();
        if all.is_empty() { String::new() } else { format!("({})?", all.join(" | ")) }
    } else {
        format!("{} {}", required.join(" /, ?/ "), behind(0))
    };
    format!("{list} \")\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_made_one_of_the_whole_text() {
        assert_eq!(anywhere("^a$"), "(a)");
        assert_eq!(anywhere("b"), r"(.|\n)*(b)(.|\n)*");
        assert_eq!(anywhere(r"^a\$"), r"(a\$)(.|\n)*");
    }

    #[test]
    fn unions_make_combinations_of_parameters() {
        let schema = json!({
            "properties": { "a": {} }, "required": ["a"], "$defs": { "d": { "properties": { "d": {} } } },
            "anyOf": [
                { "properties": { "b": {} }, "required": ["b"] },
                { "$ref": "#/$defs/d", "properties": { "a": { "type": "string" } } },
            ],
        });
        let all = combinations("p", &schema, &schema, MAX_DEPTH).unwrap();
        let names =
            |object: &Object| object.properties.keys().cloned().collect::<Vec<_>>().join(",");
        assert_eq!(all.iter().map(names).collect::<Vec<_>>(), ["a,b", "a,d"]);
        assert_eq!(all[0].required, ["a", "b"]);
        assert_eq!(all[1].properties["a"], json!({ "allOf": [{}, { "type": "string" }] }));
        let circle = json!({ "$ref": "#" });
        assert!(combinations("p", &circle, &circle, MAX_DEPTH).is_err());
        let patterns = json!({ "anyOf": [{ "patternProperties": { "^a": {} } }] });
        let error = combinations("p", &patterns, &patterns, MAX_DEPTH).unwrap_err();
        assert_eq!(error.path, "p.anyOf[0].patternProperties");
    }

    #[test]
    fn texts_in_tags_fit_their_schema() {
        let of = |schema: Value| texts("p", &schema, &schema, MAX_DEPTH);
        let like = |regex: &str| Text::Like(regex.to_owned());
        assert_eq!(of(json!({ "type": "string" })).unwrap(), [Text::Any]);
        assert_eq!(of(json!({ "minLength": 2 })).unwrap(), [like(r"(.|\n){2,}")]);
        assert_eq!(of(json!({ "maxLength": 3 })).unwrap(), [like(r"(.|\n){0,3}")]);
        assert_eq!(of(json!({ "maxLength": 3.0 })).unwrap(), [like(r"(.|\n){0,3}")]);
        assert_eq!(of(json!({ "maxLength": 3.5 })).unwrap_err().path, "p.maxLength");
        assert_eq!(of(json!({ "pattern": "^[a-z]+$" })).unwrap(), [like("([a-z]+)")]);
        let union =
            json!({ "anyOf": [{ "enum": ["a", 1] }, { "type": "number" }, { "const": "b" }] });
        let exactly = |text: &str| Text::Exactly(text.to_owned());
        assert_eq!(of(union).unwrap(), [exactly("a"), exactly("b")]);
        for (schema, path) in [
            (json!({ "format": "date" }), "p.format"),
            (json!({ "pattern": "a", "minLength": 2 }), "p.pattern"),
        ] {
            assert_eq!(of(schema).unwrap_err().path, path);
        }
    }
}
