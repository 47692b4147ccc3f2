//! Control tokens in the text that a parser reads. The name of a control token begins there with a reserved
//! character, so that the same letters in ordinary tokens are a different text.

use crate::{Calls, Dialect, NamedShape, Pair, Shape, TaggedShape};

/// Begins the name of a control token. The last character of a private plane: no text has it.
pub const CONTROL: char = '\u{10fffd}';

/// A control token's name in a parser's text.
pub fn control(name: &str) -> String {
    format!("{CONTROL}{name}")
}

/// Whether a control token is in `text`.
pub fn has_control(text: &str) -> bool {
    text.contains(CONTROL)
}

/// `text` with every name of a control token told from letters; `names` as [`control`] gives them.
pub fn told(text: &str, names: &[String]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let found = names.iter().filter_map(|name| {
            let name = name.strip_prefix(CONTROL)?;
            rest.starts_with(name).then_some(name.len())
        });
        let len = match found.max() {
            Some(len) => {
                out.push(CONTROL);
                len
            }
            None => c.len_utf8(),
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out
}

/// `text` with control tokens whose names begin at these places.
pub fn with_controls(text: &str, places: &[usize]) -> String {
    let mut out = String::with_capacity(text.len() + places.len() * CONTROL.len_utf8());
    let mut from = 0;
    for place in places {
        if let Some(before) = text.get(from..*place) {
            out.push_str(before);
            out.push(CONTROL);
            from = *place;
        }
    }
    out.push_str(&text[from..]);
    out
}

/// `text` without control tokens.
pub fn without_controls(text: &str, names: &[String]) -> String {
    if !has_control(text) {
        return text.to_string();
    }
    names.iter().fold(text.to_string(), |text, name| text.replace(name.as_str(), ""))
}

/// A dialect whose markers are control tokens where the vocabulary has these.
pub fn told_dialect(dialect: &Dialect, names: &[String]) -> Dialect {
    let tell = |text: &String| told(text, names);
    let pair = |pair: &Pair| Pair { open: tell(&pair.open), close: tell(&pair.close) };
    let calls = |calls: &Calls| Calls {
        section: calls.section.as_ref().map(pair),
        call: calls.call.as_ref().map(pair),
        shape: match &calls.shape {
            Shape::Named(shape) => Shape::Named(NamedShape {
                prefix: tell(&shape.prefix),
                id: shape.id.as_ref().map(tell),
                separator: tell(&shape.separator),
                suffix: tell(&shape.suffix),
                ..shape.clone()
            }),
            Shape::Tagged(shape) => Shape::Tagged(TaggedShape {
                name: pair(&shape.name),
                end: tell(&shape.end),
                key: pair(&shape.key),
                value: pair(&shape.value),
                tag_end: shape.tag_end.as_ref().map(tell),
                ..shape.clone()
            }),
            other => other.clone(),
        },
        ..calls.clone()
    };
    Dialect {
        reasoning: dialect.reasoning.as_ref().map(pair),
        calls: dialect.calls.as_ref().map(calls),
        silent: dialect.silent.iter().map(tell).collect(),
        channels: dialect.channels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_letters_and_taken_out_again() {
        let names = ["<|a|>", "<|a|>b"].map(control).to_vec();
        let text = told("x<|a|>b<|a|><|c|>", &names);
        assert_eq!(text, format!("x{}{}<|c|>", control("<|a|>b"), control("<|a|>")));
        assert_eq!(without_controls(&with_controls("x<|a|>y", &[1]), &names), "xy");
        assert_eq!(without_controls("x<|a|>y", &names), "x<|a|>y");
        assert_eq!(with_controls("ab", &[0, 2]), format!("{CONTROL}ab{CONTROL}"));
    }
}
