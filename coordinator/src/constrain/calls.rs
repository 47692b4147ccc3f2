//! The grammar of a call of a tool, as the model writes calls: names and what stands around them are the
//! template's, arguments fit the tool's schema.

use serde_json::{Map, Value, json};

use super::grammar::{Grammar, quote};
use super::schema::{self, Strictness};
use super::{MAX_GRAMMAR_BYTES, Refused};
use crate::dialect::opening::opening;
use crate::dialect::probe::Facts;
use crate::dialect::tools::{Types, types_of};
use crate::dialect::{Calls, Dialect, Shape, TaggedShape, Tool, Tools};

/// How texts are written as grammar: names of control tokens in them are those tokens.
pub trait Literals {
    /// `text` as a sequence of literals and tokens.
    fn literal(&self, text: &str) -> String;
    /// Whether all of `text` is text.
    fn is_plain(&self, text: &str) -> bool;
}

/// Most parameters of a tool whose call is written as tags or as Python.
const MAX_PARAMETERS: usize = 64;

/// Writes calls of one request's tools.
pub struct CallGrammars<'a> {
    /// The model's way of writing.
    pub dialect: &'a Dialect,
    /// What its template does.
    pub facts: &'a Facts,
    /// The tools.
    pub tools: &'a Tools,
    /// Writes literals.
    pub literals: &'a dyn Literals,
}

