//! Parses a streamed answer: bytes to lines, lines to new text.

use anyhow::{Context, Result, bail};
use axum::body::{Body, BodyDataStream};
use bytes::BytesMut;
use serde::Deserialize;
use tokio_stream::StreamExt;

/// The longest line of a stream; a server that sends a longer one is not understood.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The events of a server's answer.
#[derive(Debug)]
pub struct Events {
    body: BodyDataStream,
    /// The bytes after the last complete line.
    rest: BytesMut,
}

/// The new parts of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// New text of the answer.
    pub text: String,
    /// New text of the reasoning.
    pub reasoning: String,
    /// Counts of tokens; only in the last event.
    pub usage: Option<Usage>,
}

/// Tokens of an answer.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    #[serde(default)]
    pub completion_tokens: u32,
    /// Where the prompt's tokens came from.
    #[serde(default)]
    pub prompt_tokens_details: Option<Details>,
}

/// Where a prompt's tokens came from.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Details {
    /// Tokens of the prompt that were taken from a kept state.
    #[serde(default)]
    pub cached_tokens: Option<u32>,
}

/// The fields of a streamed chunk that a chat needs.
#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
}

#[derive(Debug, Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    /// The same, as other servers call it; some send both.
    reasoning: Option<String>,
}

impl Events {
    /// Reads the events of an answer's body.
    pub fn of(body: Body) -> Self {
        Self { body: body.into_data_stream(), rest: BytesMut::new() }
    }

    /// The next event; `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// The server reports a failure, is gone, or sends something other than a chat.
    pub async fn next(&mut self) -> Result<Option<News>> {
        loop {
            while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line = self.rest.split_to(end + 1);
                match data(&line)? {
                    Some("[DONE]") => return Ok(None),
                    Some(data) => return Ok(Some(News::read(data)?)),
                    None => {}
                }
            }
            if self.rest.len() > MAX_LINE_BYTES {
                bail!("the server sent a line of more than {MAX_LINE_BYTES} bytes");
            }
            match self.body.next().await {
                Some(bytes) => self.rest.extend_from_slice(&bytes.context("the answer broke off")?),
                None => bail!("the answer broke off before its end"),
            }
        }
    }
}

/// The payload of a line, if it is a data line. The other lines are comments, names and empty ones.
fn data(line: &[u8]) -> Result<Option<&str>> {
    let line = std::str::from_utf8(line).context("the server sent a line that is not UTF-8")?;
    Ok(line.strip_prefix("data:").map(str::trim))
}

impl News {
    fn read(data: &str) -> Result<Self> {
        let chunk: Chunk = serde_json::from_str(data)
            .context("the server sent an event that is not a chunk of a chat completion")?;
        if let Some(error) = chunk.error {
            bail!("{}", message(&error));
        }
        let mut news = Self { usage: chunk.usage, ..Self::default() };
        if let Some(Choice { delta }) = chunk.choices.into_iter().next() {
            news.text = delta.content.unwrap_or_default();
            news.reasoning = delta.reasoning_content.or(delta.reasoning).unwrap_or_default();
        }
        Ok(news)
    }
}

/// The words of an error: OpenAI's object, or a text.
pub fn message(error: &serde_json::Value) -> String {
    let words = error.get("message").unwrap_or(error);
    words.as_str().map_or_else(|| words.to_string(), str::to_string)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;

    use super::*;

    fn of_pieces(text: &str, size: usize) -> Events {
        let pieces: Vec<_> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        let pieces = pieces.into_iter().map(Ok::<_, Infallible>);
        Events::of(Body::from_stream(tokio_stream::iter(pieces)))
    }

    #[tokio::test]
    async fn an_answer_is_the_same_in_pieces_of_any_size() {
        let stream = ": wait\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n\
            data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"\u{e9}t\u{e9}\"}}]}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\
            \"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\ndata: [DONE]\n\n";
        for size in 1..stream.len() {
            let mut events = of_pieces(stream, size);
            let (mut text, mut reasoning, mut usage) = (String::new(), String::new(), None);
            while let Some(news) = events.next().await.unwrap() {
                text.push_str(&news.text);
                reasoning.push_str(&news.reasoning);
                usage = news.usage.or(usage);
            }
            assert_eq!((text.as_str(), reasoning.as_str()), ("\u{e9}t\u{e9}", "hm"), "{size}");
            let usage: Usage = usage.unwrap();
            assert_eq!(usage.prompt_tokens_details.unwrap().cached_tokens, Some(3), "{size}");
        }
    }

    #[tokio::test]
    async fn failures_are_told_in_the_servers_words() {
        let failed = "data: {\"error\":{\"message\":\"no line\",\"type\":\"x\"}}\n\n";
        let error = of_pieces(failed, 9).next().await.unwrap_err();
        assert_eq!(error.to_string(), "no line");
        let error = of_pieces("data: {\"choices\":[]}", 9).next().await.unwrap_err();
        assert!(error.to_string().contains("broke off"));
        assert!(of_pieces("data: <html>\n", 9).next().await.is_err());
    }
}
