//! Reads a JSON request body field by field, so that every complaint names its field.
//!
//! A field stays text until it is read as what it is, because a tree of values would take forty times the body's
//! size. Lists and objects are counted while they are read. Known fields that would change the answer and have no
//! effect here are refused by name ([`Fields::refuse`]). Every endpoint ends with what it leaves unread and why
//! ([`Fields::end`]). Unknown fields are ignored, since client libraries send new fields every month, but the log
//! names each of them once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Mutex;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::request::value::{FieldValue, reason};
pub use crate::request::value::{Given, Kind};

/// Most fields of a request, and of one object in it.
pub const MAX_FIELDS: usize = 256;

/// Most values that one request may hand to the chat template beside texts: fields of messages that this server
/// does not know, and `chat_template_kwargs`. Each takes some 200 bytes.
pub const MAX_TEMPLATE_VALUES: usize = 1 << 16;

/// The fields of a JSON object that have not been read yet.
#[derive(Debug)]
pub struct Fields<'a> {
    fields: Vec<(String, Given<'a>)>,
    /// Where the object sits in the body, as a prefix for names: `messages[2].`.
    prefix: String,
}

impl<'a> Fields<'a> {
    /// Parses a whole request body.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let whole: &RawValue = serde_json::from_slice(body).map_err(|e| {
            ApiError::bad_request(format!("the request body is not valid JSON: {e}"))
        })?;
        let whole = Given::Text(whole);
        if whole.kind() != Kind::Object {
            let message = format!("the request body must be a JSON object, not {}", whole.kind());
            return Err(ApiError::bad_request(message));
        }
        Self::of_whole(entries(whole, MAX_FIELDS))
    }

    /// Fields of a body that was translated from another interface.
    pub fn made(fields: &'a Map<String, Value>) -> Result<Self, ApiError> {
        Self::of_whole(entries_of(fields, MAX_FIELDS))
    }

    fn of_whole(fields: Result<Vec<(String, Given<'a>)>, String>) -> Result<Self, ApiError> {
        let fields =
            fields.map_err(|why| ApiError::bad_request(format!("the request body: {why}")))?;
        Ok(Self { fields, prefix: String::new() })
    }

    /// An object inside the body; `path` is its name there.
    pub fn nested(path: &str, value: Given<'a>) -> Result<Self, ApiError> {
        if value.kind() != Kind::Object {
            let message = format!("{path} must be an object, not {}", value.kind());
            return Err(ApiError::field(path, message));
        }
        let fields = entries(value, MAX_FIELDS).map_err(|why| wrong(path, &why))?;
        Ok(Self { fields, prefix: format!("{path}.") })
    }

    /// Whether the field is there and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, value)| field == name && value.kind() != Kind::Null)
    }

    /// Names of the fields that are left.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// The full name of a field of this object.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Removes a field as it is, unread; `null` counts as absent.
    pub fn raw(&mut self, name: &str) -> Option<Given<'a>> {
        let at = self.fields.iter().position(|(field, _)| field == name)?;
        Some(self.fields.remove(at).1).filter(|value| value.kind() != Kind::Null)
    }

    /// Puts a field back for [`Self::into_rest`].
    pub fn put_back(&mut self, name: &str, value: Given<'a>) {
        self.fields.push((name.to_string(), value));
    }

    /// Reads an optional field of type `T`; lists and objects have [`list`] and [`entries`].
    pub fn take<T: FieldValue>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        read(&self.path(name), value).map(Some)
    }

    /// Reads a field that has several names: the first one present counts, and the others must be of its kind too.
    pub fn take_any<T: FieldValue>(&mut self, names: &[&str]) -> Result<Option<T>, ApiError> {
        let mut first = None;
        for name in names {
            let value = self.take(name)?;
            first = first.or(value);
        }
        Ok(first)
    }

    /// Reads a field that must be there.
    pub fn require<T: FieldValue>(&mut self, name: &str) -> Result<T, ApiError> {
        let value = self.require_raw(name)?;
        read(&self.path(name), value)
    }

    /// A field that must be there, unread.
    pub fn require_raw(&mut self, name: &str) -> Result<Given<'a>, ApiError> {
        self.raw(name).ok_or_else(|| {
            let path = self.path(name);
            ApiError::field(&path, format!("{path} is required"))
        })
    }

    /// Refuses a field that would change the answer and that this server does not implement.
    /// Values that ask for nothing (`false`, `""`, `[]`, `{}`) pass.
    pub fn refuse(&mut self, name: &str, why: &str) -> Result<(), ApiError> {
        let Some(value) = self.raw(name) else { return Ok(()) };
        if value.asks_nothing() {
            return Ok(());
        }
        let path = self.path(name);
        Err(ApiError::unsupported(&path, format!("{path} is not supported: {why}")))
    }

    /// Reads a field that means nothing here, so that it is of its kind at least; `why` is for who reads this.
    pub fn leave<T: FieldValue>(&mut self, name: &str, _why: &'static str) -> Result<(), ApiError> {
        self.take::<T>(name).map(drop)
    }

    /// Leaves all that is left of an object that means nothing as a whole.
    pub fn leave_all(&mut self) {
        self.fields.clear();
    }

    /// Ends an object. Fields that are left must be among `unread`, the fields without effect here, each with the
    /// reason. The log names every other one once.
    pub fn end(self, endpoint: &'static str, unread: &[Unread]) {
        for (name, _) in self.fields {
            if !unread.iter().flat_map(|list| list.iter()).any(|(known, _)| *known == name) {
                unknown(endpoint, &format!("{}{name}", self.prefix));
            }
        }
    }

    /// Logs the unread and unknown fields of a message: the chat template gets them, but may not write them. Returns
    /// whether there is such a field.
    pub fn tell_for_template(&self, known: &[&str], unread: Unread) -> bool {
        let mut is_told = false;
        for (name, _) in &self.fields {
            let is_known = known.contains(&name.as_str()) || unread.iter().any(|(n, _)| n == name);
            if !is_known {
                for_template(&format!("{}{name}", self.prefix), name);
                is_told = true;
            }
        }
        is_told
    }

    /// The fields that were not read, in order, for the chat template. Their values are counted against the limit
    /// `left`.
    pub fn into_rest(self, left: &mut usize) -> Result<Map<String, Value>, ApiError> {
        let Self { fields, prefix } = self;
        let value = |(name, raw): (String, Given<'_>)| {
            let value = tree(&format!("{prefix}{name}"), raw, left)?;
            Ok((name, value))
        };
        fields.into_iter().map(value).collect()
    }
}