impl CallGrammars<'_> {
    /// What follows a text that begins a call of `name`, up to the arguments' end.
    ///
    /// # Errors
    /// A strict tool's schema cannot be held.
    pub fn arguments_of(&self, name: &str) -> Result<Option<Grammar>, Refused> {
        let Some((at, tool)) = self.numbered().find(|(_, tool)| tool.name == name) else {
            return Ok(None);
        };
        let mut parts = Parts::default();
        let Some(body) = self.arguments(at, tool, &mut parts)? else { return Ok(None) };
        Ok(Some(parts.into_grammar(format!("start: {body}"))))
    }

    /// What follows `before`, a text behind which the name of any tool may stand, up to the end of the call's
    /// arguments. `n_before`: calls before this one.
    ///
    /// # Errors
    /// As [`Self::arguments_of`].
    pub fn rest_of(&self, before: &str, n_before: usize) -> Result<Option<Grammar>, Refused> {
        let mut parts = Parts::default();
        let body = self.alternatives(&mut parts, n_before, Cut::Prefix(before))?;
        Ok(body.map(|body| parts.into_grammar(format!("start: {body}"))))
    }

    /// The texts behind which a call can begin, with the grammar of what follows.
    ///
    /// # Errors
    /// As [`Self::arguments_of`].
    pub fn behind_markers(&self) -> Result<Option<(String, Grammar)>, Refused> {
        let Some(marker) = self.marker() else { return Ok(None) };
        let mut parts = Parts::default();
        let body = self.alternatives(&mut parts, 0, Cut::Behind(&marker))?;
        let start = body.map(|body| format!("start: {SPACE}? {body}"));
        Ok(start.map(|start| (marker, parts.into_grammar(start))))
    }

    /// A whole call, for models that write them without a marker.
    ///
    /// # Errors
    /// As [`Self::arguments_of`].
    pub fn bare(&self) -> Result<Option<Grammar>, Refused> {
        let mut parts = Parts::default();
        let body = self.alternatives(&mut parts, 0, Cut::Prefix(""))?;
        Ok(body.map(|body| parts.into_grammar(format!("start: {body}"))))
    }

    /// The last marker of a call before its name.
    pub fn marker(&self) -> Option<String> {
        if self.dialect.channels {
            return Some("to=functions.".to_string());
        }
        let calls = self.dialect.calls.as_ref()?;
        let before = opening(self.dialect, self.facts, None, 0)?;
        let found =
            calls.openers().into_iter().filter_map(|o| Some((before.rfind(o)? + o.len(), o)));
        found.max_by_key(|(end, opener)| (*end, opener.len())).map(|(_, o)| o.to_string())
    }

    fn numbered(&self) -> impl Iterator<Item = (usize, &Tool)> {
        self.tools.iter().enumerate()
    }

    /// All tools' calls, of each what `cut` leaves of its beginning, and its arguments.
    fn alternatives(
        &self,
        parts: &mut Parts,
        n_before: usize,
        cut: Cut<'_>,
    ) -> Result<Option<String>, Refused> {
        let mut all = Vec::new();
        for (at, tool) in self.numbered() {
            let Some(begin) = opening(self.dialect, self.facts, Some(&tool.name), n_before) else {
                return Ok(None);
            };
            let Some(begin) = cut.of(&begin).map(|begin| self.begin(begin, tool, n_before)) else {
                return Ok(None);
            };
            let Some(arguments) = self.arguments(at, tool, parts)? else { return Ok(None) };
            all.push(format!("{begin} {arguments}"));
        }
        Ok((!all.is_empty()).then(|| format!("({})", all.join(" | "))))
    }

    /// The beginning of a call, up to its arguments.
    fn begin(&self, begin: &str, tool: &Tool, n_before: usize) -> String {
        let counted = match self.dialect.calls.as_ref().map(|calls| &calls.shape) {
            Some(Shape::Named(shape)) => shape.name_is_id,
            _ => false,
        };
        let id = format!("{}:{n_before}", tool.name);
        match begin.split_once(&id).filter(|_| counted) {
            // The model counts its calls.
            Some((before, behind)) => {
                let before = self.literals.literal(&format!("{before}{}:", tool.name));
                format!("{before} /[0-9]{{1,4}}/ {}", self.literals.literal(behind))
            }
            None => self.literals.literal(begin),
        }
    }

    /// The arguments of a tool; `None`: this form cannot be held.
    fn arguments(
        &self,
        at: usize,
        tool: &Tool,
        parts: &mut Parts,
    ) -> Result<Option<String>, Refused> {
        let path = format!("tools[{at}].function.parameters");
        let shape = match &self.dialect.calls {
            _ if self.dialect.channels => None,
            Some(Calls { shape: Shape::Tagged(shape), .. }) => Some(Form::Tagged(shape)),
            Some(Calls { shape: Shape::Python, .. }) => Some(Form::Python),
            _ => None,
        };
        let strictness = if tool.strict { Strictness::Strict } else { Strictness::Lenient };
        let schema = parameters(&tool.parameters);
        let Some(form) = shape else {
            let grammar = held(&path, &schema, strictness)?;
            return Ok(Some(parts.add(grammar)));
        };
        // Schemas that say more than which parameters there are cannot be written as tags.
        let Some(list) = Parameter::all(&schema) else { return Ok(None) };
        let mut items = Vec::new();
        for parameter in &list {
            let path = format!("{path}.properties.{}", parameter.name);
            let defs = ["$defs", "definitions"].map(|word| (word, schema.get(word)));
            let alone = parameter.alone(defs);
            let Some(item) = self.parameter(&form, &path, &alone, parameter, strictness, parts)?
            else {
                return Ok(None);
            };
            items.push((item, parameter.required));
        }
        Ok(match form {
            Form::Tagged(shape) => self.tags(shape, &items),
            Form::Python => Some(python(&items)),
        })
    }

    /// One parameter with its value.
    fn parameter(
        &self,
        form: &Form<'_>,
        path: &str,
        schema: &Value,
        parameter: &Parameter,
        strictness: Strictness,
        parts: &mut Parts,
    ) -> Result<Option<String>, Refused> {
        let grammar = held(path, schema, strictness)?;
        let shape = match form {
            Form::Python => {
                let value = parts.add(grammar);
                return Ok(Some(format!("{} {value}", quote(&format!("{}=", parameter.name)))));
            }
            Form::Tagged(shape) => shape,
        };
        if shape.tag_end.is_some() || shape.value.close.is_empty() {
            return Ok(None);
        }
        let literal = |text: &str| self.literals.literal(text);
        let pad = if shape.padded { "\n" } else { "" };
        let open = format!(
            "{}{}{}{}{pad}",
            shape.key.open, parameter.name, shape.key.close, shape.value.open
        );
        let close = format!("{pad}{}", shape.value.close);
        let is_string = types_of(schema, schema).is_some_and(Types::is_string);
        let value = match parameter.schema.get("enum").and_then(Value::as_array) {
            Some(values) if is_string => {
                let texts: Vec<String> =
                    values.iter().filter_map(Value::as_str).map(quote).collect();
                format!("({})", texts.join(" | "))
            }
            _ if is_string => {
                // Free text up to the closing tag; one that is a control token cannot be in it.
                let text = match self.literals.is_plain(&close) {
                    true => format!("[suffix={}]: /(.|\\n)*/", quote(&close)),
                    false => ": /(.|\\n)*/".to_string(),
                };
                let rule = parts.rule(&text);
                let plain = self.literals.is_plain(&close);
                let close = if plain { String::new() } else { literal(&close) };
                return Ok(Some(format!("{} {rule} {close}", literal(&open))));
            }
            _ => parts.add(grammar),
        };
        Ok(Some(format!("{} {value} {}", literal(&open), literal(&close))))
    }

    /// Parameters in the schema's order, those that need not be there left out or not, and the closing tag.
    fn tags(&self, shape: &TaggedShape, items: &[(String, bool)]) -> Option<String> {
        let call = self.dialect.calls.as_ref()?.call.as_ref();
        let end = [shape.end.as_str(), call.map_or("", |call| call.close.as_str())];
        let end = end.into_iter().find(|end| !end.trim().is_empty())?;
        let mut all = String::new();
        for (item, required) in items {
            let mark = if *required { "" } else { "?" };
            all.push_str(&format!("({SPACE}? {item}){mark} "));
        }
        Some(format!("{all}{SPACE}? {}", self.literals.literal(end.trim())))
    }
}

