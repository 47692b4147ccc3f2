//! Replays a trace against a server, one request after the other.
//!
//! The trace has the lengths of answers, and the server their text. Later turns repeat that text, as agents do. With
//! invented text instead, no state at the end of an answer could be reused, and that reuse is one of the things to
//! measure. Draws are greedy. So two programs give different texts, but of equal lengths and with equal common
//! beginnings.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::bounds::Said;
use super::trace::Trace;

/// Tokens of prompts are below this; every model has as many.
const VOCABULARY: u32 = 200;

/// How long an answer may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(600);

/// How a server wants to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// brigade's `/v1/completions`.
    Brigade,
    /// llama-server's `/completion`. Its answers come whole: its streams leave tokens out that end inside a
    /// character. How long the first token took is its own word.
    Llama,
}

/// The results of a replay.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The tokens of each request at its end.
    pub said: Vec<Said>,
    /// Tokens of each prompt that were not computed, as the server says.
    pub cached: Vec<u32>,
    /// How long each first token took.
    pub first: Vec<Duration>,
}

struct Answer {
    tokens: Vec<u32>,
    cached: u32,
    first: Duration,
}

impl Dialect {
    fn path(self) -> &'static str {
        match self {
            Self::Brigade => "/v1/completions",
            Self::Llama => "/completion",
        }
    }

    fn body(self, prompt: &[u32], n: u32, owner: u64) -> Value {
        match self {
            Self::Brigade => json!({
                "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": true, "stream": true,
                "stream_options": { "include_usage": true }, "return_token_ids": true,
                "cache_salt": format!("owner-{owner}"),
            }),
            Self::Llama => json!({
                "prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": true, "stream": false,
                "return_tokens": true, "cache_prompt": true,
            }),
        }
    }

    /// Tokens of an event, and of the prompt those that were there, if it says so.
    fn read(self, event: &Value) -> (Vec<u32>, Option<u32>) {
        let number = |value: &Value| value.as_u64().map(|n| n as u32);
        let (tokens, cached) = match self {
            Self::Brigade => (
                &event["choices"][0]["token_ids"],
                &event["usage"]["prompt_tokens_details"]["cached_tokens"],
            ),
            Self::Llama => (&event["tokens"], &event["timings"]["cache_n"]),
        };
        let tokens = tokens.as_array().into_iter().flatten().filter_map(number).collect();
        (tokens, number(cached))
    }

    /// The payload of a line of an answer, if it has one.
    fn event(self, line: &str) -> Option<&str> {
        match self {
            Self::Brigade => line.strip_prefix("data: ").filter(|data| *data != "[DONE]"),
            Self::Llama => Some(line).filter(|line| !line.is_empty()),
        }
    }

    /// How long the first token took, where the answer says it.
    fn first(self, event: &Value) -> Option<Duration> {
        let ms = event["timings"]["prompt_ms"].as_f64().filter(|_| self == Self::Llama)?;
        Some(Duration::from_secs_f64(ms / 1e3))
    }

    fn ask(self, url: &str, body: &Value) -> Result<Answer, String> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().timeout_global(Some(ANSWERED_WITHIN)).build().into();
        let request = agent.post(format!("{url}{}", self.path()));
        let begun = Instant::now();
        let sent = request.header("content-type", "application/json").send(body.to_string());
        let mut response = sent.map_err(|error| format!("{url}: {error}"))?;
        let lines = BufReader::new(response.body_mut().as_reader()).lines();
        let (mut tokens, mut cached, mut first) = (Vec::new(), None, None);
        for line in lines {
            let line = line.map_err(|error| format!("the stream broke: {error}"))?;
            let Some(data) = self.event(&line) else { continue };
            let event: Value = serde_json::from_str(data).map_err(|e| format!("{data}: {e}"))?;
            if !event["error"].is_null() {
                return Err(event["error"].to_string());
            }
            let (more, had) = self.read(&event);
            if !more.is_empty() {
                first.get_or_insert_with(|| self.first(&event).unwrap_or(begun.elapsed()));
            }
            tokens.extend(more);
            cached = cached.or(had);
        }
        let (Some(cached), Some(first)) = (cached, first) else {
            return Err(
                "an answer without tokens, or without a count of those that were there".into()
            );
        };
        Ok(Answer { tokens, cached, first })
    }
}

/// Asks all that a trace has. `url` names the server for each request.
///
/// # Errors
/// If a request fails, or an answer is shorter than the trace says.
pub fn replay(
    trace: &Trace,
    dialect: Dialect,
    mut url: impl FnMut(usize) -> Result<String, String>,
) -> Result<Replayed, String> {
    let mut replayed = Replayed::default();
    // With the last token of each answer, which a prompt may repeat.
    let mut whole: Vec<Vec<u32>> = Vec::new();
    for (at, ask) in trace.asks.iter().enumerate() {
        let mut tokens = match ask.after {
            Some((other, n)) => whole[other][..n as usize].to_vec(),
            None => Vec::new(),
        };
        tokens.extend(trace.own(at, VOCABULARY));
        let n_prompt = tokens.len() as u32;
        let answer = dialect.ask(&url(at)?, &dialect.body(&tokens, ask.answer, ask.owner));
        let answer = answer.map_err(|error| format!("request {at}: {error}"))?;
        if answer.tokens.len() != ask.answer as usize {
            let n = answer.tokens.len();
            return Err(format!("request {at}: {n} tokens came and not {}", ask.answer));
        }
        tokens.extend(answer.tokens);
        let computed = tokens[..tokens.len() - 1].to_vec();
        replayed.said.push(Said { owner: ask.owner, tokens: computed, n_prompt });
        replayed.cached.push(answer.cached);
        replayed.first.push(answer.first);
        whole.push(tokens);
    }
    Ok(replayed)
}

/// The time that so large a share of all does not exceed, in milliseconds.
pub fn share_ms(all: &[Duration], share: f64) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_streams_are_read() {
        let timings = json!({ "cache_n": 40, "prompt_n": 3, "prompt_ms": 2.5 });
        let llama = json!({ "content": "a", "tokens": [7, 9], "timings": timings });
        assert_eq!(Dialect::Llama.read(&llama), (vec![7, 9], Some(40)));
        assert_eq!(Dialect::Llama.first(&llama), Some(Duration::from_micros(2500)));
        assert_eq!(Dialect::Llama.event("{}"), Some("{}"));
        assert_eq!(Dialect::Brigade.event("data: [DONE]"), None);
        let ours = |event| Dialect::Brigade.read(&event);
        assert_eq!(ours(json!({ "choices": [{ "token_ids": [7] }] })), (vec![7], None));
        let usage = json!({ "prompt_tokens_details": { "cached_tokens": 5 } });
        assert_eq!(ours(json!({ "choices": [], "usage": usage })), (vec![], Some(5)));
    }

    #[test]
    fn shares_of_times_are_those_of_the_sorted_ones() {
        let all: Vec<Duration> = (1..=101).rev().map(Duration::from_millis).collect();
        assert_eq!([0.5, 0.95, 1.0].map(|share| share_ms(&all, share)), [51.0, 96.0, 101.0]);
        assert_eq!(share_ms(&[], 0.5), 0.0);
    }
}