/// Reads `value`, which is called `path`.
///
/// # Errors
/// The value is something else. The error has its name.
pub fn read<T: FieldValue>(path: &str, value: Given<'_>) -> Result<T, ApiError> {
    T::of(path, value)
}

/// Fields of an API that mean nothing here, and why.
pub type Unread = &'static [(&'static str, &'static str)];

/// The same as [`Fields::end`] for an object `path` that was read as a tree: logs its fields that are not in `read`.
pub fn report(endpoint: &'static str, path: &str, object: &Value, read: &[&str], unread: Unread) {
    for name in object.as_object().into_iter().flat_map(Map::keys) {
        let is_known =
            read.contains(&name.as_str()) || unread.iter().any(|(known, _)| known == name);
        if !is_known {
            unknown(endpoint, &format!("{path}.{name}"));
        }
    }
}

/// Something that a request asks for in vain, and that its program expects to be left out: a word in the log, once.
pub fn left_out(endpoint: &'static str, path: &str, what: &str) {
    if is_new(endpoint, what) {
        let what: String = what.chars().take(MAX_NAMED_CHARS).collect();
        tracing::info!(
            endpoint,
            field = path,
            what,
            "a request has tools that a provider would run: this server runs none and leaves them out"
        );
    }
}

/// Characters of such a name that it repeats.
const MAX_NAMED_CHARS: usize = 64;

/// Most names of fields that the log has named: a client could make them up.
const MAX_NAMED: usize = 256;

/// Unknown fields that the log has named.
static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Logs a field that this server does not know, once.
fn unknown(endpoint: &'static str, path: &str) {
    #[cfg(test)]
    tests::UNKNOWN.with_borrow_mut(|paths| paths.push(path.to_string()));
    if is_new(endpoint, path) {
        let field: String = path.chars().take(MAX_NAMED_CHARS).collect();
        tracing::info!(
            endpoint,
            field,
            "a request has a field that is not known here: it is left unread"
        );
    }
}

/// A field of a message that only the chat template could know: a word in the log, once.
fn for_template(path: &str, name: &str) {
    #[cfg(test)]
    tests::UNKNOWN.with_borrow_mut(|paths| paths.push(path.to_string()));
    if is_new("messages", name) {
        let field: String = path.chars().take(MAX_NAMED_CHARS).collect();
        tracing::info!(
            field,
            "a message has a field that is not known here: the model reads it only if its chat template writes it"
        );
    }
}

/// Whether the log has not named it yet, and still does.
fn is_new(endpoint: &'static str, what: &str) -> bool {
    // A panic while it was held has broken nothing.
    let mut named = NAMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let shown: String = what.chars().take(MAX_NAMED_CHARS).collect();
    named.len() < MAX_NAMED && named.insert(format!("{endpoint} {shown}"))
}