/// Which part of a call's beginning is there already.
#[derive(Clone, Copy)]
enum Cut<'a> {
    /// This.
    Prefix(&'a str),
    /// All up to the end of this, and white space behind it.
    Behind(&'a str),
}

impl Cut<'_> {
    fn of<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Prefix(before) => text.strip_prefix(before),
            Self::Behind(marker) => Some(text.split_once(marker)?.1.trim_start()),
        }
    }
}

/// White space that models put between the parts of a call.
const SPACE: &str = r"/[ \n]{1,8}/";

enum Form<'a> {
    Tagged(&'a TaggedShape),
    Python,
}

/// `KEY=VALUE, ...)`: what is required first, as calls are written.
fn python(items: &[(String, bool)]) -> String {
    let required: Vec<&str> =
        items.iter().filter(|(_, r)| *r).map(|(item, _)| item.as_str()).collect();
    let optional: Vec<&str> =
        items.iter().filter(|(_, r)| !*r).map(|(item, _)| item.as_str()).collect();
    let behind = |from: usize| -> String {
        optional[from..].iter().map(|item| format!("(/, ?/ {item})? ")).collect()
    };
    let list = match required.is_empty() {
        false => format!("{} {}", required.join(" /, ?/ "), behind(0)),
        true => {
            let from = |at: usize| format!("{} {}", optional[at], behind(at + 1));
            let all: Vec<String> = (0..optional.len()).map(from).collect();
            if all.is_empty() { String::new() } else { format!("({})?", all.join(" | ")) }
        }
    };
    format!("{list} \")\"")
}

/// One parameter of a tool.
struct Parameter {
    name: String,
    schema: Value,
    required: bool,
}

