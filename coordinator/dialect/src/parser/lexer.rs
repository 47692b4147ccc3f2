//! Finds markers in a text that has not all arrived.
//!
//! Every question here has three answers: yes, no, and that the text so far cannot tell. After the third one the
//! caller waits for more text. That is why parsing does not depend on how the text was cut.

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A marker: its place, and its number in the list asked for.
    At(usize, usize),
    /// Nothing is found so far. No match begins before this place; the text behind it may be the start of one.
    NotBefore(usize),
}

/// How a text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// The text begins with this marker of the list.
    With(usize),
    /// Perhaps with one: more text is needed.
    Perhaps,
    /// No text begins here.
    No,
}

/// Whether `text` begins with one of `markers`, the longest that does. `ended`: no text follows.
pub fn begins<S: AsRef<str>>(text: &str, markers: &[S], ended: bool) -> Begins {
    let whole = |m: &&S| !m.as_ref().is_empty() && text.starts_with(m.as_ref());
    let longest = markers.iter().filter(whole).map(|m| m.as_ref().len()).max().unwrap_or(0);
    let grows = |m: &S| m.as_ref().len() > text.len() && m.as_ref().starts_with(text);
    if !ended && markers.iter().any(grows) {
        return Begins::Perhaps;
    }
    let is_longest = |m: &S| m.as_ref().len() == longest && text.starts_with(m.as_ref());
    match markers.iter().position(is_longest) {
        Some(which) if longest > 0 => Begins::With(which),
        _ => Begins::No,
    }
}

/// As [`begins`], for a text that goes on.
pub fn begins_so_far<S: AsRef<str>>(text: &str, markers: &[S]) -> Begins {
    begins(text, markers, false)
}

/// As [`find`], for a text that goes on.
pub fn find_so_far<S: AsRef<str>>(text: &str, markers: &[S]) -> Found {
    find(text, markers, false)
}

/// The first of `markers` in `text`; of several at one place the longest. `ended`: no text follows.
pub fn find<S: AsRef<str>>(text: &str, markers: &[S], ended: bool) -> Found {
    let firsts: Vec<u8> = markers.iter().filter_map(|m| m.as_ref().bytes().next()).collect();
    for (at, byte) in text.bytes().enumerate() {
        // A marker's first byte begins a character, so `at` is a boundary.
        if !firsts.contains(&byte) {
            continue;
        }
        match begins(&text[at..], markers, ended) {
            Begins::With(which) => return Found::At(at, which),
            Begins::Perhaps => return Found::NotBefore(at),
            Begins::No => {}
        }
    }
    Found::NotBefore(text.len())
}

/// The first `n` bytes of `text`, or a few fewer, so that no character is cut.
pub fn at_most(text: &str, n: usize) -> &str {
    let mut end = n.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Length of the white space at the start of `text`.
pub fn space(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Whether a tool may be called this: what templates and other servers allow, and no markup.
pub fn is_name(text: &str) -> bool {
    let fits =
        |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/' | '@' | '$');
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && text.chars().all(fits)
}

/// Longest name of a tool in bytes; OpenAI allows 64 characters.
pub const MAX_NAME_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_found_once_it_is_certain() {
        let markers = ["<a>", "<a>b", "<|x|>"];
        assert_eq!(find("text <a>", &markers, false), Found::NotBefore(5), "it may become <a>b");
        assert_eq!(find("text <a>", &markers, true), Found::At(5, 0));
        assert_eq!(find("text <a>c", &markers, false), Found::At(5, 0));
        assert_eq!(find("text <a>b", &markers, false), Found::At(5, 1));
        assert_eq!(find("a < b <| c", &markers, false), Found::NotBefore(10));
        assert_eq!(find("é <|x", &markers, false), Found::NotBefore(3));
        assert_eq!(find("é <|x", &markers, true), Found::NotBefore(6));
    }

    #[test]
    fn empty_markers_are_never_there() {
        assert_eq!(begins("abc", &["", "x"], false), Begins::No);
        assert_eq!(find("abc", &[""], false), Found::NotBefore(3));
    }

    #[test]
    fn names_are_words() {
        assert!(is_name("get_weather") && is_name("ns.tool-2:3"));
        assert!(!is_name("") && !is_name("a b") && !is_name("<x>") && !is_name("a\"b"));
    }
}
