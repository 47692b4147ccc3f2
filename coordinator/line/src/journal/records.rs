//! The journal's lines: one JSON object each. Log-probabilities are written as the bits of their floats: what comes
//! back is what was.

use brigade_engine::batch::SampledToken;
use brigade_sched::FinishReason;
use serde::{Deserialize, Serialize};

use super::Drawn;
use crate::numerics::Numerics;

/// A request as it was taken: enough to go on with it, and to write its answer as it was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// Name of its stream.
    pub id: String,
    /// The address that it was sent to.
    pub path: String,
    /// What stands for the API key that it belongs to, if it needed one.
    pub owner: Option<u64>,
    /// What processes call it in their logs.
    pub label: String,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// Of its first sequence; those behind count on.
    pub seed: u64,
    /// Tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Tokens of the negative prompt, where they are guided by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guide: Option<Vec<u32>>,
    /// Sequences of all prompts.
    pub sequences: usize,
    /// The request as it came.
    pub body: String,
}

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record {
    /// A request was taken.
    Open { no: u64, opened: Opened },
    /// One of its sequences drew a token.
    Token {
        no: u64,
        sequence: u32,
        token: Token,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        numerics: Option<Numerics>,
    },
    /// One of its sequences ended; with the token that it ended on, or because it was long enough.
    Finish { no: u64, sequence: u32, stop: Option<Token> },
    /// Nobody will ask for the request.
    Over { no: u64 },
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Token {
    id: u32,
    /// Bits of the log-probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logprob: Option<u32>,
    /// Token and bits of its log-probability.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    top: Vec<(u32, u32)>,
    /// Bits of mirostat's mu after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mu: Option<u32>,
}

impl From<&SampledToken> for Token {
    fn from(token: &SampledToken) -> Self {
        Self {
            id: token.id,
            logprob: token.logprob.map(f32::to_bits),
            top: token.top.iter().map(|(id, value)| (*id, value.to_bits())).collect(),
            mu: token.mu.map(f32::to_bits),
        }
    }
}

impl From<Token> for SampledToken {
    fn from(token: Token) -> Self {
        let value = |bits: Option<u32>| bits.map(f32::from_bits);
        let top = token.top.into_iter().map(|(id, bits)| (id, f32::from_bits(bits)));
        let (logprob, mu) = (value(token.logprob), value(token.mu));
        Self { id: token.id, logprob, top: top.collect(), mu }
    }
}

impl Record {
    pub fn token(no: u64, sequence: u32, token: &SampledToken, numerics: Option<Numerics>) -> Self {
        Self::Token { no, sequence, token: token.into(), numerics }
    }

    pub fn finish(no: u64, sequence: u32, reason: &FinishReason) -> Self {
        let stop = match reason {
            FinishReason::Stop(token) => Some(token.into()),
            FinishReason::Length | FinishReason::LogitsDone => None,
        };
        Self::Finish { no, sequence, stop }
    }
}

/// A request that was read back.
#[derive(Debug)]
pub(super) struct Old {
    pub opened: Opened,
    pub drawn: Vec<Drawn>,
}

impl Old {
    pub fn new(opened: Opened) -> Self {
        let drawn = vec![Drawn::default(); opened.sequences];
        Self { opened, drawn }
    }

    /// Takes in a record of one of its sequences.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Token { sequence, token, numerics, .. } => {
                if let Some(drawn) = self.drawn.get_mut(sequence as usize) {
                    drawn.numerics = numerics.or(drawn.numerics);
                    drawn.tokens.push(token.into());
                }
            }
            Record::Finish { sequence, stop, .. } => {
                if let Some(drawn) = self.drawn.get_mut(sequence as usize) {
                    let length = FinishReason::Length;
                    drawn.finish = Some(stop.map_or(length, |t| FinishReason::Stop(t.into())));
                }
            }
            Record::Open { .. } | Record::Over { .. } => {}
        }
    }
}

/// A record as a line.
pub(super) fn line(record: &Record) -> Vec<u8> {
    // Plain values in plain structs: there is nothing that JSON cannot say.
    let mut line = serde_json::to_vec(record).unwrap_or_default();
    line.push(b'\n');
    line
}

/// All lines of a request.
pub(super) fn lines(no: u64, old: &Old) -> Vec<u8> {
    let mut out = line(&Record::Open { no, opened: old.opened.clone() });
    for (drawn, sequence) in old.drawn.iter().zip(0..) {
        for token in &drawn.tokens {
            // That some were drawn by others than the last is told already.
            out.extend(line(&Record::token(no, sequence, token, drawn.numerics)));
        }
        if let Some(reason) = &drawn.finish {
            out.extend(line(&Record::finish(no, sequence, reason)));
        }
    }
    out
}