/// The elements of a list of at most `max`.
///
/// # Errors
/// The value is no list, or a longer one.
pub fn list<'a>(path: &str, value: Given<'a>, max: usize) -> Result<Vec<Given<'a>>, ApiError> {
    match value {
        Given::Text(raw) if value.kind() == Kind::List => {
            let mut reader = serde_json::Deserializer::from_str(raw.get());
            let elements = reader.deserialize_seq(Elements { max });
            elements.map_err(|e| wrong(path, &reason(&e)))
        }
        Given::Tree(Value::Array(elements)) if elements.len() > max => {
            Err(wrong(path, &format!("more than {max} elements")))
        }
        Given::Tree(Value::Array(elements)) => Ok(elements.iter().map(Given::Tree).collect()),
        _ => Err(ApiError::field(path, format!("{path} must be a list, not {}", value.kind()))),
    }
}

/// The fields of an object of at most `max`. One that stands there twice with different values is an error: one of them
/// would be lost without a word.
///
/// # Errors
/// Why these are none, in words that go behind the object's name.
pub fn entries(value: Given<'_>, max: usize) -> Result<Vec<(String, Given<'_>)>, String> {
    match value {
        Given::Text(raw) => {
            let mut reader = serde_json::Deserializer::from_str(raw.get());
            reader.deserialize_map(Entries { max }).map_err(|e| reason(&e))
        }
        Given::Tree(Value::Object(fields)) => entries_of(fields, max),
        Given::Tree(_) => Err(format!("it must be an object, not {}", value.kind())),
    }
}

fn entries_of(fields: &Map<String, Value>, max: usize) -> Result<Vec<(String, Given<'_>)>, String> {
    if fields.len() > max {
        return Err(format!("more than {max} fields"));
    }
    Ok(fields.iter().map(|(name, value)| (name.clone(), Given::Tree(value))).collect())
}

/// A value as a tree, of at most `left` values, which it takes away from.
pub fn tree(path: &str, value: Given<'_>, left: &mut usize) -> Result<Value, ApiError> {
    let count = match value {
        Given::Text(raw) => count_values(raw.get()),
        Given::Tree(value) => 1 + count_inner(value),
    };
    match left.checked_sub(count) {
        Some(rest) => *left = rest,
        None => {
            let message = format!(
                "{path} has {count} values: a request may hand {MAX_TEMPLATE_VALUES} to the chat template"
            );
            return Err(ApiError::field(path, message));
        }
    }
    match value {
        Given::Text(raw) => {
            let tree = serde_json::from_str(raw.get()).map_err(|e| wrong(path, &reason(&e)));
            tree.map(|Tree(value)| value)
        }
        Given::Tree(value) => Ok(value.clone()),
    }
}

/// The number of values inside the first value of a JSON text, as [`count_values`] counts them.
fn count_inner(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len().max(1) + list.iter().map(count_inner).sum::<usize>(),
        Value::Object(map) => map.len().max(1) + map.values().map(count_inner).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// An upper bound of the values in a JSON text: each but the first comes after a bracket or a comma.
fn count_values(text: &str) -> usize {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// A complaint about `path`.
fn wrong(path: &str, why: &str) -> ApiError {
    ApiError::field(path, format!("{path}: {why}"))
}

fn twice<E: serde::de::Error>(name: &str) -> E {
    E::custom(format!("{name:?} occurs twice, with different values: send one of them"))
}

/// A value whose objects have each name once.
struct Tree(Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TreeReader).map(Self)
    }
}

struct TreeReader;

impl<'de> Visitor<'de> for TreeReader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Tree(value)) = seq.next_element()? {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Tree(value))) = map.next_entry::<String, Tree>()? {
            match object.get(&name) {
                Some(known) if *known != value => return Err(twice(&name)),
                Some(_) => {}
                None => drop(object.insert(name, value)),
            }
        }
        Ok(object.into())
    }
}

struct Elements {
    max: usize,
}

impl<'de> Visitor<'de> for Elements {
    type Value = Vec<Given<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            if elements.len() == self.max {
                return Err(A::Error::custom(format!("more than {} elements", self.max)));
            }
            elements.push(Given::Text(element));
        }
        Ok(elements)
    }
}

