//! Classifier-free guidance, by the names that transformers have for it: `guidance_scale` says how much the answer should be
//! unlike `negative_prompt`.

use std::sync::Arc;

use brigade_line::request::{Guiding, Limits};
use brigade_text::TextError;

use crate::error::ApiError;
use crate::request::fields::Fields;

/// The sequence beside an answer's own, which guides its draws. By default there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Companion {
    /// The guidance with its tokens, once the endpoint has its prompt.
    guiding: Option<Guiding>,
    /// Text that the answer is steered away from.
    negative_prompt: Option<String>,
}

impl Companion {
    /// Reads `guidance_scale` and `negative_prompt`. A scale of 1 is off.
    pub fn read(fields: &mut Fields<'_>, limits: &Limits) -> Result<Self, ApiError> {
        let scale: Option<f32> = fields.take("guidance_scale")?;
        let negative_prompt: Option<String> = fields.take("negative_prompt")?;
        limits.check_text(negative_prompt.as_ref().map_or(0, String::len))?;
        match (scale, negative_prompt) {
            (None, Some(text)) if !text.is_empty() => {
                let message = "negative_prompt has no effect without guidance_scale: add one above 1, such as 1.5";
                Err(ApiError::field("negative_prompt", message))
            }
            (None | Some(1.0), _) => Ok(Self::default()),
            (Some(scale), negative_prompt) => {
                let guiding = Some(Guiding { scale, negative: None });
                Ok(Self { guiding, negative_prompt })
            }
        }
    }

    /// How the draws of one answer are guided.
    pub fn of_drawing(&self) -> Option<Guiding> {
        self.guiding.clone()
    }

    /// Tokens of the guide's prompt, once they are known, for the next coordinator.
    pub fn tokens(&self) -> Option<Vec<u32>> {
        Some(self.guiding.as_ref()?.negative.as_ref()?.to_vec())
    }

    /// Sets the guide's prompt to the one in the journal.
    pub fn set_tokens(&mut self, tokens: &[u32]) {
        if let Some(guiding) = &mut self.guiding {
            guiding.negative = Some(tokens.into());
        }
    }

    /// Answers are guided by what `encode` makes of the negative prompt, unless its tokens are known already.
    ///
    /// # Errors The errors of `encode`.
    pub fn encode(
        &mut self,
        encode: impl FnOnce(&str) -> Result<Vec<u32>, TextError>,
    ) -> Result<(), ApiError> {
        if let (Some(guiding), Some(negative)) = (&mut self.guiding, &self.negative_prompt)
            && guiding.negative.is_none()
        {
            let tokens: Arc<[u32]> = encode(negative)?.into();
            guiding.negative = Some(tokens);
        }
        Ok(())
    }

    /// A prompt whose own log-probabilities are wanted is not drawn.
    ///
    /// # Errors
    /// The request is to be guided.
    pub fn check_drawn(&self) -> Result<(), ApiError> {
        if self.guiding.is_none() {
            return Ok(());
        }
        let message = "guidance_scale is for generated tokens: for log-probabilities of the prompt leave out guidance_scale, or echo";
        Err(ApiError::unsupported("guidance_scale", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Companion, String> {
        let mut fields = Fields::parse(json.as_bytes()).unwrap();
        let limits = Limits { n_ctx: 4096, n_vocab: 100, answer: 1024, encoder: None };
        Companion::read(&mut fields, &limits).map_err(|e| e.body()["error"]["message"].to_string())
    }

    #[test]
    fn a_scale_of_one_guides_nothing_and_a_negative_prompt_needs_a_scale() {
        for json in
            ["{}", r#"{"guidance_scale": 1, "negative_prompt": "a"}"#, r#"{"negative_prompt": ""}"#]
        {
            assert_eq!(read(json).unwrap(), Companion::default(), "{json}");
        }
        let mut companion = read(r#"{"guidance_scale": 1.5, "negative_prompt": "a"}"#).unwrap();
        companion.encode(|text| Ok(vec![text.len() as u32])).unwrap();
        let negative = Some([1].into());
        assert_eq!(companion.of_drawing(), Some(Guiding { scale: 1.5, negative }));
        let mut companion = read(r#"{"guidance_scale": 0}"#).unwrap();
        companion.encode(|_| unreachable!("there is no text")).unwrap();
        assert_eq!(companion.of_drawing(), Some(Guiding { scale: 0.0, negative: None }));
        let why = read(r#"{"negative_prompt": "a"}"#).unwrap_err();
        assert!(why.contains("guidance_scale: add one"), "{why}");
        let long = format!(
            r#"{{"guidance_scale": 2, "negative_prompt": "{}"}}"#,
            "x".repeat(4096 * 256 + 1)
        );
        assert!(read(&long).unwrap_err().contains("1048577 bytes"));
    }
}
