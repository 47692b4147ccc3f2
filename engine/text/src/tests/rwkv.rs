//! RWKV's World tokenizer: the longest token at each place, over bytes.

use super::*;
use crate::{ChatTemplate, TemplateInput};

fn world() -> VocabData {
    let mut texts = vec!["<s>".to_string()];
    texts.extend((0..=255u8).map(|byte| format!("\\x{byte:02x}")));
    texts.extend(
        ["he", "hell", "lo", r"\n\n", "é", r"\xe4\xbd", "wor", "world", " w"].map(str::to_string),
    );
    let entries: Vec<(&str, i32, f32)> = texts
        .iter()
        .map(|text| (text.as_str(), if text == "<s>" { CONTROL } else { NORMAL }, 0.0))
        .collect();
    let mut data = data("rwkv", &entries);
    data.ids.eot = Some(260);
    data
}

fn bytes_of(t: &Tokenizer, text: &str) -> Vec<Vec<u8>> {
    let ids = t.encode(text, true, true).unwrap();
    ids.iter().map(|id| t.token_bytes(*id, true).unwrap().to_vec()).collect()
}

#[test]
fn the_longest_token_wins_at_each_place() {
    let t = build(world());
    assert_eq!(bytes_of(&t, "hello world"), [&b"hell"[..], b"o", b" w", b"o", b"r", b"l", b"d"]);
    assert_eq!(bytes_of(&t, "world\n\nhe"), [&b"world"[..], b"\n\n", b"he"]);
    // A token may end within a character.
    assert_eq!(bytes_of(&t, "你é"), [&b"\xe4\xbd"[..], b"\xa0", "é".as_bytes()]);
    // Control tokens are found by name, and nothing is put before or after.
    assert_eq!(bytes_of(&t, "<s>he"), [&b"<s>"[..], b"he"]);
    assert_eq!(t.eog(), [260], "two line ends end an answer");
}

#[test]
fn every_text_comes_back() {
    let t = build(world());
    for text in ["", "a\tb\\n'\"", "hello 你好 é\n\n\n", "\u{0}\u{7f}"] {
        let ids = t.encode(text, false, false).unwrap();
        assert_eq!(t.decode(&ids, false).unwrap(), text);
        assert_eq!(t.detokenize(&ids, false).unwrap(), text);
    }
}

#[test]
fn bytes_that_no_token_has_are_unknown() {
    let mut few = world();
    few.tokens.truncate(1 + b'h' as usize + 1);
    few.types.truncate(1 + b'h' as usize + 1);
    few.ids.eot = None;
    let t = build(few);
    assert_eq!(t.encode("hzh", false, false).unwrap(), [105, 0, 105]);
}

#[test]
fn the_name_of_its_format_is_a_template() {
    let mut named = world();
    named.chat_template = Some("rwkv-world".to_string());
    let template = ChatTemplate::from_tokenizer(&build(named)).unwrap();
    let messages = [
        serde_json::json!({ "role": "system", "content": "Be brief. " }),
        serde_json::json!({ "role": "user", "content": "Hi" }),
        serde_json::json!({ "role": "assistant", "content": "Hello\n" }),
        serde_json::json!({ "role": "user", "content": "Bye" }),
    ];
    let input = TemplateInput {
        messages: &messages,
        add_generation_prompt: true,
        ..TemplateInput::default()
    };
    let wanted = "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello\n\nUser: Bye\n\nAssistant:";
    assert_eq!(template.render(&input).unwrap(), wanted);
}
