//! A value of the file in the form of command-line arguments, checked by clap's own parser.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use toml::de::DeValue;

use super::options::{Kind, Opt};

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The value of a switch.
    Switch(bool),
    /// The value of an option that may be given once.
    One(String),
    /// The values of an option that may be given several times.
    List(Vec<String>),
}

impl Value {
    /// Reads the value of `option`.
    ///
    /// # Errors
    /// The value is of another kind, or the option's parser refuses it. The error is in words, without the option's name.
    pub fn read(option: &Opt, value: &DeValue<'_>) -> Result<Self, String> {
        let read = match (option.kind(), value) {
            (Kind::Switch, DeValue::Boolean(is_on)) => return Ok(Self::Switch(*is_on)),
            (Kind::Switch, _) => return Err(format!("true or false is needed, not {}", a(value))),
            (_, DeValue::Array(items)) if option.is_list() => {
                let texts = items.iter().map(|item| text(option, item.get_ref()));
                Self::List(texts.collect::<Result<_, _>>()?)
            }
            (_, one) if option.is_list() => Self::List(vec![text(option, one)?]),
            (_, one) => Self::One(text(option, one)?),
        };
        read.texts().iter().try_for_each(|text| accept(option, text)).map(|()| read)
    }

    /// The values of an option that may be given several times.
    ///
    /// # Errors
    /// As of [`Value::read`].
    pub fn list(option: &Opt, texts: Vec<String>) -> Result<Self, String> {
        texts.iter().try_for_each(|text| accept(option, text)).map(|()| Self::List(texts))
    }

    /// The texts that the command line would have behind the option's name.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::Switch(_) => &[],
            Self::One(text) => std::slice::from_ref(text),
            Self::List(texts) => texts,
        }
    }

    /// The value as arguments behind a command's name.
    pub fn arguments(&self, option: &Opt) -> Vec<String> {
        match self {
            Self::Switch(true) => vec![format!("--{}", option.key())],
            Self::Switch(false) => Vec::new(),
            _ => self.texts().iter().map(|text| format!("--{}={text}", option.key())).collect(),
        }
    }
}

/// The value's type, with an article.
fn a(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn text(option: &Opt, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) => {
            let read = i128::from_str_radix(number.as_str(), number.radix());
            read.map(|n| n.to_string()).map_err(|_| format!("{number} is too large a number"))
        }
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        other => {
            let needed = match (option.kind(), &option.choices()[..]) {
                (Kind::Integer | Kind::Number, _) => "a number".to_owned(),
                (_, []) => format!("a text such as \"{}\"", option.value_name()),
                (_, choices) => format!("one of {}", choices.join(", ")),
            };
            Err(format!("{needed} is needed, not {}", a(other)))
        }
    }
}

/// Checks `text` with the option's parser. Other options do not matter.
fn accept(option: &Opt, text: &str) -> Result<(), String> {
    let known = option.arg();
    let alone = Arg::new("it")
        .long("it")
        .action(known.get_action().clone())
        .value_parser(known.get_value_parser().clone());
    let words = ["it".to_owned(), format!("--it={text}")];
    let Err(error) = Command::new("it").arg(alone).try_get_matches_from(words) else {
        return Ok(());
    };
    if option.is_secret() {
        return Err("this value cannot be used".to_owned());
    }
    let reason = std::error::Error::source(&error).map(ToString::to_string);
    Err(match (error.kind(), reason) {
        (_, Some(reason)) => format!("{text:?}: {reason}"),
        (ErrorKind::InvalidValue, None) if option.choices().is_empty() => {
            "a text that is not empty is needed".to_owned()
        }
        (ErrorKind::InvalidValue, None) => {
            let nearest = match error.get(ContextKind::SuggestedValue) {
                Some(ContextValue::String(near)) => format!("; did you mean {near:?}?"),
                _ => String::new(),
            };
            format!("{text:?} is not one of {}{nearest}", option.choices().join(", "))
        }
        _ => format!("{text:?} cannot be used"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::options::section;
    use super::*;

    /// Reads `key = TEXT` in a section.
    fn read(name: &str, key: &str, text: &str) -> Result<Value, String> {
        let option = section(name).unwrap().option(key).expect("an option");
        Value::read(option, DeValue::parse(text).unwrap().get_ref())
    }

    #[test]
    fn values_are_what_the_command_line_would_have() {
        let one = |text: &str| Ok(Value::One(text.to_owned()));
        assert_eq!(read("serve", "ctx", "4_096"), one("4096"));
        assert_eq!(read("serve", "ctx", "0x10"), one("16"));
        assert_eq!(read("run", "temp", "0.5"), one("0.5"));
        assert_eq!(read("run", "temp", "0"), one("0"));
        assert_eq!(read("run", "repeat-last-n", "-1"), one("-1"));
        assert_eq!(read("serve", "memory", "'12G'"), one("12G"));
        assert_eq!(read("serve", "tensor-split", "'3,1'"), one("3,1"));
        assert_eq!(read("serve", "no-auth", "true"), Ok(Value::Switch(true)));
        let list =
            |texts: &[&str]| Ok(Value::List(texts.iter().map(ToString::to_string).collect()));
        assert_eq!(read("serve", "worker", "['a:1', 'b:2']"), list(&["a:1", "b:2"]));
        assert_eq!(read("serve", "worker", "'a:1'"), list(&["a:1"]));
    }

    #[test]
    fn what_no_flag_would_take_is_refused() {
        for (key, text, why) in [
            ("ctx", "-1", "-1 is not in 0..="),
            ("ctx", "true", "a number is needed, not true or false"),
            ("ctx", "[1]", "a number is needed, not a list"),
            ("keep", "5000000000", "give a size such as 2G instead"),
            ("kv-type", "'f61'", "not one of f32, f16, q8_0"),
            ("journal", "true", "one of on, off is needed"),
            ("model", "''", "a text that is not empty"),
            ("no-auth", "1", "true or false is needed, not a number"),
            ("worker", "[1.5, {}]", "not a table"),
            ("ctx", "999999999999999999999999999999999999999999", "too large"),
        ] {
            let refused = read("serve", key, text).expect_err(key);
            assert!(refused.contains(why), "{key} = {text}: {refused}");
        }
    }
}
