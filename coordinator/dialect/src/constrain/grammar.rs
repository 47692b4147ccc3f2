//! Puts the text of a grammar together from independent parts.

use serde_json::{Value, json};

/// A grammar with parts: in Lark a part is named `@NAME`.
#[derive(Clone, Debug, PartialEq)]
pub struct Grammar {
    main: Value,
    parts: Vec<Value>,
}

impl Grammar {
    /// A text in Lark, with a rule `start`.
    pub fn lark(text: impl Into<String>) -> Self {
        Self { main: json!({ "lark_grammar": text.into() }), parts: Vec::new() }
    }

    /// JSON by a schema.
    pub fn json(schema: Value) -> Self {
        Self { main: json!({ "json_schema": schema }), parts: Vec::new() }
    }

    /// Adds `part`, which the text may call `@name`; names are letters, digits and `_`.
    pub fn with(mut self, name: &str, part: Self) -> Self {
        let Self { mut main, parts } = part;
        if let Some(fields) = main.as_object_mut() {
            fields.insert("name".to_string(), Value::from(name));
        }
        self.parts.push(main);
        self.parts.extend(parts);
        self
    }

    /// The grammar's text, as the last stage compiles it.
    pub fn text(&self) -> String {
        let all: Vec<&Value> = std::iter::once(&self.main).chain(&self.parts).collect();
        json!({ "grammars": all }).to_string()
    }
}

/// White space that models put between the parts of a call.
pub const SPACE: &str = r"/[ \n]{1,8}/";

/// How texts are written as grammar: names of control tokens in them are those tokens.
pub trait Literals {
    /// `text` as a sequence of literals and tokens.
    fn literal(&self, text: &str) -> String;
    /// Whether all of `text` is text.
    fn is_plain(&self, text: &str) -> bool;
}

/// Grammars of values, and rules, beside the one that is written.
#[derive(Default)]
pub struct Parts {
    grammars: Vec<Grammar>,
    rules: Vec<String>,
}

impl Parts {
    /// Adds a grammar; what calls it.
    pub fn add(&mut self, grammar: Grammar) -> String {
        let same = self.grammars.iter().position(|other| *other == grammar);
        let at = same.unwrap_or_else(|| {
            self.grammars.push(grammar);
            self.grammars.len() - 1
        });
        format!("@part_{at}")
    }

    /// Adds a rule, given from behind its name on; what calls it.
    pub fn rule(&mut self, text: &str) -> String {
        let name = format!("text_{}", self.rules.len());
        self.rules.push(format!("{name}{text}"));
        name
    }

    /// The grammar with this rule first.
    pub fn into_grammar(self, start: String) -> Grammar {
        let text = std::iter::once(start).chain(self.rules).collect::<Vec<_>>().join("\n");
        let numbered = self.grammars.into_iter().enumerate();
        numbered.fold(Grammar::lark(text), |all, (at, part)| all.with(&format!("part_{at}"), part))
    }
}

/// A text as a literal of Lark.
pub fn quote(text: &str) -> String {
    // JSON's escapes are Lark's, but that the last control character of ASCII needs one too.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