struct Entries {
    max: usize,
}

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, Given<'de>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Vec<(String, &RawValue)> = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            match entries.iter().position(|(known, _)| *known == name) {
                Some(at) if entries[at].1.get() == value.get() => {}
                Some(_) => return Err(twice(&name)),
                None if entries.len() == self.max => {
                    return Err(A::Error::custom(format!("more than {} fields", self.max)));
                }
                None => entries.push((name, value)),
            }
        }
        Ok(entries.into_iter().map(|(name, value)| (name, Given::Text(value))).collect())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    thread_local! {
        /// Fields that were left over and are on no list, of the requests that this thread has read.
        pub static UNKNOWN: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    fn message(error: ApiError) -> String {
        error.body()["error"]["message"].as_str().unwrap().to_string()
    }

    #[test]
    fn complaints_name_the_field() {
        let mut fields =
            Fields::parse(br#"{"temperature": "hot", "n": null, "tools": [1]}"#).unwrap();
        let error = fields.take::<f32>("temperature").unwrap_err();
        assert_eq!(error.body()["error"]["param"], "temperature");
        assert!(!message(error).contains("line"), "a place in the field helps nobody");
        assert_eq!(fields.take::<u32>("n").unwrap(), None);
        assert!(message(fields.refuse("tools", "no").unwrap_err()).contains("tools"));
        assert!(
            message(fields.require::<u32>("prompt").unwrap_err()).contains("prompt is required")
        );
    }

    #[test]
    fn bodies_that_are_not_objects() {
        assert!(message(Fields::parse(b"[1]").unwrap_err()).contains("an array"));
        assert!(message(Fields::parse(b"{\"a\": ").unwrap_err()).contains("not valid JSON"));
        assert!(message(Fields::parse(b"{\"a\": \"\xff\"}").unwrap_err()).contains("not valid"));
    }

    #[test]
    fn empty_lists_ask_for_nothing() {
        let mut fields =
            Fields::parse(br#"{"tools": [ ], "a": false, "b": {}, "c": falsehood}"#.as_slice());
        assert!(fields.is_err());
        fields = Fields::parse(br#"{"tools": [ ], "a": false, "b": {}, "c": [0]}"#.as_slice());
        let mut fields = fields.unwrap();
        for name in ["tools", "a", "b"] {
            assert!(fields.refuse(name, "no").is_ok(), "{name}");
        }
        assert!(fields.refuse("c", "no").is_err());
    }

    #[test]
    fn what_grows_is_counted() {
        let many = format!("{{{}\"z\": 1}}", "\"a\": 1,".repeat(300));
        assert_eq!(Fields::parse(many.as_bytes()).unwrap().fields.len(), 2, "one of a name");
        let names: Vec<String> = (0..=MAX_FIELDS).map(|i| format!("\"f{i}\": 1")).collect();
        let error = Fields::parse(format!("{{{}}}", names.join(",")).as_bytes()).unwrap_err();
        assert!(message(error).contains("more than 256 fields"));
        let long = RawValue::from_string("[1,2,3]".to_string()).unwrap();
        assert_eq!(list("x", Given::Text(&long), 3).unwrap().len(), 3);
        assert!(message(list("x", Given::Text(&long), 2).unwrap_err()).contains("x: more than 2"));
    }

    #[test]
    fn what_stands_twice_is_not_lost() {
        let error = Fields::parse(br#"{"prompt": "a", "n": 1, "prompt": "b"}"#).unwrap_err();
        assert!(message(error).contains("\"prompt\" occurs twice"));
        let raw = |text: &str| RawValue::from_string(text.to_string()).unwrap();
        let read = |text: &str| tree("x", Given::Text(&raw(text)), &mut 100);
        for text in
            [r#"{"a": 1, "a": 2}"#, r#"[{"b": {"a": [1], "a": [2]}}]"#, r#"{"a": null, "a": 1}"#]
        {
            let error = read(text).unwrap_err();
            assert_eq!(error.body()["error"]["param"], "x");
            assert!(message(error).contains("\"a\" occurs twice"), "{text}");
        }
        let text = r#"{"z": [null, true, -3, 18446744073709551615, -0.0, 1.5e300, "\u00e4\n", {"a": 1, "a": 1}], "a": {}}"#;
        assert_eq!(read(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn trees_are_counted_before_they_are_built() {
        for (text, count) in
            [("1", 1), ("[]", 2), ("[1,[2]]", 4), (r#"{"a,\"[": 1, "b": "{,"}"#, 3)]
        {
            assert!(count_values(text) >= count && count_values(text) <= count + 1, "{text}");
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(1 + count_inner(&value), count_values(text), "{text}");
        }
        let raw = RawValue::from_string("[1,2,3]".to_string()).unwrap();
        let raw = Given::Text(&raw);
        let mut left = 6;
        assert!(tree("x", raw, &mut left).is_ok());
        assert_eq!(left, 2);
        assert!(message(tree("x", raw, &mut left).unwrap_err()).contains("chat template"));
    }
}
