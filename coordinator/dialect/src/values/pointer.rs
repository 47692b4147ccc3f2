//! The target of a schema's `$ref`: a fragment of a URI that is a JSON pointer (RFC 6901). `%XX` stands for a byte in
//! it, `~1` for a slash of a name and `~0` for a tilde.

use serde_json::Value;

/// The value in `root` to which `reference` points; `None`: it points nowhere, or outside of `root`.
pub fn pointed<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(&fragment(reference)?)
}

/// The pointer of a reference to a part of its own document, as `~` escapes it.
fn fragment(reference: &str) -> Option<String> {
    let text = reference.strip_prefix('#')?.as_bytes();
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(&byte) = text.get(at) {
        let hex = text.get(at + 1..at + 3).filter(|_| byte == b'%');
        let hex = hex.and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(hex.unwrap_or(byte));
        at += if hex.is_some() { 3 } else { 1 };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_unescaped_once() {
        let root = json!({
            "$defs": {
                "plain": 1, "a/b": 2, "m~n": 3, "Box<string>": 4, "with space": 5, "~1": 6, "%41": 7, "ü": 8, "": 9,
                "100%": 10,
            },
            "items": [{ "x": 11 }],
        });
        for (reference, value) in [
            ("#/$defs/plain", 1),
            ("#/%24defs/plain", 1),
            ("#/$defs/a~1b", 2),
            ("#/$defs/m~0n", 3),
            ("#/$defs/m%7E0n", 3),
            ("#/$defs/Box%3Cstring%3E", 4),
            ("#/$defs/Box<string>", 4),
            ("#/$defs/with%20space", 5),
            ("#/$defs/~01", 6),
            ("#/$defs/%2541", 7),
            ("#/$defs/%C3%BC", 8),
            ("#/$defs/ü", 8),
            ("#/$defs/", 9),
            ("#/$defs/100%", 10),
            ("#/items/0/x", 11),
        ] {
            assert_eq!(pointed(&root, reference), Some(&json!(value)), "{reference}");
        }
        assert_eq!(pointed(&root, "#"), Some(&root));
        for reference in
            ["#/$defs/none", "other.json#/$defs/plain", "$defs", "#/$defs/%FF", "#plain"]
        {
            assert_eq!(pointed(&root, reference), None, "{reference}");
        }
    }
}
