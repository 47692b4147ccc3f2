//! Positions of a chat's prompt at which other chats are likely to differ: where the client marks it, behind the
//! instructions and tools, and before the user's last message.

use brigade_text::Tokenizer;
use serde_json::Value;

/// The places of a chat that its client marks: other chats are likely to differ there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Whether the end of instructions and tools is marked.
    pub tools: bool,
    /// Marked ends of texts in messages.
    pub ends: Vec<TextEnd>,
}

/// A place in the text of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextEnd {
    /// Number of the message.
    pub message: usize,
    /// Bytes of its content before the place.
    pub bytes: usize,
}

/// Messages whose text is looked for in vain: the others are not looked for.
const MOST_MISSES: usize = 16;

/// The positions of borders in a prompt's tokens, the more important first, and the position of the last mark.
/// Borders are the client's marks, the user's first message and the user's last one. Borders that the template has
/// rewritten are not found.
pub(crate) fn borders(
    tokenizer: &Tokenizer,
    text: &str,
    tokens: &[u32],
    messages: &[Value],
    marked: &Marked,
) -> (Vec<u32>, u32) {
    let of_user = |message: &&Value| message["role"] == "user";
    let content = |message: &Value| Some(message["content"].as_str()?.trim().to_owned());
    let users = || messages.iter().filter(of_user).filter_map(content).filter(|c| !c.is_empty());
    // Text before the first message may contain its words as well.
    let is_before = |message: &&Value| message["role"] != "user";
    let before = messages.iter().take_while(is_before).filter_map(content);
    let begins = before.filter_map(|c| Some(text.rfind(&c)? + c.len())).max().unwrap_or(0);
    let first = users().next().and_then(|c| Some(begins + text.get(begins..)?.find(&c)?));
    let last = users().next_back().and_then(|c| text.rfind(&c));
    let of_tools = marked.tools.then(|| first.or_else(|| behind_instructions(text, messages)));
    let of_tools = of_tools.flatten();
    let marked: Vec<usize> =
        of_tools.into_iter().chain(marked_places(text, messages, marked)).collect();
    let places: Vec<usize> = marked.iter().copied().chain(first).chain(last).collect();
    let rests: Vec<usize> = places.iter().map(|at| text.len() - at).collect();
    let found = tokens_before(tokenizer, &rests, tokens);
    let last_marked = found[..marked.len()].iter().flatten().max().copied().unwrap_or(0);
    let mut borders: Vec<u32> = Vec::new();
    for at in found.into_iter().flatten() {
        if !borders.contains(&at) {
            borders.push(at);
        }
    }
    (borders, last_marked)
}

/// Where instructions and tools end in a chat whose user has said nothing in words: before the first text of anybody
/// else, or behind the instructions.
fn behind_instructions(text: &str, messages: &[Value]) -> Option<usize> {
    let instructs =
        |message: &&Value| message["role"] == "system" || message["role"] == "developer";
    let content = |message: &Value| {
        let trimmed = message["content"].as_str()?.trim().to_owned();
        (!trimmed.is_empty()).then_some(trimmed)
    };
    let instructions = messages.iter().take_while(instructs).filter_map(content);
    let end = instructions.filter_map(|c| Some(text.rfind(&c)? + c.len())).max();
    let others = || messages.iter().skip_while(instructs).filter_map(content);
    let from = end.unwrap_or(0);
    let other = others().find_map(|c| Some(from + text.get(from..)?.find(&c)?));
    other.or(end)
}

/// Where in a text the places stand that the client marked in messages.
fn marked_places(text: &str, messages: &[Value], marked: &Marked) -> Vec<usize> {
    let ends = &marked.ends;
    let Some(last) = ends.iter().map(|end| end.message).max() else { return Vec::new() };
    let (mut places, mut from, mut misses) = (Vec::new(), 0, 0);
    for (i, message) in messages.iter().enumerate().take(last + 1) {
        let Some(content) = message["content"].as_str() else { continue };
        let trimmed = content.trim();
        let Some(at) = text[from..].find(trimmed).filter(|_| !trimmed.is_empty()) else {
            misses += usize::from(!trimmed.is_empty());
            if misses > MOST_MISSES {
                break;
            }
            continue;
        };
        let (begins, n_cut) = (from + at, content.len() - content.trim_start().len());
        from = begins + trimmed.len();
        let of_it = ends.iter().filter(|end| end.message == i);
        places.extend(of_it.map(|end| (begins + end.bytes.saturating_sub(n_cut)).min(from)));
    }
    places
}

