//! The grammar of a tool call, as the model writes calls. Names and markup are the template's; arguments match the
//! tool's schema.

use serde_json::{Map, Value, json};

use super::Strictness;
use super::grammar::{Grammar, Literals, Parts, SPACE};
use super::parameters::{self, Writing};
use super::schema::held;
use super::{MAX_GRAMMAR_BYTES, Refused};
use crate::template::opening::opening;
use crate::template::probe::Facts;
use crate::{Calls, Dialect, Shape, Tool, Tools, TypedBy};

/// Writes calls of one request's tools.
pub struct CallGrammars<'a> {
    /// The model's way of writing.
    pub dialect: &'a Dialect,
    /// The template's markup of calls.
    pub facts: &'a Facts,
    /// The tools that may be called.
    pub tools: &'a Tools,
    /// Writes literals as grammar text.
    pub literals: &'a dyn Literals,
    /// Whether one call is enough.
    pub single: bool,
}

impl CallGrammars<'_> {
    /// The grammar behind the beginning of a call of `name`, up to the arguments' end.
    ///
    /// # Errors
    /// A strict tool's schema cannot be enforced.
    pub fn arguments_of(&self, name: &str) -> Result<Option<Grammar>, Refused> {
        let Some((at, tool)) = self.numbered().find(|(_, tool)| tool.name == name) else {
            return Ok(None);
        };
        let mut parts = Parts::default();
        let Some(body) = self.arguments(at, tool, &mut parts)? else { return Ok(None) };
        let rest = self.rest_of_list(&mut parts)?;
        Ok(Some(parts.into_grammar(format!("start: {body} {rest}"))))
    }

    /// The grammar behind `before`, up to the end of a call's arguments. `before` ends where the name of any tool may
    /// stand. `n_before`: calls before this one.
    ///
    /// # Errors
    /// As [`Self::arguments_of`].
    pub fn rest_of(&self, before: &str, n_before: usize) -> Result<Option<Grammar>, Refused> {
        let mut parts = Parts::default();
        let body = self.alternatives(&mut parts, n_before, Begun::Prefix(before))?;
        Ok(body.map(|body| parts.into_grammar(format!("start: {body}"))))
    }

    /// The end of a call in a list of calls: what ends the call, further calls, and the list's end.
    fn rest_of_list(&self, parts: &mut Parts) -> Result<String, Refused> {
        let Some((first, close)) = self.list() else { return Ok(String::new()) };
        if self.single {
            return Ok(format!("{close} {END_OF_LIST}"));
        }
        let Some(calls) = self.one_of(parts, 1, Begun::Prefix(&first))? else {
            return Ok(format!("{close} {END_OF_LIST}"));
        };
        let next = parts.rule(&format!(": {NEXT_IN_LIST} {calls} {close}"));
        Ok(format!("{close} {next}* {END_OF_LIST}"))
    }

    /// The ends of a list of calls: what stands before the first call, and what ends each.
    fn list(&self) -> Option<(String, &'static str)> {
        let (opens, close) = match &self.dialect.calls.as_ref()?.shape {
            Shape::Json(_) => ('{', END_OF_OBJECT),
            // Arguments end with the call.
            Shape::Python => ('[', ""),
            Shape::Named(_) | Shape::Tagged(_) => return None,
        };
        let before = opening(self.dialect, self.facts, None, 0)?;
        let first = match opens {
            '[' => before.strip_suffix('[').map(|_| before.as_str())?,
            _ => &before[..before.rfind(opens)?],
        };
        first.trim_end().ends_with('[').then(|| (first.to_owned(), close))
    }

    /// The texts behind which a call can begin, with the grammar of what follows.
    ///
    /// # Errors
    /// As [`Self::arguments_of`].
    pub fn behind_markers(&self) -> Result<Option<(String, Grammar)>, Refused> {
        let Some(marker) = self.marker() else { return Ok(None) };
        let mut parts = Parts::default();
        let body = self.alternatives(&mut parts, 0, Begun::Behind(&marker))?;
        let start = body.map(|body| format!("start: {SPACE}? {body}"));
        Ok(start.map(|start| (marker, parts.into_grammar(start))))
    }

    /// A whole call, for models that write them without a marker.
    ///
    /// # Errors
    /// As [`Self::arguments_of`].
    pub fn bare(&self) -> Result<Option<Grammar>, Refused> {
        let mut parts = Parts::default();
        let body = self.alternatives(&mut parts, 0, Begun::Prefix(""))?;
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

    /// The calls of all tools, each with the rest of its beginning that `begun` leaves, and its arguments; and the rest
    /// of the list.
    fn alternatives(
        &self,
        parts: &mut Parts,
        n_before: usize,
        begun: Begun<'_>,
    ) -> Result<Option<String>, Refused> {
        let Some(calls) = self.one_of(parts, n_before, begun)? else { return Ok(None) };
        let rest = self.rest_of_list(parts)?;
        Ok(Some(format!("{calls} {rest}")))
    }

    /// The calls of all tools, each with the rest of its beginning that `begun` leaves, and its arguments.
    fn one_of(
        &self,
        parts: &mut Parts,
        n_before: usize,
        begun: Begun<'_>,
    ) -> Result<Option<String>, Refused> {
        let mut all = Vec::new();
        for (at, tool) in self.numbered() {
            let Some(begin) = opening(self.dialect, self.facts, Some(&tool.name), n_before) else {
                return Ok(None);
            };
            let Some(begin) = begun.of(&begin).map(|begin| self.begin(begin, tool, n_before))
            else {
                return Ok(None);
            };
            let Some(arguments) = self.arguments(at, tool, parts)? else { return Ok(None) };
            all.push(format!("{begin} {arguments}"));
        }
        Ok((!all.is_empty()).then(|| format!("({})", all.join(" | "))))
    }

    /// The beginning of a call, up to its arguments.
    fn begin(&self, begin: &str, tool: &Tool, n_before: usize) -> String {
        // Some models count their calls.
        let counter = match self.dialect.calls.as_ref().map(|calls| &calls.shape) {
            Some(Shape::Named(shape)) if shape.name_is_id => {
                Some((format!("{}:", tool.name), n_before.to_string()))
            }
            Some(Shape::Tagged(shape)) if shape.typed_by == TypedBy::TypeName => {
                Some((INDEX.to_owned(), "1".to_owned()))
            }
            _ => None,
        };
        let literal = |text: &str| self.literals.literal(text);
        let split = counter.and_then(|(before, number)| {
            let at = begin.find(&format!("{before}{number}"))? + before.len();
            Some((&begin[..at], &begin[at + number.len()..]))
        });
        match split {
            Some((before, behind)) => {
                format!("{} /[0-9]{{1,4}}/ {}", literal(before), literal(behind))
            }
            None => literal(begin),
        }
    }

    /// The arguments of a tool; `None`: this form cannot be held, and need not be.
    fn arguments(
        &self,
        at: usize,
        tool: &Tool,
        parts: &mut Parts,
    ) -> Result<Option<String>, Refused> {
        let path = format!("tools[{at}].function.parameters");
        let shape = match &self.dialect.calls {
            _ if self.dialect.channels => None,
            Some(calls @ Calls { shape: Shape::Tagged(shape), .. }) => {
                let literals = self.literals;
                Some(Writing::Tags { shape, call: calls.call.as_ref(), literals })
            }
            Some(Calls { shape: Shape::Python, .. }) => Some(Writing::Python),
            _ => None,
        };
        let strictness = if tool.strict { Strictness::Strict } else { Strictness::Lenient };
        let schema = object_of(&tool.parameters);
        let Some(writing) = shape else {
            let grammar = held(&path, &schema, strictness)?;
            return Ok(Some(parts.add(grammar)));
        };
        match parameters::written(&writing, &path, &schema, strictness, parts) {
            Ok(text) => Ok(Some(text)),
            Err(refused) if tool.strict => Err(refused),
            Err(_) => Ok(None),
        }
    }
}

