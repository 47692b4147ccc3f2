//! Checks that a prompt contains the texts of all messages. A template that leaves a text out does not report it, so
//! it is found here.

use serde_json::Value;

use super::arrange::{is_system, text_of};

/// Messages whose text may be found by marks; one with more of them is taken as a whole.
const MAX_SEARCHED: usize = 64;

/// Begins a mark; letters that no template looks for.
const MARK: &str = "zqbrigade";

/// The end of a mark.
const MARK_END: &str = "qz";

/// Texts that end reasoning within an earlier answer. Templates leave out the text before them.
const REASONING_ENDS: [&str; 6] =
    ["</think>", "[/THINK]", "</seed:think>", "<|END_THINKING|>", "<|inner_suffix|>", "◁/think▷"];

/// What each of them begins with: the search for one of three characters is much faster.
const END_BEGINS: [char; 3] = ['<', '[', '◁'];

/// The part of a message's text that has to be in the prompt.
fn wanted(message: &Value) -> &str {
    let text = text_of(message);
    if message.get("role").and_then(Value::as_str) != Some("assistant") {
        return text.trim();
    }
    if !text.contains(END_BEGINS) {
        return text.trim();
    }
    let behind = REASONING_ENDS.iter().filter_map(|end| text.rfind(end).map(|at| at + end.len()));
    text[behind.max().unwrap_or(0)..].trim()
}

/// Indices of messages whose text is not in `prompt` at its place, verbatim and as whole words.
pub fn not_seen(messages: &[Value], prompt: &str) -> Vec<usize> {
    let mut unseen = Vec::new();
    let mut from = 0;
    for (i, message) in messages.iter().enumerate() {
        let text = wanted(message);
        if text.is_empty() {
            continue;
        }
        let found = if unseen.len() < MAX_SEARCHED { find_apart(prompt, text, from) } else { None };
        match found {
            // Templates put system messages where they like.
            Some(at) if !is_system(message) => from = at + text.len(),
            Some(_) => {}
            None => unseen.push(i),
        }
    }
    unseen
}

/// Where `text` stands in `prompt` without being a part of longer words.
fn find_apart(prompt: &str, text: &str, from: usize) -> Option<usize> {
    let begins_word = text.chars().next().is_some_and(char::is_alphanumeric);
    let ends_word = text.chars().next_back().is_some_and(char::is_alphanumeric);
    prompt[from..].match_indices(text).map(|(at, _)| from + at).find(|at| {
        let before = prompt[..*at].chars().next_back().is_some_and(char::is_alphanumeric);
        let behind = prompt[at + text.len()..].chars().next().is_some_and(char::is_alphanumeric);
        !(begins_word && before || ends_word && behind)
    })
}

/// The text of message `i` with marks near its beginning and its end.
pub fn marked(message: &Value, i: usize) -> String {
    let (all, text) = (text_of(message), wanted(message));
    // It is a part of the other.
    let start = text.as_ptr() as usize - all.as_ptr() as usize;
    let first = text.chars().next().map_or(0, char::len_utf8);
    let last = text.chars().next_back().map_or(0, char::len_utf8);
    let (a, b) = (start + first, start + text.len().saturating_sub(last).max(first));
    let mark = |n: usize| format!("{MARK}{n}{MARK_END}");
    format!("{}{}{}{}{}", &all[..a], mark(2 * i), &all[a..b], mark(2 * i + 1), &all[b..])
}

/// The indices of `messages` whose marks are not in `prompt`.
pub fn without_marks(messages: &[usize], prompt: &str) -> Vec<usize> {
    let prompt = prompt.to_ascii_lowercase();
    let mut found = std::collections::BTreeSet::new();
    for (at, _) in prompt.match_indices(MARK) {
        let rest = &prompt[at + MARK.len()..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if rest[digits..].starts_with(MARK_END) {
            found.extend(rest[..digits].parse::<usize>());
        }
    }
    let is_lost = |i: &usize| !found.contains(&(2 * i)) || !found.contains(&(2 * i + 1));
    messages.iter().copied().filter(is_lost).collect()
}

/// How many parts of contents are written out in `prompt` as the lists and objects that they are.
pub fn written_out(prompt: &str) -> usize {
    ["'type': 'text'", "\"type\": \"text\""].iter().map(|part| prompt.matches(part).count()).sum()
}

/// Whether every word of a message is somewhere in `prompt`: where marks cannot be had.
pub fn has_words(message: &Value, prompt: &str) -> bool {
    words_are_in(wanted(message), prompt)
}

fn words_are_in(text: &str, prompt: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.all(|word| prompt.contains(word))
}

/// The first text of a message's calls that is not in `prompt`: a name, or a part of the arguments.
pub fn lost_of_calls<'m>(message: &'m Value, prompt: &str) -> Option<&'m str> {
    let calls = message.get("tool_calls").and_then(Value::as_array)?;
    calls.iter().filter_map(|call| call.get("function")).find_map(|function| {
        let name = function.get("name").and_then(Value::as_str);
        let mut texts: Vec<&str> = name.into_iter().collect();
        function.get("arguments").into_iter().for_each(|value| leaves(value, &mut texts));
        texts.into_iter().find(|text| !prompt.contains(text.trim()) && !words_are_in(text, prompt))
    })
}

fn leaves<'v>(value: &'v Value, all: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => all.push(text),
        Value::Array(list) => list.iter().for_each(|item| leaves(item, all)),
        Value::Object(map) => {
            for (key, item) in map {
                all.push(key);
                leaves(item, all);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_are_seen_in_order_and_as_whole_words() {
        let user = |text: &str| json!({ "role": "user", "content": text });
        let all = [user("hi"), user("hi"), user("this ")];
        assert_eq!(not_seen(&all, "<u>hi<u>hi<u>this<a>"), Vec::<usize>::new());
        assert_eq!(not_seen(&all, "<u>hi<u>this<a>"), [1], "hi is a part of this");
        let thought = json!({ "role": "assistant", "content": "<think>a</think> b" });
        assert!(not_seen(&[thought], "b").is_empty(), "reasoning may be left out");
    }

    #[test]
    fn all_ends_of_reasoning_are_looked_for() {
        for end in REASONING_ENDS {
            assert!(end.starts_with(END_BEGINS), "{end}");
            let thought = json!({ "role": "assistant", "content": format!("a{end} b") });
            assert_eq!(wanted(&thought), "b");
        }
    }

    #[test]
    fn marks_stand_within_the_text() {
        for (text, want) in [
            ("a", "azqbrigade6qzzqbrigade7qz"),
            ("ab", "azqbrigade6qzzqbrigade7qzb"),
            (" <x>é ", " <zqbrigade6qzx>zqbrigade7qzé "),
        ] {
            let message = json!({ "role": "user", "content": text });
            let marked = marked(&message, 3);
            assert_eq!(marked, want);
            assert!(without_marks(&[3], &marked.to_uppercase()).is_empty());
            assert_eq!(without_marks(&[3], "zqbrigade6qz zqbrigade"), [3]);
        }
    }

    #[test]
    fn calls_are_looked_for_word_by_word() {
        let call = json!({ "tool_calls": [{ "function": {
            "name": "f", "arguments": { "path": "a\nb", "n": 3, "l": ["x y"] } } }] });
        assert_eq!(lost_of_calls(&call, "f path='a\\nb' n=3 l=['x y']"), None);
        assert_eq!(lost_of_calls(&call, "f path='a\\nb' n=3 l=[]"), Some("x y"));
        assert_eq!(lost_of_calls(&json!({}), ""), None);
    }
}