impl Parameter {
    /// Those of an object's schema; `None` if it says more than that, or there are too many.
    fn all(schema: &Value) -> Option<Vec<Self>> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array);
        let is_required =
            |name: &str| required.into_iter().flatten().any(|r| r.as_str() == Some(name));
        let other = ["anyOf", "oneOf", "allOf", "$ref", "patternProperties"];
        if other.iter().any(|word| schema.get(word).is_some()) {
            return None;
        }
        let all: Vec<Self> = properties
            .into_iter()
            .flatten()
            .map(|(name, schema)| Self {
                name: name.clone(),
                schema: schema.clone(),
                required: is_required(name),
            })
            .collect();
        (all.len() <= MAX_PARAMETERS).then_some(all)
    }

    /// Its schema with the definitions that it may refer to.
    fn alone(&self, defs: [(&str, Option<&Value>); 2]) -> Value {
        let mut alone = self.schema.clone();
        if let Some(words) = alone.as_object_mut() {
            for (word, defs) in defs {
                if let Some(defs) = defs {
                    words.entry(word).or_insert_with(|| defs.clone());
                }
            }
        }
        alone
    }
}

/// The grammar of a value; of a tool that is not strict any value where the schema cannot be held.
fn held(path: &str, schema: &Value, strictness: Strictness) -> Result<Grammar, Refused> {
    match schema::grammar(path, schema, strictness) {
        Err(_) if strictness == Strictness::Lenient => {
            let any = match schema.get("type").and_then(Value::as_str) {
                Some("object") => json!({ "type": "object" }),
                _ => json!({}),
            };
            schema::grammar(path, &any, Strictness::Lenient)
        }
        other => other,
    }
}

/// A tool's schema; one without any takes an empty object.
fn parameters(schema: &Value) -> Value {
    match schema {
        Value::Object(words) if !words.is_empty() => {
            let mut words = words.clone();
            // Arguments are an object whatever the schema forgets to say.
            let is_object = ["type", "$ref", "anyOf", "oneOf", "allOf"];
            if !is_object.iter().any(|word| words.contains_key(*word)) {
                words.insert("type".to_string(), json!("object"));
            }
            Value::Object(words)
        }
        _ => Value::Object(Map::from_iter([
            ("type".to_string(), json!("object")),
            ("additionalProperties".to_string(), json!(false)),
        ])),
    }
}

/// Grammars of values, and rules, beside the one that is written.
#[derive(Default)]
struct Parts {
    grammars: Vec<Grammar>,
    rules: Vec<String>,
}

impl Parts {
    /// Adds a grammar; what calls it.
    fn add(&mut self, grammar: Grammar) -> String {
        let same = self.grammars.iter().position(|other| *other == grammar);
        let at = same.unwrap_or_else(|| {
            self.grammars.push(grammar);
            self.grammars.len() - 1
        });
        format!("@part_{at}")
    }

    /// Adds a rule, given from behind its name on; what calls it.
    fn rule(&mut self, text: &str) -> String {
        let name = format!("text_{}", self.rules.len());
        self.rules.push(format!("{name}{text}"));
        name
    }

    fn into_grammar(self, start: String) -> Grammar {
        let text = std::iter::once(start).chain(self.rules).collect::<Vec<_>>().join("\n");
        let numbered = self.grammars.into_iter().enumerate();
        numbered.fold(Grammar::lark(text), |all, (at, part)| all.with(&format!("part_{at}"), part))
    }
}

/// Refuses a grammar that is too large to travel.
pub fn check_size(grammar: Grammar) -> Result<Grammar, Refused> {
    match grammar.text().len() {
        n if n > MAX_GRAMMAR_BYTES => {
            let message = format!(
                "tools: their schemas have {n} bytes: at most {MAX_GRAMMAR_BYTES} can be held"
            );
            Err(Refused::new("tools", message))
        }
        _ => Ok(grammar),
    }
}