/// Tokens before the last so many bytes of a text, for each of `rests`: counted from its end, because tokens at the beginning
/// may have no text.
fn tokens_before(tokenizer: &Tokenizer, rests: &[usize], tokens: &[u32]) -> Vec<Option<u32>> {
    let mut found = vec![None; rests.len()];
    let mut left: Vec<usize> = (0..rests.len()).collect();
    left.sort_by_key(|i| std::cmp::Reverse(rests[*i]));
    let mut bytes = 0;
    for (at, token) in tokens.iter().enumerate().rev() {
        if left.is_empty() {
            break;
        }
        let Ok(of_token) = tokenizer.token_bytes(*token, true) else { break };
        bytes += of_token.len();
        while let Some(i) = left.pop_if(|i| rests[*i] <= bytes) {
            found[i] = Some(at as u32);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Marked, TextEnd};
    use crate::text_model::{Chat, TextModel};

    #[test]
    fn borders_stand_behind_the_instructions_and_before_the_last_message() {
        let model = TextModel::sample();
        let messages = vec![
            json!({ "role": "system", "content": "Say hello." }),
            json!({ "role": "user", "content": "hello" }),
            json!({ "role": "assistant", "content": "hello there" }),
            json!({ "role": "user", "content": " hello \n" }),
        ];
        let chat = Chat { messages: messages.clone(), ..Chat::default() };
        let prompt = model.encode_chat(&chat).unwrap();
        let text =
            |n: u32| model.tokenizer().detokenize(&prompt.tokens[..n as usize], true).unwrap();
        let [first, last] = prompt.borders[..] else { panic!("{:?}", prompt.borders) };
        let (first, last) = (text(first), text(last));
        assert!(first.contains("Say hello.") && !first.ends_with("hello"), "{first}");
        assert!(last.starts_with(&first) && last.contains("hello there"), "{first} {last}");
        // One message has one border.
        let alone = Chat { messages: messages[1..2].to_vec(), ..Chat::default() };
        assert_eq!(model.encode_chat(&alone).unwrap().borders.len(), 1);
    }

    #[test]
    fn a_mark_on_a_tool_needs_no_words_of_the_user() {
        let model = TextModel::sample();
        let prompt = |messages: Vec<serde_json::Value>| {
            let marked = Marked { tools: true, ends: Vec::new() };
            let prompt = model.encode_chat(&Chat { messages, marked, ..Chat::default() }).unwrap();
            let before = &prompt.tokens[..prompt.marked as usize];
            (prompt.borders.clone(), model.tokenizer().detokenize(before, true).unwrap())
        };
        let system = json!({ "role": "system", "content": "Say hello." });
        let silent = json!({ "role": "user", "content": " " });
        let answer = json!({ "role": "assistant", "content": "hello there" });
        let (borders, before) = prompt(vec![system.clone(), silent.clone(), answer]);
        assert_eq!(borders.len(), 1);
        assert!(before.contains("Say hello.") && !before.contains("hello there"), "{before}");
        let (_, before) = prompt(vec![system, silent.clone()]);
        assert!(before.ends_with("Say hello."), "{before}");
        assert!(prompt(vec![silent]).0.is_empty(), "nothing is known of it");
    }

    #[test]
    fn marked_places_come_first_and_the_last_of_them_is_known() {
        let model = TextModel::sample();
        let messages = vec![
            json!({ "role": "system", "content": "Say hello. Say it once." }),
            json!({ "role": "user", "content": "hello" }),
            json!({ "role": "assistant", "content": "hello there" }),
            json!({ "role": "user", "content": "hello" }),
        ];
        let marked = |tools, ends: &[(usize, usize)]| {
            let ends = ends.iter().map(|&(message, bytes)| TextEnd { message, bytes }).collect();
            let marked = Marked { tools, ends };
            let chat = Chat { messages: messages.clone(), marked, ..Chat::default() };
            model.encode_chat(&chat).unwrap()
        };
        let plain = marked(false, &[]);
        assert_eq!(plain.marked, 0);
        let prompt = marked(false, &[(0, "Say hello.".len()), (2, "hello there".len())]);
        let text =
            |n: u32| model.tokenizer().detokenize(&prompt.tokens[..n as usize], true).unwrap();
        assert_eq!(prompt.tokens, plain.tokens);
        let (of_system, of_answer) = (text(prompt.borders[0]), text(prompt.borders[1]));
        assert!(of_system.ends_with("Say hello."), "{of_system}");
        assert!(of_answer.ends_with("hello there"), "{of_answer}");
        assert_eq!(prompt.borders[2..], plain.borders);
        assert_eq!(prompt.marked, prompt.borders[1]);
        let of_tools = marked(true, &[]);
        assert_eq!((of_tools.marked, &of_tools.borders), (plain.borders[0], &plain.borders));
        assert_eq!(marked(false, &[(9, 3)]).borders, plain.borders, "no such message");
    }
}
