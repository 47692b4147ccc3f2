//! Chat templates, which come with models, and conversations, which come from clients. Any pair gives a text within
//! the limits, or an error.

#![no_main]

use brigade_text::{ChatTemplate, TemplateInput, TemplateTokens};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|bytes: &[u8]| {
    let at = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let Ok(source) = std::str::from_utf8(&bytes[..at]) else { return };
    let said = String::from_utf8_lossy(&bytes[at..]);
    let tokens = TemplateTokens {
        bos: "<s>".to_string(),
        eos: "</s>".to_string(),
        strip_bos: false,
        strip_eos: false,
    };
    let Ok(template) = ChatTemplate::from_source(source, tokens) else { return };
    let messages = [
        json!({ "role": "system", "content": "Be brief." }),
        json!({ "role": "user", "content": said }),
        json!({ "role": "assistant", "content": null, "tool_calls": [
            { "id": "a", "type": "function", "function": { "name": "f", "arguments": { "x": 1 } } }] }),
        json!({ "role": "tool", "tool_call_id": "a", "content": "[1, 2]" }),
    ];
    let tools = [json!({ "type": "function", "function": { "name": "f", "parameters": {} } })];
    for n in [2, messages.len()] {
        let input = TemplateInput {
            messages: &messages[..n],
            tools: &tools,
            add_generation_prompt: n == 2,
            ..TemplateInput::default()
        };
        // The same input gives the same text, or the same refusal.
        let (first, second) = (template.render(&input), template.render(&input));
        assert_eq!(first.map_err(|e| e.to_string()), second.map_err(|e| e.to_string()));
    }
});
