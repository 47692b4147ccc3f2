//! Where in a chat's prompt another one is likely to go on otherwise: behind the instructions and tools, and before the last
//! message of the user.

use brigade_text::Tokenizer;
use serde_json::Value;

/// Tokens before the user's last message and before the first, as far as the template has written them as they are: the
/// position for the first one is the more important, and comes first.
pub(crate) fn borders(
    tokenizer: &Tokenizer,
    (text, tokens): (&str, &[u32]),
    messages: &[Value],
) -> Vec<u32> {
    let of_user = |message: &&Value| message["role"] == "user";
    let content = |message: &Value| Some(message["content"].as_str()?.trim().to_owned());
    let users = || messages.iter().filter(of_user).filter_map(content).filter(|c| !c.is_empty());
    // What comes before the first message may have its words as well.
    let is_before = |message: &&Value| message["role"] != "user";
    let before = messages.iter().take_while(is_before).filter_map(content);
    let begins = before.filter_map(|c| Some(text.rfind(&c)? + c.len())).max().unwrap_or(0);
    let first = users().next().and_then(|c| Some(begins + text.get(begins..)?.find(&c)?));
    let last = users().next_back().and_then(|c| text.rfind(&c));
    let mut borders: Vec<u32> = first
        .into_iter()
        .chain(last)
        .filter_map(|at| tokens_before(tokenizer, text.len() - at, tokens))
        .collect();
    borders.dedup();
    borders
}

/// Tokens before the last `rest` bytes of a text: counted from its end, because tokens at the beginning may have no text.
fn tokens_before(tokenizer: &Tokenizer, rest: usize, tokens: &[u32]) -> Option<u32> {
    let mut bytes = 0;
    for (at, token) in tokens.iter().enumerate().rev() {
        bytes += tokenizer.token_bytes(*token, true).ok()?.len();
        if bytes >= rest {
            return Some(at as u32);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
}