/// The part of a call's beginning that is there already.
#[derive(Clone, Copy)]
enum Begun<'a> {
    /// Exactly this text.
    Prefix(&'a str),
    /// Everything up to the end of this text, and white space behind it.
    Behind(&'a str),
}

impl Begun<'_> {
    fn of<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Prefix(before) => text.strip_prefix(before),
            Self::Behind(marker) => Some(text.split_once(marker)?.1.trim_start()),
        }
    }
}

/// The text before the number of a call in a tag's attributes.
const INDEX: &str = "index=\"";

/// The text between two calls of a list, and behind the last.
const NEXT_IN_LIST: &str = r"/[ \n]{0,8},[ \n]{0,8}/";
const END_OF_LIST: &str = r"/[ \n]{0,8}\]/";

/// The text behind the arguments of a call that is a JSON object; the model may give it an id.
const END_OF_OBJECT: &str =
    r#"/[ \n]{0,8}(,[ \n]{0,8}"[a-z_]{1,16}":[ \n]{0,8}"[a-zA-Z0-9_-]{1,64}"[ \n]{0,8})?\}/"#;

/// A tool's schema; one without any takes an empty object.
fn object_of(schema: &Value) -> Value {
    match schema {
        Value::Object(words) if !words.is_empty() => {
            let mut words = words.clone();
            // Arguments are always an object, also where the schema does not say so.
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
