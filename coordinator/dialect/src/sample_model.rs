//! The text side of a made-up model, for tests of this crate and of those above.

use brigade_text::{ChatTemplate, SpecialIds, TemplateTokens, Tokenizer, VocabData};

use crate::text_model::TextModel;

impl TextModel {
    /// A vocabulary of bytes and lower-case letters and a template without decoration.
    pub fn sample() -> Self {
        Self::sample_with("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}", &[])
    }

    /// The same with another template and further control tokens.
    pub fn sample_with(template: &str, controls: &[&str]) -> Self {
        const NORMAL: i32 = 1;
        const CONTROL: i32 = 3;
        const BYTE: i32 = 6;
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_string).to_vec();
        let mut types = vec![2, CONTROL, CONTROL];
        for byte in 0..=255u8 {
            tokens.push(format!("<0x{byte:02X}>"));
            types.push(BYTE);
        }
        for letter in ('a'..='z').chain(['\u{2581}']) {
            tokens.push(letter.to_string());
            types.push(NORMAL);
        }
        for control in controls {
            tokens.push((*control).to_string());
            types.push(CONTROL);
        }
        let scores = vec![0.0; tokens.len()];
        let ids = SpecialIds { unk: Some(0), bos: Some(1), eos: Some(2), ..SpecialIds::default() };
        let model = "llama".to_string();
        let data = VocabData { model, tokens, types, scores, ids, ..VocabData::default() };
        let tokenizer = Tokenizer::new(data).expect("the sample vocabulary is whole");
        let tokens = TemplateTokens::of(&tokenizer);
        let template = ChatTemplate::from_source(template, tokens).expect("it is valid");
        Self::new("sample".to_string(), tokenizer, Some(template))
    }
}
